"""Patterns: the placements on several model chunks per rank that the search covers, few enough to price every
pattern.

Sizes: equal stages, or one or two stages at the ends with a block less, next to embedding and head, as
trainers place them that count these as a layer. If interleaved pipelines have a stage or two more than
blocks, the first stage, the last or both have none.

Recompute: every rank recomputes a number of its blocks in full and a number selectively, the first ones in
the order of its chunks. Earlier chunks keep more microbatches, so recomputing there saves most; ranks share
the numbers because the slowest of them sets the pace. For a trainer that counts them
(`Leaf.uses_full_counts`) every chunk recomputes the same number of its blocks in full.

Shape legend: Z sizes, T numbers recomputed, S virtual stages, R ranks, C chunks of a rank, P policies.
"""

from __future__ import annotations

import math

import numpy as np

from cost_models.arrays import Bools, Ints
from cost_models.axes.stages import ENDS
from cost_models.schedules.registry import PLAIN, schedule_named
from cost_models.specs.choices import Schedule
from planner.placement.leaf import TOLERANCE, Leaf, Placement

TIMED_TOGETHER = 16
"""Number of patterns (placements) whose timelines are evaluated in one batch, which takes little longer than
one."""


MOST_SMALLER = 2
"""Maximum number of stages with one block less than the others, one next to the embedding and one next to the
head."""


def covers(schedule: Schedule, num_layers: int, stages: int) -> bool:
    """Whether the search covers a split of `num_layers` blocks into `stages` pipeline stages under a schedule."""
    if stages > num_layers:  # each rank has blocks on other stages where these go round the ranks
        return schedule_named(schedule).goes_round and stages <= num_layers + ENDS
    return schedule in PLAIN or -num_layers % stages <= MOST_SMALLER


def chunk_sizes(num_layers: int, stages: int, most_smaller: int = MOST_SMALLER) -> Ints:
    """Number of blocks on each virtual stage in every nearly equal split, with smaller stages at the ends,
    (Z, S).

    Empty where more than `most_smaller` stages would be smaller, or a stage between the ends had no block.
    """
    size, larger = divmod(num_layers, stages)
    if not larger:
        return np.full((1, stages), size)
    smaller, stage_S = stages - larger, np.arange(stages)
    if smaller > most_smaller:
        return np.empty((0, stages), dtype=np.int64)
    first_Z1 = np.arange(smaller + 1)[:, None]
    short_ZS = (stage_S < first_Z1) | (stage_S >= stages - (smaller - first_Z1))
    sizes_ZS = size + 1 - short_ZS.astype(np.int64)
    return sizes_ZS[(sizes_ZS[:, 1:-1] > 0).all(axis=1)]


def policy_ends(allowed_P: Bools, sizes_CR: Ints, per_chunk: bool = False) -> Ints:
    """List every division of a rank's blocks among the recompute policies, (T, P). With `per_chunk` the
    blocks of one chunk are divided instead. Each entry is the index where the blocks that recompute at least
    as much as a policy end."""
    most_blocks = int((sizes_CR if per_chunk else sizes_CR.sum(axis=0)).max())
    first, *stronger = np.flatnonzero(allowed_P).tolist()
    stronger.reverse()  # the blocks that recompute most come first
    counts_UT = np.indices((most_blocks + 1,) * len(stronger)).reshape(len(stronger), -1 if stronger else 1)
    upto_UT = np.cumsum(counts_UT, axis=0)
    upto_UT = upto_UT[:, (upto_UT <= most_blocks).all(axis=0)]
    ends_TP = np.zeros((upto_UT.shape[1], len(allowed_P)), dtype=np.int64)
    ends_TP[:, stronger] = upto_UT.T
    ends_TP[:, first] = most_blocks
    # A policy that is not allowed ends where the next stronger one does: it has no blocks.
    return np.maximum.accumulate(ends_TP[:, ::-1], axis=1)[:, ::-1]


