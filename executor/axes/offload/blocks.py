"""Offload of blocks: weights, optimizer states or activations in host memory, and the window of blocks on the GPU.

ZeRO-0 and 1, on flat buffers:
    states     gradients add up and are averaged on the device and go down once a step; the CPU updates, weights come up
    parked     the optimizer's states come up for an update on the device, and go down again
    streamed   weights are on the device for their passes only; gradients go down after every backward pass and add up
               on the host, where the CPU updates

ZeRO-2 and 3, on the shards of `fully_shard`:
    states     shards and averaged gradients are on the device; fp32 copies of them on the host, which the CPU updates
    streamed   `fully_shard` keeps shards and gradients on the host and copies shards up before it gathers them

The order of moves is data (`cost_models.axes.offload.residency`). Without clipping the CPU updates a block as soon as
its last gradient is there, while others are in their backward pass.

**Streamed blocks** have weights on the device for their passes only. The window that moves them carries out a list of
moves (`cost_models.axes.offload.residency`) around the passes of a rank's blocks.

**Activations** that a block keeps for its backward pass lie in host memory until then. Whole storages go down once a
block, whatever views of them autograd saves, and come back before the backward pass of the block, as the block after it
runs its own: those of two blocks are on the device at a time. Parameters stay where they are. Where a block recomputes,
what it keeps is its input.
"""

from __future__ import annotations

import os
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from itertools import chain, pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd import Variable
from torch.autograd.graph import saved_tensors_hooks
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.device_mesh import DeviceMesh
from torch.optim import Optimizer
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import NOWHERE, Layout, Residency
from cost_models.axes.offload.channels import channel_seconds
from cost_models.axes.offload.residency import (
    Move,
    Turn,
    drive_step_bytes,
    residency_of_blocks,
    turns_of_rank,
)
from executor.axes.axis import Axis, Bucket, Make, Rank, Shards
from executor.axes.data import Copies, FlatParameters, part_of, settle
from executor.axes.offload.link import (
    ARRIVED,
    Arrival,
    Drive,
    HostLink,
    HostOptimizer,
    Traffic,
    threads_for_updates,
)
from executor.axes.offload.reporting import DriveReport, HostReport
from executor.mesh import held, local
from executor.models.transformer import Transformer
from executor.run_config import MOST_STEPS
from executor.timing import Carried, Mark, Passes


class StatesOnHost(FlatParameters):
    """Flat buffers of a block whose fp32 weights and moments are in host memory, where the CPU updates them."""

    resident = False

    def __init__(self, parameters: Sequence[nn.Parameter], *args: Any, link: HostLink, **kwargs: Any) -> None:
        self.link = link
        self._reduced = False
        self._update: Future[None] | None = None
        super().__init__(parameters, *args, **kwargs)
        weights, make = self._masters_apart, kwargs["make"]
        self._updater = HostOptimizer(self.optimizer, [self.shard], make, link.drive, weights=weights)

    @property
    def _masters_apart(self) -> bool:
        """Whether the fp32 master weights are a copy used by the update alone, not the weights of the passes."""
        return True

    def _share(self) -> tuple[nn.Parameter, Tensor]:
        """The parameter that the CPU updates, this rank's share in fp32 in host memory, and its averaged gradient."""
        return nn.Parameter(
            self.link.fp32_weights(len(self.share_gradient), pinned=True)
        ), self.share_gradient

    def reduce(self) -> None:
        """Average the gradients over the replicas, once a step."""
        if not self._reduced:
            super().reduce()
            self._reduced = True

    def update(self) -> None:
        """Reduce the gradients and begin the update, when all gradients of the step are complete."""
        self.reduce()
        settle([self])
        self.begin_update()

    def begin_update(self) -> None:
        """Copy the gradient to host memory and have the CPU update this rank's share, unless that has begun."""
        if self._update is None:
            self.shard.grad = self.link.incoming.take(self.shard.numel(), torch.float32)
            arrival = self.link.down(self.shard.grad, self.share_gradient)
            self._update = self.link.on_host(partial(self._updater.step, arrival))
            self.link.incoming.give_back(self._update.result)

    def finish_update(self) -> None:
        """Wait for the CPU's update, copy the weights to the device, and clear the gradients."""
        assert self._update is not None
        self._update.result()
        self.spread()
        self._clear_gradients()
        self._reduced, self._update = False, None

    def spread(self) -> None:
        """Copy this rank's updated share to the device, and gather the shares of all ranks."""
        own_weights = self.weights[self._own_range]
        source = self._updated_weights()
        if source.dtype == own_weights.dtype:
            arrival = self.link.up(own_weights, source)
        else:
            buffer = self.link.outgoing.take(own_weights.numel(), own_weights.dtype)
            self.link.on_host(partial(buffer.copy_, source)).result()  # it has more threads
            arrival = self.link.up(own_weights, buffer)
            self.link.outgoing.give_back(arrival.on_host)
        arrival.before_computing()
        self.gather_group()

    def _updated_weights(self) -> Tensor:
        """This rank's updated fp32 share, counted as read from the drive if it is there."""
        self._updater.read_weights_again()
        return self.shard.detach()

    def host_tensors(self) -> Iterator[Tensor]:
        """Tensors of this block in host memory that are not buffers of the link."""
        return self._updater.host_tensors()

    def _clear_gradients(self) -> None:
        """Zero the gradients on the device; the staging buffer is the share's gradient no longer."""
        self.gradients.zero_()
        self.shard.grad = None


