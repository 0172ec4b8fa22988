"""Copies between the device and host memory, beside compute; and the host memory that they use.

On a GPU host memory is pinned and each direction has a stream; on a CPU, whose memory is both, copies are plain. Copies
of what lies in pageable memory pass through two staging buffers, so that one is filled while the other is used.
"""

from __future__ import annotations

import os
import resource
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from copy import copy
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor
from torch.utils._python_dispatch import _get_current_dispatch_mode

from cost_models.axes.offload.moves import Lane
from cost_models.errors import HostError, Problem
from cost_models.units import format_bytes
from executor.pinned import pinned_zeros
from executor.timing import Carried, CopiedEvent, Mark, mark_on

T = TypeVar("T")
_HERE = torch.device("cpu")


class Arrival:
    """A copy in flight."""

    def __init__(self, event: torch.cuda.Event | None) -> None:
        self._event = event

    def before_computing(self) -> None:
        """Have all computations that follow wait for it."""
        if self._event is not None:
            torch.cuda.current_stream().wait_event(self._event)

    def on_host(self) -> None:
        """Wait for it."""
        if self._event is not None:
            self._event.synchronize()


HERE = Arrival(None)
"""A copy that is complete."""


@dataclass(slots=True)
class Traffic:
    """Traffic of a link and the drive, and CPU updates, since they were last taken."""

    down_bytes: int = 0
    up_bytes: int = 0
    copy_seconds: float = 0.0
    """Seconds of copies: on a CPU those that the training thread makes, on a GPU of both streams, added up."""
    update_seconds: float = 0.0
    """Seconds of updates on the host: on a CPU, whose one thread makes each, by the clock of that thread."""
    drive_read_bytes: int = 0
    drive_written_bytes: int = 0
    drive_seconds: float = 0.0
    """Seconds of reading and of writing there, added up."""
    timed: list[tuple[torch.cuda.Event, torch.cuda.Event]] = field(default_factory=list)


@dataclass(slots=True)
class _Account:
    """Traffic and recording of a link, shared by its views for single blocks."""

    traffic: Traffic = field(default_factory=Traffic)
    carried: list[Carried] | None = None
    """None: no recording is on."""


