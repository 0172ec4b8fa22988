"""The part of a tensor that lives on this rank, whether it is distributed or not."""

from __future__ import annotations

from torch import Tensor
from torch.distributed.tensor import DTensor


def local(tensor: Tensor) -> Tensor:
    """A `DTensor`'s local shard; any other tensor itself."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
