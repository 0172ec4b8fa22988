"""Products of modules that multiply this rank's shards themselves; the result says how it is sharded.

`DTensor` follows products that it knows. Others are told here how operands, result and gradients lie.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard


@dataclass(frozen=True, slots=True, kw_only=True)
class Ways:
    """The placements of a product over tensor ranks: of its result, and of the gradients of its operands."""

    output: Placement
    input_gradient: Placement
    weight_gradient: Placement
    bias_gradient: Placement


def product_of_shards(
    input: Tensor,
    mesh: DeviceMesh,
    placement: Placement,
    bias: Tensor | None,
    multiply: Callable[[Tensor, Ways], Tensor],
) -> Tensor:
    """(…, in) times a weight (out, in) that is `held` so, transposed → (…, out); `multiply` does so with shards."""
    assert isinstance(input, DTensor)
    ways = _ways(input, placement)
    part = multiply(input.to_local(grad_placements=[ways.input_gradient]), ways)
    if bias is not None:
        assert isinstance(bias, DTensor)
        bias_shard: Tensor = bias.to_local(grad_placements=[ways.bias_gradient])
        if ways.output == Partial():  # added once by all ranks together; each has its whole gradient
            bias_shard = bias_shard.detach() / mesh.size() + (bias_shard - bias_shard.detach())
        part = part + bias_shard
    return DTensor.from_local(part, mesh, [ways.output], run_check=False)


def _ways(input: DTensor, placement: Placement) -> Ways:
    """Placements of a product with a weight split by columns or rows, or with split tokens."""
    (input_split,) = input.placements
    last = Shard(input.ndim - 1)
    if placement == Shard(0):
        assert input_split == Replicate(), input_split
        return Ways(output=last, input_gradient=Partial(), weight_gradient=placement, bias_gradient=placement)
    if placement == Shard(1):
        assert input_split == last, input_split
        return Ways(
            output=Partial(), input_gradient=last, weight_gradient=placement, bias_gradient=Replicate()
        )
    sums = Replicate() if input_split == Replicate() else Partial()
    return Ways(output=input_split, input_gradient=input_split, weight_gradient=sums, bias_gradient=sums)
