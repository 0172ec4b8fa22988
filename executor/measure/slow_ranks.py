"""Ranks that are slower than others with the same work: by how much, in which part of a step, since when.

A step takes all ranks equally long, so what tells is the time in which a rank works itself: CPU time of its training
thread, by part of the step. Every step is compared with the median of the rank's peers in that step, so that what slows
all alike drops out. The step since when is where the sum of all that exceeds half of `SLOW_SHARE` from there on is
largest (a CUSUM chart read backwards: Page 1954). A rank is slow if the median excess since then is `SLOW_SHARE` or
more, and `SURE` times its own error (1.4826 MAD / √steps, the robust z-score).

A watch looks for them step by step while a run trains, and the report once more in the end.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from cost_models.arrays import MAD_TO_DEVIATION, Array

WORK = ("forward and backward", "the update")
"""Parts of a transformer's step in which ranks work, in their order."""
SLOW_SHARE = 0.1
"""Smallest relative excess over its peers at which a rank is slow; MegaScale's slow hosts took about a tenth longer
(section 6.3).
"""
SURE = 5.0
FEWEST_STEPS = 5
_LEAST_ERROR = 0.002
"""Smallest standard error of an excess, as clocks tick and a few equal steps do not make it exact."""


class SlowRank(NamedTuple):
    """A rank that is slower than its peers, the other ranks with the same work."""

    rank: int
    part: str
    """Part of the step in which the rank loses most time."""
    excess: float
    """Relative excess of the rank's own work over its peers' median; median since step `since`."""
    since: int
    """Index of the first step from which the rank is slow."""
    z: float
    """Robust z-score of the excess."""
    peers: int
    """Number of other ranks that do the same work."""


def slow_ranks(parts: Mapping[str, Array], peers: Sequence[int]) -> tuple[SlowRank, ...]:
    """Slow ranks, slowest first, given the seconds of T steps on R ranks, (T, R), for each part of a step.

    `peers` has a number for each rank, alike for those that do the same work.
    """
    total = sum(parts.values(), start=np.zeros((1, 1)))
    slow = []
    for rank in range(total.shape[1]):
        peer_ranks = others_like(rank, peers)
        if not peer_ranks or len(total) < FEWEST_STEPS:
            continue
        excess = excess_of(total, rank, peer_ranks)
        half = SLOW_SHARE / 2
        clipped_excess = np.clip(excess - half, -half, half)  # one disturbed step counts as one
        since = int(np.argmax(np.cumsum(clipped_excess[::-1])[::-1]))
        tail = excess[since:]
        middle = float(np.median(tail))
        scatter = MAD_TO_DEVIATION * float(np.median(abs(tail - middle)))
        z = middle / max(scatter / len(tail) ** 0.5, _LEAST_ERROR)
        if len(tail) >= FEWEST_STEPS and middle >= SLOW_SHARE and z >= SURE:
            lost = {
                part: np.median(times[since:, rank] - np.median(times[since:, peer_ranks], axis=1))
                for part, times in parts.items()
            }
            part = max(lost, key=lost.__getitem__)
            slow.append(SlowRank(rank, part, middle, since, z, len(peer_ranks)))
    return tuple(sorted(slow, key=lambda rank_report: -rank_report.excess))


def others_like(rank: int, peers: Sequence[int]) -> list[int]:
    """The other ranks that do the same work as `rank`: those with the same number in `peers`."""
    return [one for one in range(len(peers)) if one != rank and peers[one] == peers[rank]]


def excess_of(seconds_TR: Array, rank: int, peer_ranks: Sequence[int]) -> Array:
    """Relative excess of a rank's seconds over the median of its peers in each step, (T,)."""
    typical = np.median(seconds_TR[:, peer_ranks], axis=1)
    return np.asarray(seconds_TR[:, rank] / np.maximum(typical, np.finfo(float).tiny) - 1)


def sentence(slow: SlowRank, first_step: int = 1) -> str:
    """Sentence on a slow rank: "rank 3 is slow: 22 % more time at work than its 3 peers since step 12, …"."""
    peers = f"its {slow.peers} peers" if slow.peers > 1 else "its peer"
    return (
        f"rank {slow.rank} is slow: {100 * slow.excess:.0f} % more time at work than {peers} since step"
        f" {first_step + slow.since}, most of it in {slow.part}"
    )


RECENT = 200
"""Number of the latest steps in which slow ranks are sought."""


class RankWatch:
    """Finds slow ranks during a run: rank 0 compares the work seconds of all ranks in recent steps."""

    def __init__(self, parts: Sequence[str], peers: Sequence[int]) -> None:
        """`parts`: parts of a step that are work; `peers`: a number for each rank, equal for the same work."""
        self._parts, self._peers = parts, peers
        self._recent: deque[tuple[int, Array]] = deque(maxlen=RECENT)
        """Number and work seconds, (R, P), of each recent step."""
        self._reported_ranks: set[int] = set()

    def step(self, step: int, seconds: Sequence[float]) -> list[str]:
        """Add this rank's work seconds in each part of a step; every rank calls it. Rank 0 gets a sentence on each rank
        that it finds slow for the first time, the others none.
        """
        import torch
        import torch.distributed as dist

        own_seconds = torch.tensor(seconds, dtype=torch.float64)
        everyone = [torch.empty_like(own_seconds) for _ in self._peers]
        dist.all_gather(everyone, own_seconds)
        if dist.get_rank() != 0:
            return []
        self._recent.append((step, torch.stack(everyone).numpy()))
        table_TRP = np.stack([seconds_RP for _, seconds_RP in self._recent])
        slow = slow_ranks({part: table_TRP[:, :, at] for at, part in enumerate(self._parts)}, self._peers)
        new = [one for one in slow if one.rank not in self._reported_ranks]
        self._reported_ranks.update(one.rank for one in new)
        return [sentence(one, self._recent[0][0]) for one in new]
