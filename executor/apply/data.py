"""ZeRO-2 and ZeRO-3 with `fully_shard`; stages 0 and 1 are `executor.apply.flat_parameters`.

2  weights stay gathered between forward and backward
3  weights are gathered again for the backward pass
"""

from __future__ import annotations

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from executor.apply.experts import routers
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


def share_experts(
    model: Transformer, experts: DeviceMesh, zero: int, compute_dtype: torch.dtype, ranks: int
) -> None:
    """Wrap the routed experts of every mixture, in place and before the rest, for the ranks that hold the same ones.

    A rank's gradients come from the tokens of all ranks that exchange copies with it, so the mean is over `ranks`,
    those that hold the same of the rest of the model, as it is for that.
    """
    policy = MixedPrecisionPolicy(param_dtype=compute_dtype, reduce_dtype=torch.float32)
    mesh = experts["copy", "shard"] if experts["copy"].size() > 1 else experts["shard"]
    for routed in routers(model):
        fully_shard(routed.experts, mesh=mesh, reshard_after_forward=zero == 3, mp_policy=policy)
        assert isinstance(routed.experts, FSDPModule)
        routed.experts.set_gradient_divide_factor(ranks)
        if experts["shard"].size() > 1:  # gloo cannot scale as it adds; with one rank it would divide twice
            routed.experts.set_force_sum_reduction_for_comms(True)


def synchronise_only_when(model: nn.Module, last_microbatch: bool) -> None:
    """Synchronise gradients in the step's last microbatch only; before, they accumulate locally."""
    if isinstance(model, FSDPModule):
        model.set_requires_gradient_sync(last_microbatch)
        model.set_is_last_backward(last_microbatch)
