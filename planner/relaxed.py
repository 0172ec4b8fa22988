"""Cheaper questions whose answers bound a layout's price from below, whatever its ZeRO stage, shards and schedule.

    ideal     compute and tensor-parallel communication under the fastest recompute policy, shared evenly by all ranks
              of a pipeline: a tensor group lies in one node, wherever the rest of the layout does
    relaxed   every coefficient of a core at the ZeRO stage best for it, data-parallel communication for nothing

They are parts of the very same terms that price a layout. Both are used to leave most layouts unpriced.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from cost_models import memory_terms as memory
from cost_models.memory.device import memory_limit
from cost_models.memory_terms import MemoryTerms, memory_terms
from cost_models.question import Question
from cost_models.specs.columns import Ints, LayoutColumns
from cost_models.specs.distinct import first_of_each
from cost_models.stage_costs import StageCosts
from cost_models.time_terms import TIME_PARTS, Term, TimeTerms, time_terms
from planner.group import how_many
from planner.rules import Bools
from planner.search_space import Space

Floats = npt.NDArray[np.float64]
Terms = TypeVar("Terms", TimeTerms, MemoryTerms)

SUBTRACTED = ("layer_weight", "head_weight")
"""Parts of a backward pass that `core_bounds` leaves out where they may run at another time."""


def ideal_seconds(space: Space, allowed: Bools) -> Floats:
    """(N,) seconds that no layout of a core can undercut."""
    question, cores = space.question, space.cores
    m = cores.microbatches(question.training.global_batch)
    _, kind = first_of_each([cores.tp, cores.cp, cores.mbs, cores.ep, cores.etp, cores.sp, cores.context])
    few = np.empty(int(kind.max(initial=-1)) + 1, dtype=np.int64)
    most_first = np.argsort(-m, kind="stable")
    few[kind[most_first]] = most_first  # gradients are added up least often where microbatches are few
    rows = cores.rows(few)
    terms = time_terms(question, replace(rows, zero=np.full(len(rows), max(question.stack.zero_stages))))
    backward = np.where(allowed, _inside_node(terms.layer_backward), np.inf).min(axis=-1)
    ends = [terms.embedding_forward, terms.embedding_backward, terms.head_forward, terms.head_backward]
    block = _inside_node(terms.layer_forward) + backward
    whole = question.model.num_layers * block + sum(_inside_node(end) for end in ends)
    return np.asarray(m * whole[kind] / cores.pp, dtype=np.float64)


def _inside_node(term: Term) -> Floats:
    """Seconds that depend on what a tensor group does alone."""
    own = [term[part] for part in ("compute", "recompute", "tp_comm") if part in term]
    seconds: Floats = np.asarray(sum(own, start=np.zeros(1)))
    return seconds


def relaxed_bounds(space: Space, cores: Ints, allowed: Bools, max_memory: float | None) -> Floats:
    """(N,) bounds of cores at costs that none of their variants undercuts in any coefficient."""
    bound = np.full(len(cores), np.inf)
    bytes_of = _least_of(space, cores, memory_terms, memory.total)
    limit = memory_limit(space.question, space.cores.rows(cores))
    limit = limit if max_memory is None else np.minimum(limit, max_memory)
    fitting = np.flatnonzero(_fits(space, cores, bytes_of, limit, allowed))
    if not len(fitting):
        return bound
    seconds_of = _least_of(space, cores[fitting], time_terms, _alone)
    costs = StageCosts(
        **{name: _full(value, len(fitting)) for name, value in seconds_of.items()},
        **{name: _full(value, len(cores))[fitting] for name, value in bytes_of.items()},
        memory_limit=limit[fitting],
    )
    bound[fitting] = core_bounds(space, cores[fitting], costs, allowed)
    return bound


def _least_of(
    space: Space,
    cores: Ints,
    terms_of: Callable[[Question, LayoutColumns], Terms],
    total: Callable[[Term], Floats],
) -> dict[str, Floats]:
    """Each coefficient at the ZeRO stage, over all ranks, that has least of it; of what is subtracted, most."""
    least: dict[str, Floats] = {}
    for zero, has in space.zero_stages_of(cores):
        rows = space.cores.rows(cores)
        rows = replace(rows, zero=np.where(rows.replicas > 1, zero, 0), shard=rows.replicas)
        terms = terms_of(space.question, rows)
        for name in terms.__dataclass_fields__:
            value = total(getattr(terms, name))
            none, better = (-np.inf, np.maximum) if name in SUBTRACTED else (np.inf, np.minimum)
            own = np.where(has if value.ndim == 1 else has[:, None], value, none)
            least[name] = better(least[name], own) if name in least else own
    return least


def _full(value: Floats, rows: int) -> Floats:
    return np.broadcast_to(value, (rows, *value.shape[1:]))


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
    seconds = np.maximum(m * work / pp + (pp - 1) / 2 * way, alone + (m - 1) * others) + follows
    size = {field.name: getattr(x, field.name) for field in fields(MemoryTerms)}
    bound: Floats = np.where(_fits(space, cores, size, x.memory_limit, allowed), seconds, np.inf)
    return bound


def _fits(space: Space, cores: Ints, bytes_of: Mapping[str, Floats], limit: Floats, allowed: Bools) -> Bools:
    """(N,): whether the ranks hold all blocks, each with a microbatch of its own."""
    kept = np.where(allowed, bytes_of["layer_activation"], np.inf).min(axis=1)
    working = np.where(allowed, bytes_of["working"], np.inf).min(axis=1)
    room = how_many(limit - bytes_of["static"] - working, bytes_of["layer_static"] + kept)
    fits: Bools = space.cores.pp[cores] * room >= space.question.model.num_layers
    return fits
