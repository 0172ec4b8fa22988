"""Offload of a model as its layout says: blocks, optimizer states and activations.

**Activations** that a block keeps for its backward pass lie in host memory until then. Whole storages go down once a
block, whatever views of them autograd saves, and come back before the backward pass of the block, as the block after it
runs its own: those of two blocks are on the device at a time. Parameters stay where they are. Where a block recomputes,
what it keeps is its input.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import NOWHERE, Layout
from cost_models.axes.offload.channels import channel_seconds
from cost_models.axes.offload.residency import drive_step_bytes, residency_of_blocks, turns_of_rank
from executor.axes.axis import Axis, Bucket, Make, Rank
from executor.axes.data import Copies, FlatParameters
from executor.axes.offload.blocks import (
    HostPart,
    ParkedStates,
    Parking,
    ShardedBlock,
    StatesOnHost,
    StreamedBlock,
    Window,
)
from executor.axes.offload.link import (
    ARRIVED,
    Arrival,
    Drive,
    HostLink,
    Staging,
    Traffic,
    threads_for_updates,
)
from executor.axes.offload.reporting import DriveReport, HostReport
from executor.mesh import local
from executor.models.transformer import Transformer
from executor.run_config import MOST_STEPS
from executor.timing import Carried

_LEAST_BYTES = 4096
"""Smaller storages stay: they are not worth a copy."""


class ActivationPool:
    """A pool of host buffers for the activations of a rank's blocks."""

    def __init__(self, link: HostLink) -> None:
        self.link = link
        self._free: dict[int, list[tuple[Tensor, Arrival]]] = {}
        self._earlier_block: weakref.ref[_SavedTensors] | None = None

    def offload(self, blocks: Iterable[nn.Module]) -> None:
        """Have blocks, in the order in which they run, keep their activations here; in place."""
        for place, block in enumerate(blocks):
            run = partial(self._run, block, block.forward, first=place == 0)
            block.forward = run

    def take(self, size: int) -> Tensor:
        """A free buffer of `size` bytes, made where there is none."""
        free = self._free.get(size)
        if not free:
            return self.link.buffer(size, torch.uint8)
        buffer, arrival = free.pop()
        arrival.on_host()
        return buffer

    def give_back(self, buffer: Tensor, arrival: Arrival) -> None:
        """Return a buffer to the pool, which reuses it after a copy out of it has ended."""
        self._free.setdefault(buffer.numel(), []).append((buffer, arrival))

    def _run(
        self, block: nn.Module, forward: Callable[..., Tensor], *arguments: Any, first: bool, **options: Any
    ) -> Tensor:
        earlier_block = None if first or self._earlier_block is None else self._earlier_block()
        saved = _SavedTensors(self, block, earlier_block)
        self._earlier_block = weakref.ref(saved)
        with saved_tensors_hooks(saved.pack, lambda restore: restore()):
            output = forward(*arguments, **options)
        if output.requires_grad:
            output.register_hook(lambda _: saved.bring_with_the_one_before())  # type: ignore[no-untyped-call]
        return output


class _SavedTensors:
    """The saved tensors of one block in one pass."""

    def __init__(self, pool: ActivationPool, block: nn.Module, earlier_block: _SavedTensors | None) -> None:
        self._pool, self._block, self._earlier_block = pool, block, earlier_block
        self._stored: dict[
            tuple[int, int], tuple[weakref.ref[torch.UntypedStorage], weakref.ref[_Stored]]
        ] = {}
        """Address and version of a storage → the storage, while it lives (another may then have its address)."""
        self._all: list[weakref.ref[_Stored]] = []

    def pack(self, tensor: Tensor) -> Callable[[], Tensor]:
        """The function that makes a tensor again, on the device, which autograd holds in its place."""
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

    def bring_with_the_one_before(self) -> None:
        """Copy the block's activations to the device for its backward pass, and begin with the previous block's."""
        for saved in (self, self._earlier_block):
            for stored in () if saved is None else saved._all:
                if (storage := stored()) is not None:
                    storage.begin()

    def _is_parameter(self, storage: torch.UntypedStorage) -> bool:
        """Whether a storage belongs to a parameter of the block; sharded parameters change storage."""
        return any(local(one).untyped_storage()._cdata == storage._cdata for one in self._block.parameters())

    def _stored_once(self, tensor: Tensor, storage: torch.UntypedStorage) -> _Stored:
        key = (storage._cdata, tensor._version)
        if key in self._stored:
            alive, reference = self._stored[key]
            stored = reference()
            if alive() is storage and stored is not None:
                return stored
        stored = _Stored(self._pool, tensor.detach())
        self._stored[key] = (weakref.ref(storage), weakref.ref(stored))
        self._all.append(weakref.ref(stored))
        return stored


class _Stored:
    """Copy of one storage in host memory, whose buffer is freed when autograd drops its last view."""

    def __init__(self, pool: ActivationPool, tensor: Tensor) -> None:
        self._pool, self._device = pool, tensor.device
        # by views alone: fake tensors never let go of a storage that was an argument of an operator
        elements = tensor.untyped_storage().nbytes() // tensor.itemsize
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
        self._pool.give_back(self._buffer, self._up)


