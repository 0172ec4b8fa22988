"""Data parallelism: ZeRO stages 0 and 1 on flat buffers, stages 2 and 3 with `fully_shard`.

    0  gradients all-reduced over the replicas; each updates everything
    1  gradients scattered, each rank updates its share, updates gathered (Rajbhandari et al. 2020); where only groups
       of replicas share the work, shares are all-reduced over the groups in between
    2  weights stay gathered between forward and backward
    3  weights are gathered again for the backward pass

**Flat buffers** hold parameters and gradients under ZeRO-0 and 1; each optimizer updates one slice of them. Parameters
are views into one buffer, so an update or a gather writes them in place. Gradients are added into an fp32
buffer as autograd delivers them, microbatch after microbatch, whatever the type of the weights. 16-bit weights have an
fp32 master copy of the rank's share; fp32 weights are their own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any
from weakref import WeakMethod

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)
from torch.distributed.tensor import DTensor

from cost_models.axes.layout import Layout
from executor.axes.axis import Axis, Rank, Slice
from executor.mesh import as_part, held, local
from executor.models.experts import routers
from executor.models.transformer import Transformer

_ALIGNMENT = 16
"""Parameters start at multiples of this many elements, as vector instructions like it."""


@dataclass(frozen=True, slots=True)
class Copies:
    """Process groups of ranks with the same parameters: `shard` for ZeRO's shards, `groups` for copies of a shard."""

    shard: dist.ProcessGroup
    groups: dist.ProcessGroup | None
    """Ranks that hold the same shard in other groups of ranks; None if there is one group."""

    @staticmethod
    def of(shard: DeviceMesh, copy: DeviceMesh) -> Copies:
        """The process groups along two dims of a mesh: shards of one copy, and copies of one shard."""
        return Copies(shard.get_group(), copy.get_group() if copy.size() > 1 else None)


