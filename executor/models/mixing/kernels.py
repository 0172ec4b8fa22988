"""Attention kernels that return the log-sum-exp of each row, so that parts of a row can be merged.

Where there is a flash kernel it is torch's; elsewhere the scores are written out. The backward pass takes the output
and the log-sum-exp of the *whole* rows, over all keys wherever they were (Dao et al. 2022, FlashAttention,
algorithm 4): then gradients of parts simply add up.

Shape legend: B batch, H query heads, G key/value heads, Q queries, S keys, K head width.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

_aten: Any = torch.ops.aten
_FLASH_DTYPES = (torch.bfloat16, torch.float16)
_FLASH_WIDTHS = 8
"""Flash kernels of a GPU take heads of a multiple of this width, up to the widest."""
_WIDEST_FLASH = 256


class Meeting(NamedTuple):
    """Queries and the keys that they meet; without a `bias` the mask is causal where asked for, the last query seeing
    the last key."""

    query: Tensor
    """(B, H, Q, K)"""
    key: Tensor
    """(B, G, S, K), as `value`."""
    value: Tensor
    bias: Tensor | None
    causal: bool


class Kernel(Protocol):
    """Both passes of attention."""

    def forward(self, met: Meeting) -> tuple[Tensor, Tensor]:
        """Output (B, H, Q, K) and log-sum-exp (B, H, Q) in fp32."""

    def backward(
        self, met: Meeting, gradient_BHQK: Tensor, out_BHQK: Tensor, lse_BHQ: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients of query, key and value."""


def kernel_for(met: Meeting) -> Kernel:
    """The fastest kernel for these tensors."""
    query, width = met.query, met.query.shape[-1]
    same_width = width == met.value.shape[-1]
    if query.device.type == "cpu" and same_width:
        return _FlashOfCpu()
    fits = width % _FLASH_WIDTHS == 0 and width <= _WIDEST_FLASH
    if query.is_cuda and met.bias is None and same_width and fits and query.dtype in _FLASH_DTYPES:
        return _FlashOfCuda()
    return WrittenOut()


def causal_bias(queries: int, keys: int, like: Tensor) -> Tensor:
    """(Q, S) zero where the last query sees the last key and each one before it one less, else minus infinity."""
    hidden = torch.ones(queries, keys, dtype=torch.bool, device=like.device).triu(keys - queries + 1)
    return torch.zeros(queries, keys, dtype=like.dtype, device=like.device).masked_fill_(hidden, -torch.inf)


class _FlashOfCpu:
    """The flash kernel of a CPU: its causal mask is aligned to the first query and key, so it takes square ones."""

    def forward(self, met: Meeting) -> tuple[Tensor, Tensor]:
        query, key, value, bias, causal = self._masked(met)
        out, lse = _aten._scaled_dot_product_flash_attention_for_cpu(
            query, key, value, 0.0, causal, attn_mask=bias
        )
        return out, lse

    def backward(
        self, met: Meeting, gradient_BHQK: Tensor, out_BHQK: Tensor, lse_BHQ: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        query, key, value, bias, causal = self._masked(met)
        gradients: tuple[Tensor, Tensor, Tensor] = _aten._scaled_dot_product_flash_attention_for_cpu_backward(
            gradient_BHQK, query, key, value, out_BHQK, lse_BHQ, 0.0, causal, attn_mask=bias
        )
        return gradients

    def _masked(self, met: Meeting) -> Meeting:
        queries, keys = met.query.shape[2], met.key.shape[2]
        if met.causal and queries != keys:
            return met._replace(causal=False, bias=causal_bias(queries, keys, met.query))
        return met


class _FlashOfCuda:
    """The flash kernel of a GPU: its causal mask is aligned to the last query and key, as it should be."""

    def forward(self, met: Meeting) -> tuple[Tensor, Tensor]:
        query, key, value, bias, causal = met
        assert bias is None
        out, lse, *_ = _aten._scaled_dot_product_flash_attention(query, key, value, 0.0, causal)
        return out, lse

    def backward(
        self, met: Meeting, gradient_BHQK: Tensor, out_BHQK: Tensor, lse_BHQ: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        assert met.bias is None
        query, key, value, dout, out, lse = (
            one.contiguous() for one in (*met[:3], gradient_BHQK, out_BHQK, lse_BHQ)
        )
        unused = torch.zeros(2, dtype=torch.int64, device=query.device).view(torch.uint64)  # of dropout
        sizes = None, None, query.shape[2], key.shape[2]
        gradients: tuple[Tensor, Tensor, Tensor] = _aten._scaled_dot_product_flash_attention_backward(
            dout, query, key, value, out, lse, *sizes, 0.0, met.causal, unused, unused
        )
        return gradients


class WrittenOut:
    """Scores in memory, in fp32: for masks, types and widths that no flash kernel takes."""

    def forward(self, met: Meeting) -> tuple[Tensor, Tensor]:
        """Softmax of the biased scores, times the values."""
        query, key, value, *_ = met
        groups = query.shape[1] // key.shape[1]
        scores_BHQS = _scores(met)
        lse_BHQ = scores_BHQS.logsumexp(-1)
        weights = (scores_BHQS - lse_BHQ[..., None]).exp()
        out = weights @ value.float().repeat_interleave(groups, 1)
        return out.to(query.dtype), lse_BHQ

    def backward(
        self, met: Meeting, gradient_BHQK: Tensor, out_BHQK: Tensor, lse_BHQ: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """dS = P ∘ (dP − Σ dO ∘ O), with P from the scores and the log-sum-exp."""
        dquery, dkey, dvalue, _ = self.gradients(met, gradient_BHQK, out_BHQK, lse_BHQ)
        return dquery, dkey, dvalue

    def gradients(
        self, met: Meeting, gradient_BHQK: Tensor, out_BHQK: Tensor, lse_BHQ: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Those, and (B, H, Q, S) that of the biased scores, in fp32."""
        query, key, value, *_ = met
        groups = query.shape[1] // key.shape[1]
        weights = _scores(met).sub_(lse_BHQ[..., None]).exp_()
        dout = gradient_BHQK.float()
        dvalue = weights.transpose(-1, -2) @ dout
        dweights = dout @ value.float().repeat_interleave(groups, 1).transpose(-1, -2)
        own = (dout * out_BHQK.float()).sum(-1, keepdim=True)
        dscores = weights.mul_(dweights.sub_(own))
        scale = query.shape[-1] ** -0.5
        dquery = (dscores @ key.float().repeat_interleave(groups, 1)).mul_(scale)
        dkey = (dscores.transpose(-1, -2) @ query.float()).mul_(scale)
        dkey, dvalue = (torch.unflatten(one, 1, (-1, groups)).sum(2) for one in (dkey, dvalue))
        return dquery.to(query.dtype), dkey.to(key.dtype), dvalue.to(value.dtype), dscores


def _scores(met: Meeting) -> Tensor:
    """(B, H, Q, S) biased and masked, in fp32."""
    query, key, _, bias, causal = met
    groups = query.shape[1] // key.shape[1]
    scores: Tensor = query.float() @ key.float().repeat_interleave(groups, 1).transpose(-1, -2)
    scores = scores * query.shape[-1] ** -0.5
    if causal:
        bias = causal_bias(query.shape[2], key.shape[2], scores)
    return scores if bias is None else scores + bias
