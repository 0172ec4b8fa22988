"""A first bound for every layout on several pools, whatever the order of the pools: microseconds for hundreds.

The ranks of a pool count as one: blocks in fractions, as many on each rank as finish together, memory of all ranks in
one heap. Admissible: no placement the search covers is faster.

Shape legend: N layouts, K pools.
"""

from __future__ import annotations

import numpy as np

from cost_models.axes.columns import Ints, LayoutColumns
from cost_models.pipeline.pool_terms import PoolTerms
from cost_models.schedules import PLAIN, is_scheduled
from planner.bounds.step import pipeline_seconds
from planner.placement.leaf import Bools, Floats


def ideal_bounds(
    terms: PoolTerms,
    columns: LayoutColumns,
    ranks_KN: Ints,
    *,
    global_batch: int,
    num_layers: int,
    allowed: Bools,
    max_memory: float | None,
) -> Floats:
    """(N,) seconds; infinite where not even all memory together holds the model."""
    pools = terms.costs

    def of_pools(name: str) -> Floats:
        return np.stack([np.broadcast_to(getattr(pool, name), ranks_KN.shape[1:]) for pool in pools])

    block = [
        np.where(allowed, pool.layer_backward, np.inf).min(axis=1) + pool.layer_forward for pool in pools
    ]
    block_KN, fixed_KN = np.stack(block), of_pools("stage_forward") + of_pools("stage_backward")
    busiest = _together(num_layers, ranks_KN, fixed_KN, block_KN)
    work = (ranks_KN * fixed_KN).sum(axis=0) + num_layers * block_KN.min(axis=0)
    m, pp = columns.microbatches(global_batch), columns.pp
    pipeline = np.zeros(len(columns))
    for name in PLAIN:
        own = pipeline_seconds(name, pp, m, work, busiest)
        pipeline = np.where(is_scheduled(columns, (name,)), own, pipeline)
    sync = (of_pools("rank_sync") + of_pools("layer_sync")).min(axis=0)
    update = _together(num_layers, ranks_KN, of_pools("rank_optimizer"), of_pools("layer_optimizer"))
    bound: Floats = pipeline + sync + update + of_pools("step_overhead").max(axis=0)
    kept = np.stack([np.where(allowed, pool.layer_activation, np.inf).min(axis=1) for pool in pools])
    blocks = num_layers * (of_pools("layer_static") + kept).min(axis=0)
    ends = (of_pools("embedding_static") + of_pools("head_static")).min(axis=0)
    limit_KN = of_pools("memory_limit")
    if max_memory is not None:
        limit_KN = np.minimum(limit_KN, max_memory)
    room = (ranks_KN * (limit_KN - of_pools("static"))).sum(axis=0)
    return np.where(blocks + np.minimum(ends, 0.0) <= room, bound, np.inf)


def _together(num_layers: int, ranks_KN: Ints, fixed_KN: Floats, each_KN: Floats) -> Floats:
    """(N,): least seconds of the slowest rank, if blocks could be cut so that all ranks take as long."""
    with np.errstate(divide="ignore", invalid="ignore"):
        rate_N = (ranks_KN / each_KN).sum(axis=0)
        together_N = (num_layers + (ranks_KN * fixed_KN / each_KN).sum(axis=0)) / rate_N
    slowest_N: Floats = np.where((each_KN > 0).all(axis=0), together_N, fixed_KN.max(axis=0))
    return slowest_N
