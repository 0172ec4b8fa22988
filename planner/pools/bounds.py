"""Lower bounds on the step time of every placement of a layout whose ranks lie in several pools.

The paths are those of `planner.bounds`, which hold for any durations of the ranks; only what ranks can hold and how
quickly differs from rank to rank. Both bounds are admissible: no placement the search covers is faster.

Shape legend: N layouts of one group, R ranks, B counts of blocks on a rank.
"""

from __future__ import annotations

import numpy as np

from cost_models.specs.columns import Ints
from planner.placement import TOLERANCE, Bools, Floats, Leaf
from planner.pools.group import RankGroup

BISECTIONS = 32
"""Halvings of the interval that holds a capacity bound: finer than the bounds are tight."""
TABLE_ENTRIES = 2_000_000
"""Layouts × ranks × counts of blocks handled at once: bounds memory."""


def quick_bounds(group: RankGroup) -> Floats:
    """(N,) seconds: blocks shared in proportion to the speed of the ranks; infinite where no placement can fit."""
    low_NR = np.full((len(group), group.pp), group.sizes[0])
    high_NR = np.full_like(low_NR, group.sizes[-1])
    work_N = _least_work(group, low_NR, high_NR)
    pipeline_N = _pipeline(group, work_N, _even_finish(group))
    most_NR = group.most_blocks
    fits_N = (most_NR >= group.sizes[0]).all(axis=1) & (most_NR.sum(axis=1) >= group.num_layers)
    return np.where(fits_N, pipeline_N + group.tail(low_NR), np.inf)


