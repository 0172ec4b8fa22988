"""Tensor parallelism of routed experts and of latent attention, as styles for `parallelize_module`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInputOutput,
    RowwiseParallel,
    SequenceParallel,
)

from executor.models.experts import MoE
from executor.models.latent import LatentAttention


def routed_plan(mixture: MoE, between: Replicate | Shard) -> dict[str, ParallelStyle]:
    """Have each rank route its part of every sequence; the router is whole on all, and its gradients are summed."""
    ours = Shard(1)
    gate: dict[str, ParallelStyle] = {}
    if mixture.shared_gate is not None and isinstance(between, Shard):  # else every rank does the same
        gate = {"mlp.shared_gate": _OnItsTokens()}
    return gate | {
        "mlp.routed": PrepareModuleInputOutput(
            input_layouts=(between,),
            desired_input_layouts=(ours,),
            use_local_input=True,
            output_layouts=(ours,),
            desired_output_layouts=(between,),
            use_local_output=True,
        ),
        "mlp.routed.router": _OnItsTokens(),
    }


def latent_plan(attention: LatentAttention, between: Replicate | Shard) -> dict[str, ParallelStyle]:
    """Split the matrices that make and join heads; every rank makes the latents of its part of the sequence."""
    split: dict[str, ParallelStyle] = {
        "attention.query": ColwiseParallel(input_layouts=between),
        "attention.key_value": ColwiseParallel(input_layouts=between),
        "attention.shared_key": _ForAllHeads(between),
        "attention.out": RowwiseParallel(output_layouts=between),
    }
    if isinstance(between, Shard):  # else every rank does the same, with parameters of its own
        split |= {"attention.down": _OnItsTokens(), "attention.latent_norm": SequenceParallel()}
        if attention.query_down is not None:
            split |= {"attention.query_down": _OnItsTokens(), "attention.query_norm": SequenceParallel()}
    return split


class _OnItsTokens(ParallelStyle):
    """A matrix that is whole on every rank, for the part of every sequence that each has; its gradient is their sum.

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


class _ForAllHeads(ParallelStyle):
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
