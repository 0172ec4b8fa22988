"""Count the matrix FLOPs that one rank really runs, recomputation included.

`torch.utils.flop_counter` leaves out the CPU's flash attention and counts a `DTensor`'s global shape; the cost model
speaks of one rank, so this counter reads the shapes of the shards.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from executor.mesh import has_other_tensors

_FORWARD_PRODUCTS, _BACKWARD_PRODUCTS = 2, 5
"""Matrix products of s × s × K in an attention core; its backward pass computes the scores once more."""


class FlopCounter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Use as a context; `products` and `attention` then hold the FLOPs of matrix products and attention cores.

    A multiplication and an addition are two FLOPs; the causal mask saves nothing (as in `cost_models.operators.flops`).
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.products = 0
        self.attention = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if has_other_tensors(types):
            return NotImplemented
        operator = func._overloadpacket
        if count := _PRODUCTS.get(operator):
            self.products += count(*args)
        elif count := _ATTENTION.get(operator):
            self.attention += count(*args)
        return func(*args, **(kwargs or {}))


def _mm(left: Tensor, right: Tensor, *_: Any) -> int:
    """(…, M, K) @ (…, K, N): 2·M·K·N for each matrix of the batch."""
    return 2 * prod(left.shape) * right.shape[-1]


def _addmm(bias: Tensor, left: Tensor, right: Tensor, *_: Any) -> int:
    return _mm(left, right)


def _grouped(left: Tensor, right: Tensor, *_: Any) -> int:
    """(R, K) rows by groups @ (L, K, N), or the gradient of those matrices, (M, R) @ (R, N): each row once."""
    return _mm(left, right)


def _core(query_BHSK: Tensor, key_BGSK: Tensor, *_: Any) -> int:
    """Scores and weighted values."""
    return _FORWARD_PRODUCTS * 2 * prod(query_BHSK.shape) * key_BGSK.shape[-2]


def _core_backward(grad: Tensor, query_BHSK: Tensor, key_BGSK: Tensor, *_: Any) -> int:
    return _BACKWARD_PRODUCTS * 2 * prod(query_BHSK.shape) * key_BGSK.shape[-2]


_aten = torch.ops.aten
_PRODUCTS: dict[Any, Callable[..., int]] = {
    _aten.mm: _mm,
    _aten.bmm: _mm,
    _aten.addmm: _addmm,
    _aten.baddbmm: _addmm,
    _aten._grouped_mm: _grouped,
    _aten._scaled_mm: _mm,
}
_ATTENTION: dict[Any, Callable[..., int]] = {
    _aten._scaled_dot_product_flash_attention_for_cpu: _core,
    _aten._scaled_dot_product_flash_attention_for_cpu_backward: _core_backward,
    _aten._scaled_dot_product_flash_attention: _core,
    _aten._scaled_dot_product_flash_attention_backward: _core_backward,
    _aten._scaled_dot_product_efficient_attention: _core,
    _aten._scaled_dot_product_efficient_attention_backward: _core_backward,
    _aten._scaled_dot_product_cudnn_attention: _core,
    _aten._scaled_dot_product_cudnn_attention_backward: _core_backward,
}
