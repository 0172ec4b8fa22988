"""Schedules with several chunks a rank: the placements the search covers, few enough to price every one.

Sizes: equal stages, or one or two stages at the ends with a block less, next to embedding and head, as trainers place
them that count these as a layer. Of interleaved pipelines with a stage or two more than blocks, the first stage, the
last or both have none.

Recompute: every rank recomputes so many of its blocks in full and so many selectively, the first ones in the order of
its chunks. Earlier chunks keep more microbatches, so recomputing there spares most; ranks share the numbers because the
slowest of them sets the pace. Of a trainer that counts them (`Leaf.counted`) every chunk recomputes so many of its own.

Shape legend: Z sizes, T numbers recomputed, S virtual stages, R ranks, C chunks of a rank, P policies.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from cost_models.arrays import Bools, Ints
from cost_models.axes.pipeline import ENDS
from cost_models.schedules import PLAIN, schedule_named
from cost_models.specs.choices import Schedule
from planner.placement.leaf import TOLERANCE, Leaf, Placement

TIMED_TOGETHER = 16
"""Patterns whose timelines are evaluated at once, which takes little longer than one."""


MOST_SMALLER = 2
"""Stages that may have a block less than the others: one for the embedding and one for the head."""


def covers(schedule: Schedule, num_layers: int, stages: int) -> bool:
    """Whether so many blocks make so many stages of the sizes that the search covers."""
    if stages > num_layers:  # each rank has blocks on other stages where these go round the ranks
        return schedule_named(schedule).goes_round and stages <= num_layers + ENDS
    return schedule in PLAIN or -num_layers % stages <= MOST_SMALLER


def chunk_sizes(num_layers: int, stages: int, most_smaller: int = MOST_SMALLER) -> Ints:
    """(Z, S): the blocks of every virtual stage, as equal as they go, those at the ends a block smaller.

    None where more than `most_smaller` would be, or a stage between the ends had no block.
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


def fewest_on_rank(num_layers: int, pp: Ints, vpp: Ints, ends: Ints) -> Ints:
    """(N,): blocks of a rank in any covered sizes; one rank has at most so many of the pipeline's `ends`."""
    least, larger = np.divmod(num_layers, pp * vpp)
    fewest: Ints = np.where(larger > 0, vpp * (least + 1) - np.minimum(pp * vpp - larger, ends), vpp * least)
    return fewest


def fewest_before_last(num_layers: int, pp: Ints, vpp: Ints) -> Ints:
    """(N,): blocks of the stages before the last rank's first one, in any covered sizes; only the very first stage may
    have none."""
    least, larger = np.divmod(num_layers, pp * vpp)
    smaller = np.minimum(pp * vpp - larger, np.where(least == 0, 1, pp - 1))
    fewest: Ints = (pp - 1) * (least + (larger > 0)) - np.where(larger > 0, smaller, 0)
    return fewest


def blocks_recomputed(allowed_P: Bools, sizes_CR: Ints, counted: bool = False) -> Ints:
    """(T, P): for each policy, where the blocks that recompute at least so much end, of those of a rank or, `counted`,
    of a chunk; policies are in order of rising recompute."""
    most = int((sizes_CR if counted else sizes_CR.sum(axis=0)).max())
    policies = np.flatnonzero(allowed_P).tolist()
    ends_TP = np.zeros((1, len(allowed_P)), dtype=np.int64)
    if len(policies) > 1:
        last, between = np.arange(most + 1), np.zeros(1, dtype=np.int64)
        if len(policies) == 3:
            last, between = (grid.ravel() for grid in np.indices((most + 1, most + 1)))
            last, between = last[last + between <= most], between[last + between <= most]
        ends_TP = np.zeros((len(last), len(allowed_P)), dtype=np.int64)
        ends_TP[:, policies[-1]] = last
        ends_TP[:, policies[1]] = last + between
    ends_TP[:, policies[0]] = most
    # A policy that is not allowed ends where the next stronger one does: it has no blocks.
    return np.maximum.accumulate(ends_TP[:, ::-1], axis=1)[:, ::-1]


def blocks_of_chunks(ends_TP: Ints, sizes_C: Ints, counted: bool = False) -> Ints:
    """(T, C, P): blocks of each chunk of one rank under each policy; `counted`: each chunk begins anew."""
    end_C = sizes_C if counted else np.cumsum(sizes_C)
    begin_C = end_C - sizes_C
    upto_TCP = np.clip(ends_TP[:, None, :], begin_C[:, None], end_C[:, None]) - begin_C[:, None]
    blocks_TCP: Ints = upto_TCP - np.concatenate(
        [upto_TCP[..., 1:], np.zeros_like(upto_TCP[..., :1])], axis=-1
    )
    return blocks_TCP


