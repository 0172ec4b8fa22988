"""One optimizer step over all parts of a rank: synchronise, measure the global gradient norm, clip, update."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from executor.apply.experts import Copies, ExpertParameters
from executor.apply.flat_parameters import FlatParameters
from executor.apply.local import local, settle_gradient
from executor.models.transformer import Transformer
from executor.run_config import EngineOptions
from planner.plan import Plan

_BETAS = (0.9, 0.95)
_WEIGHT_DECAY = 0.1


class Optimizer:
    """The plan's optimizer for this rank's parameters."""

    def __init__(
        self,
        plan: Plan,
        parts: Sequence[Transformer],
        mesh: DeviceMesh,
        experts: DeviceMesh | None,
        options: EngineOptions,
    ) -> None:
        self.mesh, self.options, self.plan = mesh, options, plan
        self.parameters = _unique(parts)
        self.experts = None if experts is None else ExpertParameters(parts, experts)
        self.flats: list[FlatParameters] = []
        if plan.layout.zero <= 1:
            self.flats = self._flat(mesh)
            self.optimizers = [flat.optimizer for flat in self.flats]
        else:
            self.optimizers = [self._make(group) for group in _by_kind(self.parameters)]
        tensor_axis, data_axis = mesh["tp"], mesh["shard"]  # slicing a mesh is slow: once, not every step
        self._over_tp = {id(parameter): _split_over(parameter, tensor_axis) for parameter in self.parameters}
        self._over_replicas = {
            id(parameter): _split_over(parameter, data_axis) for parameter in self.parameters
        }
        self.counted_elsewhere = {
            id(part.head.weight)
            for part in parts
            if part.head is not None and plan.model.tied_embeddings and plan.layout.pp > 1
        }

    def gradient(self, parameter: Tensor) -> Tensor | None:
        """The gradient that this rank has accumulated for a parameter, as a plain tensor."""
        for flat in self.flats:
            if flat.holds(parameter):
                return flat.gradient(parameter)
        return None if parameter.grad is None else local(parameter.grad)

    def take_gradients(self) -> None:
        """Move gradients that came without a hook's call into the flat buffer; elsewhere they stay in `.grad`."""
        for flat in self.flats:
            flat.take_gradients()

    def settle(self) -> None:
        """Complete the gradients within the tensor-parallel group; call after the backward pass."""
        for flat in self.flats:
            flat.settle()
        if not self.flats:
            for parameter in self.parameters:
                settle_gradient(parameter)

    def set_rate(self, rate: float) -> None:
        """Set the learning rate of the updates to come."""
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate

    def step(self) -> float:
        """Update every parameter; returns the norm of the whole model's gradient before clipping."""
        for flat in self.flats:
            flat.reduce()
        norm = self._norm()
        if self.options.clip is not None and norm > self.options.clip:
            self._scale(self.options.clip / norm)
        for flat in self.flats:
            flat.step()
        if not self.flats:
            for optimizer in self.optimizers:
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
        return norm

    def _flat(self, mesh: DeviceMesh) -> list[FlatParameters]:
        """One buffer over the ranks that hold the same parameters; another over those that hold the same experts."""
        replicas = Copies(mesh["shard"], mesh["copy"])
        routed = self.experts
        if routed is None or not routed.parameters:
            return [self._flat_over(self.parameters, replicas)]
        others = [parameter for parameter in self.parameters if not routed.holds(parameter)]
        return [self._flat_over(others, replicas), self._flat_over(routed.parameters, routed.copies)]

    def _flat_over(self, parameters: Sequence[nn.Parameter], copies: Copies) -> FlatParameters:
        return FlatParameters(
            parameters,
            copies.shard,
            copies.groups,
            sharded=self.plan.layout.zero == 1,
            mean_over=self.plan.layout.replicas,
            make=self._make,
        )

    def _make(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        rate = self.options.rate.peak
        if self.options.sgd or self.plan.training.optimizer == "sgd":
            return torch.optim.SGD(parameters, lr=rate, foreach=False)
        return torch.optim.AdamW(parameters, lr=rate, betas=_BETAS, weight_decay=_WEIGHT_DECAY, fused=True)

    def _norm(self) -> float:
        """The global gradient norm, each element counted once: squares are summed by the axes they are split over."""
        kinds: dict[tuple[int, int], list[Tensor]] = {}  # by (split over tp, over replicas)
        routed: list[tuple[nn.Parameter, Tensor]] = []
        for parameter, gradient, over_replicas in self._gradients():
            if self.experts is not None and self.experts.holds(parameter):
                routed.append((parameter, gradient))
            elif id(parameter) not in self.counted_elsewhere:
                kinds.setdefault((self._over_tp[id(parameter)], over_replicas), []).append(gradient)
        sums = torch.zeros(2, 2, device=self.mesh.device_type)
        for kind, gradients in kinds.items():
            sums[kind] = torch.stack(torch._foreach_norm(gradients, dtype=torch.float32)).square().sum()
        if self.plan.layout.tp > 1:
            dist.all_reduce(part := sums[1].clone(), group=self.mesh["tp"].get_group())
            sums[1] = part
        if self.plan.layout.shard_group > 1:
            dist.all_reduce(part := sums[:, 1].clone(), group=self.mesh["shard"].get_group())
            sums[:, 1] = part
        total = sums.sum()
        if self.experts is not None:
            total = total + self.experts.square_sum(routed, sharded=self.plan.layout.zero > 0)
        if self.plan.layout.pp > 1:
            dist.all_reduce(total, group=self.mesh["pp"].get_group())
        return float(total.sqrt())

    def _gradients(self) -> list[tuple[nn.Parameter, Tensor, int]]:
        """(parameter, this rank's gradient, split over replicas)."""
        if self.flats:
            return [
                (parameter, gradient, int(flat.shards > 1))
                for flat in self.flats
                for parameter, gradient in flat.reduced
            ]
        return [
            (parameter, local(parameter.grad), self._over_replicas[id(parameter)])
            for parameter in self.parameters
            if parameter.grad is not None
        ]

    def _scale(self, factor: float) -> None:
        for flat in self.flats:
            flat.scale(factor)
        if not self.flats:
            torch._foreach_mul_([gradient for _, gradient, _ in self._gradients()], factor)


def _unique(parts: Sequence[Transformer]) -> list[nn.Parameter]:
    return list({id(parameter): parameter for part in parts for parameter in part.parameters()}.values())


def _by_kind(parameters: Sequence[nn.Parameter]) -> list[list[nn.Parameter]]:
    """Plain tensors, and DTensors by their mesh: one fused update takes one kind."""
    kinds: dict[int, list[nn.Parameter]] = {}
    for parameter in parameters:
        key = hash(parameter.device_mesh) if isinstance(parameter, DTensor) else 0
        kinds.setdefault(key, []).append(parameter)
    return list(kinds.values())


def _split_over(parameter: Tensor, mesh: DeviceMesh) -> int:
    """1 where the parameter is sharded over this axis (replicas are not), else 0."""
    if not isinstance(parameter, DTensor):
        return 0
    names = parameter.device_mesh.mesh_dim_names or ()
    axis = (mesh.mesh_dim_names or ("",))[0]
    placed = dict(zip(names, parameter.placements, strict=True))
    return int(axis in placed and not placed[axis].is_replicate())
