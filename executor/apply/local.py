"""The part of a tensor that lives on this rank, whether it is distributed or not."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor, nn
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass_type


def local(tensor: Tensor) -> Tensor:
    """A `DTensor`'s local shard; any other tensor itself."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def made_of_others(kinds: Iterable[type]) -> bool:
    """Whether some of these types wrap other tensors: shards, or fp8 values with their scales.

    A dispatch mode that leaves their operators to them sees those on what is inside.
    """
    return any(
        issubclass(kind, DTensor)
        or (is_traceable_wrapper_subclass_type(kind) and not issubclass(kind, AsyncCollectiveTensor))
        for kind in kinds
    )


def settle_gradient(parameter: nn.Parameter) -> None:
    """Bring a gradient into its parameter's placement: sums still pending over ranks are added up."""
    gradient = parameter.grad
    if (
        isinstance(parameter, DTensor)
        and isinstance(gradient, DTensor)
        and gradient.placements != parameter.placements
    ):
        parameter.grad = gradient.redistribute(placements=parameter.placements)
