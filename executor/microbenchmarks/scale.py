"""The sizes to measure: those of a small model on a CPU, of a large one on a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import torch
import yaml

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


def scale_of(device: str, precision: Precision | None = None, *, quick: bool) -> Scale:
    """The sizes for a kind of device, `cpu` or `cuda`, in its usual precision or another; of a quick calibration
    fewer and other ones."""
    text = (files("executor.microbenchmarks") / "scales.yaml").read_text(encoding="utf-8")
    known = yaml.safe_load(text)[device]
    said = known["full"] | known["quick"] if quick else known["full"]
    said["products"] = [*_linears(**said.pop("linears")), *said["products"]]
    said["messages"] = _octaves(**said["messages"])
    said["precision"] = precision or said["precision"]
    return Scale(**{name: _frozen(value) for name, value in said.items()})


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


def _linears(tokens: Sequence[int], widths: Sequence[int]) -> list[tuple[int, int, int]]:
    """The linear layers of blocks of these widths: queries, keys and values; projection; up; down."""
    return [
        (m, n, k) for m in tokens for h in widths for n, k in ((3 * h, h), (h, h), (4 * h, h), (h, 4 * h))
    ]


def _octaves(least: int, most: int, factor: int) -> list[int]:
    """least, least · factor, … up to most."""
    sizes = [least]
    while sizes[-1] * factor <= most:
        sizes.append(sizes[-1] * factor)
    return sizes