class Parking:
    """Optimizer states, with `masters` parameters as well, in host memory until the device updates them."""

    def __init__(
        self, optimizer: Optimizer, parameters: Sequence[nn.Parameter], link: HostLink, *, masters: bool
    ) -> None:
        self._optimizer, self._parameters, self._link = optimizer, list(parameters), link
        self._masters = masters
        self._gradients = [parameter.grad for parameter in self._parameters]
        self._hosts: dict[tuple[int, str], Tensor] = {}
        self._coming: list[Arrival] | None = None
        self.following: Parking | None = None
        """Parking of the block that is updated next; its states are copied up while this block's are updated."""
        self.park()

    @contextmanager
    def on_device(self) -> Iterator[None]:
        """Context manager in which this block's states are on the device, and the next block's are copied there."""
        for arrival in self._begin():
            arrival.before_computing()
        for parameter, gradient in zip(self._parameters, self._gradients, strict=True):
            if self._masters:
                parameter.grad = gradient
        if self.following is not None:
            self.following._begin()
        yield
        self.park()

    def park(self) -> None:
        """Copy the states to host memory and free their memory on the device."""
        for parameter in self._parameters if self._masters else ():
            parameter.grad = None
        for key, tensor in self._tensors():
            if key not in self._hosts:
                self._hosts[key] = self._link.buffer(tensor.numel(), tensor.dtype).view_as(tensor)
            self._link.down(self._hosts[key], tensor.data)
            tensor.data = self._hosts[key]
        self._coming = None

    def _begin(self) -> list[Arrival]:
        """Begin to copy the states to the device, unless that has begun."""
        if self._coming is None:
            self._coming = []
            for key, tensor in self._tensors():
                if key in self._hosts:
                    tensor.data = torch.empty_like(self._hosts[key], device=self._link.device)
                    self._coming.append(self._link.up(tensor.data, self._hosts[key]))
        return self._coming

    def _tensors(self) -> Iterator[tuple[tuple[int, str], Tensor]]:
        """Yield each parked state: (parameter index, kind of state, empty for the parameter itself) and tensor."""
        for index, parameter in enumerate(self._parameters):
            if self._masters:
                yield (index, ""), parameter
            for kind, values in self._optimizer.state.get(parameter, {}).items():
                if isinstance(values, Tensor) and values.dim() > 0:
                    yield (index, kind), held(values)


class ParkedStates(FlatParameters):
    """Flat buffers of a block that the device updates, whose optimizer states are in host memory between updates."""

    resident = False

    def __init__(self, parameters: Sequence[nn.Parameter], *args: Any, link: HostLink, **kwargs: Any) -> None:
        super().__init__(parameters, *args, **kwargs)
        has_masters = self.shard.dtype != self.weights.dtype
        self.parking = Parking(self.optimizer, [self.shard], link, masters=has_masters)

    def finish_update(self) -> None:
        """Copy the states to the device, update, gather the shares of all ranks, and copy the states back."""
        with self.parking.on_device():
            self.optimizer.step()
            super().spread()
        self.gradients.zero_()

    def spread(self) -> None:
        """Write this rank's share into the weights, copied up first, and gather the shares of all ranks."""
        with self.parking.on_device():
            super().spread()


