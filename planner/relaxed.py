"""Cheaper questions whose answers bound a layout's price from below, whatever its ZeRO stage, shards and schedule.

    ideal     nothing but the compute of the fastest recompute policy, shared evenly by all pipeline ranks
    relaxed   every coefficient of a core at the ZeRO stage best for it, data-parallel communication for nothing

They are parts of the very same terms that price a layout. Both are used to leave most layouts unpriced.
"""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import numpy.typing as npt

from cost_models import memory_terms as memory
from cost_models.memory.device import memory_limit
from cost_models.memory_terms import MemoryTerms, memory_terms
from cost_models.question import Question
from cost_models.specs.columns import Ints, LayoutColumns
from cost_models.specs.distinct import codes_of
from cost_models.stage_costs import StageCosts
from cost_models.time_terms import TIME_PARTS, Term, TimeTerms, time_terms
from planner.group import how_many
from planner.rules import Bools
from planner.search_space import Space

Floats = npt.NDArray[np.float64]


def ideal_seconds(space: Space, allowed: Bools) -> Floats:
    """(N,) seconds that no layout of a core can undercut."""
    question, cores = space.question, space.cores
    m = cores.microbatches(question.training.global_batch)
    code = codes_of([cores.tp, cores.cp, cores.mbs, cores.ep, cores.etp, cores.sp, cores.context])
    fewest_first = np.lexsort((m, code))  # gradients are added up least often where microbatches are few
    _, first, kind = np.unique(code[fewest_first], return_index=True, return_inverse=True)
    index = np.empty(len(cores), dtype=np.int64)
    index[fewest_first] = kind.reshape(-1)
    rows = cores.rows(fewest_first[first])
    terms = time_terms(question, replace(rows, zero=np.full(len(rows), max(question.stack.zero_stages))))
    block = terms.layer_forward["compute"] + _fastest(terms.layer_backward, allowed)
    ends = [terms.embedding_forward, terms.embedding_backward, terms.head_forward, terms.head_backward]
    whole = question.model.num_layers * block + sum(end["compute"] for end in ends)
    return np.asarray(m * whole[index] / cores.pp, dtype=np.float64)


def _fastest(term: Term, allowed: Bools) -> Floats:
    """(N,) compute of a backward pass under the fastest policy."""
    both = term["compute"] + term["recompute"]
    least: Floats = np.where(allowed, both, np.inf).min(axis=-1)
    return least


def relaxed_costs(space: Space, cores: Ints, shape: Ints) -> StageCosts:
    """Costs of (N,) cores in (N, 2) shapes that no variant of them undercuts in any coefficient."""
    question, best = space.question, None
    for zero, has in space.zero_stages_of(cores):
        rows = space.rows(cores, np.zeros((len(cores), 2), dtype=np.int64), shape)
        stage = np.where(rows.replicas > 1, zero, 0)
        rows = replace(rows, zero=stage, shard=rows.replicas)
        costs = _without_data_parallel(question, rows)
        columns = {}
        for field in fields(StageCosts):
            value = getattr(costs, field.name)
            if field.name != "memory_limit":
                own = has if value.ndim == 1 else has[:, None]
                value = np.where(own, value, np.inf)
                value = value if best is None else np.minimum(value, getattr(best, field.name))
            columns[field.name] = value
        best = StageCosts(**columns)
    assert best is not None, "a core without variants is not in the space"
    return best


def _without_data_parallel(question: Question, rows: LayoutColumns) -> StageCosts:
    times, memories = time_terms(question, rows), memory_terms(question, rows)
    seconds = {field.name: _alone(getattr(times, field.name)) for field in fields(TimeTerms)}
    space = {field.name: memory.total(getattr(memories, field.name)) for field in fields(MemoryTerms)}
    every = np.zeros(len(rows))
    return StageCosts(
        **{name: value + (every if value.ndim == 1 else 0.0) for name, value in (seconds | space).items()},
        memory_limit=memory_limit(question, rows),
    )


def _alone(term: Term) -> Floats:
    """Seconds of a term without its data-parallel part and its share of the jitter."""
    own = [term[part] for part in TIME_PARTS if part in term and part not in ("dp_comm", "jitter")]
    kept: Floats = np.asarray(sum(own, start=np.zeros(1)))
    if "jitter" not in term:
        return kept
    all_of_it = kept + term.get("dp_comm", 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        slowdown = np.where(all_of_it > 0, term["jitter"] / all_of_it, 0.0)
    slowed: Floats = kept * (1 + slowdown)
    return slowed


def core_bounds(space: Space, cores: Ints, costs: StageCosts, allowed: Bools) -> Floats:
    """(N,) seconds that no layout of a core can undercut in any schedule; infinite where none can fit.

    All work is shared by pp ranks, and rank r starts no earlier than r forward passes of the shortest chunks:

        step ≥ (m · work + (pp − 1) pp / 2 · (stage + shortest chunk forward + transfer)) / pp + what follows

    Every rank holds its blocks and, at one moment, a microbatch of each.
    """
    layers, x = space.question.model.num_layers, costs
    own = space.cores.rows(cores)
    pp, m = own.pp, own.microbatches(space.question.training.global_batch)
    block_NP = np.where(allowed, x.layer_forward[:, None] + x.layer_backward, np.inf)
    ends = x.embedding_forward + x.embedding_backward + x.head_forward + x.head_backward
    work = layers * block_NP.min(axis=1) + ends + pp * (x.stage_forward + x.stage_backward)
    way = x.stage_forward + x.layer_forward + x.p2p
    follows = x.rank_sync + x.rank_optimizer + -(-layers // pp) * x.layer_optimizer + x.step_overhead
    kept = np.where(allowed, x.layer_activation, np.inf).min(axis=1)
    working = np.where(allowed, x.working, np.inf).min(axis=1)
    room = how_many(x.memory_limit - x.static - working, x.layer_static + kept)
    seconds = m * work / pp + (pp - 1) / 2 * way + follows
    bound: Floats = np.where(pp * room >= layers, seconds, np.inf)
    return bound
