"""Watches the ranks of a run for slow ones, step by step."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import torch.distributed as dist

from executor.measure.slow_ranks import sentence, slow_ranks

RECENT = 200
"""Steps that are looked back on."""


class RankWatch:
    """The work of every rank in each step since the first that was watched; rank 0 looks for slow ones."""

    def __init__(self, parts: Sequence[str], peers: Sequence[int]) -> None:
        """`parts` of a step that are work; `peers`: a number for each rank, alike for those with the same work."""
        self._parts, self._peers = parts, peers
        self._seen: list[tuple[int, list[list[float]]]] = []
        self._told: set[int] = set()

    def step(self, step: int, seconds: Sequence[float]) -> list[str]:
        """Add the seconds that this rank worked in each part of a step; every rank calls it.

        On rank 0, a sentence for each rank that is found to be slow and was not told of before.
        """
        mine = torch.tensor(seconds, dtype=torch.float64)
        everyone = [torch.empty_like(mine) for _ in self._peers]
        dist.all_gather(everyone, mine)
        if dist.get_rank() != 0:
            return []
        self._seen = [*self._seen[1 - RECENT :], (step, [one.tolist() for one in everyone])]
        table_TRP = np.array([each for _, each in self._seen])
        found = slow_ranks({part: table_TRP[:, :, at] for at, part in enumerate(self._parts)}, self._peers)
        new = [one for one in found if one.rank not in self._told]
        self._told.update(one.rank for one in new)
        return [sentence(one, self._seen[0][0]) for one in new]
