"""Windows and ALiBi on a GPU by FlexAttention, which leaves out the blocks of scores that a window hides.

There is no mask of S × S: a mask of blocks says where to look, and a slope is subtracted as scores are made. So
the cost model prices a window where a stack has a flash kernel. The numbers are tested without a GPU, where the same
functions run written out; neither the time nor the memory of its GPU kernels has been measured for this project.

Shape legend: B batch, H query heads, G key/value heads, S tokens, K head width.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.utils._python_dispatch import _get_current_dispatch_mode

from executor.models.visibility import Visibility

Kernel = Callable[..., Any]
_NARROWEST = 16
"""Heads of fewer numbers are none of its kernels' business."""
_DEVICES = ("cuda",)
"""That have its kernels, both passes of them."""


def suits(query_BHSK: Tensor) -> bool:
    """On a GPU, unless somebody watches operators: steps that are followed, timed or counted have a dense mask."""
    return fits(query_BHSK.device, query_BHSK.shape[-1]) and not _watched()


def fits(device: torch.device, width: int) -> bool:
    """Whether it has kernels for heads of this width there."""
    return device.type in _DEVICES and width >= _NARROWEST


def _watched() -> bool:
    """Never in a compiled block, which cannot ask: torch compiles nothing that is watched."""
    return not torch.compiler.is_compiling() and _get_current_dispatch_mode() is not None


class FlexAttention:
    """Attention of all tokens of a sequence; blocks that share one of these share its mask of blocks. Compiled blocks
    make it anew instead: what is kept from one to the next would have each compiled for itself."""

    def __init__(self, kernel: Kernel | None = None) -> None:
        self._kernel = kernel
        self._asked: object = None
        self._how: dict[str, Any] = {}

    def attend(
        self, query_BHSK: Tensor, key_BGSK: Tensor, value_BGSK: Tensor, visibility: Visibility
    ) -> Tensor:
        """(B, H, S, K); compiled when first asked, and again for other shapes, unless a kernel was given; in a
        compiled block with it."""
        grouped = query_BHSK.shape[1] != key_BGSK.shape[1]
        out: Tensor
        if torch.compiler.is_compiling():
            how = _how(visibility, query_BHSK)
            out = flex_attention(query_BHSK, key_BGSK, value_BGSK, enable_gqa=grouped, **how)
            return out
        asked = (visibility, query_BHSK.shape[1], query_BHSK.shape[2], query_BHSK.device)
        if self._asked != asked:
            self._asked, self._how = asked, _how(visibility, query_BHSK)
        kernel = self._kernel or _compiled()
        out = kernel(query_BHSK, key_BGSK, value_BGSK, enable_gqa=grouped, **self._how)
        return out


@cache
def _compiled() -> Kernel:
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
