"""Paths through a pipeline with one stage a rank that are known without running its timeline.

Each is a chain of actions that every schedule of its kind contains, so its length is a lower bound for any durations.
The integer program starts from some, and adds those that its solution violates; the bounds of `planner.bounds.step` are
the same paths, relaxed.

Windows of 1F1B: rank r runs backward j just before forward j + p − r. So a forward that goes down from `first` to
`last`, turns into the backward there that follows it, and comes up, is followed at `first` by the forward
`last − first + 1` later: a round of the window for so many microbatches; the remainder, no full round, passes `first`
as pairs. With T_r forward plus backward of one microbatch, c a transfer and S_r the sum of T over ranks before r, the
first microbatch on its way down from rank e and the last one on its way up to e besides,

    M_e ≥ F_e − S_e − e c + 2 S_p − S_first + rounds (S_last+1 − S_first) + remainder T_first + transfers c

where F_e is the forward part of S_e: ranks e and later are a pipeline of their own that begins F_e + e c later.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from cost_models.arrays import Ints
from cost_models.schedules.timeline import CriticalPath
from planner.placement.leaf import Leaf


@dataclass(frozen=True, slots=True)
class Windows:
    """Windows that begin on one rank, one for each last rank: (windows,) each."""

    rounds: Ints
    remainder: Ints
    transfers: Ints


@lru_cache(maxsize=256)
def windows_from(first: int, pp: int, microbatches: int) -> Windows | None:
    """Windows of ranks `first` … `last` for last = first … pp − 1; None if there are too few microbatches."""
    after_warm_up = microbatches - 1 - (pp - first)
    if after_warm_up < 0:
        return None
    length = np.arange(1, pp - first + 1)
    rounds, remainder = np.divmod(after_warm_up, length)
    return Windows(rounds, remainder, 2 * (pp - 1) + 2 * (pp - 1 - first) + rounds * 2 * (length - 1))


def known_paths(leaf: Leaf) -> list[CriticalPath]:
    """Paths that are rows of every program: at least one through each rank."""
    ranks = range(leaf.pp)
    paths = [_busy_rank(leaf, rank, returns=True) for rank in ranks]
    paths += [_busy_rank(leaf, rank, returns=False) for rank in ranks if rank]
    if leaf.steady == "queue":
        paths += [_queue(leaf, rank) for rank in ranks]
    elif leaf.steady == "pairs" and leaf.microbatches > leaf.pp:
        paths += [_round_window(leaf, rank, rank) for rank in ranks]
        paths.append(_round_window(leaf, 0, leaf.pp - 1))
    return paths


def longest_windows(leaf: Leaf, blocks_RP: Ints, max_paths: int) -> list[CriticalPath]:
    """1F1B paths around windows of neighbouring ranks that are longest for one placement.

    At most `max_paths` paths, longest first; for each window the path that ends on the rank where it is longest.
    """
    if leaf.steady != "pairs":
        return []
    forward_R = leaf.forward(blocks_RP)
    both_R = forward_R + leaf.backward(blocks_RP)
    before_R, delay = np.cumsum(both_R) - both_R, leaf.cost("p2p")
    lead_R = np.cumsum(forward_R) - forward_R - before_R - np.arange(leaf.pp) * delay
    lead_R = lead_R + leaf.once_a_step("sync", blocks_RP)
    ways = []
    for first in range(leaf.pp):
        windows = windows_from(first, leaf.pp, leaf.microbatches)
        if windows is None:
            continue
        end = int(lead_R[: first + 1].argmax())
        around = np.append(before_R, both_R.sum())[first + 1 :] - before_R[first]
        length = lead_R[end] - before_R[first] + windows.rounds * around + windows.remainder * both_R[first]
        length = length + windows.transfers * delay
        ways += [(seconds, first, first + index, end) for index, seconds in enumerate(length.tolist())]
    longest = sorted(ways, key=lambda way: -way[0])[:max_paths]
    return [_round_window(leaf, first, last, end) for _, first, last, end in longest]


def _path(leaf: Leaf, forward: Ints, backward: Ints, transfers: int, rank: int = 0) -> CriticalPath:
    return CriticalPath(
        forward_counts=forward,
        backward_counts=backward,
        weight_counts=backward,
        p2p_count=transfers,
        rank=rank,
    )


def _busy_rank(leaf: Leaf, rank: int, *, returns: bool) -> CriticalPath:
    """Path down to a rank, through all its work, and (with `returns`) back up to rank 0."""
    own_R = leaf.microbatches * (np.arange(leaf.pp) == rank)
    down_R = (np.arange(leaf.pp) < rank).astype(np.int64)
    if returns:
        return _path(leaf, down_R + own_R, down_R + own_R, 2 * rank)
    return _path(leaf, down_R + own_R, own_R, rank, rank)


def _queue(leaf: Leaf, rank: int) -> CriticalPath:
    """GPipe path: the first microbatch down, the others queueing at one rank both ways, the last one up."""
    counts_R = np.ones(leaf.pp, dtype=np.int64)
    counts_R[rank] = leaf.microbatches
    return _path(leaf, counts_R, counts_R, 2 * (leaf.pp - 1))


def _round_window(leaf: Leaf, first: int, last: int, end: int = 0) -> CriticalPath:
    """1F1B path: the first microbatch down to a window of ranks, rounds in it, the last microbatch down and up.

    The path begins with a forward pass on the ranks before `end` and ends on rank `end`.
    """
    windows = windows_from(first, leaf.pp, leaf.microbatches)
    assert windows is not None
    rounds, remainder, transfers = (
        int(column[last - first]) for column in (windows.rounds, windows.remainder, windows.transfers)
    )
    rank_R = np.arange(leaf.pp)
    counts_R = 1 + (rank_R >= first) + rounds * ((rank_R >= first) & (rank_R <= last))
    counts_R[first] += remainder
    return _path(leaf, counts_R, np.where(rank_R < end, 0, counts_R), transfers - end, end)
