"""Lower bounds on the step time of cores (layouts before ZeRO stage and schedule are chosen), and minimum
costs of boxes (ranges of numbers of offloaded blocks).

    ideal     compute and tensor-parallel communication under the fastest recompute policy, for the tensor group with
              the fastest links, wherever the rest of the layout is
    relaxed   all passes without replicas of the parameters, and for each coefficient the memory of the best ZeRO stage

Both add up pieces of a step in seconds, take the shortest step that these allow under any schedule, and check
whether memory holds the blocks. They are parts of the terms that price a layout, and leave most layouts
unpriced.

A box holds layouts that differ in counts (`planner.space.axes.Boxes`). Bytes of every coefficient are concave in the
counts, so least at a corner: with offload they are sums over a rank's blocks, affine, plus the ring and the
parked states in use, min(buffers, count). Forward and backward seconds do not depend on counts; offload itself
bounds the update (`update_lower_bound`). Late rules may refuse all layouts of a box.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields, replace
from functools import partial, reduce
from typing import NamedTuple

import numpy as np

from cost_models.arrays import Array, Bools, Ints, least_allowed
from cost_models.axes.columns import LayoutColumns, first_of_each
from cost_models.axes.offload.price import update_lower_bound
from cost_models.axes.offload.residency import host_bytes, offloads
from cost_models.axes.rule import objections, unbroken
from cost_models.axes.words import EVERY
from cost_models.errors import InfeasibleError
from cost_models.memory.device import memory_limit, usable_host_memory
from cost_models.pipeline.pricing import scenarios_of, weighed_costs
from cost_models.pipeline.seconds import Term, Terms, block_update_seconds, jitter_share, sum_of_parts
from cost_models.pipeline.stage_costs import (
    BYTES,
    SECONDS,
    StageCosts,
    add_up,
    costs_by_kind,
    memory_terms,
    stage_costs,
    terms_by_kind,
    time_terms,
)
from cost_models.question import Question
from cost_models.risk import weigh
from cost_models.specs.choices import RECOMPUTE_POLICIES
from planner.placement.rank_costs import count_fitting
from planner.rules.legality import LATE_RULES
from planner.space.axes import Boxes, columns_that_affect, with_counts
from planner.space.space import Space


class StepPieces(NamedTuple):
    """Parts of the step times of N layouts, from which lower bounds under any schedule are computed; seconds,
    (N,) each but `of_kinds`, (N, K). A pass is one forward and one back; of a backward pass that a schedule
    of the space splits, only the part towards the input."""

    blocks: Array
    """Seconds of one forward and backward pass through all blocks, under the fastest recompute policy,
    embedding and head."""
    serial: Array
    """Seconds as in `blocks`, minus the weight-gradient halves of backward passes that may run at other
    times."""
    of_kinds: Array
    """Seconds of forward plus backward pass of one block of each kind, (N, K)."""
    stage: Array
    """Seconds of forward plus backward pass of a stage without its blocks."""
    way: Array
    """Seconds of one microbatch's forward and backward pass through a stage with one block of the lightest
    kind, with its transfers. Where a schedule splits backward passes, it is the forward pass alone."""
    missing: Array
    """Seconds of `way` that the block takes."""
    longer_pass: Array
    """Seconds of the longer pass (forward or backward) of a stage with one block of the lightest kind; the
    forward pass where backward passes are split."""
    empty_pass: Array
    """Seconds of the longer pass (forward or backward) of a stage without a block; the forward pass where
    backward passes are split."""
    tail_seconds: Array
    """Seconds after the last backward pass, for gradient synchronisation, optimizer and overhead."""

    def rows(self, index: Ints) -> StepPieces:
        """Select the parts of the layouts at the given indices."""
        return StepPieces(*(value[index] for value in self))


def step_pieces(space: Space, costs: StageCosts, weights: StageCosts, allowed: Bools) -> StepPieces:
    """Compute the parts of the step time from the costs of stages and blocks under the allowed recompute
    policies, seconds (N,) each. Where a schedule splits backward passes, the halves that may be deferred are
    the weight halves of `weights`."""
    layers, kinds, x, by_kind = space.question.model.num_layers, space.question.kinds, costs, costs.each_kind
    backward = [least_allowed(cost.layer_backward, allowed) for cost in by_kind]
    of_kinds = [cost.layer_forward + back for cost, back in zip(by_kind, backward, strict=True)]
    blocks = layers * (x.layer_forward + kinds.mean(backward)) + (x.embedding_forward + x.embedding_backward)
    blocks = serial = blocks + (x.head_forward + x.head_backward)
    down, up = x.stage_forward + x.lightest.layer_forward, x.stage_backward + np.min(backward, axis=0)
    way, missing, longer_pass, empty_pass = down + x.p2p, down - x.stage_forward, down, x.stage_forward
    if space.splits_backward:
        serial = serial - (layers * weights.layer_weight + weights.head_weight + weights.embedding_backward)
    else:
        way, missing = way + up + x.p2p, missing + up - x.stage_backward
        longer_pass, empty_pass = np.maximum(down, up), np.maximum(x.stage_forward, x.stage_backward)
    stage, tail_seconds = x.stage_forward + x.stage_backward, x.rank_sync + x.rank_optimizer + x.step_overhead
    of_kinds_NK = np.stack(of_kinds, axis=-1)
    return StepPieces(blocks, serial, of_kinds_NK, stage, way, missing, longer_pass, empty_pass, tail_seconds)


def shortest_steps(space: Space, cores: Ints, x: StepPieces) -> Array:
    """Lower bound of the step of each core (layout before ZeRO stage and schedule are chosen) under any
    schedule, seconds (N,).

    All work is shared by pp ranks, and rank r waits r passes of the shortest chunk before its first action:

        step ≥ (m · work + (pp − 1) pp / 2 · shortest chunk and transfer) / pp + what follows

    Blocks are whole, so some rank has ⌈blocks / pp⌉ of them, of one kind if they are of several, for every microbatch:

        step ≥ m · (⌈blocks / pp⌉ · block + stage) + what follows

    A microbatch goes down all stages and up again, and the others pass the first stage besides:

        step ≥ all blocks + (m − 1) · shortest chunk + what follows

    Where a pipeline may have more stages than blocks, the first chunk of rank 0 may be without one.
    """
    pp, m, empty = space.cores.pp[cores], space.microbatches[cores], space.may_have_empty_stage[cores]
    shared = m * (x.blocks + pp * x.stage) / pp + (pp - 1) / 2 * x.way
    shared = shared - (pp - 1) / pp * np.where(empty, x.missing, 0.0)
    fullest = m * (space.question.kinds.lower_bound_of_fullest_rank(pp, list(x.of_kinds.T)) + x.stage)
    serial = x.serial + (m - 1) * np.where(empty, x.empty_pass, x.longer_pass)
    return np.asarray(np.maximum(np.maximum(shared, fullest), serial) + x.tail_seconds)


Values = dict[str, Array]
"""Seconds or bytes of each cost coefficient in each layout, by name of the coefficient."""
MEMORY_TERMS = ("static", "layer_static", "layer_activation", "head_static", "working")
"""Names of the memory coefficients that decide whether all blocks fit."""


def may_hold_blocks(space: Space, cores: Ints, by_kind: list[Values], limit: Array, allowed: Bools) -> Bools:
    """Whether the ranks of each core (layout without ZeRO stage and schedule) may have memory for all blocks,
    (N,). Counted is only what every schedule needs: one microbatch is live in each block.

    No rank holds less than those in the middle of a 1F1B pipeline but the last, which may: it sends nothing on. All
    blocks must fit if they are as light as those of any kind, and those of each kind alone.
    """
    lightest = {name: np.min([sizes[name] for sizes in by_kind], axis=0) for name in MEMORY_TERMS}
    single_kinds = zip(by_kind, space.question.kinds.counts, strict=True) if len(by_kind) > 1 else ()
    fits = np.ones(len(cores), dtype=np.bool_)
    for x, blocks in ((lightest, space.question.model.num_layers), *single_kinds):
        activation = least_allowed(x["layer_activation"], allowed)
        working = least_allowed(x["working"], allowed)
        free, block = limit - x["static"] - working, x["layer_static"] + activation
        middle_blocks = np.minimum(count_fitting(free, block), blocks)  # blocks may need no memory
        last_blocks = count_fitting(free - np.minimum(x["head_static"], 0.0), block)
        fits &= (space.cores.pp[cores] - 1) * middle_blocks + last_blocks >= blocks
    return fits


def ideal_seconds(space: Space, allowed: Bools) -> Array:
    """Lower bound of the step of every core (layout before ZeRO stage and schedule are chosen) from compute and
    tensor-parallel communication alone, seconds (N,). The bound is remembered in the space."""
    bounds = _cached_values(space, "ideal", allowed)
    if np.isnan(bounds).any():
        bounds[:] = _weighed_bounds(space, partial(_ideal_bounds, allowed=allowed))
    return bounds


def best_known_bounds(space: Space, allowed: Bools) -> Array:
    """Highest lower bound of the step computed so far for every core (layout before ZeRO stage and schedule
    are chosen), seconds (N,), without regard to memory."""
    return np.fmax(ideal_seconds(space, allowed), _cached_values(space, "relaxed", allowed))


def known_infeasible(space: Space, allowed: Bools, max_memory: float | None) -> Bools:
    """Mask (N,) of the cores (layouts before ZeRO stage and schedule are chosen) of which an earlier check
    proved that no layout fits within `max_memory`."""
    return np.asarray(_cached_values(space, _fits_within(space, max_memory), allowed) == 0)


def _fits_within(space: Space, max_memory: float | None) -> tuple[object, ...]:
    """Key under which the space caches whether blocks fit in at most `max_memory` bytes of each device."""
    return "fits", space.question.confidence, max_memory


def _cached_values(space: Space, name: object, allowed: Bools) -> Array:
    """Cached values called `name` of all cores under one set of allowed recompute policies, (N,); NaN where a
    value was not computed yet."""
    key = name, allowed.tobytes()
    if key not in space.memo:
        space.memo[key] = np.full(len(space.cores), np.nan)
    return np.asarray(space.memo[key])


def _weighed_bounds(space: Space, bound: Callable[[Space], Array]) -> Array:
    """Lower bound of every core's step time, weighed over the hardware scenarios if there are any, seconds
    (N,). The function `bound` computes it for one set of hardware constants. With scenarios, the bounds in
    all scenarios are weighed by the question's risk, as step times are."""
    if not space.in_scenarios:
        return bound(space)
    return weigh(np.stack([bound(scenario) for scenario in space.in_scenarios]), space.question.risk)