class ParkedShards(Shards):
    """Shards of a block (ZeRO-2 and 3) that the device updates, whose states are in host memory between updates."""

    resident = False

    def __init__(self, parameters: Sequence[nn.Parameter], make: Make, link: HostLink) -> None:
        super().__init__(parameters, make)
        self.parking = Parking(self.optimizer, self.updated, link, masters=False)

    def finish_update(self) -> None:
        """Copy the states to the device, update, drop the gradients, and copy the states back."""
        with self.parking.on_device():
            super().finish_update()


class ShardedBlock(Shards):
    """Shards of a block (ZeRO-2 and 3) that the CPU updates, all plain tensors or all DTensors of one mesh."""

    resident = False

    def __init__(
        self, parameters: Sequence[nn.Parameter], lives: Residency, make: Make, link: HostLink
    ) -> None:
        """`lives` is "states" or "streamed"; `make` makes the torch optimizer."""
        self.link, self.streamed = link, lives == "streamed"
        copied = not self.streamed
        super().__init__([self._host_copy(one) for one in parameters] if copied else parameters, make)
        self.parameters = list(parameters)
        self._copies = list(zip(self.parameters, self.updated, strict=True)) if copied else []
        self._updater = HostOptimizer(self.optimizer, self.updated, make, link.drive, weights=copied)
        self._update: Future[None] | None = None

    def begin_update(self) -> None:
        """Start the CPU's update of this block, concurrent with updates of other blocks."""
        arrivals = [
            self.link.down(host.grad, local(parameter.grad))
            for parameter, host in self._copies
            if parameter.grad is not None and host.grad is not None
        ]
        self._update = self.link.on_host(partial(self._updater.step, *arrivals))

    def finish_update(self) -> None:
        """Complete this block's update, bring the updated shards to the device, and drop the gradients."""
        assert self._update is not None
        self._update.result()
        self.spread()
        for parameter in self.parameters:
            parameter.grad = None

    def spread(self) -> None:
        """Copy updated shards from host memory to the device, where the device has copies."""
        self._updater.read_weights_again()
        for parameter, host in self._copies:
            self.link.up(local(parameter.detach()), host.detach()).before_computing()

    def _host_copy(self, parameter: nn.Parameter) -> nn.Parameter:
        """fp32 copy of a shard in host memory, with a gradient there; its values are set later."""
        values = local(parameter.detach())
        host = nn.Parameter(self.link.fp32_weights(values.numel(), pinned=True).view_as(values))
        host.grad = self.link.buffer(values.numel(), torch.float32).view_as(values)
        return host

    def host_tensors(self) -> Iterator[Tensor]:
        """Tensors of this block in host memory that are not buffers of the link."""
        yield from self._updater.host_tensors()
        if self.streamed:
            yield from self.parameters
            yield from (one.grad for one in self.parameters if one.grad is not None)


