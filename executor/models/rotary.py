"""Rotary positions (Su et al. 2021) on the two halves of a head, as Llama pairs them.

Shape legend: B batch, H heads, S sequence, K head width.
"""

from __future__ import annotations

import torch
from torch import Tensor

from executor.models.sight import Places, positions

_ROTARY_BASE = 10_000.0


class Turns:
    """Turns heads by their positions; blocks that share one of these share its cosines and sines."""

    def __init__(self) -> None:
        self._last: tuple[object, tuple[Tensor, Tensor]] | None = None

    def __call__(self, x_BHSK: Tensor, places: Places) -> Tensor:
        """(B, H, S, K) → the same, turned."""
        cos_SK, sin_SK = self._tables(x_BHSK, places)
        left, right = x_BHSK.chunk(2, dim=-1)
        return torch.cat([left * cos_SK - right * sin_SK, right * cos_SK + left * sin_SK], dim=-1)

    def _tables(self, like: Tensor, places: Places) -> tuple[Tensor, Tensor]:
        """(S, K/2) each; the last ones again while nothing changes. A compiled block fuses their making instead."""
        if torch.compiler.is_compiling():
            return _tables(like, places)
        asked = (places, like.shape[-1], like.dtype, like.device)
        if self._last is None or self._last[0] != asked:
            self._last = (asked, _tables(like, places))
        return self._last[1]


def _tables(like: Tensor, places: Places) -> tuple[Tensor, Tensor]:
    width = like.shape[-1]
    steps = torch.arange(0, width, 2, device=like.device, dtype=torch.float32)
    angle = torch.outer(positions(places, like.device).float(), _ROTARY_BASE ** (-steps / width))
    return angle.cos().to(like.dtype), angle.sin().to(like.dtype)