def capacity_bounds(group: RankGroup) -> Floats:
    """(N,) seconds: the shortest step in which whole blocks all find a place; infinite where they do not."""
    step = max(1, TABLE_ENTRIES // (group.pp * len(group.sizes)))
    starts = range(0, len(group), step)
    return np.concatenate([_capacity_bounds(group.rows(slice(start, start + step))) for start in starts])


def rank_sizes(group: RankGroup, step_N: Floats) -> tuple[Ints, Ints]:
    """(N, R) fewest and most blocks of each rank in any placement that takes no longer than `step_N` seconds.

    Where there is no such placement, some rank's most is zero, or the sum of all of them less than the model.
    """
    low, high = int(group.sizes[0]), int(group.sizes[-1])
    least_NR = np.full((len(group), group.pp), low)
    most_NR = np.full_like(least_NR, high)
    for _ in range(2):
        work_N = np.maximum(_least_work(group, least_NR, most_NR), group.least_work)
        limit_NR = _rank_limits(group, least_NR, step_N - group.tail(least_NR), work_N) * (1 + TOLERANCE)
        count_NR = (group.seconds <= limit_NR[..., None]).sum(axis=2)
        most_NR = np.where(count_NR > 0, low + count_NR - 1, 0)
        spare_N = most_NR.sum(axis=1) - group.num_layers
        least_NR = np.clip(most_NR - spare_N[:, None], low, high)
    return least_NR, most_NR


def leaf_sizes(leaf: Leaf, step_seconds: float) -> tuple[Ints, Ints]:
    """(R,) each: the same for one leaf."""
    group = RankGroup(
        costs=leaf.costs,
        pp=leaf.pp,
        schedule=leaf.schedule,
        microbatches=np.array([leaf.microbatches]),
        num_layers=leaf.num_layers,
        allowed=leaf.allowed,
    )
    least_NR, most_NR = rank_sizes(group, np.array([step_seconds]))
    return least_NR[0], most_NR[0]


def _least_work(group: RankGroup, least_NR: Ints, most_NR: Ints) -> Floats:
    """(N,): least seconds of one microbatch over all ranks, blocks beyond the least on the quickest ranks with room."""
    each_NR = group.least_block_seconds
    first_N = (group.fixed_seconds + each_NR * least_NR).sum(axis=1)
    order_NR = np.argsort(each_NR, axis=1, kind="stable")
    room_NR = np.take_along_axis(np.clip(most_NR - least_NR, 0, None), order_NR, axis=1)
    filled_NR = np.minimum(np.cumsum(room_NR, axis=1), (group.num_layers - least_NR.sum(axis=1))[:, None])
    added_NR = np.diff(np.clip(filled_NR, 0, None), axis=1, prepend=0)
    work_N: Floats = first_N + (added_NR * np.take_along_axis(each_NR, order_NR, axis=1)).sum(axis=1)
    return work_N


def _even_finish(group: RankGroup) -> Floats:
    """(N,): least seconds of the slowest rank, if blocks could be cut so that all ranks take as long."""
    each_NR, fixed_NR = group.least_block_seconds, group.fixed_seconds
    together_N = (group.num_layers + (fixed_NR / each_NR).sum(axis=1)) / (1 / each_NR).sum(axis=1)
    alone_N = (fixed_NR + group.sizes[0] * each_NR).max(axis=1)
    finish_N: Floats = np.maximum(together_N, alone_N)
    return finish_N


def _cycle(group: RankGroup, work_N: Floats) -> Floats:
    """(N,): one microbatch down and up again."""
    return work_N + 2 * (group.pp - 1) * group.delay


def _pipeline(group: RankGroup, work_N: Floats, busiest_N: Floats) -> Floats:
    """(N,): end of the last action on rank 0, if some rank takes `busiest_N` seconds for one microbatch."""
    m, pp, cycle = group.microbatches, group.pp, _cycle(group, work_N)
    if group.schedule == "gpipe":
        return cycle + (m - 1) * busiest_N
    loops, rest = np.divmod(m - 1, pp)
    pipeline = np.maximum(m * busiest_N, cycle + (2 * m - pp - 1) / 2 * busiest_N)
    return np.where(loops >= 1, np.maximum(pipeline, (loops + 1) * cycle + rest * busiest_N), pipeline)


def _capacity_bounds(group: RankGroup) -> Floats:
    """Bisect the step time between zero and one at which memory alone decides."""
    slowest_N = np.where(np.isfinite(group.seconds), group.seconds, 0.0).max(axis=(1, 2))
    high_NR = np.full((len(group), group.pp), group.sizes[-1])
    lower = np.zeros(len(group))
    rounds = 2 * (group.microbatches + group.pp)
    upper = rounds * (slowest_N + _cycle(group, np.zeros(len(group)))) + group.tail(high_NR)

    def enough(step_N: Floats) -> Bools:
        _, most_NR = rank_sizes(group, step_N)
        found: Bools = most_NR.all(axis=1) & (most_NR.sum(axis=1) >= group.num_layers)
        return found

    possible = enough(upper)
    for _ in range(BISECTIONS):
        middle = (lower + upper) / 2
        reached = enough(middle)
        upper, lower = np.where(reached, middle, upper), np.where(reached, lower, middle)
    return np.where(possible, lower, np.inf)


def _rank_limits(group: RankGroup, least_NR: Ints, pipeline_N: Floats, work_N: Floats) -> Floats:
    """(N, R): the most seconds per microbatch of each rank if the pipeline ends in time.

    The paths of `planner.bounds`, turned round. Sums over other ranks are what all work leaves, with at most M / m on
    every rank that does not matter.
    """
    pp, rank_R, c = group.pp, np.arange(group.pp), group.delay[:, None]
    M, m, W = pipeline_N[:, None], group.microbatches[:, None], work_N[:, None]
    alone_NR = group.fixed_seconds + group.least_block_seconds * least_NR
    before_NR = np.cumsum(alone_NR, axis=1) - alone_NR
    limits = [(M - before_NR - 2 * rank_R * c) / m]
    cycle = _cycle(group, work_N)[:, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        limits.append((M - 2 * rank_R * c - W + (pp - 1 - rank_R) * M / m) / (m - 1))
        if group.schedule == "gpipe":
            limits.append((M - cycle) / (m - 1))
        else:
            window_R = pp - rank_R
            limits.append(2 * (M - cycle) / (2 * m - window_R - 1))
            again = W - rank_R * M / m + 2 * (window_R - 1) * c
            limits.append(np.where(m > window_R + 1, (M - cycle - again) / (m - window_R - 1), np.inf))
            loops, rest = np.divmod(m - 1, pp)
            left = M - (loops + 1) * cycle
            limits.append(np.where((loops >= 1) & (rest > 0), left / rest, np.inf))
            limits.append(np.where((loops >= 1) & (left < 0), -1.0, np.inf))
    known = [np.where(np.isnan(limit) | (m == 1), limits[0], limit) for limit in limits]
    least: Floats = np.min(known, axis=0)
    return least
