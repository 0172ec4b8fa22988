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
    held: Placement,
    bias: Tensor | None,
    multiply: Callable[[Tensor, Ways], Tensor],
) -> Tensor:
    """(…, in) times a weight (out, in) that is `held` so, transposed → (…, out); `multiply` does so with shards."""
    assert isinstance(input, DTensor)
    ways = _ways(input, held)
    part = multiply(input.to_local(grad_placements=[ways.input_gradient]), ways)
    if bias is not None:
        assert isinstance(bias, DTensor)
        mine: Tensor = bias.to_local(grad_placements=[ways.bias_gradient])
        if ways.output == Partial():  # added once by all ranks together; each has its whole gradient
            mine = mine.detach() / mesh.size() + (mine - mine.detach())
        part = part + mine
    return DTensor.from_local(part, mesh, [ways.output], run_check=False)


def _ways(input: DTensor, held: Placement) -> Ways:
    """Of a weight split by columns, by rows, or of tokens that are split."""
    (taken,) = input.placements
    last = Shard(input.ndim - 1)
    if held == Shard(0):
        assert taken == Replicate(), taken
        return Ways(output=last, input_gradient=Partial(), weight_gradient=held, bias_gradient=held)
    if held == Shard(1):
        assert taken == last, taken
        return Ways(output=Partial(), input_gradient=last, weight_gradient=held, bias_gradient=Replicate())
    sums = Replicate() if taken == Replicate() else Partial()
    return Ways(output=taken, input_gradient=taken, weight_gradient=sums, bias_gradient=sums)
