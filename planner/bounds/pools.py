"""Lower bounds on the step time of every placement of a layout whose ranks lie in several pools.

The paths are those of `planner.bounds.step`, which hold for any durations of the ranks; only what ranks can hold and
how quickly differs from rank to rank. Both bounds are admissible: no placement the search covers is faster.

Shape legend: N layouts of one group, R ranks, B counts of blocks on a rank.

A first bound for every layout on several pools, whatever the order of the pools: microseconds for hundreds.

The ranks of a pool count as one: blocks in fractions, as many on each rank as finish together, memory of all ranks in
one heap. Admissible: no placement the search covers is faster.

Shape legend: N layouts, K pools.
"""

from __future__ import annotations

import numpy as np

from cost_models.arrays import Array, Bools, Ints
from cost_models.axes.columns import LayoutColumns
from cost_models.pipeline.pools import PoolTerms
from cost_models.schedules.registry import PLAIN, is_scheduled
from planner.bounds.step import pipeline_seconds, rank_limits
from planner.placement.leaf import TOLERANCE, Leaf
from planner.placement.pool_shape import RankGroup

PRECISION = 1e-4
"""Relative width of the interval that holds a capacity bound: finer than the bounds are tight."""
TABLE_ENTRIES = 2_000_000
"""Layouts × ranks × counts of blocks handled at once: bounds memory."""


def quick_bounds(group: RankGroup) -> Array:
    """Quick bound of the step, seconds (N,): blocks shared in proportion to the ranks' speed; infinite where nothing
    fits."""
    low_NR = np.full((len(group), group.pp), group.sizes[0])
    high_NR = np.full_like(low_NR, group.sizes[-1])
    work_N = _least_work(group, low_NR, high_NR)
    cycle_N = _cycle(group, work_N)
    pipeline_N = pipeline_seconds(group.schedule, group.pp, group.microbatches, cycle_N, _even_finish(group))
    most_NR = group.most_blocks
    fits_N = (most_NR >= group.sizes[0]).all(axis=1) & (most_NR.sum(axis=1) >= group.num_layers)
    return np.where(fits_N, pipeline_N + group.tail(low_NR), np.inf)


