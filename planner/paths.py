"""Paths through a pipeline with one stage a rank that can be written down without running its timeline.

Each is a chain of actions every schedule of its kind contains, so its length is a lower bound for any durations. The
integer program starts from them, and looks among them first for what its solution violates; the bounds of
`planner.bounds` are the same paths, relaxed.
"""

from __future__ import annotations

import numpy as np

from cost_models.schedules import CriticalPath
from cost_models.specs.columns import Ints
from planner.placement import Leaf


def known_paths(leaf: Leaf) -> list[CriticalPath]:
    """At least one path for every rank."""
    ranks = range(leaf.pp)
    paths = [_busy_rank(leaf, rank, returns=True) for rank in ranks]
    paths += [_busy_rank(leaf, rank, returns=False) for rank in ranks if rank]
    if leaf.schedule == "gpipe":
        paths += [_queue(leaf, rank) for rank in ranks]
    elif leaf.microbatches > leaf.pp:
        paths += [_round_window(leaf, rank, rank) for rank in ranks]
        paths.append(_round_window(leaf, 0, leaf.pp - 1))
    return paths


def window_paths(leaf: Leaf) -> list[CriticalPath]:
    """For 1F1B: one path for every window of neighbouring ranks that the microbatches go round in."""
    if leaf.schedule != "1f1b":
        return []
    return [
        _round_window(leaf, first, last)
        for first in range(leaf.pp)
        for last in range(first, leaf.pp)
        if leaf.microbatches > leaf.pp - first
    ]


def _path(leaf: Leaf, forward: Ints, backward: Ints, transfers: int, rank: int = 0) -> CriticalPath:
    return CriticalPath(
        forward_counts=forward,
        backward_counts=backward,
        weight_counts=backward,
        p2p_count=transfers,
        rank=rank,
    )


def _busy_rank(leaf: Leaf, rank: int, *, returns: bool) -> CriticalPath:
    """Down to a rank, all its work, and (if it returns) up to rank 0 again."""
    own_R = leaf.microbatches * (np.arange(leaf.pp) == rank)
    down_R = (np.arange(leaf.pp) < rank).astype(np.int64)
    if returns:
        return _path(leaf, down_R + own_R, down_R + own_R, 2 * rank)
    return _path(leaf, down_R + own_R, own_R, rank, rank)


def _queue(leaf: Leaf, rank: int) -> CriticalPath:
    """GPipe: the first microbatch down and the last one up, all others queueing at one rank both ways."""
    counts_R = np.ones(leaf.pp, dtype=np.int64)
    counts_R[rank] = leaf.microbatches
    return _path(leaf, counts_R, counts_R, 2 * (leaf.pp - 1))


def _round_window(leaf: Leaf, first: int, last: int) -> CriticalPath:
    """1F1B: the first microbatch down and up to a window of ranks, rounds in it, the last microbatch down and up.

    Rank r runs backward j just before forward j + p − r. So a forward that goes down from `first` to `last`, turns into
    the backward there that follows it, and comes up, is followed at `first` by the forward `last − first + 1` later: a
    round of the window for so many microbatches. Those that make no full round pass `first` as pairs.
    """
    length = last - first + 1
    rounds, rest = divmod(leaf.microbatches - 1 - (leaf.pp - first), length)
    rank_R = np.arange(leaf.pp)
    counts_R = 1 + (rank_R >= first) + rounds * ((rank_R >= first) & (rank_R <= last))
    counts_R[first] += rest
    transfers = 2 * (leaf.pp - 1) + 2 * (leaf.pp - 1 - first) + rounds * 2 * (length - 1)
    return _path(leaf, counts_R, counts_R, transfers)