def blocks_of_chunks(ends_TP: Ints, sizes_C: Ints, per_chunk: bool = False) -> Ints:
    """Number of blocks of each model chunk of one rank under each policy, (T, C, P). `ends_TP` are the
    indices where the blocks of each policy end. With `per_chunk` each chunk begins anew."""
    end_C = sizes_C if per_chunk else np.cumsum(sizes_C)
    begin_C = end_C - sizes_C
    upto_TCP = np.clip(ends_TP[:, None, :], begin_C[:, None], end_C[:, None]) - begin_C[:, None]
    return -np.diff(upto_TCP, axis=-1, append=0)


def chunk_patterns(leaf: Leaf) -> Ints:
    """Every placement that the search covers for a layout with several model chunks per rank, (Z·T, S, P).
    For replicas, any number of stages may be a block smaller."""
    stages, per_chunk = leaf.pp * leaf.vpp, leaf.uses_full_counts
    stage_of_CR = schedule_named(leaf.schedule).stages_of_rank(leaf.pp, leaf.vpp).T
    parts = [np.empty((0, stages, len(leaf.allowed)), dtype=np.int64)]
    for sizes_S in chunk_sizes(leaf.num_layers, stages, leaf.pp if leaf.has_replicas else MOST_SMALLER):
        ends_TP = policy_ends(leaf.allowed, sizes_S[stage_of_CR], per_chunk)
        blocks_TSP = np.empty((len(ends_TP), *parts[0].shape[1:]), dtype=np.int64)
        for stage_of_C in stage_of_CR.T:
            blocks_TSP[:, stage_of_C] = blocks_of_chunks(ends_TP, sizes_S[stage_of_C], per_chunk)
        parts.append(blocks_TSP)
    patterns = np.concatenate(parts)
    if leaf.least_blocks:
        blocks_R = patterns.sum(axis=-1)[:, leaf.stage_of].sum(axis=1)
        has_least: Bools = (blocks_R >= leaf.least_blocks).all(axis=1)
        patterns = patterns[has_least]
    return leaf.kinds.in_sorts(patterns)


def best_pattern(leaf: Leaf, cut_off: float = math.inf) -> tuple[Placement, float] | None:
    """Fastest placement of a layout with several model chunks per rank, or with replicas in different pools
    of GPUs, with its step seconds.

    None where no placement fits or takes less than `cut_off` seconds. Patterns are timed in the order of their work. A
    rank is never idle less than the way to and from it, so once work and way alone take longer than the best, so do all
    patterns that follow.
    """
    patterns = chunk_patterns(leaf)
    busy = leaf.busy_seconds(patterns)
    is_faster = busy < cut_off * (1 - TOLERANCE)
    patterns, busy = patterns[is_faster], busy[is_faster]
    fitting = leaf.fits(patterns)
    patterns, busy = patterns[fitting], busy[fitting]
    order = np.argsort(busy, kind="stable")
    batch_size = 1
    if not leaf.has_replicas:  # whose shares of the microbatches decide what fits
        order, batch_size = order[_undominated(leaf, patterns[order])], TIMED_TOGETHER
    best: Placement | None = None
    for start in range(0, len(order), batch_size):
        batch = order[start : start + batch_size]
        batch = batch[busy[batch] < cut_off * (1 - TOLERANCE)]
        if not len(batch):
            break
        seconds = leaf.step_seconds(patterns[batch])
        first = int(np.argmin(seconds))
        if seconds[first] < cut_off:
            best, cut_off = Placement.of(patterns[batch[first]]), float(seconds[first])
    return (best, cut_off) if best else None


def _undominated(leaf: Leaf, patterns: Ints) -> Ints:
    """Indices of the patterns (placements) that no other pattern dominates. A pattern dominates another of
    the same stage sizes if none of its backward passes is longer. Longer actions never shorten a timeline."""
    layers = patterns.sum(axis=-1)
    backward = np.concatenate([scenario.backward(patterns) for scenario in leaf.scenario_leaves], axis=-1)
    front: list[int] = []
    for index in range(len(patterns)):
        same_sizes = [rival for rival in front if (layers[rival] == layers[index]).all()]
        if not (backward[same_sizes] <= backward[index]).all(axis=1).any():
            front.append(index)
    return np.array(front, dtype=np.int64)