def capacity_bounds(group: RankGroup, cut_off: float = np.inf) -> Array:
    """Shortest step in which whole blocks all find a place, seconds (N,); infinite where they do not.

    At most `cut_off` seconds: slower layouts get the cut-off.
    """
    step = max(1, TABLE_ENTRIES // (group.pp * len(group.sizes)))
    starts = range(0, len(group), step)
    return np.concatenate(
        [_capacity_bounds(group.rows(slice(start, start + step)), cut_off) for start in starts]
    )


def rank_sizes(group: RankGroup, step_N: Array) -> tuple[Ints, Ints]:
    """(N, R) fewest and most blocks of each rank in any placement that takes no longer than `step_N` seconds.

    Where there is no such placement, some rank's most is zero, or the sum of all of them less than the model.
    """
    low, high = int(group.sizes[0]), int(group.sizes[-1])
    least_NR = np.full((len(group), group.pp), low)
    most_NR = np.full_like(least_NR, high)
    for _ in range(2):
        work_N = np.maximum(_least_work(group, least_NR, most_NR), group.least_work)
        pipeline_N = step_N - group.tail(least_NR)
        limit_NR = (1 + TOLERANCE) * rank_limits(
            group.schedule,
            pipeline_N=pipeline_N,
            microbatches_N=group.microbatches,
            delay_N=group.delay,
            work_N=work_N,
            least_NR=group.fixed_seconds + group.least_of_blocks * least_NR,
            longest_NR=np.repeat((pipeline_N / group.microbatches)[:, None], group.pp, axis=1),
        )
        count_NR = (group.seconds <= limit_NR[..., None]).sum(axis=2)
        most_NR = np.where(count_NR > 0, low + count_NR - 1, 0)
        spare_N = most_NR.sum(axis=1) - group.num_layers
        least_NR = np.clip(most_NR - spare_N[:, None], low, high)
    return least_NR, most_NR


def leaf_sizes(leaf: Leaf, step_seconds: float) -> tuple[Ints, Ints]:
    """Minimum and maximum blocks of each rank of one leaf, (R,) each."""
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


def _least_work(group: RankGroup, least_NR: Ints, most_NR: Ints) -> Array:
    """Minimum seconds of one microbatch over all ranks, (N,): spare blocks lie on the quickest ranks with memory."""
    each_NR = group.least_of_blocks
    first_N = (group.fixed_seconds + each_NR * least_NR).sum(axis=1)
    order_NR = np.argsort(each_NR, axis=1, kind="stable")
    room_NR = np.take_along_axis(np.clip(most_NR - least_NR, 0, None), order_NR, axis=1)
    filled_NR = np.minimum(np.cumsum(room_NR, axis=1), (group.num_layers - least_NR.sum(axis=1))[:, None])
    added_NR = np.diff(np.clip(filled_NR, 0, None), axis=1, prepend=0)
    work_N: Array = first_N + (added_NR * np.take_along_axis(each_NR, order_NR, axis=1)).sum(axis=1)
    return work_N


def _even_finish(group: RankGroup) -> Array:
    """(N,): least seconds of the slowest rank, if blocks could be cut so that all ranks take as long."""
    each_NR, fixed_NR = group.least_of_blocks, group.fixed_seconds
    together_N = (group.num_layers + (fixed_NR / each_NR).sum(axis=1)) / (1 / each_NR).sum(axis=1)
    alone_N = (fixed_NR + group.sizes[0] * each_NR).max(axis=1)
    finish_N: Array = np.maximum(together_N, alone_N)
    return finish_N


def _cycle(group: RankGroup, work_N: Array) -> Array:
    """Seconds of one microbatch down and up again, (N,)."""
    return work_N + 2 * (group.pp - 1) * group.delay


def _capacity_bounds(group: RankGroup, cut_off: float) -> Array:
    """Bisect the step time between the quick bound and the cut-off, or one at which memory alone decides."""
    quick = quick_bounds(group)
    lower = np.where(np.isfinite(quick), quick, 0.0)
    upper = np.full(len(group), cut_off)
    if np.isinf(cut_off):
        slowest_N = np.where(np.isfinite(group.seconds), group.seconds, 0.0).max(axis=(1, 2))
        rounds = 2 * (group.microbatches + group.pp)
        high_NR = np.full((len(group), group.pp), group.sizes[-1])
        upper = rounds * (slowest_N + _cycle(group, np.zeros(len(group)))) + group.tail(high_NR)

    def enough(step_N: Array) -> Bools:
        _, most_NR = rank_sizes(group, step_N)
        holds_model: Bools = most_NR.all(axis=1) & (most_NR.sum(axis=1) >= group.num_layers)
        return holds_model

    possible = np.isfinite(quick) & enough(upper)
    while (upper - lower > PRECISION * lower)[possible].any():
        middle = (lower + upper) / 2
        reached = enough(middle)
        upper, lower = np.where(reached, middle, upper), np.where(reached, lower, middle)
    return np.where(possible, lower, np.maximum(quick, cut_off))


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
    """First bound of the step, seconds (N,); infinite where all memory together does not hold the model."""
    pools = terms.costs

    def of_pools(name: str) -> Array:
        return np.stack([np.broadcast_to(getattr(pool, name), ranks_KN.shape[1:]) for pool in pools])

    block = [
        np.where(allowed, pool.layer_backward, np.inf).min(axis=1) + pool.layer_forward for pool in pools
    ]
    block_KN, fixed_KN = np.stack(block), of_pools("stage_forward") + of_pools("stage_backward")
    busiest = _balanced_finish(num_layers, ranks_KN, fixed_KN, block_KN)
    work = (ranks_KN * fixed_KN).sum(axis=0) + num_layers * block_KN.min(axis=0)
    m, pp = columns.microbatches(global_batch), columns.pp
    pipeline = np.zeros(len(columns))
    for name in PLAIN:
        plain_seconds = pipeline_seconds(name, pp, m, work, busiest)
        pipeline = np.where(is_scheduled(columns, (name,)), plain_seconds, pipeline)
    sync = (of_pools("rank_sync") + of_pools("layer_sync")).min(axis=0)
    update = _balanced_finish(num_layers, ranks_KN, of_pools("rank_optimizer"), of_pools("layer_optimizer"))
    bound: Array = pipeline + sync + update + of_pools("step_overhead").max(axis=0)
    activation = np.stack([np.where(allowed, pool.layer_activation, np.inf).min(axis=1) for pool in pools])
    blocks = num_layers * (of_pools("layer_static") + activation).min(axis=0)
    ends = (of_pools("embedding_static") + of_pools("head_static")).min(axis=0)
    limit_KN = of_pools("memory_limit")
    if max_memory is not None:
        limit_KN = np.minimum(limit_KN, max_memory)
    room = (ranks_KN * (limit_KN - of_pools("static"))).sum(axis=0)
    return np.where(blocks + np.minimum(ends, 0.0) <= room, bound, np.inf)


def _balanced_finish(num_layers: int, ranks_KN: Ints, fixed_KN: Array, each_KN: Array) -> Array:
    """(N,): least seconds of the slowest rank, if blocks could be cut so that all ranks take as long."""
    with np.errstate(divide="ignore", invalid="ignore"):
        rate_N = (ranks_KN / each_KN).sum(axis=0)
        together_N = (num_layers + (ranks_KN * fixed_KN / each_KN).sum(axis=0)) / rate_N
    slowest_N: Array = np.where((each_KN > 0).all(axis=0), together_N, fixed_KN.max(axis=0))
    return slowest_N
