"""Causal self-attention with grouped key/value heads; positions by rotation or by a slope per head where asked.

Shape legend: B batch, S sequence, D model, H query heads, G key/value heads, K head width (of this rank).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from cost_models.specs.transformer import TransformerSpec

_ROTARY_BASE = 10_000.0
_QK_NORM_EPSILON = 1e-6


class Attention(nn.Module):
    """Projections and the core. `first_head` is this rank's first query head (for ALiBi under tensor parallelism)."""

    def __init__(self, spec: TransformerSpec) -> None:
        super().__init__()
        self.spec = spec
        self.first_head = 0
        width, bias = spec.hidden_size, spec.attention_bias
        self.query = nn.Linear(width, spec.query_size, bias=bias)
        self.key = nn.Linear(width, spec.kv_size, bias=bias)
        self.value = nn.Linear(width, spec.kv_size, bias=bias)
        self.out = nn.Linear(spec.query_size, width, bias=spec.attention_output_bias)
        normed = spec.qk_norm
        self.query_norm = nn.RMSNorm(spec.head_dim, eps=_QK_NORM_EPSILON) if normed else None
        self.key_norm = nn.RMSNorm(spec.head_dim, eps=_QK_NORM_EPSILON) if normed else None

    def forward(self, x_BSD: Tensor) -> Tensor:
        """(B, S, D) → (B, S, D)."""
        query_BHSK = self._heads(self.query(x_BSD), self.query_norm)
        key_BGSK = self._heads(self.key(x_BSD), self.key_norm)
        value_BGSK = self._heads(self.value(x_BSD), None)
        if self.spec.positions == "rotary":
            query_BHSK, key_BGSK = _rotate(query_BHSK), _rotate(key_BGSK)
        mask = (
            _alibi(self.spec.num_heads, self.first_head, query_BHSK)
            if self.spec.positions == "alibi"
            else None
        )
        mixed_BHSK = F.scaled_dot_product_attention(
            query_BHSK,
            key_BGSK,
            value_BGSK,
            attn_mask=mask,
            is_causal=mask is None,
            enable_gqa=query_BHSK.shape[1] != key_BGSK.shape[1],
        )
        out: Tensor = self.out(mixed_BHSK.transpose(1, 2).flatten(2))
        return out

    def _heads(self, x: Tensor, norm: nn.Module | None) -> Tensor:
        """(B, S, heads · K) → (B, heads, S, K)."""
        split: Tensor = torch.unflatten(x, -1, (-1, self.spec.head_dim))
        if norm is not None:
            split = norm(split)
        return split.transpose(1, 2)


def _rotate(x_BHSK: Tensor) -> Tensor:
    """Rotary positions (Su et al. 2021) on the two halves of a head, as Llama pairs them."""
    sequence, width = x_BHSK.shape[-2], x_BHSK.shape[-1]
    steps = torch.arange(0, width, 2, device=x_BHSK.device, dtype=torch.float32)
    places = torch.arange(sequence, device=x_BHSK.device, dtype=torch.float32)
    angle = torch.outer(places, _ROTARY_BASE ** (-steps / width))
    cos, sin = angle.cos().to(x_BHSK.dtype), angle.sin().to(x_BHSK.dtype)
    left, right = x_BHSK.chunk(2, dim=-1)
    return torch.cat([left * cos - right * sin, right * cos + left * sin], dim=-1)


def _alibi(num_heads: int, first_head: int, query_BHSK: Tensor) -> Tensor:
    """(1, H, S, S) bias −slope · distance, minus infinity above the diagonal (Press et al. 2021)."""
    heads, sequence = query_BHSK.shape[1], query_BHSK.shape[2]
    index = torch.arange(
        first_head + 1, first_head + heads + 1, device=query_BHSK.device, dtype=torch.float32
    )
    slopes = 2.0 ** (-8.0 * index / num_heads)
    places = torch.arange(sequence, device=query_BHSK.device)
    distance = places[:, None] - places[None, :]
    bias = -slopes[:, None, None] * distance
    return bias.masked_fill(distance < 0, float("-inf")).to(query_BHSK.dtype).unsqueeze(0)
