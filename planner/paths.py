"""Paths through a pipeline with one stage a rank that can be written down without running its timeline: where the integer program starts.

Each is a chain of actions every schedule of its kind contains, so its length is a lower bound for any durations. The
bounds of `planner.bounds` are the same paths, relaxed.
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
        paths += [_waits_for_rank(leaf, rank) for rank in ranks]
    if leaf.schedule == "1f1b":
        paths += [_down_again(leaf, rank) for rank in ranks if leaf.microbatches > leaf.pp - rank]
        paths += [_loops(leaf, rank) for rank in ranks if leaf.microbatches > leaf.pp]
    return paths


def _up_to(leaf: Leaf, rank: int) -> Ints:
    """(S,): 1 on the ranks before this one."""
    return (np.arange(leaf.num_stages) < rank).astype(np.int64)


def _path(leaf: Leaf, forward: Ints, backward: Ints, transfers: int, rank: int = 0) -> CriticalPath:
    return CriticalPath(forward_counts=forward, backward_counts=backward, p2p_count=transfers, rank=rank)


def _busy_rank(leaf: Leaf, rank: int, *, returns: bool) -> CriticalPath:
    """Down to a rank, all its work, and (if it returns) up to rank 0 again."""
    own_S = leaf.microbatches * (np.arange(leaf.num_stages) == rank)
    down_S = _up_to(leaf, rank)
    if returns:
        return _path(leaf, down_S + own_S, down_S + own_S, 2 * rank)
    return _path(leaf, down_S + own_S, own_S, rank, rank)


def _round_trips(leaf: Leaf, trips: int, rank: int, more: int) -> CriticalPath:
    """So many microbatches down and up, and so many more forwards and backwards of one rank."""
    counts_S = np.full(leaf.num_stages, trips)
    counts_S[rank] += more
    return _path(leaf, counts_S, counts_S, trips * 2 * (leaf.pp - 1))


def _waits_for_rank(leaf: Leaf, rank: int) -> CriticalPath:
    """GPipe: all forwards queue at one rank, then all backwards do."""
    return _round_trips(leaf, 1, rank, leaf.microbatches - 1)


def _down_again(leaf: Leaf, rank: int) -> CriticalPath:
    """1F1B: the first microbatch down and up to the rank, its pairs, and the last one down and up."""
    window = leaf.pp - rank
    counts_S = 1 + (np.arange(leaf.num_stages) >= rank)
    counts_S[rank] += leaf.microbatches - window - 1
    return _path(leaf, counts_S, counts_S, 2 * (leaf.pp - 1) + 2 * (window - 1))


def _loops(leaf: Leaf, rank: int) -> CriticalPath:
    """1F1B: a round trip for every pp microbatches, the rest of them as pairs on one rank."""
    loops, rest = divmod(leaf.microbatches - 1, leaf.pp)
    return _round_trips(leaf, loops + 1, rank, rest)
