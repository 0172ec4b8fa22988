"""ZeRO-2 and ZeRO-3 with `fully_shard`; stages 0 and 1 are `executor.apply.flat_parameters`.

2  weights stay gathered between forward and backward
3  weights are gathered again for the backward pass
"""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)

from executor.apply.experts import routers
from executor.models.transformer import Transformer


def share_data(
    model: Transformer,
    mesh: DeviceMesh,
    zero: int,
    compute_dtype: torch.dtype,
    streamed: Collection[str] = (),
) -> None:
    """Wrap every block and the slice itself, in place, for the replicas of `mesh`.

    One axis shards; of two the first holds copies of what the second shards (hybrid sharding). Shards of `streamed`
    blocks are in host memory, and are gathered again for the backward pass whatever the stage.

    With a 16-bit `compute_dtype` the parameters stay fp32 and are cast where they are gathered; gradients are reduced
    in fp32.
    """
    policy = MixedPrecisionPolicy(param_dtype=compute_dtype, reduce_dtype=torch.float32)
    for name, block in model.blocks.items():
        host = name in streamed
        fully_shard(
            block,
            mesh=mesh,
            reshard_after_forward=zero == 3 or host,
            mp_policy=policy,
            offload_policy=_on_host() if host else OffloadPolicy(),
        )
    fully_shard(model, mesh=mesh, reshard_after_forward=zero == 3, mp_policy=policy)


def _on_host() -> CPUOffloadPolicy:
    return CPUOffloadPolicy(pin_memory=torch.cuda.is_available())


def share_experts(
    model: Transformer,
    experts: DeviceMesh,
    zero: int,
    compute_dtype: torch.dtype,
    ranks: int,
    streamed: Collection[str] = (),
) -> None:
    """Wrap the routed experts of every mixture, in place and before the rest, for the ranks that hold the same ones.

    A rank's gradients come from the tokens of all ranks that exchange copies with it, so the mean is over `ranks`,
    those that hold the same of the rest of the model, as it is for that.
    """
    policy = MixedPrecisionPolicy(param_dtype=compute_dtype, reduce_dtype=torch.float32)
    mesh = experts["copy", "shard"] if experts["copy"].size() > 1 else experts["shard"]
    on_host = {id(routed) for name in streamed for routed in routers(model.blocks[name])}
    for routed in routers(model):
        host = id(routed) in on_host
        fully_shard(
            routed.experts,
            mesh=mesh,
            reshard_after_forward=zero == 3 or host,
            mp_policy=policy,
            offload_policy=_on_host() if host else OffloadPolicy(),
        )
        assert isinstance(routed.experts, FSDPModule)
        routed.experts.set_gradient_divide_factor(ranks)
        if experts["shard"].size() > 1:  # gloo cannot scale as it adds; with one rank it would divide twice
            routed.experts.set_force_sum_reduction_for_comms(True)


def synchronise_only_when(model: nn.Module, last_microbatch: bool) -> None:
    """Synchronise gradients in the step's last microbatch only; before, they accumulate locally."""
    if isinstance(model, FSDPModule):
        model.set_requires_gradient_sync(last_microbatch)
        model.set_is_last_backward(last_microbatch)
