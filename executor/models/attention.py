"""Causal self-attention with grouped key/value heads; positions by rotation or by a slope per head where asked.

Shape legend: B batch, S sequence, D model, H query heads, G key/value heads, K head width (of this rank).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from cost_models.specs.transformer import TransformerSpec
from executor.models.rotary import Turns, turning_of
from executor.models.sequence import Sequence, WholeSequence
from executor.models.visibility import visibility_of


class Attention(nn.Module):
    """Projections and the core. `first_head` is this rank's first query head (for ALiBi under tensor parallelism),
    `sequence` the tokens it has."""

    def __init__(self, spec: TransformerSpec, layer: int = 0) -> None:
        super().__init__()
        self.spec = spec
        self.window = spec.window_of(layer)
        self.turning = turning_of(spec, layer)
        self.first_head = 0
        self.sequence: Sequence = WholeSequence()
        self.turns = Turns()
        width, bias = spec.hidden_size, spec.attention_bias
        self.query = nn.Linear(width, spec.query_size, bias=bias)
        self.key = nn.Linear(width, spec.kv_size, bias=bias)
        self.value = nn.Linear(width, spec.kv_size, bias=bias)
        self.out = nn.Linear(spec.query_size, width, bias=spec.attention_output_bias)
        self.query_norm = _norm(spec, spec.query_size) if spec.qk_norm else None
        self.key_norm = _norm(spec, spec.kv_size) if spec.qk_norm else None
        scale = spec.attention_scale
        self.more = 1.0 if scale is None else scale * spec.head_dim**0.5  # than the kernels' own 1/√K

    def forward(self, x_BSD: Tensor) -> Tensor:
        """(B, S, D) → (B, S, D)."""
        query_BHSK = self._heads(self.query(x_BSD), self.query_norm)
        key_BGSK = self._heads(self.key(x_BSD), self.key_norm)
        value_BGSK = self._heads(self.value(x_BSD), None)
        if self.turning is not None:
            places = self.sequence.places(query_BHSK.shape[2])
            query_BHSK = self.turns(query_BHSK, places, self.turning)
            key_BGSK = self.turns(key_BGSK, places, self.turning)
        if self.more != 1.0:
            query_BHSK = query_BHSK * self.more
        visibility = visibility_of(self.spec, self.window, self.first_head)
        mixed_BHSK = self.sequence.attend(query_BHSK, key_BGSK, value_BGSK, visibility)
        out: Tensor = self.out(mixed_BHSK.transpose(1, 2).flatten(2))
        return out

    def _heads(self, x: Tensor, norm: nn.Module | None) -> Tensor:
        """(B, S, heads · K) → (B, heads, S, K)."""
        over_all = self.spec.qk_norm_over == "all"
        if norm is not None and over_all:
            x = norm(x)
        split: Tensor = torch.unflatten(x, -1, (-1, self.spec.head_dim))
        if norm is not None and not over_all:
            split = norm(split)
        return split.transpose(1, 2)


def _norm(spec: TransformerSpec, width: int) -> nn.RMSNorm:
    """Over a head, or over all that are so wide together."""
    return nn.RMSNorm(spec.head_dim if spec.qk_norm_over == "head" else width, eps=spec.norm_epsilon)