def _ideal_bounds(space: Space, allowed: Bools) -> Array:
    """Lower bound of the step of every core from compute and tensor-parallel communication alone, seconds
    (N,), at one set of hardware constants."""
    if "ideal costs" not in space.memo:
        space.memo["ideal costs"] = _ideal_costs(space)
    costs, kind = space.memo["ideal costs"]
    pieces = step_pieces(space, costs, costs, allowed).rows(kind)
    return shortest_steps(space, np.arange(len(space.cores)), pieces)


def _ideal_costs(space: Space) -> tuple[StageCosts, Ints]:
    """Stage costs of compute and tensor-parallel communication alone for each group of cores with equal block
    costs, and the index of each core's group, (N,). Cores are layouts without ZeRO stage and schedule."""
    question, cores = space.question, space.cores
    _, kind = first_of_each([getattr(cores, name) for name in columns_that_affect("blocks")])
    representative = np.empty(int(kind.max(initial=-1)) + 1, dtype=np.int64)
    most_first = np.argsort(-space.microbatches, kind="stable")
    # gradients are added up least often where microbatches are few
    representative[kind[most_first]] = most_first
    rows = cores.rows(representative)
    rows = replace(rows, zero=np.full(len(rows), max(question.stack.zero_stages)))
    slowed = 1 + jitter_share(question, rows)  # all cores have as many ranks

    def seconds_of(terms: Terms) -> Values:
        """Seconds of compute and tensor-parallel communication in each cost coefficient, slowed down by
        stragglers."""
        return {name: (_compute_and_tp_seconds(terms[name]).T * slowed).T for name in _IDEAL if name in terms}

    return _unshared_costs(space, rows, seconds_of), kind


