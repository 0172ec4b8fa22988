"""Which tokens of a sequence a rank has, and attention over them: all of them here, else `executor.apply.context`.

Shape legend: B batch, H query heads, G key/value heads, Q queries, S tokens, K head width.
"""

from __future__ import annotations

from typing import Protocol

import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from executor.models.sight import Places, Sight


class Sequence(Protocol):
    """What the parts of a model that know of positions ask."""

    def places(self, count: int) -> Places:
        """The positions of the `count` tokens that this rank has."""

    def attend(self, query_BHSK: Tensor, key_BGSK: Tensor, value_BGSK: Tensor, sight: Sight) -> Tensor:
        """(B, H, S, K) causal attention of this rank's queries to the keys and values of the whole sequence."""


class WholeSequence:
    """This rank has every token."""

    def places(self, count: int) -> Places:
        """From 0 on."""
        return (range(count),)

    def attend(self, query_BHSK: Tensor, key_BGSK: Tensor, value_BGSK: Tensor, sight: Sight) -> Tensor:
        """One call of torch's kernel."""
        places = self.places(query_BHSK.shape[2])
        heads = query_BHSK.shape[1]
        mask = None
        if not sight.is_causal(places, places):
            mask = sight.bias(places, places, heads, query_BHSK)
        return F.scaled_dot_product_attention(
            query_BHSK,
            key_BGSK,
            value_BGSK,
            attn_mask=mask,
            is_causal=mask is None,
            enable_gqa=heads != key_BGSK.shape[1],
        )
