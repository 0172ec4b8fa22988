"""The part of a tensor that lives on this rank, whether it is distributed or not."""

from __future__ import annotations

from torch import Tensor, nn
from torch.distributed.tensor import DTensor


def local(tensor: Tensor) -> Tensor:
    """A `DTensor`'s local shard; any other tensor itself."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def settle_gradient(parameter: nn.Parameter) -> None:
    """Bring a gradient into its parameter's placement: sums still pending over ranks are added up."""
    gradient = parameter.grad
    if (
        isinstance(parameter, DTensor)
        and isinstance(gradient, DTensor)
        and gradient.placements != parameter.placements
    ):
        parameter.grad = gradient.redistribute(placements=parameter.placements)