def _unshared_costs(space: Space, rows: LayoutColumns, seconds_of: Callable[[Terms], Values]) -> StageCosts:
    """Stage costs of layouts as if nothing were communicated between data-parallel ranks. Coefficients that
    `seconds_of` does not return are zero."""
    by_kind = terms_by_kind(space.question, rows, partial(time_terms, data_parallel=False))
    return costs_by_kind([seconds_of(terms) for terms in by_kind], space.question.kinds, len(rows))


_IDEAL = [name for name in SECONDS[: SECONDS.index("p2p")] if not name.startswith("stage")]
"""Names of the cost coefficients for the passes of blocks, embedding and head."""


def _compute_and_tp_seconds(term: Term) -> Array:
    """Sum of the parts compute, recompute and tensor-parallel communication of one cost term, seconds."""
    parts = [term[part] for part in ("compute", "recompute", "tp_comm") if part in term]
    return np.asarray(sum(parts, start=np.zeros(1)))


def relaxed_bounds(space: Space, cores: Ints, allowed: Bools, max_memory: float | None) -> Array:
    """Lower bound of the step of each given core (layout without ZeRO stage and schedule) if data-parallel
    communication took no time, seconds (N,). It is infinite if memory cannot hold the blocks. Every
    coefficient is the least over the ZeRO variants."""
    fits = partial(_may_fit, space, max_memory)
    may_fit = _per_policy_choice(space, _fits_within(space, max_memory), cores, allowed, fits) != 0
    bound = np.full(len(cores), np.inf)
    bounds = partial(_bounds_per_policy, space)
    bound[may_fit] = _per_policy_choice(space, "relaxed", cores[may_fit], allowed, bounds)
    return bound