class StreamedBlock(StatesOnHost):
    """Flat buffers (ZeRO-0 and 1) of a block whose weights and gradients are on the device during its passes only."""

    def __init__(self, parameters: Sequence[nn.Parameter], *args: Any, **kwargs: Any) -> None:
        super().__init__(parameters, *args, **kwargs)
        self._coming: Arrival | None = None
        self._sums_down = ARRIVED
        """Last copy into the gradients on the host."""
        self._norms: list[Tensor] = []
        self._adding: Future[None] | None = None
        self._has_sums = False
        """Whether gradients of this step are on the host, or on their way."""
        self._is_single = dist.get_world_size(self.group) == 1 and self.copies is None
        for buffer in (self.weights, self.gradients):
            _free(buffer)

    def _share(self) -> tuple[nn.Parameter, Tensor]:
        """The parameter that the CPU updates, this rank's fp32 share in host memory, and its gradient there."""
        self.host_weights = self.link.buffer(self.weights.numel(), self.weights.dtype)
        self.host_gradients = self.link.buffer(self.weights.numel(), torch.float32)
        weights = self.host_weights[self._own_range]
        if self._masters_apart:
            weights = self.link.fp32_weights(len(weights), pinned=False)
        shard = nn.Parameter(weights)
        shard.grad = self.host_gradients[self._own_range]
        return shard, shard.grad

    @property
    def _masters_apart(self) -> bool:
        """Whether the fp32 master weights are separate from the weights that are streamed, as these are of 16 bits."""
        return self.weights.dtype != torch.float32

    def load(self) -> None:
        """Begin to copy the weights to the device, unless that has begun."""
        if self._coming is None:
            _allocate(self.weights)
            self._coming = self.link.up(self.weights, self.host_weights)

    def await_weights(self) -> None:
        """Have all computations that follow wait for the weights."""
        self.load()
        assert self._coming is not None
        self._coming.before_computing()

    def drop(self) -> None:
        """Free the weights on the device."""
        self._coming = None
        _free(self.weights)

    def gradient(self, parameter: Tensor) -> Tensor:
        """Gradient of one parameter that is summed on the host, a view in its local shape."""
        return part_of(self.host_gradients, self._starts[id(parameter)], self._gradients[id(parameter)])

    def pending_shares(self) -> list[tuple[Tensor, DeviceMesh]]:
        """Averaged gradients that tensor ranks must still sum, with the ranks' mesh, once they are on the host."""
        if self._pending:
            self._await_sums()
        return super().pending_shares()

    def reduce(self) -> None:
        """Average the gradients over the replicas, once a step: on the device, for one replica on the host."""
        if self._reduced:
            return
        self._reduced = True
        if not self._has_sums:  # what lies there is of the step before
            self.host_gradients.zero_()
        assert self.shard.grad is not None
        if self._is_single:
            if self.mean_over > 1:
                self._compute_on_host(self._average)
            return
        self._await_sums()
        _allocate(self.gradients)
        self.link.up(self.gradients, self.host_gradients).before_computing()
        FlatParameters.reduce(self)
        self._sums_down = self.link.down(self.shard.grad, self.share_gradient)
        _free(self.gradients)

    def norms(self) -> list[Tensor]:
        """Norm of each of this rank's averaged gradients, computed on the host."""
        if self._update is None:
            self._compute_on_host(self._take_norms)
        else:
            self._update.result()
        return self._norms

    def _take_norms(self) -> None:
        """Compute the norms of the averaged gradients, on the host."""
        self._await_sums()
        self._norms = super().norms()

    def scale(self, factor: float) -> None:
        """Multiply the averaged gradient of this rank's share by `factor`, on the host."""
        assert self.shard.grad is not None
        self._compute_on_host(partial(self.shard.grad.mul_, factor))

    def begin_update(self) -> None:
        """Have the CPU update this rank's share, unless that has begun."""
        if self._update is None:
            self._update = self.link.on_host(self._updated)

    def spread(self) -> None:
        """Write this rank's share into the weights on the host, unless an update did, and gather all shares there."""
        if self._update is None:
            self._compute_on_host(self._write_weights)
        if self.shards == 1:
            return
        own_weights = self.host_weights[self._own_range]
        _allocate(self.weights)
        share = self.weights[self._own_range]
        self.link.up(share, own_weights).before_computing()
        self.gather_group()
        self.link.down(self.host_weights, self.weights).on_host()
        _free(self.weights)

    def _compute_on_host(self, compute: Callable[[], object]) -> None:
        """Run `compute` in the host's thread, whose operators use all of the rank's threads, and wait for it."""
        self.link.on_host(compute).result()

    def _updated(self) -> None:
        """Compute the norms of this rank's share, unless clipping has, and update it; runs in the host's thread."""
        self._await_sums()
        if not self._norms:
            self._norms = super().norms()
        self._updater.step()
        self._write_weights()

    def _average(self) -> None:
        """Divide the summed gradients of this rank's share by the number that the mean is over."""
        self._await_sums()
        assert self.shard.grad is not None
        self.shard.grad.div_(self.mean_over)

    def _write_weights(self) -> None:
        """Write this rank's updated fp32 share into the weights on the host where these are of another type."""
        own_weights = self.host_weights[self._own_range]
        if self.shard.dtype != own_weights.dtype:
            own_weights.copy_(self._updated_weights())

    def _await_sums(self) -> None:
        """Wait until the gradients of all passes so far are added up, and averaged if they are, on the host."""
        self._sums_down.on_host()
        if self._adding is not None:
            self._adding.result()

    def _accumulate(self, parameter: nn.Parameter) -> None:
        """Add a gradient to the buffer, which is allocated for the first gradient of a backward pass."""
        if not self.gradients.untyped_storage().nbytes():
            _allocate(self.gradients)
            self.gradients.zero_()
        super()._accumulate(parameter)

    def down(self) -> None:
        """Add the gradients of a pass to those on the host, which the first pass of a step overwrites."""
        if not self.gradients.untyped_storage().nbytes():
            return
        if not self._has_sums:
            self._sums_down, self._has_sums = self.link.down(self.host_gradients, self.gradients), True
        else:
            buffer = self.link.incoming.take(self.gradients.numel(), torch.float32)
            arrival = self.link.down(buffer, self.gradients)
            self._adding = self.link.on_host(partial(self._add, buffer, arrival))
            self.link.incoming.give_back(self._adding.result)
        _free(self.gradients)

    def _add(self, gradients: Tensor, arrival: Arrival) -> None:
        """Add gradients that arrive in host memory to the sums there; runs in the host's thread."""
        self._sums_down.on_host()
        arrival.on_host()
        self.host_gradients.add_(gradients)

    def _clear_gradients(self) -> None:
        """Leave the gradients: the first pass of the next step overwrites them."""
        self._adding, self._has_sums, self._norms = None, False, []


