"""Data parallelism: ZeRO stages 0 and 1 on flat buffers, stages 2 and 3 with `fully_shard`.

    0  gradients all-reduced over the replicas; each updates everything
    1  gradients scattered, each rank updates its share, updates gathered (Rajbhandari et al. 2020); where only groups
       of replicas share the work, shares are all-reduced over the groups in between
    2  weights stay gathered between forward and backward
    3  weights are gathered again for the backward pass

Flat buffers are in `executor.axes.flat_parameters`.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)

from cost_models.axes.layout import Layout
from executor.axes.axis import Axis, Rank
from executor.models.experts import routers
from executor.models.transformer import Transformer


class DataAxis(Axis):
    """Shards every block and the slice itself over the replicas.

    One dim of the mesh shards; of two the first holds copies of what the second shards (hybrid sharding).
    """

    @classmethod
    def is_used(cls, layout: Layout) -> bool:
        return layout.zero >= 2

    def shard(self, part: Transformer, on_host: Collection[str]) -> None:
        layout, mesh = self.rank.layout, self.rank.mesh
        grouped = layout.shard_group < layout.data_ranks
        replicas = mesh["copy", "shard"] if grouped else mesh["shard"]
        biases = {router.choice_bias for router in routers(part) if router.choice_bias is not None}
        for name, block in part.blocks.items():
            how = how_sharded(self.rank, on_host=name in on_host)
            fully_shard(block, mesh=replicas, ignored_params=biases, **how)
        fully_shard(part, mesh=replicas, ignored_params=biases, **how_sharded(self.rank, on_host=False))


def how_sharded(rank: Rank, *, on_host: bool) -> dict[str, Any]:
    """Options of `fully_shard`: parameters stay fp32 and are cast where they are gathered, gradients reduced in fp32.

    Shards `on_host` are in host memory, and are gathered again for the backward pass whatever the stage.
    """
    return {
        "reshard_after_forward": rank.layout.zero == 3 or on_host,
        "mp_policy": MixedPrecisionPolicy(param_dtype=rank.dtype, reduce_dtype=torch.float32),
        "offload_policy": CPUOffloadPolicy(pin_memory=torch.cuda.is_available())
        if on_host
        else OffloadPolicy(),
    }


def synchronise_only_when(model: nn.Module, last_microbatch: bool) -> None:
    """Synchronise gradients in the step's last microbatch only; before, they accumulate locally."""
    if isinstance(model, FSDPModule):
        model.set_requires_gradient_sync(last_microbatch)
        model.set_is_last_backward(last_microbatch)