class HostLink:
    """The link between a device and host memory, the buffers there, and the thread that computes there."""

    def __init__(self, device: torch.device, threads: int) -> None:
        self.device = device
        self.held: list[Tensor] = []
        """Every buffer in host memory."""
        self._block = -1
        self._account = _Account()
        self.memory = torch.device("meta" if device.type == "meta" else "cpu")
        """Where buffers are: with a device without memory in none either."""
        self._pinned = device.type == "cuda"
        self._clock = time.perf_counter if self._pinned else time.thread_time
        self._down, self._up = (torch.cuda.Stream(device) if self._pinned else None for _ in range(2))  # type: ignore[no-untyped-call]
        # operators use several threads each, so that the last block's update is not left to one
        own = (partial(torch.set_num_threads, threads),) if threads > 1 else ()
        self._worker = ThreadPoolExecutor(1, "host-update", *own)

    def of(self, block: int) -> HostLink:
        """A view of the link, whose copies and updates are recorded as of this block."""
        own = copy(self)
        own._block = block
        return own

    @property
    def traffic(self) -> Traffic:
        """Counts since the last call of `taken`."""
        return self._account.traffic

    def record_into(self, carried: list[Carried] | None) -> None:
        """Start recording copies and updates; None: stop."""
        self._account.carried = carried

    def buffer(self, elements: int, dtype: torch.dtype, *, pinned: bool = True) -> Tensor:
        """Zeros in host memory. Raises HostError where there is not enough of it, or not that much may be pinned."""
        pinned = pinned and self._pinned
        try:
            made = (
                pinned_zeros(elements, dtype)
                if pinned
                else torch.zeros(elements, dtype=dtype, device=self.memory)
            )
        except (RuntimeError, MemoryError, OSError) as error:
            raise self._no_room(elements * dtype.itemsize, error, pinned=pinned) from error
        self.held.append(made)
        return made

    def give_back(self, buffer: Tensor) -> None:
        """Stop counting a buffer."""
        self.held[:] = [one for one in self.held if one is not buffer]

    def down(self, to_host: Tensor, from_device: Tensor) -> Arrival:
        """Copy to host memory, after what was computed so far."""
        self.traffic.down_bytes += to_host.nbytes
        return self._copy(to_host, from_device, self._down, "down")

    def up(self, to_device: Tensor, from_host: Tensor, after: Arrival | None = None) -> Arrival:
        """Copy from host memory, after what was computed so far; nothing may write there before it has arrived.

        What lies there may be on its way: `after` that.
        """
        if after is not None and self._up is not None:
            with torch.cuda.stream(self._up):
                after.before_computing()
        self.traffic.up_bytes += to_device.nbytes
        return self._copy(to_device, from_host, self._up, "up")

    def on_host(self, what: Callable[[], T]) -> Future[T]:
        """Submit work to the host's thread, which runs it in order.

        Where operators are watched, or tensors are fake, at once and here: no other thread knows of that.
        """
        if _get_current_dispatch_mode() is None:
            return self._worker.submit(self._timed_update, what)
        done: Future[T] = Future()
        done.set_result(self._timed_update(what))
        return done

    def taken(self) -> Traffic:
        """Traffic since the last call."""
        traffic, self._account.traffic = self.traffic, Traffic()
        for start, end in traffic.timed:
            end.synchronize()
            traffic.copy_seconds += start.elapsed_time(end) / 1e3
        return traffic

    def _timed_update(self, what: Callable[[], T]) -> T:
        start, began = self._clock(), mark_on(_HERE)
        try:
            with torch.no_grad():
                return what()
        finally:
            self.traffic.update_seconds += self._clock() - start
            self.record("update", began, mark_on(_HERE))

    def record(self, lane: Lane, start: Mark, end: Mark) -> None:
        """Record an interval of a lane, where recording is on."""
        if self._account.carried is not None:
            self._account.carried.append(Carried(lane, self._block, start, end))

    def _copy(self, target: Tensor, source: Tensor, stream: torch.cuda.Stream | None, lane: Lane) -> Arrival:
        with torch.no_grad():
            if stream is None or not (target.is_cuda or source.is_cuda):
                start, began = self._clock(), mark_on(_HERE)
                target.copy_(source)
                self.traffic.copy_seconds += self._clock() - start
                self.record(lane, began, mark_on(_HERE))
                return HERE
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                start_event, end_event = (CopiedEvent(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
                start_event.record(stream)
                target.copy_(source, non_blocking=True)
                end_event.record(stream)
            device_side = target if target.is_cuda else source
            device_side.record_stream(stream)
            self.traffic.timed.append((start_event, end_event))
            self.record(lane, (0.0, 0.0, 0.0, start_event), (0.0, 0.0, 0.0, end_event))
            return Arrival(end_event)

    def _no_room(self, wanted: int, error: BaseException, *, pinned: bool) -> HostError:
        held = sum(one.nbytes for one in self.held)
        what = f"{format_bytes(wanted)} more of host memory cannot be had"
        hint = "offload fewer blocks, or use a host with more memory"
        locked = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
        if pinned and locked != resource.RLIM_INFINITY and locked < held + wanted:
            hint = f"buffers are pinned, and `ulimit -l` allows {format_bytes(locked)}: raise it, or {hint}"
        what = f"{what}; offloaded blocks have {format_bytes(held)} there"
        return HostError(what, problems=[Problem("", f"{error}".splitlines()[0])], hint=hint)


def threads_for_updates(device: torch.device, ranks: int) -> int:
    """Number of threads for the updates of each rank on its host: on a GPU's host a share of the cores, less the one
    that drives the device; on a CPU, which trains, one. A host runs no more ranks than it has GPUs."""
    if device.type != "cuda":
        return 1
    return max(1, len(os.sched_getaffinity(0)) // min(ranks, torch.cuda.device_count()) - 1)


@dataclass(slots=True)
class Slot:
    """A buffer, and the copy and reader that may still use it, which must end before its next use."""

    storage: Tensor
    buffer: Tensor
    """The part of the storage that is in use."""
    arrival: Arrival = HERE
    reader: Future[None] | None = None


class Staging:
    """Two buffers of one type, made where they are first needed."""

    def __init__(self, link: HostLink, dtype: torch.dtype) -> None:
        self._link, self._dtype = link, dtype
        nothing = torch.empty(0, dtype=dtype)
        self._slots = deque(Slot(nothing, nothing) for _ in range(2))

    def take(self, elements: int) -> Slot:
        """The next slot in turn, with a free buffer of `elements`; its user sets what must end before the next use."""
        self._slots.rotate()
        slot = self._slots[0]
        slot.arrival.on_host()
        if slot.reader is not None:
            slot.reader.result()
        if slot.storage.numel() < elements:
            self._link.give_back(slot.storage)
            slot.storage = self._link.buffer(elements, self._dtype)
        slot.buffer, slot.arrival, slot.reader = slot.storage[:elements], HERE, None
        return slot
