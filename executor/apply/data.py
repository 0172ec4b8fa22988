"""ZeRO-2 and ZeRO-3 with `fully_shard`; stages 0 and 1 are `executor.apply.flat`.

2  weights stay gathered between forward and backward
3  weights are gathered again for the backward pass
"""

from __future__ import annotations

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from executor.models.transformer import Transformer


def share_data(model: Transformer, mesh: DeviceMesh, zero: int, compute_dtype: torch.dtype) -> None:
    """Wrap every block and the slice itself, in place, for the replicas of `mesh`.

    One axis shards; of two the first holds copies of what the second shards (hybrid sharding).

    With a 16-bit `compute_dtype` the parameters stay fp32 and are cast where they are gathered; gradients are reduced
    in fp32.
    """
    policy = MixedPrecisionPolicy(param_dtype=compute_dtype, reduce_dtype=torch.float32)
    for module in (*model.blocks.values(), model):
        fully_shard(module, mesh=mesh, reshard_after_forward=zero == 3, mp_policy=policy)


def synchronise_only_when(model: nn.Module, last_microbatch: bool) -> None:
    """Gradient accumulation: gradients stay local until the step's last microbatch."""
    if isinstance(model, FSDPModule):
        model.set_requires_gradient_sync(last_microbatch)
        model.set_is_last_backward(last_microbatch)
