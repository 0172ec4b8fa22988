"""Causal self-attention: with grouped key/value heads, or through narrow latents (DeepSeek-V2, arXiv 2405.04434).

Positions by rotation or by a slope per head where the spec has them. Latent attention:

    query   x → latent → norm → heads, or straight from x where the spec has no latent for it
    key     x → latent → norm → heads of K − P, and P more, straight from x, that all heads share
    value   the same latent → heads of W

No matrix of it has a bias. Positions turn the last P of each query head and the shared part of the keys.

Shape legend: B batch, S sequence, D model, H query heads, G key/value heads, K width of a query or key head, P its part
with positions, W width of a value head (H and G of this rank).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from cost_models.specs.transformer import TransformerSpec
from executor.models.mixing.distances import Buckets, biased_attention
from executor.models.mixing.positions import Turns, turning_of, visibility_of
from executor.models.mixing.sequence import Sequence, WholeSequence


class Attention(nn.Module):
    """Projections and the core. `first_head` is this rank's first query head (for ALiBi under tensor parallelism),
    `sequence` the tokens it has. With `crosses` keys and values are of what an encoder returned."""

    def __init__(self, spec: TransformerSpec, layer: int = 0, *, crosses: bool = False) -> None:
        super().__init__()
        self.spec = spec
        self.window = spec.window_of(layer)
        self.both_ways = crosses or spec.encodes(layer)
        self.turning = None if crosses else turning_of(spec, layer)
        self.buckets = Buckets(spec.stacks, self.both_ways) if spec.stacks and not crosses else None
        self.first_head = 0
        self.sequence: Sequence = WholeSequence()
        self.turns = Turns()
        width, bias = spec.hidden_size, spec.attention_bias
        self.query = nn.Linear(width, spec.query_size, bias=bias)
        self.key = nn.Linear(width, spec.kv_size, bias=bias)
        self.value = nn.Linear(width, spec.kv_size, bias=bias)
        gated, normed = spec.attention_gate and not crosses, spec.qk_norm and not crosses
        self.gate = nn.Linear(width, spec.query_size, bias=bias) if gated else None
        self.out = nn.Linear(spec.query_size, width, bias=spec.attention_output_bias)
        self.query_norm = _norm(spec, spec.query_size) if normed else None
        self.key_norm = _norm(spec, spec.kv_size) if normed else None
        scale = spec.attention_scale
        self.more = 1.0 if scale is None else scale * spec.head_dim**0.5  # than the kernels' own 1/√K

    def forward(
        self, x_BSD: Tensor, source_BSD: Tensor | None = None, *, table: Tensor | None = None
    ) -> Tensor:
        """(B, S, D) → (B, S, D); keys and values of the source where there is one, scores biased by a table."""
        of_BSD = x_BSD if source_BSD is None else source_BSD
        query_BHSK = self._heads(self.query(x_BSD), self.query_norm)
        key_BGSK = self._heads(self.key(of_BSD), self.key_norm)
        value_BGSK = self._heads(self.value(of_BSD), None)
        if self.turning is not None:
            places = self.sequence.places(query_BHSK.shape[2])
            query_BHSK = self.turns(query_BHSK, places, self.turning)
            key_BGSK = self.turns(key_BGSK, places, self.turning)
        if self.more != 1.0:
            query_BHSK = query_BHSK * self.more
        if table is not None and self.buckets is not None:
            mixed_BHSK = biased_attention(query_BHSK, key_BGSK, value_BGSK, table, self.buckets)
        else:
            visibility = visibility_of(self.spec, self.window, self.first_head, both_ways=self.both_ways)
            mixed_BHSK = self.sequence.attend(query_BHSK, key_BGSK, value_BGSK, visibility)
        mixed = mixed_BHSK.transpose(1, 2).flatten(2)
        out: Tensor = self.out(mixed if self.gate is None else mixed * self.gate(x_BSD).sigmoid())
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


_LATENT_NORM_EPSILON = 1e-6


class LatentAttention(nn.Module):
    """Projections and the core. `first_head` is this rank's first query head (for ALiBi under tensor parallelism),
    `sequence` the tokens it has."""

    def __init__(self, spec: TransformerSpec, layer: int = 0) -> None:
        super().__init__()
        latent = spec.latent_attention
        assert latent is not None
        self.spec, self.latent, self.both_ways = spec, latent, spec.encodes(layer)
        self.window = spec.window_of(layer)
        self.turning = turning_of(spec, layer)
        scale = spec.attention_scale
        self.more = 1.0 if scale is None else scale * spec.head_dim**0.5  # than the kernels' own 1/√K
        self.first_head = 0
        self.sequence: Sequence = WholeSequence()
        self.turns = Turns()
        width, made_of = spec.hidden_size, latent.query_rank or spec.hidden_size
        self.query_down: nn.Linear | None = None
        self.query_norm: nn.RMSNorm | None = None
        if latent.query_rank:
            self.query_down = nn.Linear(width, latent.query_rank, bias=False)
            self.query_norm = nn.RMSNorm(latent.query_rank, eps=_LATENT_NORM_EPSILON)
        self.query = nn.Linear(made_of, spec.query_size, bias=False)
        self.down = nn.Linear(width, latent.kv_rank + latent.position_dim, bias=False)
        self.latent_norm = nn.RMSNorm(latent.kv_rank, eps=_LATENT_NORM_EPSILON)
        self.shared_key = nn.Identity()  # where tensor ranks meet, each with its own heads
        self.plain_dim = spec.head_dim - latent.position_dim
        self.key_value = nn.Linear(
            latent.kv_rank, spec.num_kv_heads * (self.plain_dim + latent.value_dim), bias=False
        )
        self.out = nn.Linear(spec.attended_size, width, bias=False)

    def forward(self, x_BSD: Tensor) -> Tensor:
        """(B, S, D) → (B, S, D)."""
        query_BHSK = self._query(x_BSD)
        if self.more != 1.0:
            query_BHSK = query_BHSK * self.more
        key_BGSK, value_BGSW = self._key_value(x_BSD)
        visibility = visibility_of(self.spec, self.window, self.first_head, both_ways=self.both_ways)
        width = value_BGSW.shape[-1]
        if self._wants_one_width(x_BSD):
            value_BGSW = F.pad(value_BGSW, (0, max(0, self.spec.head_dim - width)))
        mixed_BHSW = self.sequence.attend(query_BHSK, key_BGSK, value_BGSW, visibility)[..., :width]
        out: Tensor = self.out(mixed_BHSW.transpose(1, 2).flatten(2))
        return out

    def _wants_one_width(self, x_BSD: Tensor) -> bool:
        """Whether keys and values must be of one width: for a CPU's flash kernel, and where the sequence is split."""
        return x_BSD.device.type == "cpu" or not isinstance(self.sequence, WholeSequence)

    def _query(self, x_BSD: Tensor) -> Tensor:
        """(B, H, S, K)."""
        if self.query_down is not None and self.query_norm is not None:
            x_BSD = self.query_norm(self.query_down(x_BSD))
        heads: Tensor = torch.unflatten(self.query(x_BSD), -1, (-1, self.spec.head_dim)).transpose(1, 2)
        if self.turning is None:
            return heads
        plain, turned = torch.split(heads, [self.plain_dim, self.latent.position_dim], dim=-1)
        places = self.sequence.places(turned.shape[2])
        return torch.cat([plain, self.turns(turned, places, self.turning)], dim=-1)

    def _key_value(self, x_BSD: Tensor) -> tuple[Tensor, Tensor]:
        """(B, G, S, K) keys and (B, G, S, W) values."""
        latent, shared = torch.split(
            self.down(x_BSD), [self.latent.kv_rank, self.latent.position_dim], dim=-1
        )
        both: Tensor = self.key_value(self.latent_norm(latent))
        heads = torch.unflatten(both, -1, (-1, self.plain_dim + self.latent.value_dim)).transpose(1, 2)
        plain_BGSK, value_BGSW = torch.split(heads, [self.plain_dim, self.latent.value_dim], dim=-1)
        shared_BSP: Tensor = self.shared_key(shared)
        shared_B1SP = shared_BSP.unsqueeze(1)
        if self.turning is not None:
            places = self.sequence.places(shared_B1SP.shape[2])
            shared_B1SP = self.turns(shared_B1SP, places, self.turning)
        shared_BGSP = shared_B1SP.expand(-1, plain_BGSK.shape[1], -1, -1)
        # a copy of the values, or the keys they came with would be kept for them
        return torch.cat([plain_BGSK, shared_BGSP], dim=-1), value_BGSW.contiguous()
