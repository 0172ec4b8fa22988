"""Cheaper questions whose answers bound a layout's price from below, whatever its ZeRO stage, shards and schedule.

    ideal     compute and tensor-parallel communication under the fastest recompute policy, shared evenly by all ranks
              of a pipeline: a tensor group lies in one node, wherever the rest of the layout does
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
    backward = np.where(allowed, _inside_node(terms.layer_backward), np.inf).min(axis=-1)
    ends = [terms.embedding_forward, terms.embedding_backward, terms.head_forward, terms.head_backward]
    block = _inside_node(terms.layer_forward) + backward
    whole = question.model.num_layers * block + sum(_inside_node(end) for end in ends)
    return np.asarray(m * whole[index] / cores.pp, dtype=np.float64)


def _inside_node(term: Term) -> Floats:
    """Seconds that depend on what a tensor group does alone."""
    own = [term[part] for part in ("compute", "recompute", "tp_comm") if part in term]
    seconds: Floats = np.asarray(sum(own, start=np.zeros(1)))
    return seconds


def relaxed_costs(space: Space, cores: Ints) -> StageCosts:
    """Costs of (N,) cores that no variant of them undercuts in any coefficient."""
    question, best = space.question, None
    for zero, has in space.zero_stages_of(cores):
        rows = space.cores.rows(cores)
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

    All work is shared by pp ranks, and rank r waits r passes of the shortest chunk before its first action:

        step ≥ (m · work + (pp − 1) pp / 2 · shortest chunk and transfer) / pp + what follows

    A microbatch goes down all stages and up again, and the others pass the first stage besides:

        step ≥ all blocks + (m − 1) · shortest chunk + what follows

    A pass is one forward and one back; where a schedule of the space splits backward passes, only the part towards the
    input counts of it, or nothing. Every rank holds its blocks and, at one moment, a microbatch of each.
    """
    layers, x = space.question.model.num_layers, costs
    own = space.cores.rows(cores)
    pp, m = own.pp, own.microbatches(space.question.training.global_batch)
    block_NP = np.where(allowed, x.layer_forward[:, None] + x.layer_backward, np.inf)
    ends = x.embedding_forward + x.embedding_backward + x.head_forward + x.head_backward
    work = layers * block_NP.min(axis=1) + ends + pp * (x.stage_forward + x.stage_backward)
    block_N, back_N = block_NP.min(axis=1), block_NP.min(axis=1) - x.layer_forward
    shortest, alone = x.stage_forward + x.layer_forward, layers * block_N + ends
    way, others = shortest + x.p2p, shortest
    if space.splits_backward:
        alone = alone - layers * x.layer_weight - x.head_weight - x.embedding_backward
    else:
        way, others = way + x.stage_backward + back_N + x.p2p, np.maximum(shortest, x.stage_backward + back_N)
    follows = x.rank_sync + x.rank_optimizer + -(-layers // pp) * x.layer_optimizer + x.step_overhead
    kept = np.where(allowed, x.layer_activation, np.inf).min(axis=1)
    working = np.where(allowed, x.working, np.inf).min(axis=1)
    room = how_many(x.memory_limit - x.static - working, x.layer_static + kept)
    seconds = np.maximum(m * work / pp + (pp - 1) / 2 * way, alone + (m - 1) * others) + follows
    bound: Floats = np.where(pp * room >= layers, seconds, np.inf)
    return bound
