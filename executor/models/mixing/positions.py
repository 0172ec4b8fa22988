"""Positions in attention: which keys a query sees, the bias on its scores, and rotary positions (Su et al. 2021).

Rotation works on the two halves of a head, as Llama pairs them.

Shape legend: B batch, H heads, Q queries, S keys or sequence, K head width.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from cost_models.specs.transformer import Rotary, RotaryScaling, TransformerSpec

Position = TypeVar("Position", int, Tensor)
Places = tuple[range, ...]
"""Positions in the sequence that some tokens have, as runs in ascending order."""


def positions(places: Places, device: torch.device) -> Tensor:
    """(S,) every position of the runs."""
    return torch.cat([torch.arange(run.start, run.stop, device=device) for run in places])


@dataclass(frozen=True, slots=True, kw_only=True)
class Visibility:
    """The mask of attention: a query sees itself and what is before it, as far back as `window` allows, or all."""

    both_ways: bool = False
    """A query sees every key, without a bias, those behind it too: an encoder's."""

    window: int | None = None
    """Keys that a query sees, itself included; None: all."""
    chunked: bool = False
    """Instead, those of its own chunk of so many tokens."""
    slopes: int = 0
    """Heads that ALiBi spreads its slopes over, those of the whole model (Press et al. 2021); 0: no ALiBi."""
    first_head: int = 0
    """The first of the heads at hand, among all of the model."""

    def first_seen(self, position: int) -> int:
        """The earliest key that the query there sees."""
        return 0 if self.window is None else max(0, self._edge(position, self.window))

    def blind(self, queries: Places, keys: Places) -> bool:
        """Whether no query sees any key."""
        if self.both_ways:
            return False
        return keys[0].start > queries[-1].stop - 1 or keys[-1].stop - 1 < self.first_seen(queries[0].start)

    def is_causal(self, queries: Places, keys: Places) -> bool:
        """Whether a causal mask is enough: the keys end with the queries' own, nothing else is hidden or biased."""
        ends_alike = (
            len(queries) == 1 and keys[-1].start <= queries[0].start < keys[-1].stop == queries[0].stop
        )
        return not self.both_ways and self._unbiased(queries, keys) and (keys == queries or ends_alike)

    def sees_all(self, queries: Places, keys: Places) -> bool:
        """Whether every query sees every key, without a bias."""
        return self.both_ways or (self._unbiased(queries, keys) and keys[-1].stop - 1 <= queries[0].start)

    def bias(self, queries: Places, keys: Places, heads: int, like: Tensor) -> Tensor:
        """(1, H or 1, Q, S) the bias added to the scores, of the type and on the device of `like`.

        What must not be seen gets a number so low that nothing is left of it, but a finite one: a row that sees nothing
        here is no row of NaN, and counts for nothing beside the same row elsewhere.
        """
        at, of = (positions(places, like.device).int() for places in (queries, keys))
        there = at[:, None] - of[None, :]
        hidden = (there < 0) & (not self.both_ways)
        if self.window is not None:
            hidden = hidden | self.hides(at[:, None], of[None, :])
        bias = torch.zeros((), device=like.device)
        if self.slopes:
            bias = -self.slopes_of(heads, like.device)[:, None, None] * there
        low = torch.finfo(like.dtype).min / 2
        hidden = hidden.expand(heads if self.slopes else 1, -1, -1)
        return torch.where(hidden, low, bias).to(like.dtype).unsqueeze(0)

    def hides(self, query: Tensor, key: Tensor) -> Tensor:
        """Whether the window hides a key that the causal mask does not; both positions, of any shape."""
        assert self.window is not None
        return key < self._edge(query, self.window)

    def slopes_of(self, heads: int, device: torch.device) -> Tensor:
        """(H,) the ALiBi slopes of the heads at hand."""
        index = torch.arange(self.first_head + 1, self.first_head + heads + 1, device=device)
        return torch.as_tensor(2.0 ** (-8.0 * index.float() / self.slopes))

    def _edge(self, position: Position, window: int) -> Position:
        """The first position of a query's window, which may lie before the sequence."""
        return position - position % window if self.chunked else position - window + 1

    def _unbiased(self, queries: Places, keys: Places) -> bool:
        return not self.slopes and self.first_seen(queries[-1].stop - 1) <= keys[0].start


def visibility_of(
    spec: TransformerSpec, window: int | None, first_head: int, *, both_ways: bool
) -> Visibility:
    """The mask of a block with that window; `first_head` is the first of the heads at hand."""
    return Visibility(
        both_ways=both_ways,
        window=window,
        chunked=spec.window_kind == "chunked",
        slopes=spec.num_heads if spec.positions == "alibi" else 0,
        first_head=first_head,
    )


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
        """Apply rotary positions to queries or keys (B, H, S, K)."""
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
        key = (places, like.shape[-1], like.dtype, like.device)
        last = self._last.get(turning)
        if last is None or last[0] != key:
            self._last[turning] = last = (key, _tables(like, places, turning))
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
