"""Sequence parallelism of one sequence at a time, as rows of a matrix: gathered and scattered along the first axis.

torch's compiler moves a collective into a product (`overlap=tp`) where it sees both. Along the second axis of one
sequence it simplifies the collective to one along the first and a view, behind which it sees no product.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel


class GatherRows(ParallelStyle):
    """The style of what is given (1, s / tp, h) and whose matrices, each a `SplitColumns`, read rows (s, h)."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        def gathered(_: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
            mine, *others = inputs
            mine = mine.to_local() if isinstance(mine, DTensor) else mine
            rows = DTensor.from_local(mine.flatten(0, 1), device_mesh, [Shard(0)], run_check=False)
            return rows.redistribute(placements=[Replicate()]), *others

        module.register_forward_pre_hook(gathered)
        return module


class SplitColumns(ColwiseParallel):
    """The style of a matrix split by columns: of rows (s, h) it makes (1, s, its columns)."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        module = super()._apply(module, device_mesh)
        module.register_forward_hook(lambda _module, _inputs, found: found.unflatten(0, (1, -1)))
        return module


class ScatterRows(RowwiseParallel):
    """The style of a matrix split by rows, whose sums (1, s, h) go back as (1, s / tp, h)."""

    def __init__(self) -> None:
        super().__init__(output_layouts=Partial(), use_local_output=False)

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        module = super()._apply(module, device_mesh)
        module.register_forward_hook(lambda _module, _inputs, found: _scattered(found))
        return module


class ScatterSum(ParallelStyle):
    """The style of what adds up parts of sums (1, s, h), which go back as (1, s / tp, h)."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        def scattered(_module: nn.Module, _inputs: tuple[Any, ...], found: Tensor) -> Tensor:
            if not isinstance(found, DTensor):
                found = DTensor.from_local(found, device_mesh, [Partial()], run_check=False)
            return _scattered(found)

        module.register_forward_hook(scattered)
        return module


def _scattered(parts: DTensor) -> Tensor:
    """(1, s, h) of which every rank has a part of the sum → (1, s / tp, h), this rank's rows of it."""
    rows: Any = parts.flatten(0, 1)
    mine: Tensor = rows.redistribute(placements=[Shard(0)]).to_local()
    return torch.unflatten(mine, 0, (1, -1))