PerChoice = Callable[[Ints, Sequence[Bools]], Iterable[Array | Bools]]
"""Function from cores and sets of allowed recompute policies to values of the cores for each set."""


def _per_policy_choice(space: Space, name: object, cores: Ints, allowed: Bools, compute: PerChoice) -> Array:
    """Values that `compute` gives for some cores under the `allowed` recompute policies, cached after the
    first call, (N,). Missing values are computed at once for `allowed` and for each single policy, as
    searches of one answer need all of these, and most of the work is shared."""
    choices = [allowed, *(one for one in np.eye(len(allowed), dtype=np.bool_) if (one != allowed).any())]
    tables = [_cached_values(space, name, choice) for choice in choices]
    if len(new := cores[np.isnan(tables[0][cores])]):
        for table, values in zip(tables, compute(new, choices), strict=True):
            table[new] = values
    return tables[0][cores]


def _bounds_per_policy(space: Space, cores: Ints, choices: Sequence[Bools]) -> Array:
    """Lower bounds of the step of cores if data-parallel communication took no time, under each set of
    allowed recompute policies, seconds (choices, N)."""
    bound = partial(_unshared_bounds, cores=cores, choices=choices)
    return _weighed_bounds(space, bound).reshape(len(choices), -1)


def _may_fit(space: Space, max_memory: float | None, cores: Ints, choices: Sequence[Bools]) -> list[Bools]:
    """Whether each core (layout without ZeRO stage and schedule) may fit in memory, (N,), a mask for each set
    of allowed recompute policies. Every memory coefficient is taken at the ZeRO stage, over all ranks, where
    it is least."""
    question, x = space.question, space.cores.rows(cores)  # the order of whose axes moves no bytes
    first, kind = first_of_each([getattr(x, field.name) for field in fields(x) if field.name != "order"])
    distinct_cores, rows = cores[first], x.rows(first)
    limit = memory_limit(question, rows)
    limit = limit if max_memory is None else np.minimum(limit, max_memory)
    least_sizes: list[Values] = [{} for _ in question.by_kind]
    is_legal = np.zeros(len(rows), dtype=np.bool_)
    for zero, has in space.zero_stages_of(distinct_cores):
        staged = replace(rows, zero=np.where(rows.replicas > 1, zero, 0), shard=rows.replicas)
        corners = space.counts.rows(distinct_cores).corners(staged)
        is_legal |= has & some_corner_fits_hosts(question, corners)
        for corner in corners:
            for sizes, terms in zip(least_sizes, terms_by_kind(question, corner, memory_terms), strict=True):
                for name in MEMORY_TERMS:
                    size = np.where(has, sum_of_parts(terms[name]).T, np.inf).T
                    sizes[name] = np.minimum(sizes.get(name, np.inf), size)
    limit = np.where(is_legal, limit, 0.0)
    return [may_hold_blocks(space, distinct_cores, least_sizes, limit, allowed)[kind] for allowed in choices]


def _unshared_bounds(space: Space, cores: Ints, choices: Sequence[Bools]) -> Array:
    """Lower bounds of the step of N cores if data-parallel communication took no time, for one set of allowed
    recompute policies after another, seconds (choices · N,). They hold for every ZeRO stage.

    Data-parallel communication in sight adds to a pass what it takes itself, less what a host that lags behind has to
    launch meanwhile, at most. Gradients are added up in fewest passes at the highest stage; most is left for later at
    the lowest.
    """
    rows, stages, kinds = space.cores.rows(cores), space.question.stack.zero_stages, space.question.kinds
    costs = weights = _costs_at_stage(space, rows, max(stages))
    if space.splits_backward:
        weights = _costs_at_stage(space, rows, min(stages))
    update = np.full(len(rows), np.inf)
    for zero, has in space.zero_stages_of(cores):
        staged = replace(rows, zero=np.where(rows.replicas > 1, zero, 0))
        update_of_kinds = [block_update_seconds(kind, staged) for kind in space.question.by_kind]
        fullest = kinds.lower_bound_of_fullest_rank(rows.pp, update_of_kinds)
        update = np.minimum(update, np.where(has, fullest, np.inf))
    update = np.where(offloads(rows), 0.0, update)
    bounds = []
    for allowed in choices:
        pieces = step_pieces(space, costs, weights, allowed)
        pieces = pieces._replace(tail_seconds=pieces.tail_seconds + update)
        bounds.append(shortest_steps(space, cores, pieces))
    return np.concatenate(bounds)


