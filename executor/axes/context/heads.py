"""Scans of recurrences over context ranks: tokens are traded for heads, whichever way attention goes.

Shape legend: B batch, S tokens of a rank, U heads, or groups of them, W numbers of each.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from executor.axes.context.tiles import Exchanged, Way, to_heads, to_tokens, zigzag_places


@dataclass(frozen=True, slots=True)
class HeadsOfAll:
    """Some heads of all tokens on each rank of a group, in the order of the sequence (`models.mixing.recurrence`)."""

    group: dist.ProcessGroup
    part: int
    parts: int
    in_pieces: bool
    """Whether each rank has a piece from either end of the sequence."""

    def to_heads(self, *tensors_BSUW: Tensor) -> tuple[Tensor, ...]:
        """(B, S, U, W) each → (B, c·S, U / c, W)."""
        traded = self._trade(to_heads, to_tokens, *(one.transpose(1, 2) for one in tensors_BSUW))
        if self.in_pieces:
            order = self._positions(traded[0]).argsort()
            traded = tuple(one.index_select(2, order) for one in traded)
        return tuple(one.transpose(1, 2) for one in traded)

    def to_tokens(self, found_BSHP: Tensor) -> Tensor:
        """(B, c·S, H / c, P) → (B, S, H, P)."""
        found = found_BSHP.transpose(1, 2)
        if self.in_pieces:
            found = found.index_select(2, self._positions(found))
        (mine,) = self._trade(to_tokens, to_heads, found)
        return mine.transpose(1, 2)

    def _trade(self, there: Way, back: Way, *tensors: Tensor) -> tuple[Tensor, ...]:
        return Exchanged.apply(self.group, there, back, *tensors)  # type: ignore[no-untyped-call, no-any-return]

    def _positions(self, like: Tensor) -> Tensor:
        """(c·S,) of the tokens of all ranks, one after the other."""
        count = like.shape[2] // self.parts
        runs = [run for rank in range(self.parts) for run in zigzag_places(rank, self.parts, count)]
        return torch.cat([torch.arange(run.start, run.stop, device=like.device) for run in runs])
