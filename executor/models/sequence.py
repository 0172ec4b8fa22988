"""The tokens of a sequence that a rank has, and attention over them. Here all; shared: `executor.apply.context`.

Shape legend: B batch, H query heads, G key/value heads, Q queries, S tokens, K head width.
"""

from __future__ import annotations

from typing import Protocol

import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from executor.models import flex_attention
from executor.models.visibility import Places, Visibility


class Sequence(Protocol):
    """What modules that know of positions need of a sequence."""

    def places(self, count: int) -> Places:
        """The positions of the `count` tokens that this rank has."""

    def attend(
        self, query_BHSK: Tensor, key_BGSK: Tensor, value_BGSK: Tensor, visibility: Visibility
    ) -> Tensor:
        """(B, H, S, K) causal attention of this rank's queries to the keys and values of the whole sequence."""


class WholeSequence:
    """A sequence of which this rank has every token. Blocks that share one of these share its mask."""

    def __init__(self) -> None:
        self._mask: tuple[object, Tensor] | None = None
        self._flexible = flex_attention.FlexAttention()

    def places(self, count: int) -> Places:
        """All positions, from 0 on."""
        return (range(count),)

    def attend(
        self, query_BHSK: Tensor, key_BGSK: Tensor, value_BGSK: Tensor, visibility: Visibility
    ) -> Tensor:
        """Attention by torch's own kernel, on a GPU by FlexAttention where it can skip what a window hides."""
        places = self.places(query_BHSK.shape[2])
        if not visibility.is_causal(places, places) and flex_attention.suits(query_BHSK):
            return self._flexible.attend(query_BHSK, key_BGSK, value_BGSK, visibility)
        mask = self._mask_of(query_BHSK, visibility)
        return F.scaled_dot_product_attention(
            query_BHSK,
            key_BGSK,
            value_BGSK,
            attn_mask=mask,
            is_causal=mask is None,
            enable_gqa=query_BHSK.shape[1] != key_BGSK.shape[1],
        )

    def _mask_of(self, query_BHSK: Tensor, visibility: Visibility) -> Tensor | None:
        """The mask, made once and kept while nothing changes; None: the kernel's own causal mask does."""
        _, heads, tokens, _ = query_BHSK.shape
        places = self.places(tokens)
        if visibility.is_causal(places, places):
            return None
        asked = (visibility, heads, tokens, query_BHSK.dtype, query_BHSK.device)
        if self._mask is None or self._mask[0] != asked:
            self._mask = (asked, visibility.bias(places, places, heads, query_BHSK))
        return self._mask[1]
