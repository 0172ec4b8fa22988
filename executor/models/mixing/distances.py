"""Biases on attention scores by distance, in buckets that widen with it (T5: Raffel et al. 2019, arXiv 1910.10683).

Blocks of a stack share a table. Neither scores nor their biases are kept for the backward pass, which makes both again:
a table's gradient is the sum of those of all scores whose distances fall into its bucket.

Shape legend: B batch, H query heads (of this rank), Q queries, S keys, K head width, N buckets.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from cost_models.specs.transformer import Stacks, TransformerSpec
from executor.mesh import local
from executor.models.mixing.kernels import Meeting, WrittenOut, kernel_for


class Distances(nn.Module):
    """A table of biases, a row for each bucket and a column for each head; over tensor ranks each has its heads'."""

    heads_dim = 1

    def __init__(self, spec: TransformerSpec) -> None:
        super().__init__()
        assert spec.stacks is not None
        self.weight = nn.Parameter(torch.empty(spec.stacks.position_buckets, spec.num_heads))

    def forward(self) -> Tensor:
        """(N, H) those of this rank's heads."""
        return local(self.weight)


@dataclass(frozen=True, slots=True)
class Buckets:
    """Which bucket a query and a key fall into."""

    stacks: Stacks
    both_ways: bool
    """Half of the buckets are of keys behind the query; else such keys are hidden."""

    def of(self, queries: int, keys: int, device: torch.device) -> Tensor:
        """(Q, S) bucket of each pair: one for each short distance, then by the logarithm, the last for all beyond."""
        behind = torch.arange(keys, device=device) - torch.arange(queries, device=device)[:, None]
        count = self.stacks.position_buckets // (2 if self.both_ways else 1)
        away = behind.abs() if self.both_ways else (-behind).clamp(min=0)
        exact = count // 2
        steps = (away.clamp(min=1).float() / exact).log() / math.log(self.stacks.farthest / exact)
        wide = (exact + (steps * (count - exact)).long()).clamp(max=count - 1)
        found = torch.where(away < exact, away, wide)
        return found + count * (behind > 0) if self.both_ways else found

    def bias(self, table_NH: Tensor, queries: int, keys: int) -> Tensor:
        """(1, H, Q, S) what is added to scores."""
        bias_HQS = table_NH[self.of(queries, keys, table_NH.device)].permute(2, 0, 1)
        if not self.both_ways:
            hidden = torch.ones(queries, keys, dtype=torch.bool, device=table_NH.device).triu(1)
            bias_HQS = bias_HQS.masked_fill(hidden, torch.finfo(table_NH.dtype).min / 2)
        return bias_HQS.contiguous().unsqueeze(0)

    def summed(self, gradient_BHQS: Tensor, like_NH: Tensor) -> Tensor:
        """(N, H) the gradient of a table, of that of biased scores."""
        of_pair = self.of(gradient_BHQS.shape[2], gradient_BHQS.shape[3], gradient_BHQS.device).flatten()
        total_HN = gradient_BHQS.new_zeros(gradient_BHQS.shape[1], len(like_NH))
        total_HN.index_add_(1, of_pair, gradient_BHQS.sum(0).flatten(1))
        return total_HN.t().to(like_NH.dtype)


def biased_attention(
    query_BHQK: Tensor, key_BGSK: Tensor, value_BGSK: Tensor, table_NH: Tensor, buckets: Buckets
) -> Tensor:
    """(B, H, Q, K) attention whose scores have the biases of a table."""
    found: Tensor = _Biased.apply(query_BHQK, key_BGSK, value_BGSK, table_NH, buckets)  # type: ignore[no-untyped-call]
    return found


class _Biased(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, table: Tensor, buckets: Buckets
    ) -> Tensor:
        met = Meeting(query, key, value, buckets.bias(table, query.shape[2], key.shape[2]), causal=False)
        out, lse = kernel_for(met).forward(met)
        ctx.save_for_backward(query, key, value, table, out, lse)
        ctx.buckets = buckets
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, table, out, lse = ctx.saved_tensors
        met = Meeting(query, key, value, ctx.buckets.bias(table, query.shape[2], key.shape[2]), causal=False)
        *gradients, of_scores = WrittenOut().gradients(met, gradient, out, lse)
        return *gradients, ctx.buckets.summed(of_scores, table), None
