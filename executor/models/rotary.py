"""Rotary positions (Su et al. 2021) on the two halves of a head, as Llama pairs them.

Shape legend: B batch, H heads, S sequence, K head width.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from cost_models.specs.blocks import Rotary, RotaryScaling
from cost_models.specs.transformer import TransformerSpec
from executor.models.visibility import Places, positions


@dataclass(frozen=True, slots=True, kw_only=True)
class Turning:
    """The rotation of the heads of a block."""

    base: float = Rotary().base
    dim: int | None = None
    """How many of a head's numbers, the first ones; None: all."""
    scaling: RotaryScaling | None = None


def turning_of(spec: TransformerSpec, layer: int) -> Turning | None:
    """The rotation of a block, counted from 0; None: its heads do not turn."""
    rotary = spec.rotary or Rotary()
    if spec.positions != "rotary" or (rotary.pattern and not rotary.pattern[layer % len(rotary.pattern)]):
        return None
    if rotary.windowed_base is not None and spec.window_of(layer) is not None:
        return Turning(base=rotary.windowed_base, dim=rotary.dim)
    return Turning(base=rotary.base, dim=rotary.dim, scaling=rotary.scaling)


class Turns:
    """Rotates heads by their positions; blocks that share one of these share its cosines and sines."""

    def __init__(self) -> None:
        self._last: dict[Turning, tuple[object, tuple[Tensor, Tensor]]] = {}

    def __call__(self, x_BHSK: Tensor, places: Places, turning: Turning) -> Tensor:
        """(B, H, S, K) → the same, turned."""
        turned, rest = x_BHSK, None
        if turning.dim is not None and turning.dim < x_BHSK.shape[-1]:
            turned, rest = x_BHSK[..., : turning.dim], x_BHSK[..., turning.dim :]
        cos_SK, sin_SK = self._tables(turned, places, turning)
        left, right = turned.chunk(2, dim=-1)
        halves = [left * cos_SK - right * sin_SK, right * cos_SK + left * sin_SK]
        return torch.cat(halves if rest is None else [*halves, rest], dim=-1)

    def _tables(self, like: Tensor, places: Places, turning: Turning) -> tuple[Tensor, Tensor]:
        """(S, K/2) each; the last ones again while nothing changes. A compiled block fuses their making instead."""
        if torch.compiler.is_compiling():
            return _tables(like, places, turning)
        asked = (places, like.shape[-1], like.dtype, like.device)
        last = self._last.get(turning)
        if last is None or last[0] != asked:
            self._last[turning] = last = (asked, _tables(like, places, turning))
        return last[1]


def _tables(like: Tensor, places: Places, turning: Turning) -> tuple[Tensor, Tensor]:
    width = like.shape[-1]
    steps = torch.arange(0, width, 2, device=like.device, dtype=torch.float32)
    speeds_K = turning.base ** (-steps / width)
    if turning.scaling is not None:
        speeds_K = slowed(speeds_K, turning.scaling)
    angle = torch.outer(positions(places, like.device).float(), speeds_K)
    return angle.cos().to(like.dtype), angle.sin().to(like.dtype)


def slowed(speeds_K: Tensor, scaling: RotaryScaling) -> Tensor:
    """Radians a token, scaled: in llama3 the less, the more often a first sequence completes the turn."""
    if scaling.kind == "linear":
        return speeds_K / scaling.factor
    turns_K = speeds_K * scaling.first_positions / (2 * math.pi)
    between = scaling.high_turns - scaling.low_turns
    kept_K = (
        ((turns_K - scaling.low_turns) / between).clamp(0, 1) if between else turns_K >= scaling.low_turns
    )
    return torch.lerp(speeds_K / scaling.factor, speeds_K, kept_K.to(speeds_K.dtype))
