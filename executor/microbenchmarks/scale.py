"""The sizes to measure: those of a small model on a CPU, of a large one on a GPU."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from cost_models.specs.cluster import Precision

_DTYPES: dict[Precision, torch.dtype] = {
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp8": torch.bfloat16,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """Sizes of every microbenchmark."""

    precision: Precision
    products: tuple[tuple[int, int, int], ...]
    """(tokens, columns out, inner) of linear layers."""
    repeated_products: tuple[tuple[int, int, int], ...]
    """(tokens, columns out, inner) of products that are run again and again on the same operands: the peak."""
    sustained_seconds: float
    """How long the largest of `products` runs without a gap."""
    head_dims: tuple[int, ...]
    sequences: tuple[int, ...]
    attention_tokens: int
    """Heads × sequence of one attention call: enough to fill the device."""
    elements: tuple[int, ...]
    """Sizes of element-wise operators."""
    width: int
    """Width of the rows that element-wise operators work on."""
    cold_bytes: int
    """Operands of repeated calls are spread over this much, beyond the cache next to a core."""
    memory_bytes: tuple[int, ...]
    """Sizes of the arrays that measure memory bandwidth: inside the caches, and far beyond them."""
    optimizer_shapes: tuple[tuple[int, int], ...]
    """(tensors, parameters of each)."""
    block_parameters: int
    """Parameters of a block that a host updates."""
    copied_bytes: int
    """Of one copy between device and host."""
    overlapped_side: int
    """Rows, columns and inner dimension of the products that updates run beside."""
    table_bytes: int
    """Of an embedding table: beyond all caches."""
    table_widths: tuple[int, ...]
    """Elements of its rows, fp32; each divides the table."""
    poolings: tuple[float, ...]
    """Rows of a vector; below 1: one in so many."""
    table_ids: int
    """Ids looked up at once."""
    messages: tuple[int, ...]
    """Bytes of the full tensor of collectives."""
    rounds: int
    """How often everything is measured, one after the other; the fastest quarter counts."""

    def tensor(self, device: torch.device, *shape: int) -> torch.Tensor:
        """Random values in the training precision."""
        return torch.randn(shape, device=device).to(self.dtype)

    @property
    def dtype(self) -> torch.dtype:
        """The training precision as torch calls it."""
        return _DTYPES[self.precision]

    @property
    def element_bytes(self) -> int:
        """Bytes of one value in the training precision."""
        return self.dtype.itemsize

    def heads(self, sequence: int) -> int:
        """Heads of one attention call."""
        return max(1, self.attention_tokens // sequence)


def _linears(tokens: tuple[int, ...], widths: tuple[int, ...]) -> tuple[tuple[int, int, int], ...]:
    """The linear layers of blocks of these widths: queries, keys and values; projection; up; down."""
    return tuple(
        (m, n, k) for m in tokens for h in widths for n, k in ((3 * h, h), (h, h), (4 * h, h), (h, 4 * h))
    )


def cpu_scale(*, quick: bool) -> Scale:
    """Hidden 64 to 512, up to a thousand tokens, fp32: 16-bit products are emulated on most CPUs."""
    return Scale(
        precision="fp32",
        products=(
            *_linears((128, 512) if quick else (64, 256, 1024), (64, 256) if quick else (64, 256, 512)),
            (256, 8192, 128),
        ),
        repeated_products=((256, 256, 256), (512, 512, 512), (1024, 1024, 1024)),
        sustained_seconds=0.1,  # a core is never idle between other measurements either: its clocks are down already
        head_dims=(16, 32, 64) if quick else (16, 32, 64, 128),
        sequences=(64, 128, 256, 512) if quick else (32, 64, 128, 256, 512, 1024),
        attention_tokens=1024,
        elements=(2**12, 2**15, 2**17, 2**20) if quick else (2**12, 2**15, 2**17, 2**19, 2**21),
        width=256,
        cold_bytes=2**23,
        memory_bytes=(2**16, 2**20, 2**27),
        optimizer_shapes=((32, 2**10), (8, 2**19), (8, 2**20)),
        block_parameters=2**20,
        copied_bytes=2**22,
        overlapped_side=128,
        table_bytes=2**26,
        table_widths=(4, 16, 128) if quick else (1, 4, 16, 128),
        poolings=(0.125, 1.0, 16.0),
        table_ids=2**13 if quick else 2**14,
        messages=_octaves(2**10, 2**22 if quick else 2**25, 4 if quick else 2),
        rounds=4,
    )


def cuda_scale(precision: Precision, *, quick: bool) -> Scale:
    """Hidden 1024 to 8192, thousands of tokens, 16-bit."""
    return Scale(
        precision=precision,
        products=(
            *_linears((2048, 8192) if quick else (1024, 2048, 4096, 8192), (2048, 4096)),
            (4096, 14336, 4096),
            (4096, 8192, 8192),
            (4096, 32000, 4096),
        ),
        repeated_products=(),
        sustained_seconds=2.0,  # power limits act on averages over tens of milliseconds, fans and heat over seconds
        head_dims=(64, 128),
        sequences=(1024, 2048, 4096, 8192) if quick else (512, 1024, 2048, 4096, 8192, 16384),
        attention_tokens=2**17,
        elements=(2**16, 2**20, 2**23, 2**26) if quick else (2**14, 2**17, 2**20, 2**22, 2**24, 2**26, 2**28),
        width=4096,
        cold_bytes=2**27,
        memory_bytes=(2**31,),
        optimizer_shapes=((32, 2**10), (8, 2**22), (8, 2**25)),
        block_parameters=2**23 if quick else 2**24,
        copied_bytes=2**28,
        overlapped_side=4096,
        table_bytes=2**32,
        table_widths=(16, 128) if quick else (1, 4, 16, 32, 64, 128, 256),
        poolings=(0.125, 1.0, 16.0) if quick else (0.125, 1.0, 4.0, 16.0, 64.0),
        table_ids=2**20 if quick else 2**22,
        messages=_octaves(2**12, 2**28, 4 if quick else 2),
        rounds=1,
    )


def _octaves(low: int, high: int, factor: int) -> tuple[int, ...]:
    """low, low · factor, … up to high."""
    sizes = [low]
    while sizes[-1] * factor <= high:
        sizes.append(sizes[-1] * factor)
    return tuple(sizes)