class FlatParameters:
    """Parameters and fp32 gradients in flat buffers, updated by one optimizer (ZeRO-0 and 1).

    The buffers replace the storage of `parameters`, zeros at first; their `.grad` stays None. Where `sharded`, ranks of
    `copies.shard` update a share each. Gradients are added up over all ranks that hold the same parameters and divided
    by `mean_over`, the number of these ranks by default.
    """

    resident = True
    """Whether the device updates these parameters and keeps their optimizer states in its memory."""

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        copies: Copies,
        *,
        sharded: bool,
        mean_over: int | None = None,
        make: Callable[[list[nn.Parameter]], torch.optim.Optimizer],
    ) -> None:
        self.parameters = list(parameters)
        self.group, self.copies = copies.shard, copies.groups
        members = dist.get_world_size(self.group)
        self.replicas = members * (1 if self.copies is None else dist.get_world_size(self.copies))
        self.shards = members if sharded else 1
        self.mean_over = self.replicas if mean_over is None else mean_over
        sizes = [_round_up(local(parameter).numel(), _ALIGNMENT) for parameter in self.parameters]
        size = _round_up(sum(sizes), self.shards * _ALIGNMENT)  # shares are whole vectors, too
        first = local(self.parameters[0])
        self.weights = torch.zeros(size, dtype=first.dtype, device=first.device)
        self.gradients = torch.zeros(size, dtype=torch.float32, device=first.device)
        starts = list(accumulate(sizes, initial=0))[:-1]
        self._starts = {id(p): start for p, start in zip(self.parameters, starts, strict=True)}
        locals_of = zip(self.parameters, starts, strict=True)
        self._gradients = {id(p): part_of(self.gradients, start, local(p)) for p, start in locals_of}
        self._pending: dict[int, DeviceMesh] = {}
        # a hook that held all this would keep it, and the model, for ever
        weak_accumulate = WeakMethod(self._accumulate)

        def accumulate_here(parameter: nn.Parameter) -> None:
            """Hook that adds a parameter's new gradient to the buffer, while the buffer lives."""
            if (take := weak_accumulate()) is not None:
                take(parameter)

        for parameter in self.parameters:
            self._move_in(parameter)
            parameter.register_post_accumulate_grad_hook(accumulate_here)  # type: ignore[no-untyped-call]
        share = size // self.shards
        self._first = dist.get_rank(self.group) * share if sharded else 0
        self._own_range = slice(self._first, self._first + share)
        self.share_gradient = self.gradients[self._own_range]
        """The averaged gradient of this rank's share, once it is reduced."""
        self.shard, gradient = self._share()
        self.optimizer = make([self.shard])
        self.slices = list(self._slices())
        """Elements of each parameter that are in this rank's share."""
        self.reduced = [(one.parameter, gradient[one.begin : one.end]) for one in self.slices]
        """Parameters that reach into this rank's share, each with a flat view of its averaged gradient."""

    def contains(self, parameter: Tensor) -> bool:
        """Whether a parameter lies in this buffer."""
        return id(parameter) in self._starts

    def gradient(self, parameter: Tensor) -> Tensor:
        """The accumulated gradient of one parameter, a view in its local shape."""
        return self._gradients[id(parameter)]

    def take_gradients(self) -> None:
        """Move gradients that autograd left in `.grad` into the flat buffer."""
        for parameter in self.parameters:
            if parameter.grad is not None:
                self._accumulate(parameter)

    def pending_shares(self) -> list[tuple[Tensor, DeviceMesh]]:
        """Averaged gradients that tensor ranks must still sum, each with the ranks' mesh; each is returned once."""
        pending, self._pending = self._pending, {}
        return [(gradient, pending[id(one)]) for one, gradient in self.reduced if id(one) in pending]

    def reduce(self) -> None:
        """Average the gradients of this rank's share over all ranks that hold the same parameters."""
        self.reduce_group()
        if self.copies is not None:
            dist.all_reduce(self.share_gradient, group=self.copies)
        if self.mean_over > 1:
            self.share_gradient.div_(self.mean_over)

    def reduce_group(self, *, async_op: bool = False) -> dist.Work | None:
        """Sum gradients over the ranks that ZeRO shards over; returns the collective if `async_op`."""
        work: dist.Work | None = None
        how: dict[str, Any] = {"group": self.group, "async_op": async_op}
        if self.shards > 1:
            work = dist.reduce_scatter_tensor(self.share_gradient, self.gradients, **how)
        elif dist.get_world_size(self.group) > 1:
            work = dist.all_reduce(self.gradients, **how)
        return work

    def gather_group(self, *, async_op: bool = False) -> dist.Work | None:
        """Gather the updated weights of all shares from the ranks that ZeRO shards over."""
        share, work = self.weights[self._own_range], None
        if self.shards > 1:
            work = dist.all_gather_into_tensor(self.weights, share, group=self.group, async_op=async_op)
        return work

    def norms(self) -> list[Tensor]:
        """Norm of each of the averaged gradients in `reduced`."""
        return list(torch._foreach_norm([gradient for _, gradient in self.reduced], dtype=torch.float32))

    def begin_update(self) -> None:
        """Do nothing: where the device updates, no part of an update runs concurrently."""

    def finish_update(self) -> None:
        """Update this rank's share, gather the shares of all ranks, and clear the gradients."""
        self.optimizer.step()
        self.spread()
        self.gradients.zero_()

    def scale(self, factor: float) -> None:
        """Multiply the averaged gradient of this rank's share by `factor`."""
        self.share_gradient.mul_(factor)

    def _slices(self) -> Iterator[Slice]:
        """Yield the elements of each parameter that are in this rank's share."""
        share, holders = self._own_range, self.copies
        if self.shards == 1 and dist.get_world_size(self.group) > 1:
            holders = self.group if self.copies is None else None  # no group is of both
        for parameter in self.parameters:
            start = self._starts[id(parameter)]
            begin, end = max(start, share.start), min(start + local(parameter).numel(), share.stop)
            if begin < end:
                run = begin - share.start, end - share.start
                yield Slice(parameter, begin - start, self.shard, *run, self.optimizer, holders)

    def spread(self) -> None:
        """Write this rank's updated share into the weights and gather the shares of all ranks."""
        self.write_share()
        self.gather_group()

    def write_share(self) -> None:
        """Copy this rank's updated fp32 share into the weights where these are of another type."""
        if self.weights.dtype != self.shard.dtype:
            self.weights[self._own_range].copy_(self.shard.detach())

    def _share(self) -> tuple[nn.Parameter, Tensor]:
        """The parameter that the optimizer updates, this rank's share in fp32, and its averaged gradient."""
        share_fp32 = self.weights[self._own_range].float()  # a view where the weights are fp32 already
        shard = nn.Parameter(share_fp32)
        shard.grad = self.share_gradient
        return shard, self.share_gradient

    def _move_in(self, parameter: nn.Parameter) -> None:
        """Make a parameter a view into the flat buffer of weights."""
        with torch.no_grad():
            view = part_of(self.weights, self._starts[id(parameter)], held(parameter))
            held(parameter).set_(view)  # type: ignore[call-overload]
            if isinstance(parameter, DTensor):  # says where its values begin, too, and is traced as it says
                parameter.data = as_part(view, parameter)

    def _accumulate(self, parameter: nn.Parameter) -> None:
        """Add the gradient that autograd left in a parameter's `.grad` to the flat buffer, and clear `.grad`."""
        gradient = parameter.grad
        assert gradient is not None
        parameter.grad = None
        if isinstance(gradient, DTensor) and isinstance(parameter, DTensor):
            if all(placement.is_replicate() for placement in parameter.placements):
                if any(placement.is_partial() for placement in gradient.placements):
                    self._pending[id(parameter)] = gradient.device_mesh
            else:  # a matrix's gradient may come whole, or as a sum that is still to be made
                gradient = gradient.redistribute(placements=parameter.placements)
        self._gradients[id(parameter)].add_(local(gradient))