def _allocate(buffer: Tensor) -> None:
    """Allocate memory for a freed buffer on the device, without setting values."""
    buffer.untyped_storage().resize_(buffer.nbytes)


def _free(buffer: Tensor) -> None:
    """Free the memory of a buffer; the tensor keeps its shape."""
    buffer.untyped_storage().resize_(0)


class Window:
    """Moves streamed blocks to and from the device, as their passes run, by a list of moves made before the run."""

    def __init__(
        self,
        turns: Sequence[Turn],
        modules: Mapping[int, nn.Module],
        flats: Mapping[int, Sequence[StatesOnHost]],
        passes: Passes,
    ) -> None:
        """`turns`: a step's passes with their moves; `modules`, `flats`: blocks and their buffers, by number."""
        self._turns, self._flats, self._passes = turns, flats, passes
        self._at = 0
        self._open: Turn | None = None
        """Turn whose pass is under way."""
        self._aside = -1
        """Block whose weights were loaded for a pass outside any step; -1: none."""
        for block, module in modules.items():
            module.register_forward_pre_hook(partial(self._begin_pass, "F", block))
            module.register_forward_hook(partial(self._after_forward, block))

    @contextmanager
    def step(self) -> Iterator[None]:
        """Context manager around the passes of a step, in which all moves are made from the first on."""
        self._at = 0
        yield
        assert self._at == len(self._turns)

    def _after_forward(self, block: int, module: nn.Module, inputs: Any, output: Tensor) -> None:
        """Make the moves after a block's forward pass, and have its backward pass begin with its own moves."""
        if output.requires_grad:
            output.register_hook(partial(self._begin_pass, "B", block))  # type: ignore[no-untyped-call]
        self._close()

    def _begin_pass(self, kind: str, block: int, *_: Any) -> None:
        """Make the moves before a pass of a block (`kind` F or B), and wait for the block's weights. A backward pass
        ends when that of another block begins, or when autograd has no more to do.
        """
        self._close()
        for flat in self._streamed(self._aside):
            flat.drop()
        self._aside = -1 if self._passes.running else block
        if self._passes.running:
            self._open = self._turns[self._at]
            assert self._open.use[:2] == (kind, block), f"{kind}{block} runs, and {self._open.use} was to"
            self._at += 1
            self._move(self._open.before)
            if kind == "B":
                Variable._execution_engine.queue_callback(self._close)
        for flat in self._streamed(block):
            flat.await_weights()

    def _streamed(self, block: int) -> list[StreamedBlock]:
        """Buffers of a block if its weights are streamed."""
        return [flat for flat in self._flats.get(block, ()) if isinstance(flat, StreamedBlock)]

    def _close(self) -> None:
        """Make the moves after the pass that is under way, if there is one."""
        turn, self._open = self._open, None
        self._move(() if turn is None else turn.after)

    def _move(self, moves: Sequence[Move]) -> None:
        """Carry out moves: call the method that each names on the buffers of its block."""
        for move in moves:
            for flat in self._flats[move.block]:
                getattr(flat, move.what)()


_LEAST_BYTES = 4096
"""Storages smaller than this many bytes stay on the device."""


