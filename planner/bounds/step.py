"""Lower bounds on the step time of every placement of a layout, for many layouts at once.

`quick_bounds` shares the work evenly and costs microseconds a layout; `capacity_bounds` asks for the shortest step in
which the ranks, each with whole blocks and its own memory, can hold all blocks. Both are admissible: no placement the
search covers is faster (tests compare them with exhaustive search). Interleaved layouts have their own bound.

Shape legend: N layouts of one (pp, vpp, schedule), R ranks, P policies, B counts of blocks on a rank.

Paths through a pipeline (T_r: forward plus backward of rank r for one microbatch; c: transfer delay; M: end of the
last action on rank 0; W' = Σ T + 2 (p − 1) c: one microbatch down and up again; w = p − r):

(busy)   M ≥ Σ_{i<r} T_i + 2 r c + m T_r
         Any schedule: rank r does all its work between the ways of its first and its last microbatch.
(queue)  M ≥ W' + (m − 1) T_r
         GPipe: all microbatches queue at rank r, forward and backward.
(again)  M ≥ W' + Σ_{i≥r} T_i + 2 (w − 1) c + (m − w − 1) T_r
         1F1B, m > w: the first one down and up to r, pairs on rank r, the last one from r down and up.
(both)   2 M ≥ 2 W' + (2m − w − 1) T_r
         1F1B: the sum of (busy) and (again).
(loops)  M ≥ J W' + ((m − 1) mod p) T_r,  J = ⌊(m − 1) / p⌋ + 1
         1F1B, m > p: a round trip for every p microbatches, the rest as pairs on rank r.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from itertools import combinations

import numpy as np

from cost_models.arrays import Array, Bools, Ints
from cost_models.axes.columns import LayoutColumns
from cost_models.pipeline.pools import PoolTerms
from cost_models.schedules.registry import PLAIN, is_scheduled, schedule_named
from cost_models.specs.choices import Schedule
from planner.bounds.chunks import chunk_bounds, quick_chunk_bounds
from planner.bounds.kinds import lightest_runs
from planner.placement.leaf import TOLERANCE
from planner.placement.rank_costs import RankCosts, balanced, cheapest_seconds

PRECISION = 1e-5
"""Relative width of the interval that holds a capacity bound: finer than the bounds are tight."""
ROUNDS, ROUNDS_IN_POOLS = 3, 2
"""Times the limits of ranks are sharpened by one another's: a third time costs more in pools than it rules out."""
TABLE_ENTRIES = 4_000_000
"""Layouts × ranks × counts of blocks handled at once: bounds memory."""


def quick_bounds(group: RankCosts) -> Array:
    """Quick bound of the step, seconds (N,): work shared evenly, memory met on average; infinite where nothing can
    fit."""
    if not group.is_plain:
        return quick_chunk_bounds(group)
    (pp, _), work = group.shape, group.least_work
    fullest = group.by_rank(group.fullest_rank_value(lambda kind: kind.least_block_seconds))
    busiest = np.maximum(work / pp, (group.fixed_seconds + fullest).min(axis=1))
    if group.ranks_differ:
        each_NR = group.by_rank(group.least_block_seconds)
        busiest = np.maximum(busiest, group.balanced(group.fixed_seconds, each_NR))
    cycle = work + group.cycle_delay
    pipeline = pipeline_seconds(group.schedule, pp, group.microbatches, cycle, busiest)
    return np.where(_may_fit(group), pipeline + group.least_tail, np.inf)


def pipeline_seconds(
    schedule: Schedule, pp: Ints | int, microbatches: Ints, cycle: Array, busiest: Array
) -> Array:
    """End of the last action on rank 0, seconds (N,), if some rank takes `busiest` seconds for one microbatch, which
    takes `cycle` seconds down and up again."""
    m, steady = microbatches, schedule_named(schedule).steady
    if steady == "queue":
        return cycle + (m - 1) * busiest
    if steady is None:
        return np.maximum(m * busiest, cycle)
    loops, remainder = np.divmod(m - 1, pp)
    seconds = np.maximum(m * busiest, cycle + (2 * m - pp - 1) / 2 * busiest)
    return np.where(loops >= 1, np.maximum(seconds, (loops + 1) * cycle + remainder * busiest), seconds)