def settle(flats: Sequence[FlatParameters]) -> None:
    """Sum averaged gradients of replicated parameters over tensor ranks, which each saw a part of the sequence, with a
    single all-reduce. A rank's peers have the same shares.
    """
    pending = [entry for flat in flats for entry in flat.pending_shares()]
    if pending:
        views, meshes = zip(*pending, strict=True)
        device = flats[0].weights.device  # gradients of streamed blocks are on the host
        message = torch.cat([view.flatten().to(device) for view in views])
        dist.all_reduce(message, group=meshes[0].get_group())
        for view, total in zip(views, torch.split(message, [view.numel() for view in views]), strict=True):
            view.copy_(total.view_as(view))


def part_of(buffer: Tensor, start: int, like: Tensor) -> Tensor:
    """View of a flat buffer from element `start` on, in the shape of `like`."""
    return buffer[start : start + like.numel()].view_as(like)


def _round_up(size: int, multiple: int) -> int:
    """The smallest multiple of `multiple` that is at least `size`."""
    return -(-size // multiple) * multiple


class DataAxis(Axis):
    """ZeRO-2 and 3: shards every block, and the rest of each model slice, over the replicas.

    One dim of the mesh shards; of two the first holds copies of what the second shards (hybrid sharding).
    """

    @classmethod
    def is_used(cls, layout: Layout) -> bool:
        """Whether a layout has ZeRO stage 2 or 3."""
        return layout.zero >= 2

    def shard(self, part: Transformer, on_host: Collection[str]) -> None:
        """Shard the blocks of a model slice, and then its rest, over the replicas by `fully_shard`."""
        layout, mesh = self.rank.layout, self.rank.mesh
        grouped = layout.shard_group < layout.data_ranks
        replicas = mesh["copy", "shard"] if grouped else mesh["shard"]
        biases = {router.choice_bias for router in routers(part) if router.choice_bias is not None}
        modules = [*((block, name in on_host) for name, block in part.blocks.items()), (part, False)]
        for module, is_on_host in modules:
            how = how_sharded(self.rank, on_host=is_on_host)
            fully_shard(module, mesh=replicas, ignored_params=biases, **how)


def how_sharded(rank: Rank, *, on_host: bool) -> dict[str, Any]:
    """Options of `fully_shard`: parameters stay fp32 and are cast where they are gathered, gradients reduced in fp32.

    Shards `on_host` are in host memory, and are gathered again for the backward pass whatever the stage.
    """
    in_host_memory = CPUOffloadPolicy(pin_memory=torch.cuda.is_available())
    return {
        "reshard_after_forward": rank.layout.zero == 3 or on_host,
        "mp_policy": MixedPrecisionPolicy(param_dtype=rank.dtype, reduce_dtype=torch.float32),
        "offload_policy": in_host_memory if on_host else OffloadPolicy(),
    }


def synchronise_only_when(model: nn.Module, last_microbatch: bool) -> None:
    """Have ZeRO-2 and 3 reduce gradients in the step's last microbatch only; before, they accumulate locally."""
    if isinstance(model, FSDPModule):
        model.set_requires_gradient_sync(last_microbatch)
        model.set_is_last_backward(last_microbatch)
