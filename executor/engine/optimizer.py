"""One optimizer step over all parts of a rank: synchronise, measure the global gradient norm, clip, update."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from executor.axes.data import FlatParameters
from executor.axes.expert import Copies, ExpertParameters
from executor.axes.offload.blocks import ShardedBlock
from executor.axes.offload.hook import Offloading
from executor.axes.overlap import DataBehindCompute
from executor.axes.pipeline import TiedGradients
from executor.engine.lamb import Lamb, connect
from executor.mesh import local, settle_gradient
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
        tied: TiedGradients,
        offloading: Offloading | None = None,
        behind: DataBehindCompute | None = None,
    ) -> None:
        self.mesh, self.options, self.plan = mesh, options, plan
        self.parameters = _unique(parts)
        self.experts = None if experts is None else ExpertParameters(parts, experts)
        self.flats: list[FlatParameters] = []
        self.sharded: list[ShardedBlock] = []
        """Under ZeRO-2 and 3, blocks that are not wholly on the device."""
        self._order = {id(parameter): place for place, parameter in enumerate(self.parameters)}
        self.behind = behind
        blocks: Mapping[int, int | str] = {} if behind is None else behind.buckets
        blocks = blocks if offloading is None else offloading.blocks(parts)
        groups: dict[int | str | None, list[nn.Parameter]] = {None: []}
        for parameter in self.parameters:
            groups.setdefault(blocks.get(id(parameter)), []).append(parameter)
        self._name = "sgd" if options.sgd else plan.training.optimizer
        if plan.layout.zero <= 1:
            made = {block: self._flat(group, block, offloading) for block, group in groups.items()}
            self.flats = [flat for flats in made.values() for flat in flats]
            self._on_device: list[torch.optim.Optimizer] = []
            self._resident = [flat.optimizer for flat in (made[None] if behind is None else self.flats)]
            if behind is not None:
                behind.connect()
        else:
            self._on_device = [self._make(kind) for kind in _by_kind(groups.pop(None))]
            self._resident = self._on_device
            for block, group in groups.items():
                assert offloading is not None
                assert isinstance(block, int)
                self.sharded += [offloading.shards(block, kind, self._make) for kind in _by_kind(group)]
        updating: Sequence[FlatParameters | ShardedBlock] = [*self.flats, *self.sharded]
        self.optimizers = [*self._on_device, *(one.optimizer for one in updating)]
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

        self._whole_norms = connect(self, tied) if self._name == "lamb" else None

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
        if self.behind is not None:
            self.behind.finish()
        for flat in self.flats:
            flat.reduce()
        if self.behind is not None:
            self.behind.settle()
        norm = self._norm()
        if self.options.clip is not None and norm > self.options.clip:
            self._scale(self.options.clip / norm)
        updating: Sequence[FlatParameters | ShardedBlock] = [*self.flats, *self.sharded]
        for one in updating:
            one.begin_update()
        if self._whole_norms is not None:  # blocks that are not on the device find theirs when they are
            self._whole_norms.find([one for one in self._resident if isinstance(one, Lamb)], tied=True)
        for optimizer in self._on_device:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        for one in updating:
            one.finish_update()
        return norm

    def splits(self, parameter: nn.Parameter) -> int:
        """Over how many ranks of its stage an update finds a parameter split."""
        if self.experts is not None and self.experts.holds(parameter):
            shard = dist.get_world_size(self.experts.copies.shard) if self.plan.layout.zero else 1
            return self.experts.splits(parameter) * shard
        tensor = self.plan.layout.tp if self._over_tp[id(parameter)] else 1
        over_replicas = self.flats[0].shards > 1 if self.flats else self._over_replicas[id(parameter)]
        return tensor * (self.plan.layout.shard_group if over_replicas else 1)

    def spread(self) -> None:
        """Bring what was loaded where optimizers update it to wherever else it is."""
        updating: Sequence[FlatParameters | ShardedBlock] = [*self.flats, *self.sharded]
        for one in updating:
            one.spread()

    def updated(self) -> Iterator[tuple[nn.Parameter, nn.Parameter, torch.optim.Optimizer]]:
        """Without flat buffers: (parameter, what is updated in its place if not itself, by which optimizer)."""
        for optimizer in self._on_device:
            for group in optimizer.param_groups:
                yield from ((parameter, parameter, optimizer) for parameter in group["params"])
        for block in self.sharded:
            for parameter, updated in zip(block.parameters, block.updated, strict=True):
                yield parameter, updated, block.optimizer

    def _flat(
        self, parameters: Sequence[nn.Parameter], block: int | str | None, offloading: Offloading | None
    ) -> list[FlatParameters]:
        """One buffer over the ranks that hold the same parameters; another over those that hold the same experts.

        Of one block that is not wholly on the device or is reduced by itself, or of all others.
        """
        routed = self.experts
        of_experts = [] if routed is None else [one for one in parameters if routed.holds(one)]
        others = [one for one in parameters if routed is None or not routed.holds(one)]
        replicas = Copies(self.mesh["shard"], self.mesh["copy"])
        made: list[FlatParameters] = []
        for group, copies in ((others, replicas), (of_experts, routed.copies if routed else replicas)):
            if not group:
                continue
            how: dict[str, Any] = {
                "sharded": self.plan.layout.zero == 1,
                "mean_over": self.plan.layout.data_ranks,
                "make": self._make,
            }
            if self.behind is not None:
                made.append(self.behind.flat(group, copies, routed=group is of_experts, **how))
            elif block is None:
                made.append(FlatParameters(group, copies.shard, copies.groups, **how))
            else:
                assert offloading is not None
                assert isinstance(block, int)
                at_once = self.options.clip is None
                made.append(
                    offloading.flat(block, group, copies.shard, copies.groups, at_once=at_once, **how)
                )
        return made

    def _make(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        rate = self.options.rate.peak
        if self._name == "sgd":
            return torch.optim.SGD(parameters, lr=rate, foreach=False)
        if self._name == "lamb":
            return Lamb(parameters, rate=rate, betas=_BETAS, decay=_WEIGHT_DECAY)
        return torch.optim.AdamW(parameters, lr=rate, betas=_BETAS, weight_decay=_WEIGHT_DECAY, fused=True)

    def _norm(self) -> float:
        """The global gradient norm, each element counted once: squares are summed by the axes they are split over."""
        kinds: dict[tuple[int, int], list[Tensor]] = {}  # by (split over tp, over replicas)
        routed: list[tuple[nn.Parameter, Tensor]] = []
        for parameter, gradient, norm, over_replicas in self._norms():
            if self.experts is not None and self.experts.holds(parameter):
                routed.append((parameter, gradient))
            elif id(parameter) not in self.counted_elsewhere:
                kinds.setdefault((self._over_tp[id(parameter)], over_replicas), []).append(norm)
        sums = torch.zeros(2, 2, device=self.mesh.device_type)
        for kind, norms in kinds.items():
            sums[kind] = torch.stack([norm.to(sums.device) for norm in norms]).square().sum()
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

    def _norms(self) -> list[tuple[nn.Parameter, Tensor, Tensor, int]]:
        """(parameter, this rank's gradient, its norm, split over replicas), in the order of parameters."""
        found: list[tuple[nn.Parameter, Tensor, Tensor, int]] = []
        for flat in self.flats:
            split = int(flat.shards > 1)
            for (parameter, gradient), norm in zip(flat.reduced, flat.norms(), strict=True):
                found.append((parameter, gradient, norm, split))
        found += self._norms_of_shards()
        return sorted(found, key=lambda one: self._order[id(one[0])])

    def _norms_of_shards(self) -> list[tuple[nn.Parameter, Tensor, Tensor, int]]:
        """The same without flat buffers; gradients of streamed blocks are on the host."""
        found: list[tuple[nn.Parameter, Tensor, Tensor, int]] = []
        for gradients in self._shards_by_device():
            norms = torch._foreach_norm([gradient for _, gradient in gradients], dtype=torch.float32)
            for (parameter, gradient), norm in zip(gradients, norms, strict=True):
                found.append((parameter, gradient, norm, self._over_replicas[id(parameter)]))
        return found

    def _shards_by_device(self) -> list[list[tuple[nn.Parameter, Tensor]]]:
        """(parameter, this rank's gradient) without flat buffers, those on one device together."""
        found: dict[torch.device, list[tuple[nn.Parameter, Tensor]]] = {}
        for parameter in [] if self.flats else self.parameters:
            if parameter.grad is not None:
                gradient = local(parameter.grad)
                found.setdefault(gradient.device, []).append((parameter, gradient))
        return list(found.values())

    def _scale(self, factor: float) -> None:
        for flat in self.flats:
            flat.scale(factor)
        for gradients in self._shards_by_device():
            torch._foreach_mul_([gradient for _, gradient in gradients], factor)


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
