"""Which keys a query of causal attention sees, and the bias on its scores; both follow from positions.

Shape legend: H heads, Q queries, S keys.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from cost_models.specs.transformer import TransformerSpec

Position = TypeVar("Position", int, Tensor)
Places = tuple[range, ...]
"""Positions in the sequence that some tokens have, as runs in ascending order."""


def positions(places: Places, device: torch.device) -> Tensor:
    """(S,) every position of the runs."""
    return torch.cat([torch.arange(run.start, run.stop, device=device) for run in places])


@dataclass(frozen=True, slots=True, kw_only=True)
class Visibility:
    """The mask of causal attention: a query sees itself and what is before it, as far back as `window` allows."""

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
        return keys[0].start > queries[-1].stop - 1 or keys[-1].stop - 1 < self.first_seen(queries[0].start)

    def is_causal(self, queries: Places, keys: Places) -> bool:
        """Whether a causal mask is enough: the keys end with the queries' own, nothing else is hidden or biased."""
        ends_alike = (
            len(queries) == 1 and keys[-1].start <= queries[0].start < keys[-1].stop == queries[0].stop
        )
        return self._unbiased(queries, keys) and (keys == queries or ends_alike)

    def sees_all(self, queries: Places, keys: Places) -> bool:
        """Whether every query sees every key, without a bias."""
        return self._unbiased(queries, keys) and keys[-1].stop - 1 <= queries[0].start

    def bias(self, queries: Places, keys: Places, heads: int, like: Tensor) -> Tensor:
        """(1, H or 1, Q, S) the bias added to the scores, of the type and on the device of `like`.

        What must not be seen gets a number so low that nothing is left of it, but a finite one: a row that sees nothing
        here is no row of NaN, and counts for nothing beside the same row elsewhere.
        """
        at, of = (positions(places, like.device).int() for places in (queries, keys))
        there = at[:, None] - of[None, :]
        hidden = there < 0
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


def visibility_of(spec: TransformerSpec, window: int | None, first_head: int) -> Visibility:
    """The mask of a block with that window; `first_head` is the first of the heads at hand."""
    return Visibility(
        window=window,
        chunked=spec.window_kind == "chunked",
        slopes=spec.num_heads if spec.positions == "alibi" else 0,
        first_head=first_head,
    )