def capacity_bounds(group: RankCosts, cut_off: float = np.inf, precision: float = PRECISION) -> Array:
    """Shortest step in which whole blocks all find a place, seconds (N,); infinite where they do not.

    At most `cut_off` seconds: slower layouts get the cut-off. `precision` is relative.
    """
    if not group.is_plain:
        return chunk_bounds(group)
    step = max(1, TABLE_ENTRIES // (group.shape[0] * len(group.limited_to(cut_off).sizes)))
    starts = range(0, len(group), step)
    parts = [
        bounds_by_ranks(group.rows(slice(start, start + step)), cut_off, _rank_seconds, precision)
        for start in starts
    ]
    return np.concatenate(parts) if parts else np.empty(0)


def _may_fit(group: RankCosts) -> Bools:
    """Whether every rank holds a block, and all ranks together the model, (N,)."""
    fit_NR = np.minimum(group.blocks_that_fit.max(axis=-1), group.sizes[-1])
    may: Bools = (fit_NR >= group.sizes[0]).all(axis=1) & (fit_NR.sum(axis=1) >= group.num_layers)
    for kind in group.of_kinds if group.kinds else ():
        fit_of_kind_NR = np.clip(kind.blocks_that_fit.max(axis=-1), 0, kind.num_layers)
        may &= fit_of_kind_NR.sum(axis=1) >= kind.num_layers
    return may


def bounds_by_ranks(
    group: RankCosts, cut_off: float, rank_seconds: Callable[[RankCosts], Array], precision: float
) -> Array:
    """Minimum step time at which the ranks can hold all blocks, seconds (N,), by bisection from the quick bound.

    `rank_seconds` (N, R, B) of a group are those of one microbatch on a rank with each of its sizes, at least.
    """
    quick, work, group = quick_bounds(group), group.least_work, group.limited_to(cut_off)
    seconds_NRB = rank_seconds(group)
    lower = np.where(np.isfinite(quick), quick, 0.0)
    slowest = np.where(np.isfinite(seconds_NRB), seconds_NRB, 0.0).max(axis=(1, 2))
    rounds = 2 * (group.microbatches + group.shape[0])
    upper = lower + rounds * (slowest + group.cycle_delay) + group.tail(int(group.sizes[-1]))
    ceiling = upper if np.isinf(cut_off) else np.full(len(upper), cut_off)

    def enough(step: Array) -> Bools:
        _, most_NR = _rank_sizes(group, seconds_NRB, step, work)
        holds_model: Bools = most_NR.all(axis=1) & (most_NR.sum(axis=1) >= group.num_layers)
        return holds_model

    possible = np.isfinite(quick) & enough(ceiling)
    bound = np.where(possible, quick, np.maximum(quick, cut_off))
    upper = ceiling
    while (upper - lower > precision * lower)[possible].any():
        middle = (lower + upper) / 2
        reached = enough(middle)
        upper, lower = np.where(reached, middle, upper), np.where(reached, lower, middle)
    return np.where(possible, lower, bound)


def _rank_seconds(group: RankCosts) -> Array:
    """Minimum seconds of one microbatch on a rank with B blocks, (N, R, B); infinite where they do not fit."""
    if group.kinds is not None:
        return lightest_runs(group, group.kinds) + group.fixed_seconds[..., None]
    fit_NRP = group.blocks_that_fit
    best = np.full((len(group), group.shape[0], len(group.sizes)), np.inf)
    policies = np.flatnonzero(group.allowed).tolist()
    for policy in policies:
        seconds = group.by_rank(group.block_seconds)[..., policy, None] * group.sizes
        fits_NRB = group.sizes <= fit_NRP[..., policy, None]
        np.minimum(best, np.where(fits_NRB, seconds, np.inf), out=best)
    for first, second in combinations(policies, 2):
        np.minimum(best, _mixed_seconds(group, first, second), out=best)
    return np.where(group.sizes <= group.updatable[..., None], best, np.inf) + group.fixed_seconds[..., None]


def _mixed_seconds(group: RankCosts, first: int, second: int) -> Array:
    """Minimum seconds of blocks under two policies, in any fraction that fits, (N, R, B); infinite where none does.

    Least over three policies is least over two of them: there are two conditions, the number of blocks and memory.
    """
    x, by_rank, live_NR = group.costs, group.by_rank, group.live[..., 0]
    room_NR = group.free_bytes - np.minimum(group.working[..., first], group.working[..., second])
    room_NRB = room_NR[..., None] - by_rank(x.layer_static)[..., None] * group.sizes
    room_NRB = room_NRB + TOLERANCE * by_rank(x.memory_limit)[..., None]
    kept = [live_NR[..., None] * by_rank(x.layer_activation)[..., policy, None] for policy in (first, second)]
    seconds = [by_rank(group.block_seconds)[..., policy, None] for policy in (first, second)]
    with np.errstate(divide="ignore", invalid="ignore"):
        at_border = (room_NRB - group.sizes * kept[1]) / (kept[0] - kept[1])
    at_border = np.where(np.isfinite(at_border), at_border, 0.0)  # where both keep as much there is no border
    best = np.full(room_NRB.shape, np.inf)
    for first_NRB in (np.zeros_like(room_NRB), group.sizes + np.zeros_like(room_NRB), at_border):
        second_NRB = group.sizes - first_NRB
        possible = (first_NRB >= 0) & (second_NRB >= 0)
        possible &= first_NRB * kept[0] + second_NRB * kept[1] <= room_NRB + TOLERANCE * np.abs(room_NRB)
        spent = first_NRB * seconds[0] + second_NRB * seconds[1]
        best = np.where(possible & (spent < best), spent, best)
    return best


def rank_sizes(group: RankCosts, step: Array) -> tuple[Ints, Ints]:
    """(N, R) fewest and most blocks of each rank in any placement that takes no longer than `step` (N,) seconds.

    Where there is no such placement, some rank's most is zero, or the sum of all of them less than the model.
    """
    group = group.limited_to(float(step.max(initial=0.0)))
    return _rank_sizes(group, _rank_seconds(group), step, group.least_work)


def _rank_sizes(group: RankCosts, seconds_NRB: Array, step: Array, work: Array) -> tuple[Ints, Ints]:
    """Minimum and maximum blocks of each rank, (N, R), for a step of `step` seconds; uses lower bounds of work and
    tail.

    Where the ranks have little to spare, each must hold the blocks that the others cannot, which raises both, and none
    takes longer than with its most blocks; so a further round is tighter, and each alone is admissible.
    """
    low, high, tail = group.sizes[0], group.sizes[-1], group.least_tail
    shortest_NR = seconds_NRB.min(axis=2)
    # where a rank holds nothing, its count says so
    shortest_NR = np.where(np.isfinite(shortest_NR), shortest_NR, 0.0)
    longest_NR = np.repeat((step / group.microbatches)[:, None], group.shape[0], axis=1)
    each_NR = group.by_rank(group.least_block_seconds)
    order_NR = np.argsort(each_NR, axis=1, kind="stable")
    for remaining in reversed(range(ROUNDS_IN_POOLS if group.ranks_differ else ROUNDS)):
        limit_NR = (1 + TOLERANCE) * rank_limits(
            group.schedule,
            pipeline_N=step - tail,
            microbatches_N=group.microbatches,
            delay_N=group.delay,
            work_N=work,
            least_NR=shortest_NR,
            longest_NR=longest_NR,
        )
        count_NR = (seconds_NRB <= limit_NR[..., None]).sum(axis=2)
        most_NR = np.where(count_NR > 0, low + count_NR - 1, 0)
        spare_N = most_NR.sum(axis=1) - group.num_layers
        least_NR = np.clip(most_NR - spare_N[:, None], low, high)
        if remaining:
            needed_NR = np.take_along_axis(seconds_NRB, (least_NR - low)[..., None], axis=2)[..., 0]
            needed_N = np.where(np.isfinite(needed_NR), needed_NR, 0.0).sum(axis=1)
            rest_N = np.clip(group.num_layers - least_NR.sum(axis=1), 0, None)
            if group.ranks_differ:
                rest_seconds = cheapest_seconds(
                    rest_N, each_NR, np.maximum(most_NR - least_NR, 0.0), order_NR
                )
            else:
                rest_seconds = rest_N * each_NR[:, 0]
            work = np.maximum(work, needed_N + rest_seconds)
            tail = group.tail(least_NR[:, 0].astype(np.float64))
            longest_NR = limit_NR
            if group.kinds is None:  # of several kinds, other runs of as many blocks may take longer
                fullest_NR = np.maximum(count_NR - 1, 0)
                full_NR = np.take_along_axis(seconds_NRB, fullest_NR[..., None], axis=2)[..., 0]
                # of two policies in fractions, which `seconds_NRB` allows, less may fit than of the faster one alone
                has_room = group.sizes[fullest_NR] <= group.fit_at_full_speed
                longest_NR = np.where(has_room, np.minimum(limit_NR, full_NR), limit_NR)
    return least_NR, most_NR


def rank_limits(
    schedule: Schedule,
    *,
    pipeline_N: Array,
    microbatches_N: Ints,
    delay_N: Array,
    work_N: Array,
    least_NR: Array,
    longest_NR: Array,
) -> Array:
    """Maximum seconds per microbatch of each rank for a pipeline that ends in time, (N, R): the paths above, turned
    round.

    Ranks take `least_NR` to `longest_NR` seconds for one microbatch, all together at least `work_N`. Sums over other
    ranks are what all work leaves, with at most `longest_NR` on every rank that does not matter.
    """
    pp = least_NR.shape[1]
    rank_R, c = np.arange(pp), delay_N[:, None]
    M, m, W = pipeline_N[:, None], microbatches_N[:, None], work_N[:, None]
    before_NR = np.cumsum(least_NR, axis=1) - least_NR
    limits = [(M - before_NR - 2 * rank_R * c) / m]
    upto_NR = np.cumsum(longest_NR, axis=1) - longest_NR
    after_NR = longest_NR.sum(axis=1, keepdims=True) - longest_NR - upto_NR
    cycle = W + 2 * (pp - 1) * c
    with np.errstate(divide="ignore", invalid="ignore"):
        limits.append((M - 2 * rank_R * c - W + after_NR) / (m - 1))
        steady = schedule_named(schedule).steady
        if steady == "queue":
            limits.append((M - cycle) / (m - 1))
        elif steady == "pairs" and pp > 1:
            window_R = pp - rank_R
            limits.append(2 * (M - cycle) / (2 * m - window_R - 1))
            least_from_NR = np.cumsum(least_NR[:, ::-1], axis=1)[:, ::-1]
            round_trip = np.maximum(W - upto_NR, least_from_NR) + 2 * (window_R - 1) * c
            limits.append(np.where(m > window_R + 1, (M - cycle - round_trip) / (m - window_R - 1), np.inf))
            loops, remainder = np.divmod(m - 1, pp)
            slack = M - (loops + 1) * cycle
            limits.append(np.where((loops >= 1) & (remainder > 0), slack / remainder, np.inf))
            limits.append(np.where((loops >= 1) & (slack < 0), -1.0, np.inf))
    tightest: Array = np.where(m == 1, limits[0], reduce(np.fmin, limits))
    return tightest


def ideal_bounds(
    terms: PoolTerms,
    columns: LayoutColumns,
    ranks_KN: Ints,
    *,
    global_batch: int,
    num_layers: int,
    allowed: Bools,
    max_memory: float | None,
) -> Array:
    """First bound of the step on K pools in any order, seconds (N,); infinite where all memory together does not hold
    the model.

    The ranks of a pool count as one: blocks in fractions, as many on each rank as finish together, memory of all ranks
    in one heap.
    """
    pools = terms.costs

    def of_pools(name: str) -> Array:
        return np.stack([np.broadcast_to(getattr(pool, name), ranks_KN.shape[1:]) for pool in pools])

    block = [
        np.where(allowed, pool.layer_backward, np.inf).min(axis=1) + pool.layer_forward for pool in pools
    ]
    block_KN, fixed_KN = np.stack(block), of_pools("stage_forward") + of_pools("stage_backward")
    busiest = balanced(num_layers, ranks_KN, fixed_KN, block_KN, axis=0)
    work = (ranks_KN * fixed_KN).sum(axis=0) + num_layers * block_KN.min(axis=0)
    m, pp = columns.microbatches(global_batch), columns.pp
    pipeline = np.zeros(len(columns))
    for name in PLAIN:
        plain_seconds = pipeline_seconds(name, pp, m, work, busiest)
        pipeline = np.where(is_scheduled(columns, (name,)), plain_seconds, pipeline)
    sync = (of_pools("rank_sync") + of_pools("layer_sync")).min(axis=0)
    update = balanced(num_layers, ranks_KN, of_pools("rank_optimizer"), of_pools("layer_optimizer"), axis=0)
    bound: Array = pipeline + sync + update + of_pools("step_overhead").max(axis=0)
    activation = np.stack([np.where(allowed, pool.layer_activation, np.inf).min(axis=1) for pool in pools])
    blocks = num_layers * (of_pools("layer_static") + activation).min(axis=0)
    ends = (of_pools("embedding_static") + of_pools("head_static")).min(axis=0)
    limit_KN = of_pools("memory_limit")
    if max_memory is not None:
        limit_KN = np.minimum(limit_KN, max_memory)
    room = (ranks_KN * (limit_KN - of_pools("static"))).sum(axis=0)
    return np.where(blocks + np.minimum(ends, 0.0) <= room, bound, np.inf)
