"""Watch over the ranks of a run that finds slow ones step by step."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import torch.distributed as dist

from executor.measure.slow_ranks import sentence, slow_ranks

RECENT = 200
"""Steps that are looked back on."""


class RankWatch:
    """Seconds of work of every rank in each watched step, in which rank 0 looks for slow ranks."""

    def __init__(self, parts: Sequence[str], peers: Sequence[int]) -> None:
        """`parts` of a step that are work; `peers`: a number for each rank, alike for those with the same work."""
        self._parts, self._peers = parts, peers
        self._seen: list[tuple[int, list[list[float]]]] = []
        self._reported_ranks: set[int] = set()

    def step(self, step: int, seconds: Sequence[float]) -> list[str]:
        """Add the seconds that this rank worked in each part of a step; every rank calls it.

        On rank 0, a sentence for each rank that is found to be slow and was not told of before.
        """
        own_seconds = torch.tensor(seconds, dtype=torch.float64)
        everyone = [torch.empty_like(own_seconds) for _ in self._peers]
        dist.all_gather(everyone, own_seconds)
        if dist.get_rank() != 0:
            return []
        self._seen = [*self._seen[1 - RECENT :], (step, [slow_rank.tolist() for slow_rank in everyone])]
        table_TRP = np.array([each for _, each in self._seen])
        slow = slow_ranks({part: table_TRP[:, :, at] for at, part in enumerate(self._parts)}, self._peers)
        new = [slow_rank for slow_rank in slow if slow_rank.rank not in self._reported_ranks]
        self._reported_ranks.update(slow_rank.rank for slow_rank in new)
        return [sentence(slow_rank, self._seen[0][0]) for slow_rank in new]
