"""Frozen matrices stored in fewer bits, expanded to the type of training for each product.

    nf4    each element over the largest of its block of 64: the nearest of 16 numbers. These largest, less their mean,
           over the largest of 256 of them: the nearest of 256 numbers (Dettmers et al. 2023, QLoRA, arXiv 2305.14314)
    int8   each element in 127ths of the largest of its row (Dettmers et al. 2022, LLM.int8(), arXiv 2208.07339)

Numbers are those of bitsandbytes 0.50 (functional.py: quantize_4bit with compress_statistics, int8_vectorwise_quant).
Blocks lie inside rows, and scales are made of the whole matrix: neither depends on how ranks share it. LLM.int8() also
multiplies in 8 bits; here products have the type of training.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Shard

from cost_models.specs.training import NF4_BLOCK, NF4_GROUP, Base
from executor.mesh import local, product_of_shards, with_values
from executor.models.adapters import is_adapter
from executor.models.initial import has_values
from executor.models.transformer import Transformer

_AT_ONCE = {"cpu": 1 << 16, "cuda": 1 << 22}
"""Elements expanded at a time; on a CPU as many as its cache holds."""
_MAX_INT8 = 127.0
"""Largest value of an int8."""


@cache
@with_values
def nf4_numbers() -> tuple[float, ...]:
    """The 16 values of NF4's codes: quantiles of a normal distribution on either side of 0, divided by the largest.
    See QLoRA, section 3 and appendix E: the outermost are halfway between those of 15 and of 16 even steps.
    """
    outer = 1 - (1 / 32 + 1 / 30) / 2
    negative, positive = (
        torch.special.ndtri(torch.linspace(outer, 0.5, n, dtype=torch.float64))[:-1] for n in (8, 9)
    )
    return tuple((torch.cat([-negative, torch.zeros(1), positive.flip(0)]) / positive[0]).tolist())


@cache
@with_values
def dynamic_numbers() -> tuple[float, ...]:
    """The 256 numbers of a dynamic byte: a sign, zeros that give the power of ten, and evenly spaced fractions. See
    Dettmers 2016, 8-bit approximations, arXiv 1511.04561, section 2.
    """
    edges = [(10.0**power, torch.linspace(0.1, 1, (1 << (power + 6)) + 1)) for power in range(-6, 1)]
    positive = torch.cat([power * ((ends[:-1] + ends[1:]) / 2) for power, ends in edges])
    return tuple(torch.cat([-positive, torch.tensor([0.0, 1.0]), positive]).sort().values.tolist())


def nearest(values: Tensor, numbers: tuple[float, ...]) -> Tensor:
    """Index of the nearest of ascending numbers to each value, as int32."""
    all_of = torch.tensor(numbers, device=values.device)
    return torch.bucketize(values, (all_of[:-1] + all_of[1:]) / 2, out_int32=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Format of a quantised matrix, and the rows and columns of it that a tensor rank stores."""

    base: Base
    full_shape: tuple[int, int]
    """Rows and columns of the full matrix."""
    row: int
    """First row of this rank's part in the full matrix."""
    column: int
    """First column of this rank's part in the full matrix."""
    columns: int

    @property
    def block(self) -> int:
        """Number of elements that share one scale."""
        return NF4_BLOCK if self.base == "nf4" else self.full_shape[1]

    @property
    def blocks(self) -> tuple[int, int]:
        """Number of rows of the full matrix, and number of blocks in each row."""
        return self.full_shape[0], self.full_shape[1] // self.block

    def stored(self, rows: int) -> dict[str, Tensor]:
        """Byte buffers on the meta device for `rows` quantised rows: codes, scales and, for NF4, scales of these
        scales.
        """
        if self.base == "int8":
            return {"weight": _bytes(rows, self.columns, torch.int8), "scales": _bytes(rows, 4)}
        groups = -(-self.blocks[0] * self.blocks[1] // NF4_GROUP)
        return {
            "weight": _bytes(rows, self.columns // 2),
            "scales": _bytes(rows, self.columns // self.block),
            "groups": _bytes(groups + 1, 4),
        }

    def wide(self, dtype: torch.dtype, codes: Tensor, scales: Tensor, *groups: Tensor) -> Tensor:
        """The matrix, (rows, columns), expanded to `dtype` some rows at a time, so that little else is in memory."""
        values_wide = torch.empty(codes.shape[0], self.columns, dtype=dtype, device=codes.device)
        pairs = torch.cartesian_prod(*[torch.tensor(nf4_numbers(), device=codes.device)] * 2)
        for rows in _some(values_wide, codes):
            if self.base == "int8":
                torch.mul(codes[rows], scales[rows].view(torch.float32) / _MAX_INT8, out=values_wide[rows])
                continue
            values = pairs.index_select(0, codes[rows].flatten().int()).view(*scales[rows].shape, NF4_BLOCK)
            values.mul_(self._largest(scales[rows], rows.start, *groups).unsqueeze(-1))
            values_wide[rows] = values.flatten(1)
        return values_wide

    def _largest(self, scales: Tensor, first: int, groups: Tensor) -> Tensor:
        """Largest magnitude of each block of some NF4 rows, from their quantised scales, (rows, blocks)."""
        numbers_of = groups.view(torch.float32).flatten()
        numbers = torch.tensor(dynamic_numbers(), device=scales.device)
        rows, blocks = (torch.arange(size, device=scales.device) for size in scales.shape)
        at = (self.row + first + rows[:, None]) * self.blocks[1] + self.column // self.block + blocks
        over = numbers_of.index_select(0, (at // NF4_GROUP).flatten())
        numbers_scaled: Tensor = numbers.index_select(0, scales.flatten().int()) * over
        return (numbers_scaled + numbers_of[-1]).view(scales.shape)

    def quantised(
        self, values: Tensor, first: int, group: dist.ProcessGroup | None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Codes and scales of some fp32 rows, from row `first` of the part on, and for NF4 second-level scales and
        mean. Ranks of `group` hold the matrix together.
        """
        size = min(self.block, self.columns)
        parts = values.view(len(values), self.columns // size, size)
        maxima, largest = parts.abs().amax(-1), values.new_zeros(self.blocks)
        at = self.column // self.block
        largest[self.row + first :][: len(maxima), at : at + maxima.shape[1]] = maxima
        if group is not None:
            dist.all_reduce(largest, dist.ReduceOp.MAX, group)
        rows = slice(self.row + first, self.row + first + len(maxima))
        if self.base == "int8":
            scales = largest[rows]
            return (values * (_MAX_INT8 / _divisor(scales))).round().to(torch.int8), _as_bytes(scales), None
        codes = nearest(parts / _divisor(maxima).unsqueeze(-1), nf4_numbers()).view(-1, self.columns // 2, 2)
        mean = largest.mean()
        centred = F.pad((largest - mean).flatten(), (0, -largest.numel() % NF4_GROUP)).view(-1, NF4_GROUP)
        divisors = centred.abs().amax(-1, keepdim=True)
        scale_codes = nearest(centred / _divisor(divisors), dynamic_numbers()).flatten()[: largest.numel()]
        own_scales = scale_codes.view(self.blocks)[rows, at : at + maxima.shape[1]]
        packed = codes[..., 0] * 16 + codes[..., 1]
        return packed, own_scales, _as_bytes(torch.cat([divisors, mean.view(1, 1)]))


def _some(values: Tensor, codes: Tensor) -> Iterator[slice]:
    """Slices of rows that are expanded at a time."""
    device_type = codes.device.type if has_values(codes) else "cuda"
    rows = max(1, _AT_ONCE.get(device_type, _AT_ONCE["cuda"]) // max(1, values.shape[1]))
    yield from (slice(first, first + rows) for first in range(0, len(values), rows))


def _bytes(rows: int, columns: int, dtype: torch.dtype = torch.uint8) -> Tensor:
    """Buffer on the meta device for codes or scales."""
    return torch.empty(rows, columns, dtype=dtype, device="meta")


def _as_bytes(numbers: Tensor) -> Tensor:
    """Numbers (rows, 1) in fp32 as bytes (rows, 4), as trainers cast numbers that they gather, but no bytes."""
    return numbers.contiguous().view(torch.uint8)


def _divisor(largest: Tensor) -> Tensor:
    """The largest magnitudes with each 0 replaced by 1, so that one can divide by them."""
    return largest.masked_fill(largest == 0, 1.0)


class QuantisedLinear(nn.Linear):
    """Frozen linear layer that stores its matrix, or this tensor rank's part, in fewer bits."""

    part: Part
    split: tuple[DeviceMesh, Placement] | None
    """Mesh and placement by which tensor ranks share the matrix; None if it is not split."""

    @property
    def stored(self) -> list[nn.Parameter]:
        """Stored tensors of the matrix: codes, scales and, for NF4, second-level scales."""
        return [getattr(self, name) for name in ("weight", "scales", "groups") if hasattr(self, name)]

    def forward(self, input: Tensor) -> Tensor:
        """Product (…, in) → (…, out) with the expanded matrix."""
        part, stored = self.part, self.stored
        if self.split is None:
            return _multiply(input, part, self.bias, *stored)
        return product_of_shards(
            input, *self.split, self.bias, lambda shard, _: _multiply(shard, part, None, *stored)
        )


class _Product(torch.autograd.Function):
    """x · Wᵀ + b with a frozen quantised W, expanded for the forward and again for the backward product."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, part: Part, bias: Tensor | None, *stored: Tensor) -> Tensor:
        """Product of `x` with the expanded matrix, plus the bias."""
        ctx.part = part
        ctx.save_for_backward(*stored)
        return F.linear(x, part.wide(x.dtype, *stored), bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        """Gradient of `x`, by the matrix expanded again."""
        (gradient,) = gradients
        stored = ctx.saved_tensors
        return gradient @ ctx.part.wide(gradient.dtype, *stored), None, None, *[None] * len(stored)


def _multiply(*arguments: Any) -> Tensor:
    """Product with a quantised matrix, differentiable in its input."""
    product: Tensor = _Product.apply(*arguments)  # type: ignore[no-untyped-call]
    return product


def quantise(model: Transformer, base: Base) -> None:
    """Have the frozen matrices of a model slice's blocks stored in fewer bits, in place. Call it on the meta device,
    after tensor ranks have split them and before other ranks do.
    """
    for block in model.blocks.values():
        for name, module in block.named_modules():
            if type(module) is not nn.Linear or is_adapter(f"{name}."):
                continue
            weight = module.weight
            module.__class__ = QuantisedLinear
            assert isinstance(module, QuantisedLinear)
            (rows, columns), offsets, module.split = local(weight).shape, [0, 0], None
            if isinstance(weight, DTensor):
                mesh, (placement,) = weight.device_mesh, weight.placements
                module.split = mesh, placement
                if isinstance(placement, Shard):
                    offsets[placement.dim] = mesh.get_local_rank() * (rows, columns)[placement.dim]
            row, column = offsets
            full_shape = (weight.shape[0], weight.shape[1])
            module.part = Part(base=base, full_shape=full_shape, row=row, column=column, columns=columns)
            for kind, room in module.part.stored(rows).items():
                module.register_parameter(kind, nn.Parameter(room, requires_grad=False))
