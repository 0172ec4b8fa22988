"""What someone would write who needs no planner: a decoder in plain torch, and a loop that trains it on one device.

Nothing here is the executor's. Parameters have the names that the executor gives them, so that one can start from the
other's values; projections are apart, as they are there and in Llama's own code.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn


class GptAttention(nn.Module):
    """Causal self-attention with biases."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        """(B, S, D) → (B, S, D)."""
        batch, tokens, width = x.shape
        query, key, value = (
            project(x).view(batch, tokens, self.heads, -1).transpose(1, 2)
            for project in (self.query, self.key, self.value)
        )
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        out: Tensor = self.out(mixed.transpose(1, 2).reshape(batch, tokens, width))
        return out


class GptMlp(nn.Module):
    """Four times as wide inside."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """(B, S, D) → (B, S, D)."""
        out: Tensor = self.down(F.gelu(self.up(x)))
        return out


class LlamaAttention(nn.Module):
    """Causal self-attention with rotary positions and fewer key/value heads than query heads."""

    def __init__(self, width: int, heads: int, kv_heads: int) -> None:
        super().__init__()
        self.size = width // heads
        self.query, self.out = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.key, self.value = (nn.Linear(width, kv_heads * self.size, bias=False) for _ in range(2))

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """(B, S, D) → (B, S, D)."""
        batch, tokens, width = x.shape
        query, key, value = (
            project(x).view(batch, tokens, -1, self.size).transpose(1, 2)
            for project in (self.query, self.key, self.value)
        )
        query, key = turned(query, cos, sin), turned(key, cos, sin)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
        out: Tensor = self.out(mixed.transpose(1, 2).reshape(batch, tokens, width))
        return out


class LlamaMlp(nn.Module):
    """Gated."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.gate, self.up = (nn.Linear(width, inner, bias=False) for _ in range(2))
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """(B, S, D) → (B, S, D)."""
        out: Tensor = self.down(F.silu(self.gate(x)) * self.up(x))
        return out


class Block(nn.Module):
    """Pre-norm."""

    def __init__(self, attention: nn.Module, mlp: nn.Module, norms: tuple[nn.Module, nn.Module]) -> None:
        super().__init__()
        self.attention, self.mlp = attention, mlp
        self.attention_norm, self.mlp_norm = norms

    def forward(self, x: Tensor, *turns: Tensor) -> Tensor:
        """(B, S, D) → (B, S, D)."""
        x = x + self.attention(self.attention_norm(x), *turns)
        return x + self.mlp(self.mlp_norm(x))


class Table(nn.Module):
    """Learned positions."""

    def __init__(self, positions: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(positions, width))


class Gpt(nn.Module):
    """GPT-2's shape."""

    def __init__(self, *, layers: int, width: int, heads: int, vocabulary: int, positions: int) -> None:
        super().__init__()
        tokens = nn.Embedding(vocabulary, width)
        self.embedding = nn.ModuleDict({"tokens": tokens, "positions": Table(positions, width)})
        self.blocks = nn.ModuleList(
            Block(GptAttention(width, heads), GptMlp(width), (nn.LayerNorm(width), nn.LayerNorm(width)))
            for _ in range(layers)
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = tokens.weight

    def forward(self, tokens: Tensor) -> Tensor:
        """(B, S) → (B, S, V)."""
        table = self.embedding["positions"]
        assert isinstance(table, Table)
        x: Tensor = self.embedding["tokens"](tokens) + table.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.norm(x))
        return logits


class Llama(nn.Module):
    """Llama's shape."""

    def __init__(
        self, *, layers: int, width: int, heads: int, kv_heads: int, inner: int, vocabulary: int
    ) -> None:
        super().__init__()
        self.embedding = nn.ModuleDict({"tokens": nn.Embedding(vocabulary, width)})
        self.blocks = nn.ModuleList(
            Block(
                LlamaAttention(width, heads, kv_heads),
                LlamaMlp(width, inner),
                (nn.RMSNorm(width, eps=1e-5), nn.RMSNorm(width, eps=1e-5)),
            )
            for _ in range(layers)
        )
        self.norm = nn.RMSNorm(width, eps=1e-5)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head_size = width // heads
        self.turns: tuple[Tensor, Tensor] | None = None

    def forward(self, tokens: Tensor) -> Tensor:
        """(B, S) → (B, S, V)."""
        x: Tensor = self.embedding["tokens"](tokens)
        if self.turns is None:
            self.turns = turns_of(tokens.shape[1], self.head_size)
        for block in self.blocks:
            x = block(x, *self.turns)
        logits: Tensor = self.head(self.norm(x))
        return logits


def turns_of(tokens: int, size: int) -> tuple[Tensor, Tensor]:
    """(S, K/2) cosines and sines of rotary positions."""
    rates = 10_000.0 ** (-torch.arange(0, size, 2) / size)
    angle = torch.outer(torch.arange(tokens).float(), rates)
    return angle.cos(), angle.sin()


def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary positions on the halves of a head."""
    left, right = x.chunk(2, dim=-1)
    return torch.cat([left * cos - right * sin, right * cos + left * sin], dim=-1)


class Loop:
    """Gradient accumulation, clipping, AdamW, and windows of a text."""

    def __init__(
        self, model: nn.Module, text: npt.NDArray[np.uint8], *, batch: int, mbs: int, tokens: int, clip: float
    ) -> None:
        self.model, self.text = model, text
        self.batch, self.mbs, self.tokens, self.clip = batch, mbs, tokens, clip
        self.optimizer = torch.optim.AdamW(
            model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True
        )

    def step(self, number: int) -> tuple[float, float]:
        """Loss and gradient norm of one step, counted from 0."""
        draw = np.random.default_rng((0, number))
        starts = draw.integers(0, len(self.text) - self.tokens, self.batch)
        windows = np.stack([self.text[start : start + self.tokens + 1] for start in starts])
        both = torch.from_numpy(windows.astype(np.int64))
        share = self.mbs / self.batch
        total = 0.0
        for first in range(0, self.batch, self.mbs):
            some = both[first : first + self.mbs]
            logits = self.model(some[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), some[:, 1:].flatten()) * share
            loss.backward()  # type: ignore[no-untyped-call]
            total += float(loss.detach())
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return total, float(norm)
