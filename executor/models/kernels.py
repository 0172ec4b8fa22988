"""Attention kernels that return the log-sum-exp of each row, so that parts of a row can be merged.

Where there is a flash kernel it is torch's; elsewhere the scores are written out. Both passes take the same arguments,
and the backward pass takes the output and the log-sum-exp of the *whole* rows, over all keys wherever they were
(Dao et al. 2022, FlashAttention, algorithm 4): then gradients of parts simply add up.

Shape legend: B batch, H query heads, G key/value heads, Q queries, S keys, K head width.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor

_aten: Any = torch.ops.aten
_FLASH_DTYPES = (torch.bfloat16, torch.float16)
_FLASH_WIDTHS = 8
"""Flash kernels of a GPU take heads of a multiple of this width, up to the widest."""
_WIDEST_FLASH = 256


class Kernel(Protocol):
    """Both passes; without a `bias` the mask is causal where asked for, the last query seeing the last key."""

    def forward(
        self, query_BHQK: Tensor, key_BGSK: Tensor, value_BGSK: Tensor, bias: Tensor | None, causal: bool
    ) -> tuple[Tensor, Tensor]:
        """Output (B, H, Q, K) and log-sum-exp (B, H, Q) in fp32."""

    def backward(
        self,
        gradient_BHQK: Tensor,
        query_BHQK: Tensor,
        key_BGSK: Tensor,
        value_BGSK: Tensor,
        out_BHQK: Tensor,
        lse_BHQ: Tensor,
        bias: Tensor | None,
        causal: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients of query, key and value."""


def kernel_for(query_BHQK: Tensor, value_BGSK: Tensor, bias: Tensor | None) -> Kernel:
    """The fastest kernel for these tensors."""
    same_width = query_BHQK.shape[-1] == value_BGSK.shape[-1]
    if query_BHQK.device.type == "cpu" and same_width:
        return _FlashOfCpu()
    fits = query_BHQK.shape[-1] % _FLASH_WIDTHS == 0 and query_BHQK.shape[-1] <= _WIDEST_FLASH
    if query_BHQK.is_cuda and bias is None and same_width and fits and query_BHQK.dtype in _FLASH_DTYPES:
        return _FlashOfCuda()
    return WrittenOut()


def causal_bias(queries: int, keys: int, like: Tensor) -> Tensor:
    """(Q, S) zero where the last query sees the last key and each one before it one less, else minus infinity."""
    hidden = torch.ones(queries, keys, dtype=torch.bool, device=like.device).triu(keys - queries + 1)
    return torch.zeros(queries, keys, dtype=like.dtype, device=like.device).masked_fill_(hidden, -torch.inf)


