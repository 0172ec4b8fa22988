"""Finds which of its attention kernels torch used: it chooses by device, type, shape and mask, and does not say.

Each backend of `scaled_dot_product_attention` is an operator of its own below autograd, which is seen there by name.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

from executor.apply.local import made_of_others

KERNELS = {
    "_scaled_dot_product_flash_attention": "flash",
    "_scaled_dot_product_flash_attention_for_cpu": "flash of the CPU",
    "_scaled_dot_product_efficient_attention": "memory-efficient",
    "_scaled_dot_product_cudnn_attention": "cuDNN",
    "_scaled_dot_product_fused_attention_overrideable": "the device's own",
    "_safe_softmax": "math, with all scores in memory",
}
"""Operator → how the backend is called; the last one is a part of what torch writes out where no kernel is fused."""


class AttentionKernels(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A context that collects in `seen` the names of the attention kernels that run inside."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: set[str] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if made_of_others(types):
            return NotImplemented
        if name := KERNELS.get(func._opname):
            self.seen.add(name)
        return func(*args, **(kwargs or {}))


def in_words(seen: Collection[str], *, flexible: bool) -> str:
    """The note for the report. `flexible`: measured steps use FlexAttention, which is never seen here."""
    kinds = [name for name in KERNELS.values() if name in seen]
    found = " and ".join(kinds) or "none that torch has fused"
    if flexible:
        return f"attention kernel: FlexAttention; in the steps that are followed, with a dense mask: {found}"
    return f"attention kernel: {found}"
