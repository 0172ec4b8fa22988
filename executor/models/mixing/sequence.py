"""The tokens of a sequence that a rank has, and attention over them. Here all; shared: `executor.axes.context`.

Windows and ALiBi run on a GPU by FlexAttention, which skips the blocks of scores that a window hides. There is no mask
of S × S: a mask of blocks says where to look, and a slope is subtracted as scores are made. So the cost model prices a
window where a stack has a flash kernel. The numbers are tested without a GPU, where the same functions run written out;
neither the time nor the memory of its GPU kernels has been measured for this project.

Shape legend: B batch, H query heads, G key/value heads, Q queries, S tokens, K head width.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, Protocol

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.utils._python_dispatch import _get_current_dispatch_mode

from executor.models.mixing.positions import Places, Visibility


class Sequence(Protocol):
    """The tokens of a sequence that a rank has, for modules that depend on positions."""

    def places(self, count: int) -> Places:
        """The positions of the `count` tokens that this rank has."""

    def attend(
        self, query_BHSK: Tensor, key_BGSK: Tensor, value_BGSK: Tensor, visibility: Visibility
    ) -> Tensor:
        """(B, H, S, K) attention of this rank's queries to the keys and values of the whole sequence."""


class WholeSequence:
    """A sequence of which this rank has every token. Blocks that share one of these share its mask."""

    def __init__(self) -> None:
        self._mask: tuple[object, Tensor] | None = None
        self._flexible = FlexAttention()

    def places(self, count: int) -> Places:
        """All positions, from 0 on."""
        return (range(count),)

    def attend(
        self, query_BHSK: Tensor, key_BGSK: Tensor, value_BGSK: Tensor, visibility: Visibility
    ) -> Tensor:
        """Attention by torch's own kernel, on a GPU by FlexAttention where it can skip what a window hides."""
        places = self.places(query_BHSK.shape[2])
        causal, all_seen = visibility.is_causal(places, places), visibility.sees_all(places, places)
        if not (causal or all_seen) and suits_flex(query_BHSK):
            return self._flexible.attend(query_BHSK, key_BGSK, value_BGSK, visibility)
        mask = None if causal or all_seen else self._mask_of(query_BHSK, visibility)
        return F.scaled_dot_product_attention(
            query_BHSK,
            key_BGSK,
            value_BGSK,
            attn_mask=mask,
            is_causal=causal and not all_seen,
            enable_gqa=query_BHSK.shape[1] != key_BGSK.shape[1],
        )

    def _mask_of(self, query_BHSK: Tensor, visibility: Visibility) -> Tensor:
        """The mask, made once and kept while nothing changes."""
        _, heads, tokens, _ = query_BHSK.shape
        places = self.places(tokens)
        key = (visibility, heads, tokens, query_BHSK.dtype, query_BHSK.device)
        if self._mask is None or self._mask[0] != key:
            self._mask = (key, visibility.bias(places, places, heads, query_BHSK))
        return self._mask[1]


Kernel = Callable[..., Any]
_NARROWEST = 16
"""Heads of fewer numbers are none of its kernels' business."""
_DEVICES = ("cuda",)
"""That have its kernels, both passes of them."""


def suits_flex(query_BHSK: Tensor) -> bool:
    """On a GPU, unless somebody watches operators: steps that are followed, timed or counted have a dense mask."""
    return fits_flex(query_BHSK.device, query_BHSK.shape[-1]) and not _is_watched()


def fits_flex(device: torch.device, width: int) -> bool:
    """Whether it has kernels for heads of this width there."""
    return device.type in _DEVICES and width >= _NARROWEST


def _is_watched() -> bool:
    """Never in a compiled block, which cannot ask: torch compiles nothing that is watched."""
    return not torch.compiler.is_compiling() and _get_current_dispatch_mode() is not None


class FlexAttention:
    """Attention of all tokens of a sequence; blocks that share one of these share its mask of blocks. Compiled blocks
    make it anew instead: what is kept from one to the next would have each compiled for itself."""

    def __init__(self, kernel: Kernel | None = None) -> None:
        self._kernel = kernel
        self._key: object = None
        self._how: dict[str, Any] = {}

    def attend(
        self, query_BHSK: Tensor, key_BGSK: Tensor, value_BGSK: Tensor, visibility: Visibility
    ) -> Tensor:
        """(B, H, S, K); compiled at the first call, and again for other shapes, unless a kernel was given; in a
        compiled block with it."""
        grouped = query_BHSK.shape[1] != key_BGSK.shape[1]
        out: Tensor
        if torch.compiler.is_compiling():
            how = _how(visibility, query_BHSK)
            out = flex_attention(query_BHSK, key_BGSK, value_BGSK, enable_gqa=grouped, **how)
            return out
        key = (visibility, query_BHSK.shape[1], query_BHSK.shape[2], query_BHSK.device)
        if self._key != key:
            self._key, self._how = key, _how(visibility, query_BHSK)
        kernel = self._kernel or _compiled_flex()
        out = kernel(query_BHSK, key_BGSK, value_BGSK, enable_gqa=grouped, **self._how)
        return out


@cache
def _compiled_flex() -> Kernel:
    return torch.compile(flex_attention, dynamic=False)


def _how(visibility: Visibility, query_BHSK: Tensor) -> dict[str, Any]:
    """Which blocks to look at, and what to do with the scores of those."""
    _, heads, tokens, _ = query_BHSK.shape

    def sees(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return key <= query if visibility.window is None else (key <= query) & ~visibility.hides(query, key)

    mask = create_block_mask(sees, None, None, tokens, tokens, device=query_BHSK.device)
    if not visibility.slopes:
        return {"block_mask": mask}
    slopes_H = visibility.slopes_of(heads, query_BHSK.device)

    def biased(score: Tensor, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return score - slopes_H[head] * (query - key)

    return {"block_mask": mask, "score_mod": biased}