class _FlashOfCpu:
    """The flash kernel of a CPU: its causal mask is aligned to the first query and key, so it takes square ones."""

    def forward(
        self, query_BHQK: Tensor, key_BGSK: Tensor, value_BGSK: Tensor, bias: Tensor | None, causal: bool
    ) -> tuple[Tensor, Tensor]:
        causal, bias = self._mask(query_BHQK, key_BGSK, bias, causal)
        out, lse = _aten._scaled_dot_product_flash_attention_for_cpu(
            query_BHQK, key_BGSK, value_BGSK, 0.0, causal, attn_mask=bias
        )
        return out, lse

    def backward(
        self,
        gradient_BHQK: Tensor,
        query_BHQK: Tensor,
        key_BGSK: Tensor,
        value_BGSK: Tensor,
        out_BHQK: Tensor,
        lse_BHQ: Tensor,
        bias: Tensor | None,
        causal: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        causal, bias = self._mask(query_BHQK, key_BGSK, bias, causal)
        gradients: tuple[Tensor, Tensor, Tensor] = _aten._scaled_dot_product_flash_attention_for_cpu_backward(
            gradient_BHQK,
            query_BHQK,
            key_BGSK,
            value_BGSK,
            out_BHQK,
            lse_BHQ,
            0.0,
            causal,
            attn_mask=bias,
        )
        return gradients

    def _mask(
        self, query_BHQK: Tensor, key_BGSK: Tensor, bias: Tensor | None, causal: bool
    ) -> tuple[bool, Tensor | None]:
        queries, keys = query_BHQK.shape[2], key_BGSK.shape[2]
        if causal and queries != keys:
            return False, causal_bias(queries, keys, query_BHQK)
        return causal, bias


class _FlashOfCuda:
    """The flash kernel of a GPU: its causal mask is aligned to the last query and key, as it should be."""

    def forward(
        self, query_BHQK: Tensor, key_BGSK: Tensor, value_BGSK: Tensor, bias: Tensor | None, causal: bool
    ) -> tuple[Tensor, Tensor]:
        assert bias is None
        out, lse, *_ = _aten._scaled_dot_product_flash_attention(
            query_BHQK, key_BGSK, value_BGSK, 0.0, causal
        )
        return out, lse

    def backward(
        self,
        gradient_BHQK: Tensor,
        query_BHQK: Tensor,
        key_BGSK: Tensor,
        value_BGSK: Tensor,
        out_BHQK: Tensor,
        lse_BHQ: Tensor,
        bias: Tensor | None,
        causal: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        assert bias is None
        unused = torch.zeros(2, dtype=torch.int64, device=query_BHQK.device).view(torch.uint64)  # of dropout
        query, key, value, dout, lse = (
            one.contiguous() for one in (query_BHQK, key_BGSK, value_BGSK, gradient_BHQK, lse_BHQ)
        )
        gradients: tuple[Tensor, Tensor, Tensor] = _aten._scaled_dot_product_flash_attention_backward(
            dout,
            query,
            key,
            value,
            out_BHQK.contiguous(),
            lse,
            None,
            None,
            query.shape[2],
            key.shape[2],
            0.0,
            causal,
            unused,
            unused,
        )
        return gradients


class WrittenOut:
    """Scores in memory, in fp32: for masks, types and widths that no flash kernel takes."""

    def forward(
        self, query_BHQK: Tensor, key_BGSK: Tensor, value_BGSK: Tensor, bias: Tensor | None, causal: bool
    ) -> tuple[Tensor, Tensor]:
        """Softmax of the biased scores, times the values."""
        groups = query_BHQK.shape[1] // key_BGSK.shape[1]
        scores_BHQS = _scores(query_BHQK, key_BGSK, bias, causal)
        lse_BHQ = scores_BHQS.logsumexp(-1)
        weights = (scores_BHQS - lse_BHQ[..., None]).exp()
        out = weights @ value_BGSK.float().repeat_interleave(groups, 1)
        return out.to(query_BHQK.dtype), lse_BHQ

    def backward(
        self,
        gradient_BHQK: Tensor,
        query_BHQK: Tensor,
        key_BGSK: Tensor,
        value_BGSK: Tensor,
        out_BHQK: Tensor,
        lse_BHQ: Tensor,
        bias: Tensor | None,
        causal: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """dS = P ∘ (dP − Σ dO ∘ O), with P from the scores and the log-sum-exp."""
        groups = query_BHQK.shape[1] // key_BGSK.shape[1]
        scale = query_BHQK.shape[-1] ** -0.5
        weights = (_scores(query_BHQK, key_BGSK, bias, causal) - lse_BHQ[..., None]).exp()
        dout = gradient_BHQK.float()
        dvalue = weights.transpose(-1, -2) @ dout
        dweights = dout @ value_BGSK.float().repeat_interleave(groups, 1).transpose(-1, -2)
        own = (dout * out_BHQK.float()).sum(-1, keepdim=True)
        dscores = weights * (dweights - own) * scale
        dquery = dscores @ key_BGSK.float().repeat_interleave(groups, 1)
        dkey = dscores.transpose(-1, -2) @ query_BHQK.float()
        dkey, dvalue = (one.unflatten(1, (-1, groups)).sum(2) for one in (dkey, dvalue))
        return dquery.to(query_BHQK.dtype), dkey.to(key_BGSK.dtype), dvalue.to(value_BGSK.dtype)


def _scores(query_BHQK: Tensor, key_BGSK: Tensor, bias: Tensor | None, causal: bool) -> Tensor:
    """(B, H, Q, S) biased and masked, in fp32."""
    groups = query_BHQK.shape[1] // key_BGSK.shape[1]
    scores: Tensor = query_BHQK.float() @ key_BGSK.float().repeat_interleave(groups, 1).transpose(-1, -2)
    scores = scores * query_BHQK.shape[-1] ** -0.5
    if causal:
        bias = causal_bias(query_BHQK.shape[2], key_BGSK.shape[2], scores)
    return scores if bias is None else scores + bias