def _costs_at_stage(space: Space, rows: LayoutColumns, zero: int) -> StageCosts:
    """Costs of layouts at a ZeRO stage, without data-parallel communication and without the optimizer step of
    offloaded states."""
    costs = _unshared_costs(space, replace(rows, zero=np.full(len(rows), zero)), add_up)
    return replace(costs, rank_optimizer=np.where(offloads(rows), 0.0, costs.rank_optimizer))


def least_costs(question: Question, columns: LayoutColumns, boxes: Boxes) -> StageCosts:
    """Minimum of each cost coefficient over the layouts in each box (range of numbers of offloaded blocks),
    (N,). The memory limit is zero where hosts or drives lack room for every corner of the box under all
    recompute policies."""
    costs, corners = weighed_costs(question, columns), boxes.corners(columns)
    if not boxes.is_single.all():
        sized = [stage_costs(question, corner, memory_terms) for corner in corners]
        update = -boxes.room * costs.layer_optimizer
        if not scenarios_of(question):
            update = update_lower_bound(question, corners)
        values = {name: reduce(np.minimum, [getattr(own, name) for own in sized]) for name in BYTES}
        values["rank_optimizer"] = np.where(boxes.is_single, costs.rank_optimizer, update)
        kinds = tuple(
            own | {name: reduce(np.minimum, [x.kinds[k][name] for x in sized]) for name in {*own} & {*BYTES}}
            for k, own in enumerate(costs.kinds)
        )
        costs = replace(costs, **values, kinds=kinds)
    limit = np.where(some_corner_fits_hosts(question, corners), costs.memory_limit, 0.0)
    if not any((own.offload_activations > 0).any() for own in corners):
        return replace(costs, memory_limit=limit)
    overflow = np.zeros_like(costs.working)
    for policy in question.training.recompute:
        is_legal = some_corner_fits_hosts(question.recomputing(policy), corners)
        overflow[:, RECOMPUTE_POLICIES.index(policy)] = np.where(is_legal, 0.0, 2 * costs.memory_limit)
    working = tuple(own | {"working": own["working"] + overflow} for own in costs.kinds)
    return replace(costs, memory_limit=limit, working=costs.working + overflow, kinds=working)


def some_corner_fits_hosts(question: Question, corners: list[LayoutColumns]) -> Bools:
    """Whether hosts and drives have room for at least one corner layout of each box (range of numbers of
    offloaded blocks), (N,)."""
    return np.asarray(np.any([unbroken(LATE_RULES, question, corner) for corner in corners], axis=0))


def fullest_layouts(question: Question, columns: LayoutColumns, boxes: Boxes) -> tuple[LayoutColumns, Bools]:
    """For each box (range of numbers of offloaded blocks), a layout with about as many offloaded blocks as
    host memory has room for, and whether hosts and drives have room for the layout, (N,)."""
    lowest, highest = with_counts(columns, boxes.low), with_counts(columns, boxes.high)
    low, high = host_bytes(question, lowest), host_bytes(question, highest)
    room = usable_host_memory(question.cluster)
    share = np.clip((room - low) / np.where(high > low, high - low, 1.0), 0.0, 1.0)
    sides = boxes.high - boxes.low
    spare = boxes.room - (boxes.low % EVERY).sum(axis=1)
    share = np.minimum(share, spare / np.maximum(sides.sum(axis=1), 1))
    fullest = with_counts(columns, boxes.low + np.floor(share[:, None] * sides).astype(np.int64))
    return fullest, unbroken(LATE_RULES, question, fullest)


def host_overflow_error(question: Question, columns: LayoutColumns) -> InfeasibleError:
    """Create the error that host memory is too small for the offloaded blocks of every layout. It names the
    layout that offloads least."""
    lightest = columns.layout(int(host_bytes(question, columns).argmin()))
    words = objections(LATE_RULES, question, lightest)[0]
    return InfeasibleError(words.what, hint=words.hint)