class OffloadAxis(Axis):
    """Keeps states, weights or activations of this rank's blocks in host memory or on the drive."""

    @classmethod
    def is_used(cls, layout: Layout) -> bool:
        return layout.offload != NOWHERE

    def __init__(self, rank: Rank) -> None:
        super().__init__(rank)
        layout = self.layout = rank.layout
        self.lives = residency_of_blocks(layout, rank.stages)
        self._ranks_here = min(layout.num_gpus, rank.plan.question.cluster.gpus_per_node)
        started = int(os.environ.get("LOCAL_WORLD_SIZE", self._ranks_here))
        self.link = HostLink(rank.device, threads_for_updates(rank.device, started))
        self.drive = Drive(rank.options.drive, self.link) if layout.offload.drive else None
        self._host = HostPart(
            link=self.link,
            at_once=rank.options.clip is None,
            incoming=Staging(self.link, torch.float32),
            outgoing=Staging(self.link, rank.dtype),
            drive=self.drive,
        )
        self._pool = ActivationPool(self.link)
        self._on_host: dict[int, list[StatesOnHost]] = {}
        """By block."""
        self._parkings: list[Parking] = []
        self._window: Window | None = None
        self.sharded: list[ShardedBlock] = []
        self._steps: list[Traffic] = []

    def apply(self, part: Transformer, stage: int) -> None:
        """Have a slice's blocks keep their activations where the layout says; after what recomputes."""
        if self.layout.offload.activations:
            self._pool.offload(part.blocks.values())

    def on_host(self, part: Transformer) -> list[str]:
        """Names of a slice's streamed blocks."""
        return [name for name in part.blocks if self.lives[int(name)] == "streamed"]

    def buckets(self) -> dict[int, Bucket]:
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
        if not isinstance(bucket, int):
            return None
        lives, link = self.lives[bucket], self.link.of(bucket)
        if lives == "parked":
            parked = ParkedStates(parameters, copies, link=link, **how)
            self._parkings.append(parked.parking)
            return parked
        kind = StreamedBlock if lives == "streamed" else StatesOnHost
        buffer = kind(parameters, copies, host=replace(self._host, link=link), **how)
        self._on_host.setdefault(bucket, []).append(buffer)
        return buffer

    def shards(self, bucket: Bucket, parameters: Sequence[nn.Parameter], make: Make) -> ShardedBlock:
        assert isinstance(bucket, int)
        sharded = ShardedBlock(parameters, self.lives[bucket], make, self.link.of(bucket), self.drive)
        if sharded.parking is not None:
            self._parkings.append(sharded.parking)
        self.sharded.append(sharded)
        return sharded

    def connect(self) -> None:
        for parking, following in pairwise(self._parkings):
            parking.following = following
        if self._on_host:
            modules = {int(name): block for part in self.rank.parts for name, block in part.blocks.items()}
            microbatches, at_once = self.rank.share.microbatches, self._host.at_once
            turns = turns_of_rank(self.layout, self.rank.stages, microbatches, at_once=at_once)
            self._window = Window(turns, modules, self._on_host, self.rank.passes)

    @contextmanager
    def step(self) -> Iterator[None]:
        if self._window is not None:
            self._window.begin()
        yield
        if self._window is not None:
            self._window.end()

    def host_tensors(self) -> Iterator[Tensor]:
        yield from self.link.buffers
        for flats in self._on_host.values():
            for flat in flats:
                yield from flat.host_tensors()
        for block in self.sharded:
            yield from block.host_tensors()

    def drive_tensors(self) -> list[Tensor]:
        return [] if self.drive is None else self.drive.tensors

    def host_parameters(self) -> set[int]:
        """ids of sharded parameters that are in host memory themselves."""
        return {id(one) for block in self.sharded if block.lives == "streamed" for one in block.parameters}

    def record(self, into: list[Carried] | None) -> None:
        self.link.record_into(into)

    def end_step(self) -> None:
        self._steps.append(self.link.take_traffic())

    def forget(self) -> None:
        self.link.take_traffic()
        self._steps.clear()

    def report(self, host_peak: int) -> dict[str, Any]:
        plan, columns = self.rank.plan, LayoutColumns.of([self.layout])
        ranks, listed = self._ranks_here, self._steps[:: -(-len(self._steps) // MOST_STEPS) or 1]
        channels = channel_seconds(plan.question, columns)

        def steps(*counts: str, **names: str) -> dict[str, Any]:
            """Fields of a report, the counts of the same name or another of each step."""
            pairs = [*zip(counts, counts, strict=True), *names.items()]
            return {name: tuple(getattr(step, count) for step in listed) for name, count in pairs}

        host = HostReport(
            peak_bytes=host_peak and host_peak + self._rounded_up(),
            predicted_bytes=(plan.prediction.host_bytes or 0.0) / ranks,
            predicted_copy_seconds=float(channels.copies[0]),
            predicted_update_seconds=float(channels.update[0]),
            **steps("down_bytes", "up_bytes", "copy_seconds", "update_seconds"),
        )
        if self.drive is None:
            return {"host": host}
        read, written = drive_step_bytes(plan.question, columns)
        drive = DriveReport(
            held_bytes=self.drive.stored_bytes,
            predicted_bytes=(plan.prediction.drive_bytes or 0.0) / ranks,
            predicted_read_bytes=float(read[0]),
            predicted_written_bytes=float(written[0]),
            predicted_seconds=float((channels.read + channels.write)[0]),
            **steps(
                read_bytes="drive_read_bytes", written_bytes="drive_written_bytes", seconds="drive_seconds"
            ),
        )
        return {"host": host, "drive": drive}

    def _rounded_up(self) -> int:
        """Bytes that torch's allocator of pinned memory has beyond the gradients of streamed shards, which it holds."""
        shards = [shard for block in self.sharded if block.lives == "streamed" for shard in block.parameters]
        if not shards or self.rank.device.type != "cuda":
            return 0
        shard_bytes = sum(torch.float32.itemsize * local(shard.detach()).numel() for shard in shards)
        return max(0, int(torch.cuda.host_memory_stats().get("allocated_bytes.peak", 0)) - shard_bytes)
