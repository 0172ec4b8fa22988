"""Cheaper questions whose answers bound a layout's price from below, whatever its ZeRO stage, shards and schedule.

    ideal     compute and tensor-parallel communication under the fastest recompute policy: a tensor group is at best
              where the first one lies, wherever the rest of the layout does
    relaxed   all passes as they are where no other ranks hold the same parameters, and as little memory as under the
              ZeRO stage best for each coefficient

They are parts of the very same terms that price a layout; both leave most layouts unpriced.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial

import numpy as np

from cost_models.arrays import Array, Bools, Ints
from cost_models.axes.columns import LayoutColumns, columns_that_touch, updated_elsewhere
from cost_models.axes.distinct import first_of_each
from cost_models.memory.device import memory_limit
from cost_models.pipeline.stage_costs import COLUMNS, StageCosts
from cost_models.pipeline.terms import memory_terms as memory
from cost_models.pipeline.terms.kinds import each_kind
from cost_models.pipeline.terms.memory_terms import memory_terms
from cost_models.pipeline.terms.update_terms import block_update_seconds
from cost_models.pipeline.time_pieces import Term, jitter, total
from cost_models.pipeline.time_terms import TimeTerms, time_terms
from cost_models.risk import weigh
from planner.bounds.boxes import corner_columns, some_allowed
from planner.placement.shared_shape import how_many
from planner.space.layouts import Space


@dataclass(frozen=True, slots=True, kw_only=True)
class Passes:
    """Seconds that a step is made of, (N,) each."""

    forward: Array
    """One block and microbatch: the mean block."""
    backward: Array
    """The same, with the fastest policy."""
    of_kinds: Array
    """(N, K): a block of each kind, both ways, as embedding and head are."""
    any_forward: Array
    any_backward: Array
    embedding: Array
    head: Array
    apart: Array
    """What a split backward pass may run at another time, of all blocks and the ends."""
    stage_forward: Array
    stage_backward: Array
    p2p: Array
    follows: Array
    """After the last pass."""

    def rows(self, index: Ints) -> Passes:
        """Those of some rows."""
        return Passes(**{field.name: getattr(self, field.name)[index] for field in fields(self)})


def ideal_seconds(space: Space, allowed: Bools) -> Array:
    """(N,) seconds that no layout of a core can undercut; the space remembers them."""
    key = ("ideal", allowed.tobytes())
    if key not in space.remembered:
        space.remembered[key] = _weighed(space, lambda one: _ideal_seconds(one, allowed))
    return space.remembered[key]


def _seconds_alone(space: Space, allowed: Bools) -> Array:
    """(N,) relaxed seconds of the cores for which the space remembers them; NaN for the others."""
    key = ("alone", allowed.tobytes())
    return space.remembered.setdefault(key, np.full(len(space.cores), np.nan))


def known_seconds(space: Space, allowed: Bools) -> Array:
    """(N,) the best bounds of cores that are known, whatever memory there is."""
    return np.fmax(ideal_seconds(space, allowed), _seconds_alone(space, allowed))


def known_not_to_fit(space: Space, allowed: Bools, max_memory: float | None) -> Bools:
    """(N,) cores that did not fit under this limit or a higher one."""
    found, most = np.zeros(len(space.cores), dtype=np.bool_), math.inf if max_memory is None else max_memory
    for (policies, limit), too_large in space.too_large.items():
        if policies == allowed.tobytes() and limit >= most:
            found |= too_large
    return found


def _weighed(space: Space, bound: Callable[[Space], Array]) -> Array:
    """(N,) bounds of a space; where its question weighs scenarios, bounds in all of them, weighed as steps are."""
    if not space.in_scenarios:
        return bound(space)
    return weigh(np.stack([bound(one) for one in space.in_scenarios]), space.question.risk)


def _ideal_seconds(space: Space, allowed: Bools) -> Array:
    question, cores = space.question, space.cores
    m = space.microbatches
    _, kind = first_of_each([getattr(cores, name) for name in columns_that_touch("blocks")])
    few = np.empty(int(kind.max(initial=-1)) + 1, dtype=np.int64)
    most_first = np.argsort(-m, kind="stable")
    few[kind[most_first]] = most_first  # gradients are added up least often where microbatches are few
    rows = cores.rows(few)
    rows = replace(rows, zero=np.full(len(rows), max(question.stack.zero_stages)))
    slowed = 1 + jitter(question, rows)  # all cores have as many ranks

    def seconds_of(terms: TimeTerms) -> Seconds:
        return {name: (_inside_node(getattr(terms, name)).T * slowed).T for name in _IDEAL}

    passes = passes_of(space, rows.pp, _apart(space, rows, seconds_of), allowed)
    return shortest_steps(space, np.arange(len(cores)), passes.rows(kind))


def _apart(space: Space, rows: LayoutColumns, seconds_of: Callable[[TimeTerms], Seconds]) -> StageCosts:
    """Some seconds as if no other ranks held the same parameters; all that is not named is zero."""
    none = dict.fromkeys(COLUMNS, np.zeros(len(rows)))
    each = each_kind(space.question, rows, partial(time_terms, data_parallel=False))
    costs = [StageCosts(**none | seconds_of(own), kinds=()) for own in each]
    return StageCosts.of_kinds(costs, space.question.kinds)


Seconds = dict[str, Array]
_IDEAL = (
    *("layer_forward", "layer_backward", "layer_weight", "embedding_forward", "embedding_backward"),
    *("head_forward", "head_backward", "head_weight"),
)


def _inside_node(term: Term) -> Array:
    """Seconds that depend on what a tensor group does alone."""
    own = [term[part] for part in ("compute", "recompute", "tp_comm") if part in term]
    return np.asarray(sum(own, start=np.zeros(1)))


def relaxed_bounds(space: Space, cores: Ints, allowed: Bools, max_memory: float | None) -> Array:
    """(N,) bounds of cores at costs that none of their variants undercuts in any coefficient."""
    bound = np.full(len(cores), np.inf)
    key = (allowed.tobytes(), math.inf if max_memory is None else max_memory)
    too_large = known_not_to_fit(space, allowed, max_memory)
    if len(unknown := cores[~too_large[cores]]):
        too_large[unknown] = ~_may_fit(space, unknown, allowed, max_memory)
    space.too_large[key] = too_large
    some = cores[fitting := np.flatnonzero(~too_large[cores])]
    known = _seconds_alone(space, allowed)
    if len(new := some[np.isnan(known[some])]):
        known[new] = _weighed(space, lambda one: shortest_steps(one, new, _alone(one, new, allowed)))
    bound[fitting] = known[some]
    return bound


def _may_fit(space: Space, cores: Ints, allowed: Bools, max_memory: float | None) -> Bools:
    """(N,): which cores have room with every coefficient at the ZeRO stage, over all ranks, that has least of it."""
    own = space.cores.rows(cores)  # the order of whose axes moves no bytes
    first, kind = first_of_each([getattr(own, field.name) for field in fields(own) if field.name != "order"])
    some, rows = cores[first], own.rows(first)
    limit = memory_limit(space.question, rows)
    limit = limit if max_memory is None else np.minimum(limit, max_memory)
    least: list[dict[str, Array]] = [{} for _ in space.question.by_kind]
    held = np.zeros(len(rows), dtype=np.bool_)
    for zero, has in space.zero_stages_of(some):
        staged = replace(rows, zero=np.where(rows.replicas > 1, zero, 0), shard=rows.replicas)
        corners = corner_columns(staged, space.counts.rows(some))
        held |= has & some_allowed(space.question, corners)
        for corner in corners:
            for found, terms in zip(least, each_kind(space.question, corner, memory_terms), strict=True):
                for name in _ROOM:
                    value = memory.total(getattr(terms, name))
                    size = np.where(has if value.ndim == 1 else has[:, None], value, np.inf)
                    found[name] = np.minimum(found[name], size) if name in found else size
    limit = np.where(held, limit, 0.0)
    return _fits(space, some, least, limit, allowed)[kind]


def _alone(space: Space, cores: Ints, allowed: Bools) -> Passes:
    """Of cores as if every rank had its parameters to itself, which takes no longer at any ZeRO stage.

    Data-parallel communication in sight adds to a pass what it takes itself, less what a host that lags behind has to
    launch meanwhile, at most. Gradients are added up in fewest passes at the highest stage; most is left for later at
    the lowest.
    """
    rows, stages = space.cores.rows(cores), space.question.stack.zero_stages

    def at(zero: int) -> Passes:
        return _passes_alone(space, replace(rows, zero=np.full(len(rows), zero)), allowed)

    passes, update = at(max(stages)), np.full(len(rows), np.inf)
    for zero, has in space.zero_stages_of(cores):
        staged = replace(rows, zero=np.where(rows.replicas > 1, zero, 0))
        each = [block_update_seconds(own, staged) for own in space.question.by_kind]
        update = np.minimum(update, np.where(has, space.question.kinds.of_fullest(rows.pp, each), np.inf))
    apart = at(min(stages)).apart if space.splits_backward else passes.apart
    return replace(
        passes, apart=apart, follows=passes.follows + np.where(updated_elsewhere(rows), 0.0, update)
    )


def _passes_alone(space: Space, rows: LayoutColumns, allowed: Bools) -> Passes:
    """The same of rows, without the update of blocks, nor one by something else than the device."""

    def seconds_of(terms: TimeTerms) -> Seconds:
        seconds = {field.name: total(getattr(terms, field.name)) for field in fields(TimeTerms)}
        seconds["rank_optimizer"] = np.where(updated_elsewhere(rows), 0.0, seconds["rank_optimizer"])
        return seconds | {"layer_optimizer": np.zeros(len(rows))}

    return passes_of(space, rows.pp, _apart(space, rows, seconds_of), allowed)


def core_bounds(space: Space, cores: Ints, costs: StageCosts, passes: Passes, allowed: Bools) -> Array:
    """(N,) seconds that no layout of a core can undercut in any schedule; infinite where none can fit."""
    seconds = shortest_steps(space, cores, passes)
    sizes = [{name: getattr(one, name) for name in _ROOM} for one in costs.each_kind]
    return np.where(_fits(space, cores, sizes, costs.memory_limit, allowed), seconds, np.inf)


def passes_of(space: Space, pp: Ints, costs: StageCosts, allowed: Bools) -> Passes:
    """What costs say of them."""
    layers, x, kinds, each = space.question.model.num_layers, costs, space.question.kinds, costs.each_kind
    backward = [np.where(allowed, one.layer_backward, np.inf).min(axis=1) for one in each]
    both = [one.layer_forward + up for one, up in zip(each, backward, strict=True)]
    update = kinds.of_fullest(pp, [one.layer_optimizer for one in each])
    return Passes(
        forward=x.layer_forward,
        backward=kinds.mean(backward),
        of_kinds=np.stack(both, axis=-1),
        any_forward=x.lightest.layer_forward,
        any_backward=np.min(backward, axis=0),
        embedding=x.embedding_forward + x.embedding_backward,
        head=x.head_forward + x.head_backward,
        apart=layers * x.layer_weight + x.head_weight + x.embedding_backward,
        stage_forward=x.stage_forward,
        stage_backward=x.stage_backward,
        p2p=x.p2p,
        follows=x.rank_sync + x.rank_optimizer + update + x.step_overhead,
    )


def shortest_steps(space: Space, cores: Ints, passes: Passes) -> Array:
    """(N,) seconds of a step of some cores that no schedule undercuts.

    All work is shared by pp ranks, and rank r waits r passes of the shortest chunk before its first action:

        step ≥ (m · work + (pp − 1) pp / 2 · shortest chunk and transfer) / pp + what follows

    Blocks are whole, so some rank has ⌈blocks / pp⌉ of them, of one kind if they are of several, for every microbatch:

        step ≥ m · (⌈blocks / pp⌉ · block + stage) + what follows

    A microbatch goes down all stages and up again, and the others pass the first stage besides:

        step ≥ all blocks + (m − 1) · shortest chunk + what follows

    Where a pipeline may have more stages than blocks, the first chunk of rank 0 may be without one.

    A pass is one forward and one back; where a schedule of the space splits backward passes, only the part towards the
    input counts of it, or nothing.
    """
    layers, x, pp = space.question.model.num_layers, passes, space.cores.pp[cores]
    m = space.microbatches[cores]
    block, stage = x.forward + x.backward, x.stage_forward + x.stage_backward
    blocks = layers * block + x.embedding + x.head
    forward, backward, alone = x.stage_forward + x.any_forward, x.stage_backward + x.any_backward, blocks
    empty = space.may_start_empty[cores]
    first, back = np.where(empty, x.stage_forward, forward), np.where(empty, x.stage_backward, backward)
    way, missing, others = forward + x.p2p, forward - first, first
    if space.splits_backward:
        alone = alone - x.apart
    else:
        way, missing, others = way + backward + x.p2p, missing + backward - back, np.maximum(first, back)
    shared = m * (blocks + pp * stage) / pp + (pp - 1) / 2 * way - (pp - 1) / pp * missing
    whole = m * (space.question.kinds.of_fullest(pp, list(x.of_kinds.T)) + stage)
    longest = np.maximum(np.maximum(shared, whole), alone + (m - 1) * others)
    return longest + x.follows


_ROOM = ("static", "layer_static", "layer_activation", "head_static", "working")


def _fits(
    space: Space, cores: Ints, each: Sequence[Mapping[str, Array]], limit: Array, allowed: Bools
) -> Bools:
    """(N,): whether the ranks hold all blocks, each with a microbatch of its own: every schedule has such a moment.

    No rank holds less than those in the middle of a 1F1B pipeline but the last, which may: it sends nothing on. All
    blocks must fit if they are as light as those of any kind, and those of each kind alone.
    """
    light = {name: np.min([own[name] for own in each], axis=0) for name in _ROOM}
    alone = zip(each, space.question.kinds.counts, strict=True) if len(each) > 1 else ()
    fits = np.ones(len(cores), dtype=np.bool_)
    for x, blocks in ((light, space.question.model.num_layers), *alone):
        kept = np.where(allowed, x["layer_activation"], np.inf).min(axis=1)
        working = np.where(allowed, x["working"], np.inf).min(axis=1)
        free, block = limit - x["static"] - working, x["layer_static"] + kept
        others = np.minimum(how_many(free, block), blocks)  # blocks may leave nothing behind
        last = how_many(free - np.minimum(x["head_static"], 0.0), block)
        fits &= (space.cores.pp[cores] - 1) * others + last >= blocks
    return fits
