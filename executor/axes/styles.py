"""Parallel styles of modules that PyTorch's own do not split: what routes, makes latents or holds states; and rows.

Blocks that take one sequence at a time may treat its tokens as rows of a matrix, gathered and scattered along the first
dim: torch's compiler then overlaps a collective with a matrix product (`overlap=tp`). Along the second dim it
simplifies the collective to one along the first and a view, behind which it finds no product.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel


class OnItsTokens(ParallelStyle):
    """The style of a matrix that is whole on every rank and applied to its tokens; its gradient is summed over ranks.

    It is given rows: PyTorch 2.11 cannot flatten a tensor that is split along its second axis.
    """

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        for name, parameter in list(module.named_parameters()):
            whole = DTensor.from_local(parameter.detach(), device_mesh, [Replicate()], run_check=False)
            module.register_parameter(name, nn.Parameter(whole, requires_grad=parameter.requires_grad))
        multiply = module.forward

        def on_rows(x: Tensor) -> Tensor:
            x = x.to_local() if isinstance(x, DTensor) else x
            rows = DTensor.from_local(x.flatten(0, -2), device_mesh, [Shard(0)], run_check=False)
            found: Tensor = multiply(rows).to_local()
            return torch.unflatten(found, 0, x.shape[:-1])

        module.forward = on_rows
        return module


class OfHeads(ParallelStyle):
    """The style of what has a number for each head, along the module's `heads_dim` (the first dim unless said), of
    which each rank has those of its heads; what all heads share is whole, and its gradient is summed over the ranks."""

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        for name, parameter in list(module.named_parameters()):
            split = Shard(getattr(module, "heads_dim", 0))
            placed = [Replicate() if name in getattr(module, "shared", ()) else split]
            mine = distribute_tensor(parameter.detach(), device_mesh, placed, src_data_rank=None)
            module.register_parameter(name, nn.Parameter(mine, requires_grad=parameter.requires_grad))
        return module


class ForAllHeads(ParallelStyle):
    """The style of what every head reads: whole on each rank, its gradient summed over the ranks' heads."""

    def __init__(self, between: Replicate | Shard) -> None:
        self.between = between

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        def gathered(_: nn.Module, inputs: tuple[Any, ...]) -> Tensor:
            (given,) = inputs
            if not isinstance(given, DTensor):
                given = DTensor.from_local(given, device_mesh, [self.between], run_check=False)
            whole = given.redistribute(placements=[Replicate()])
            return whole.to_local(grad_placements=[Partial()])

        module.register_forward_pre_hook(gathered)
        return module


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
