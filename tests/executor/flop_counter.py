"""Count the FLOPs of matrix products that one rank really runs, recomputation included.

`torch.utils.flop_counter` leaves out grouped and scaled products and counts a `DTensor`'s global shape; the cost model
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


class FlopCounter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Use as a context; `products` then holds FLOPs, two for each multiplication with its addition."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.products = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if has_other_tensors(types):
            return NotImplemented
        if count := _PRODUCTS.get(func._overloadpacket):
            self.products += count(*args)
        return func(*args, **(kwargs or {}))


def _mm(left: Tensor, right: Tensor, *_: Any) -> int:
    """(…, M, K) @ (…, K, N): 2·M·K·N for each matrix of the batch."""
    return 2 * prod(left.shape) * right.shape[-1]


def _addmm(bias: Tensor, left: Tensor, right: Tensor, *_: Any) -> int:
    return _mm(left, right)


def _grouped(left: Tensor, right: Tensor, *_: Any) -> int:
    """(R, K) rows by groups @ (L, K, N), or the gradient of those matrices, (M, R) @ (R, N): each row once."""
    return _mm(left, right)


_aten = torch.ops.aten
_PRODUCTS: dict[Any, Callable[..., int]] = {
    _aten.mm: _mm,
    _aten.bmm: _mm,
    _aten.addmm: _addmm,
    _aten.baddbmm: _addmm,
    _aten._grouped_mm: _grouped,
    _aten._scaled_mm: _mm,
}