class ActivationPool:
    """Pool of host buffers for the activations of a rank's blocks."""

    def __init__(self, link: HostLink) -> None:
        self.link = link
        self._free: defaultdict[int, list[tuple[Tensor, Arrival]]] = defaultdict(list)
        """Size → free buffers of that size, each with the last copy that still reads it."""
        self._earlier_block: weakref.ref[_SavedTensors] | None = None

    def offload(self, blocks: Iterable[nn.Module]) -> None:
        """Have blocks, in the order in which they run, keep their activations in this pool; in place."""
        for place, block in enumerate(blocks):
            block.forward = partial(self._run, block, block.forward, first=place == 0)

    def take(self, size: int) -> Tensor:
        """A free host buffer of `size` bytes, allocated if the pool has none."""
        if not self._free[size]:
            return self.link.buffer(size, torch.uint8)
        buffer, arrival = self._free[size].pop()
        arrival.on_host()
        return buffer

    def give_back(self, buffer: Tensor, arrival: Arrival) -> None:
        """Return a buffer to the pool, with the last copy that still reads it."""
        self._free[buffer.numel()].append((buffer, arrival))

    def _run(
        self, block: nn.Module, forward: Callable[..., Tensor], *arguments: Any, first: bool, **options: Any
    ) -> Tensor:
        """Run a block's forward pass with its saved tensors in host memory."""
        earlier_block = None if first or self._earlier_block is None else self._earlier_block()
        saved = _SavedTensors(self, block, earlier_block)
        self._earlier_block = weakref.ref(saved)
        with saved_tensors_hooks(saved.pack, lambda restore: restore()):
            output = forward(*arguments, **options)
        if output.requires_grad:
            output.register_hook(lambda _: saved.bring_with_previous())  # type: ignore[no-untyped-call]
        return output


class _SavedTensors:
    """Tensors that autograd saves in one forward pass of one block, kept in host memory."""

    def __init__(self, pool: ActivationPool, block: nn.Module, earlier_block: _SavedTensors | None) -> None:
        self._pool, self._block, self._earlier_block = pool, block, earlier_block
        self._stored: weakref.WeakValueDictionary[tuple[int, int], _Stored] = weakref.WeakValueDictionary()
        """Address and version of a storage → its copy, while autograd needs it."""
        self._all: list[weakref.ref[_Stored]] = []

    def pack(self, tensor: Tensor) -> Callable[[], Tensor]:
        """Move a saved tensor to host memory; returns the function that restores it on the device for autograd."""
        if isinstance(tensor, AsyncCollectiveTensor):
            tensor = tensor.trigger_wait()  # type: ignore[no-untyped-call]
        size, stride, offset, dtype = tensor.size(), tensor.stride(), tensor.storage_offset(), tensor.dtype
        if is_traceable_wrapper_subclass(tensor):
            kind: Any = type(tensor)
            names, context = tensor.__tensor_flatten__()
            parts = {name: getattr(tensor, name) for name in names}
            packed = {name: self.pack(part) for name, part in parts.items() if isinstance(part, Tensor)}
            constants = {name: part for name, part in parts.items() if name not in packed}  # such as a mesh

            def wrap() -> Tensor:
                """Rebuild a tensor subclass from its restored inner tensors."""
                inner = constants | {name: restore() for name, restore in packed.items()}
                tensor: Tensor = kind.__tensor_unflatten__(inner, context, size, stride)
                return tensor

            return wrap
        storage = tensor.untyped_storage()
        small = storage.nbytes() < _LEAST_BYTES
        if small or tensor.device.type != self._pool.link.device.type or self._is_parameter(storage):
            detached = tensor.detach()
            return lambda: detached
        stored = self._stored_once(tensor, storage)
        return lambda: stored.on_device().view(dtype).as_strided(size, stride, offset)

    def bring_with_previous(self) -> None:
        """Copy this block's activations to the device for its backward pass, and begin to copy the previous block's."""
        for saved in (self, self._earlier_block):
            for stored in () if saved is None else saved._all:
                if (storage := stored()) is not None:
                    storage.begin()

    def _is_parameter(self, storage: torch.UntypedStorage) -> bool:
        """Whether a storage belongs to a parameter of the block; sharded parameters change storage."""
        return any(local(one).untyped_storage()._cdata == storage._cdata for one in self._block.parameters())

    def _stored_once(self, tensor: Tensor, storage: torch.UntypedStorage) -> _Stored:
        """Host copy of a tensor's storage, made once for all views of the storage."""
        key = (storage._cdata, tensor._version)
        stored = self._stored.get(key)
        if (
            stored is None or stored.source() is not storage
        ):  # another may have the address of one that is gone
            self._stored[key] = stored = _Stored(self._pool, tensor.detach(), storage)
            self._all.append(weakref.ref(stored))
        return stored


