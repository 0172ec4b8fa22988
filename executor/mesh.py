"""Meshes of ranks in the order of the layout, and the part of a distributed tensor on one rank.

Tensor ranks are neighbours, the rest is as `order` says. Ranks have a place in the work, (pp, dp, cp, tp), and one
among those that hold the same parameters: all of dp × cp, counted in order of rank and cut into runs of `shard` ranks,
as `cost_models.communication.topology` prices them.

**Products of shards.** `DTensor` follows products that it knows. Modules that multiply this rank's shards themselves
are told here how operands, result and gradients lie.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    _disable_current_modes,
    is_traceable_wrapper_subclass_type,
)

from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import Layout
from executor.clock import making_group

AXES = ("pp", "dp", "cp", "tp")
"""Axes along which ranks share the work of a step."""
MESH_AXES = ("pp", "copy", "shard", "tp")
"""Axes along which parameters are placed: ZeRO shards over `shard`; ranks along `copy` hold the same shard."""

with_values = _disable_current_modes()
"""Decorator of functions that read numbers out of tensors, which fake tensors lack (`executor.emulate.stand_ins`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Coordinates of a rank along the axes of the layout: pipeline, data, context, tensor."""

    pp: int
    dp: int
    cp: int
    tp: int


@with_values
def rank_places(layout: Layout) -> Tensor:
    """Global rank at each coordinate of the axes that divide a step's work, (pp, dp, cp, tp)."""
    outside_in = layout.order.split("-")[::-1]
    degrees = [getattr(layout, axis) for axis in outside_in]
    ranks = torch.arange(layout.num_gpus, device="cpu").reshape(degrees)
    return ranks.permute([outside_in.index(axis) for axis in AXES]).contiguous()


@with_values
def parameter_places(layout: Layout) -> Tensor:
    """Global rank at each coordinate of the axes that divide or copy the parameters, (pp, copies, shard, tp)."""
    replicas = rank_places(layout).flatten(1, 2).sort(dim=1).values
    return torch.unflatten(replicas, 1, (-1, layout.shard_group)).contiguous()


def place_of(layout: Layout, rank: int) -> Place:
    """Coordinates of a global rank along the axes of the layout."""
    return Place(**{axis: layout.place_along(axis, rank) for axis in AXES})


@with_values
def make_groups(groups: Tensor, description: str | None = None) -> dist.ProcessGroup:
    """Make process groups of disjoint sets of ranks, (G, n), and return this rank's; a rank in none gets its own.

    Every rank of the job must call it, in the same order. NCCL makes all of them in one split of the group of all
    ranks; elsewhere a rank makes its own, with whom only the members of that one speak. So a rank's calls, and what it
    asks of the store, do not grow with the number of groups. Groups are named by how many a process has made: so each
    makes one.
    """
    everyone = dist.group.WORLD
    assert everyone is not None
    with making_group():
        if everyone.bound_device_id is not None:
            left_ranks = sorted(set(range(dist.get_world_size())) - set(groups.flatten().tolist()))
            split = [*groups.tolist(), *([rank] for rank in left_ranks)]
            group: dist.ProcessGroup | None = dist.split_group(split_ranks=split, group_desc=description)
        else:
            rank = dist.get_rank()
            members = groups[(groups == rank).any(dim=1)].flatten().tolist() or [rank]
            group = dist.new_group(members, use_local_synchronization=True, group_desc=description)
    assert group is not None
    return group


def _groups_along(places: Tensor, *dims: int) -> Tensor:
    """Groups of the ranks at these places that differ along some dims alone, (G, n)."""
    last = places.movedim(dims, tuple(range(-len(dims), 0)))
    return last.flatten(-len(dims)).flatten(0, -2)


def _mesh_of(places: Tensor, device_type: str, axes: tuple[str, ...]) -> DeviceMesh:
    """Mesh of the ranks at these places, with a process group along each axis."""
    groups = [make_groups(_groups_along(places, dim)) for dim in range(places.dim())]
    return DeviceMesh.from_group(groups, device_type, places, mesh_dim_names=axes)


@with_values
def make_mesh(layout: Layout, device_type: str) -> DeviceMesh:
    """Mesh (pp, copy, shard, tp) of all ranks of the default process group."""
    return _mesh_of(parameter_places(layout), device_type, MESH_AXES)


@with_values
def make_context_group(layout: Layout) -> dist.ProcessGroup | None:
    """Process group of the context ranks that share this rank's sequences; None without context parallelism.

    Every rank of the job must call it.
    """
    return None if layout.cp == 1 else make_groups(_groups_along(rank_places(layout), AXES.index("cp")))


@with_values
def make_group_over(layout: Layout, axes: Sequence[str]) -> dist.ProcessGroup | None:
    """Process group of this rank along several axes of `parameter_places` together; None if it has one rank only.

    Every rank of the job must call it. Waiting for them counts as data-parallel (`executor.timing`).
    """
    groups = _groups_along(parameter_places(layout), *map(MESH_AXES.index, axes))
    return None if groups.shape[-1] == 1 else make_groups(groups, "dp")


@with_values
def group_beside(mesh: DeviceMesh, axis: str) -> dist.ProcessGroup:
    """Make a second process group along a mesh axis. Its collectives can run at the same time as the mesh's own.

    Every rank of the job must call it. Waiting for them counts as data-parallel, too.
    """
    assert mesh.mesh_dim_names is not None
    return make_groups(_groups_along(mesh.mesh, mesh.mesh_dim_names.index(axis)), "dp")


EXPERT_AXES = ("pp", "copy", "shard", "ep", "etp")
"""Axes along which experts' parameters are placed: `copy` times `shard` ranks hold the same experts, ZeRO shards over
`shard`.
"""


@with_values
def make_expert_mesh(layout: Layout, device_type: str) -> DeviceMesh:
    """Mesh (pp, copy, shard, ep, etp) of all ranks: the ranks of each pipeline stage, in order, divided over experts.

    etp neighbours share an expert, ep groups exchange tokens (`cost_models.communication.topology`).
    """
    stages = rank_places(layout).flatten(1).sort(dim=1).values
    shard = int(LayoutColumns.of([layout]).expert_shard[0])
    places = stages.reshape(layout.pp, -1, shard, layout.ep, layout.expert_tp)
    return _mesh_of(places, device_type, EXPERT_AXES)


def local(tensor: Tensor) -> Tensor:
    """Local shard of a `DTensor`, as a new tensor; any other tensor itself."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def held(parameter: Tensor) -> Tensor:
    """Local shard that a `DTensor` stores, to which memory may be given, unlike `local`'s; any other tensor itself."""
    return parameter._local_tensor if isinstance(parameter, DTensor) else parameter


def as_part(shard: Tensor, of: Tensor) -> Tensor:
    """A `DTensor` placed like `of` whose local shard is `shard`; `shard` itself if `of` is no `DTensor`."""
    if not isinstance(of, DTensor):
        return shard
    mesh, shape = of.device_mesh, of.shape
    return DTensor.from_local(shard, mesh, of.placements, run_check=False, shape=shape, stride=of.stride())


def has_other_tensors(kinds: Iterable[type]) -> bool:
    """Whether any of these types wraps other tensors: `DTensor`s, or fp8 values with their scales."""
    wrappers = filter(is_traceable_wrapper_subclass_type, kinds)
    return any(not issubclass(kind, AsyncCollectiveTensor) for kind in wrappers)


class OperatorWatch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Dispatch mode that sees operators on plain tensors. Operators on `DTensor`s or on fp8 values with scales call
    others on the tensors inside, which it sees.
    """

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator on plain tensors and call `saw`; wrapped tensors have their own dispatch."""
        if has_other_tensors(types):
            return NotImplemented
        return self.saw(func, func(*args, **(kwargs or {})))

    def saw(self, operator: Any, result: Any) -> Any:
        """Called with an operator and its result; returns the result, or another in its place."""
        raise NotImplementedError


def settle_gradient(parameter: nn.Parameter) -> None:
    """Redistribute a parameter's gradient to the parameter's placements; partial gradients are summed over ranks."""
    gradient = parameter.grad
    if not isinstance(parameter, DTensor) or not isinstance(gradient, DTensor):
        return
    if gradient.placements != parameter.placements:
        parameter.grad = gradient.redistribute(placements=parameter.placements)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ways:
    """Placements over tensor ranks of a product's result and of its operands' gradients."""

    output: Placement
    input_gradient: Placement
    weight_gradient: Placement
    bias_gradient: Placement


def product_of_shards(
    input: Tensor,
    mesh: DeviceMesh,
    placement: Placement,
    bias: Tensor | None,
    multiply: Callable[[Tensor, Ways], Tensor],
) -> Tensor:
    """Output of a linear layer over tensor ranks, (…, in) → (…, out). `multiply` computes the product of local
    shards.
    """
    assert isinstance(input, DTensor)
    ways = _ways(input, placement)
    part = multiply(input.to_local(grad_placements=[ways.input_gradient]), ways)
    if bias is not None:
        assert isinstance(bias, DTensor)
        bias_shard: Tensor = bias.to_local(grad_placements=[ways.bias_gradient])
        if ways.output == Partial():  # added once by all ranks together; each has its whole gradient
            bias_shard = bias_shard.detach() / mesh.size() + (bias_shard - bias_shard.detach())
        part = part + bias_shard
    return DTensor.from_local(part, mesh, [ways.output], run_check=False)


def _ways(input: DTensor, placement: Placement) -> Ways:
    """Placements in a product, given its input and the placement of its weight: split by columns, by rows, or whole."""
    (input_split,) = input.placements
    last = Shard(input.ndim - 1)
    if placement == Shard(0):
        assert input_split == Replicate(), input_split
        return Ways(output=last, input_gradient=Partial(), weight_gradient=placement, bias_gradient=placement)
    if placement == Shard(1):
        assert input_split == last, input_split
        return Ways(
            output=Partial(), input_gradient=last, weight_gradient=placement, bias_gradient=Replicate()
        )
    sums = Replicate() if input_split == Replicate() else Partial()
    return Ways(output=input_split, input_gradient=input_split, weight_gradient=sums, bias_gradient=sums)