@lru_cache(maxsize=256)
def _patterns(
    num_layers: int,
    shape: tuple[int, int],
    allowed: tuple[bool, ...],
    stage_of: bytes,
    smaller: int,
    counted: bool,
) -> Ints:
    """(Z·T, S, P): every covered placement; `stage_of` is the table of the schedule, of `shape` (C, R)."""
    stage_of_CR, stages = np.frombuffer(stage_of, dtype=np.int64).reshape(shape), shape[0] * shape[1]
    sizes_ZS = chunk_sizes(num_layers, stages, smaller)
    found = []
    for sizes_S in sizes_ZS:
        ends_TP = blocks_recomputed(np.array(allowed), sizes_S[stage_of_CR], counted)
        blocks_TSP = np.empty((len(ends_TP), stages, len(allowed)), dtype=np.int64)
        for stage_of_C in stage_of_CR.T:
            blocks_TSP[:, stage_of_C] = blocks_of_chunks(ends_TP, sizes_S[stage_of_C], counted)
        found.append(np.unique(blocks_TSP, axis=0) if len(sizes_ZS) > 1 else blocks_TSP)
    patterns = np.concatenate([np.empty((0, stages, len(allowed)), dtype=np.int64), *found])
    patterns.flags.writeable = False
    return patterns


def every_placement(num_layers: int, stage_of_CR: Ints, allowed: Bools) -> Ints:
    """(Z·T, S, P): the same placements of stages `stage_of_CR`, however many of them are a block smaller."""
    shape, stage_of = stage_of_CR.shape, stage_of_CR.astype(np.int64).tobytes()
    return _patterns(num_layers, shape, tuple(allowed.tolist()), stage_of, stage_of_CR.size, False)


def chunk_patterns(leaf: Leaf) -> Ints:
    """(Z·T, S, P): every placement the search covers for a leaf with several chunks a rank."""
    allowed, shape = tuple(leaf.allowed.tolist()), (leaf.vpp, leaf.pp)
    stage_of = leaf.stage_of.astype(np.int64)
    patterns = _patterns(leaf.num_layers, shape, allowed, stage_of.tobytes(), MOST_SMALLER, leaf.counted)
    if leaf.fewest:
        blocks_R = patterns.sum(axis=-1)[:, stage_of].sum(axis=1)
        wide: Bools = (blocks_R >= leaf.fewest).all(axis=1)
        patterns = patterns[wide]
    return leaf.in_sorts(patterns)


def best_pattern(leaf: Leaf, cut_off: float = math.inf) -> tuple[Placement, float] | None:
    """The best of all covered placements of a leaf with several chunks a rank, with its step time.

    None where none fits, or none takes less than `cut_off` seconds. Patterns are timed in the order of their work. A
    rank is never idle less than the way to and from it, so once work and way alone take longer than the best, so do all
    patterns that follow.
    """
    patterns = chunk_patterns(leaf)
    busy = leaf.busy_seconds(patterns)
    below = busy < cut_off * (1 - TOLERANCE)
    patterns, busy = patterns[below], busy[below]
    fitting = leaf.fits(patterns)
    patterns, busy = patterns[fitting], busy[fitting]
    order = np.argsort(busy, kind="stable")
    order = order[_undominated(leaf, patterns[order])]
    best: tuple[Placement, float] | None = None
    for start in range(0, len(order), TIMED_TOGETHER):
        some = order[start : start + TIMED_TOGETHER]
        some = some[busy[some] < min(cut_off, best[1] if best else math.inf) * (1 - TOLERANCE)]
        if not len(some):
            break
        seconds = leaf.step_seconds(patterns[some])
        first = int(np.argmin(seconds))
        if seconds[first] < min(cut_off, best[1] if best else math.inf):
            best = Placement.of(patterns[some[first]]), float(seconds[first])
    return best


def _undominated(leaf: Leaf, patterns: Ints) -> Ints:
    """Those that no other of the same sizes equals or beats: no timeline is shorter for longer actions."""
    layers, backward = patterns.sum(axis=-1), leaf.backward_of_each(patterns)
    kept: list[int] = []
    for index in range(len(patterns)):
        same = [other for other in kept if (layers[other] == layers[index]).all()]
        if not (backward[same] <= backward[index]).all(axis=1).any():
            kept.append(index)
    return np.array(kept, dtype=np.int64)