class _Stored:
    """Copy of one storage in host memory, whose buffer is freed when autograd drops its last view."""

    def __init__(self, pool: ActivationPool, tensor: Tensor, source: torch.UntypedStorage) -> None:
        self._pool, self._device, self.source = pool, tensor.device, weakref.ref(source)
        # by views alone: fake tensors never let go of a storage that was an argument of an operator
        elements = source.nbytes() // tensor.itemsize
        storage = tensor.as_strided((elements,), (1,), 0).view(torch.uint8)
        self._buffer = pool.take(storage.numel())
        self._down = pool.link.down(self._buffer, storage)
        self._up = ARRIVED
        self._values: Tensor | None = None

    def begin(self) -> None:
        """Begin to copy the storage to the device."""
        if self._values is None:
            self._values = torch.empty_like(self._buffer, device=self._device)
            self._up = self._pool.link.up(self._values, self._buffer, earlier_copy=self._down)

    def on_device(self) -> Tensor:
        """Bytes of the storage on the device, valid for all computations that follow."""
        self.begin()
        self._up.before_computing()
        assert self._values is not None
        return self._values

    def __del__(self) -> None:
        """Return the host buffer to the pool."""
        self._pool.give_back(self._buffer, self._up)


class OffloadAxis(Axis):
    """Offload on one rank: keeps states, weights or activations of its blocks in host memory or on the drive."""

    @classmethod
    def is_used(cls, layout: Layout) -> bool:
        """Whether a layout offloads anything."""
        return layout.offload != NOWHERE

    def __init__(self, rank: Rank) -> None:
        super().__init__(rank)
        layout = self.layout = rank.layout
        self.lives = residency_of_blocks(layout, rank.stages)
        self._ranks_here = min(layout.num_gpus, rank.plan.question.cluster.gpus_per_node)
        started = int(os.environ.get("LOCAL_WORLD_SIZE", self._ranks_here))
        self.link = HostLink(rank.device, threads_for_updates(rank.device, started))
        if layout.offload.drive:
            self.link.drive = Drive(rank.options.drive, self.link)
        self._pool = ActivationPool(self.link)
        self._on_host: dict[int, list[StatesOnHost]] = {}
        """Buffers of each block that the CPU updates, by number of the block."""
        self._parkings: list[Parking] = []
        self._window: Window | None = None
        self.sharded: list[ShardedBlock] = []
        self._steps: list[Traffic] = []

    def apply(self, part: Transformer, stage: int) -> None:
        """Have a model slice's blocks keep their activations in host memory if the layout says so."""
        if self.layout.offload.activations:
            self._pool.offload(part.blocks.values())

    def on_host(self, part: Transformer) -> list[str]:
        """Names of the blocks of a model slice that are streamed."""
        return [name for name in part.blocks if self.lives[int(name)] == "streamed"]

    def buckets(self) -> dict[int, Bucket]:
        """Bucket of each parameter of an offloaded block, by id: the number of the block."""
        return {
            id(parameter): int(name)
            for part in self.rank.parts
            for name, block in part.blocks.items()
            if self.lives[int(name)] != "resident"
            for parameter in block.parameters()
        }

    def buffer(
        self, bucket: Bucket, parameters: Sequence[nn.Parameter], copies: Copies, *, routed: bool, **how: Any
    ) -> FlatParameters | None:
        """Flat buffers of an offloaded block: parked, streamed or with states on the host; None for other buckets."""
        if not isinstance(bucket, int):
            return None
        lives, link = self.lives[bucket], self.link.of(bucket)
        if lives == "parked":
            parked = ParkedStates(parameters, copies, link=link, **how)
            self._parkings.append(parked.parking)
            return parked
        kind = StreamedBlock if lives == "streamed" else StatesOnHost
        buffer = kind(parameters, copies, link=link, **how)
        self._on_host.setdefault(bucket, []).append(buffer)
        return buffer

    def shards(self, bucket: Bucket, parameters: Sequence[nn.Parameter], make: Make) -> Shards | None:
        """Shards of an offloaded block under ZeRO-2 and 3; None for other buckets."""
        if not isinstance(bucket, int):
            return None
        lives, link = self.lives[bucket], self.link.of(bucket)
        if lives == "parked":
            parked = ParkedShards(parameters, make, link)
            self._parkings.append(parked.parking)
            return parked
        sharded = ShardedBlock(parameters, lives, make, link)
        self.sharded.append(sharded)
        return sharded

    def connect(self) -> None:
        """Link each parked block with the block that is updated next, and make the window of streamed blocks."""
        for parking, following in pairwise(self._parkings):
            parking.following = following
        if self._on_host:
            modules = {int(name): block for part in self.rank.parts for name, block in part.blocks.items()}
            microbatches, at_once = self.rank.share.microbatches, self.rank.options.clip is None
            turns = turns_of_rank(self.layout, self.rank.stages, microbatches, at_once=at_once)
            self._window = Window(turns, modules, self._on_host, self.rank.passes)

    def step(self) -> AbstractContextManager[None]:
        """Context manager in which the window of streamed blocks carries out the moves of a step."""
        return super().step() if self._window is None else self._window.step()

    def host_tensors(self) -> Iterator[Tensor]:
        """Buffers of the link, and states and weights of offloaded blocks in host memory."""
        yield from self.link.buffers
        for flat in chain.from_iterable(self._on_host.values()):
            yield from flat.host_tensors()
        for block in self.sharded:
            yield from block.host_tensors()

    def drive_tensors(self) -> list[Tensor]:
        """Tensors of optimizer states on the host's drive."""
        return [] if self.link.drive is None else self.link.drive.tensors

    def record(self, into: list[Carried[Mark]] | None) -> None:
        """Start appending copies and CPU updates to the list `into`; None stops the recording."""
        self.link.record_into(into)

    def end_step(self) -> None:
        """Keep the traffic of the step that has just ended, for the report."""
        self._steps.append(self.link.take_traffic())

    def forget(self) -> None:
        """Discard the traffic so far, of start-up and warm-up steps."""
        self.link.take_traffic()
        self._steps.clear()

    def report(self, host_peak: int) -> dict[str, Any]:
        """Reports of host memory and of the drive, measured beside predicted, for a rank's report."""
        plan, columns = self.rank.plan, LayoutColumns.of([self.layout])
        ranks, listed = self._ranks_here, self._steps[:: -(-len(self._steps) // MOST_STEPS) or 1]
        channels = channel_seconds(plan.question, columns)

        def steps(*names: str, prefix: str = "") -> dict[str, Any]:
            """Counts of these names in each listed step, as fields of a report."""
            return {name: tuple(getattr(step, prefix + name) for step in listed) for name in names}

        host = HostReport(
            peak_bytes=host_peak and host_peak + self._rounded_up(),
            predicted_bytes=(plan.prediction.host_bytes or 0.0) / ranks,
            predicted_copy_seconds=float(channels.copies[0]),
            predicted_update_seconds=float(channels.update[0]),
            **steps("down_bytes", "up_bytes", "copy_seconds", "update_seconds"),
        )
        if self.link.drive is None:
            return {"host": host}
        read, written = drive_step_bytes(plan.question, columns)
        drive = DriveReport(
            held_bytes=self.link.drive.stored_bytes,
            predicted_bytes=(plan.prediction.drive_bytes or 0.0) / ranks,
            predicted_read_bytes=float(read[0]),
            predicted_written_bytes=float(written[0]),
            predicted_seconds=float((channels.read + channels.write)[0]),
            **steps("read_bytes", "written_bytes", "seconds", prefix="drive_"),
        )
        return {"host": host, "drive": drive}

    def _rounded_up(self) -> int:
        """Bytes of pinned memory that torch's allocator holds beyond the gradients of streamed shards; 0 on a CPU."""
        shards = [shard for block in self.sharded if block.streamed for shard in block.parameters]
        if not shards or self.rank.device.type != "cuda":
            return 0
        shard_bytes = sum(torch.float32.itemsize * local(shard.detach()).numel() for shard in shards)
        return max(0, int(torch.cuda.host_memory_stats().get("allocated_bytes.peak", 0)) - shard_bytes)
