"""Copies between a GPU, host memory and a drive, concurrent with computation.

**Host memory.** On a GPU host memory is pinned and each direction has a stream; on a CPU, whose memory is both, copies
are plain. Copies of what lies in pageable memory pass through two staging buffers, so that one is filled while the
other is used.

**Drive.** A rank has one file there, in which optimizer states lie between updates. It has no name once it is open, so
nothing is left behind however a run ends; what another run needs is in checkpoints. Its room is allocated when states
are placed there. Reads and writes are plain calls, whose errors are reported.

A chunk is read, updated and written while the next is read and the one before is written (Rajbhandari et al. 2021,
ZeRO-Infinity, section 5.1.2). An update works on each number alone, and chunks are whole vectors, so the bits are those
of one update of all.
"""

from __future__ import annotations

import errno
import mmap
import os
import resource
import shutil
import tempfile
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from copy import copy
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._python_dispatch import _get_current_dispatch_mode

from cost_models.axes.offload.moves import Lane
from cost_models.errors import HostError, Problem
from cost_models.units import format_bytes
from executor.axes.axis import Make, moments_of
from executor.mesh import local
from executor.pinned import pinned_zeros
from executor.timing import Carried, CopiedEvent, Mark, mark_on

T = TypeVar("T")
_HOST = torch.device("cpu")


class Arrival:
    """A copy in flight, which the device or the host can wait for."""

    def __init__(self, event: torch.cuda.Event | None) -> None:
        self._event = event

    def before_computing(self) -> None:
        """Have all device computations that follow wait for the copy."""
        if self._event is not None:
            torch.cuda.current_stream().wait_event(self._event)

    def on_host(self) -> None:
        """Make the host wait until the copy has ended."""
        if self._event is not None:
            self._event.synchronize()


ARRIVED = Arrival(None)
"""A copy that is complete."""


@dataclass(slots=True)
class Traffic:
    """Bytes and seconds of a link's copies, of the drive and of CPU updates, since `take_traffic` was last called."""

    down_bytes: int = 0
    up_bytes: int = 0
    copy_seconds: float = 0.0
    """Seconds of copies: on a CPU those that the training thread makes, on a GPU of both streams, added up."""
    update_seconds: float = 0.0
    """Seconds of updates on the host: on a CPU, whose one thread makes each, by the clock of that thread."""
    drive_read_bytes: int = 0
    drive_written_bytes: int = 0
    drive_seconds: float = 0.0
    """Seconds of reading and of writing the drive, added up."""
    timed: list[tuple[torch.cuda.Event, torch.cuda.Event]] = field(default_factory=list)


@dataclass(slots=True)
class _Account:
    """Traffic and recording of a link, shared by its views for single blocks."""

    traffic: Traffic = field(default_factory=Traffic)
    carried: list[Carried[Mark]] | None = None
    """Recorded copies and updates; None if nothing records."""


class HostLink:
    """Link between a device and host memory, with the buffers in host memory and the thread that computes there."""

    def __init__(self, device: torch.device, threads: int) -> None:
        """`threads` is the number of CPU threads with which the host's thread computes."""
        self.device = device
        self.buffers: list[Tensor] = []
        """Every buffer in host memory."""
        self._block = -1
        self._account = _Account()
        self.memory = torch.device("meta" if device.type == "meta" else "cpu")
        """Device of host buffers: `cpu`, or `meta` for a device without memory."""
        self._pinned = device.type == "cuda"
        self._clock = time.perf_counter if self._pinned else time.thread_time
        self._down, self._up = (torch.cuda.Stream(device) if self._pinned else None for _ in range(2))  # type: ignore[no-untyped-call]
        # operators use several threads each, so that the last block's update is not left to one
        initializer = (partial(torch.set_num_threads, threads),) if threads > 1 else ()
        self._worker = ThreadPoolExecutor(1, "host-update", *initializer)
        self.incoming, self.outgoing = Staging(self), Staging(self)
        """Staging buffers for gradients that go to the host, and for updated weights that go to the device."""
        self.drive: Drive | None = None
        """Drive for optimizer states; None keeps them in host memory."""

    def of(self, block: int) -> HostLink:
        """View of the link whose copies and updates are recorded as those of one block."""
        block_link = copy(self)
        block_link._block = block
        return block_link

    @property
    def traffic(self) -> Traffic:
        """Bytes and seconds counted since the last call of `take_traffic`."""
        return self._account.traffic

    def record_into(self, carried: list[Carried[Mark]] | None) -> None:
        """Start appending copies and updates to the list `carried`; None stops the recording."""
        self._account.carried = carried

    def buffer(self, elements: int, dtype: torch.dtype, *, pinned: bool = True) -> Tensor:
        """Allocate zeros in host memory, pinned if the device is a GPU. Raises HostError where there is not enough of
        it, or not that much may be pinned.
        """
        pinned = pinned and self._pinned
        zeros: Callable[..., Tensor] = pinned_zeros if pinned else partial(torch.zeros, device=self.memory)
        try:
            buffer = zeros(elements, dtype=dtype)
        except (RuntimeError, MemoryError, OSError) as error:
            raise self._no_room(elements * dtype.itemsize, error, pinned=pinned) from error
        self.buffers.append(buffer)
        return buffer

    def fp32_weights(self, elements: int, *, pinned: bool) -> Tensor:
        """Allocate fp32 weights in host memory; if the drive will hold them, the memory is never touched."""
        if self.drive is not None:
            return torch.empty(elements, dtype=torch.float32, device=self.memory)
        return self.buffer(elements, torch.float32, pinned=pinned)

    def give_back(self, buffer: Tensor) -> None:
        """Stop counting a buffer as one of this link's buffers."""
        self.buffers[:] = [one for one in self.buffers if one is not buffer]

    def down(self, to_host: Tensor, from_device: Tensor) -> Arrival:
        """Start a copy from the device to host memory, after all computations so far."""
        self.traffic.down_bytes += to_host.nbytes
        return self._copy(to_host, from_device, self._down, "down")

    def up(self, to_device: Tensor, from_host: Tensor, earlier_copy: Arrival | None = None) -> Arrival:
        """Start a copy from host memory to the device, after all computations so far and after `earlier_copy`.

        Nothing may write to `from_host` before the copy has arrived. `earlier_copy` is one that still writes there.
        """
        if earlier_copy is not None and self._up is not None:
            with torch.cuda.stream(self._up):
                earlier_copy.before_computing()
        self.traffic.up_bytes += to_device.nbytes
        return self._copy(to_device, from_host, self._up, "up")

    def on_host(self, compute: Callable[[], T]) -> Future[T]:
        """Submit `compute` to the host's thread, which runs submissions in order.

        Where operators are watched, or tensors are fake, at once and here: no other thread knows of that.
        """
        if _get_current_dispatch_mode() is None:
            return self._worker.submit(self._timed_update, compute)
        result: Future[T] = Future()
        result.set_result(self._timed_update(compute))
        return result

    def take_traffic(self) -> Traffic:
        """Traffic since the last call of this method."""
        traffic, self._account.traffic = self.traffic, Traffic()
        for start, end in traffic.timed:
            end.synchronize()
            traffic.copy_seconds += start.elapsed_time(end) / 1e3
        return traffic

    def _timed_update(self, compute: Callable[[], T]) -> T:
        """Run `compute` and count its seconds as those of an update."""
        start, began = self._clock(), mark_on(_HOST)
        try:
            with torch.no_grad():
                return compute()
        finally:
            self.traffic.update_seconds += self._clock() - start
            self.record("update", began, mark_on(_HOST))

    def record(self, lane: Lane, start: Mark, end: Mark) -> None:
        """Record an interval of a lane (copies, updates or drive), if recording is on."""
        if self._account.carried is not None:
            self._account.carried.append(Carried(lane, self._block, start, end))

    def _copy(self, target: Tensor, source: Tensor, stream: torch.cuda.Stream | None, lane: Lane) -> Arrival:
        """Copy on a stream of one direction, or at once where neither tensor is on a GPU."""
        with torch.no_grad():
            if stream is None or not (target.is_cuda or source.is_cuda):
                start, began = self._clock(), mark_on(_HOST)
                target.copy_(source)
                self.traffic.copy_seconds += self._clock() - start
                self.record(lane, began, mark_on(_HOST))
                return ARRIVED
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

    def _no_room(self, needed_bytes: int, error: BaseException, *, pinned: bool) -> HostError:
        """The error for host memory that cannot be allocated, with a hint at its cause."""
        buffer_bytes = sum(buffer.nbytes for buffer in self.buffers)
        reason = f"{format_bytes(needed_bytes)} more of host memory cannot be had"
        hint = "offload fewer blocks, or use a host with more memory"
        locked = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
        if pinned and locked != resource.RLIM_INFINITY and locked < buffer_bytes + needed_bytes:
            hint = f"buffers are pinned, and `ulimit -l` allows {format_bytes(locked)}: raise it, or {hint}"
        reason = f"{reason}; offloaded blocks have {format_bytes(buffer_bytes)} there"
        return HostError(reason, problems=[Problem("", f"{error}".splitlines()[0])], hint=hint)


def threads_for_updates(device: torch.device, ranks: int) -> int:
    """Number of CPU threads for the updates of each rank: one if ranks train on the CPU; on a GPU's host an equal share
    of the cores, less the thread that drives the device. A host runs no more ranks than it has GPUs.
    """
    if device.type != "cuda":
        return 1
    return max(1, len(os.sched_getaffinity(0)) // min(ranks, torch.cuda.device_count()) - 1)


class Staging:
    """Two staging buffers, used in turn and allocated when first needed."""

    def __init__(self, link: HostLink) -> None:
        self._link = link
        self._buffers: deque[tuple[Tensor, Callable[[], object]]] = deque(
            [(torch.empty(0), ARRIVED.on_host)] * 2
        )
        """Each buffer, with the function that waits until nothing uses it any more."""

    def take(self, elements: int, dtype: torch.dtype) -> Tensor:
        """A free buffer of `elements` numbers, once its last use has ended; its user then calls `give_back`."""
        buffer, wait = self._buffers.popleft()
        wait()
        if buffer.numel() < elements:
            self._link.give_back(buffer)
            buffer = self._link.buffer(elements, dtype)
        self._buffers.append((buffer, ARRIVED.on_host))
        return buffer[:elements]

    def give_back(self, wait: Callable[[], object]) -> None:
        """Give back the buffer that was taken last; its use has ended when `wait` returns."""
        buffer, _ = self._buffers.pop()
        self._buffers.append((buffer, wait))


CHUNK = 4 * 2**20
"""Largest number of elements of each kind that are read from the drive at a time. The largest tensor has at least
CHUNKS chunks, so that reads overlap with updates; the executor's stack has the same numbers.
"""
CHUNKS = 4
_VECTOR = 16
"""Chunks are multiples of this many elements, whole vectors of any processor."""
SLOTS = 3
"""Chunks in memory at a time: one is read, one updated, one written."""
_FP32 = torch.float32.itemsize
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class DriveError(OSError):
    """A drive that could not be read or written in the middle of a run."""


@dataclass(frozen=True, slots=True)
class FileRange:
    """A run of fp32 numbers in the drive's file that begins at byte `start`; `tensor` maps it into memory."""

    start: int
    tensor: Tensor


class Drive:
    """The file on a drive that holds a rank's optimizer states between updates."""

    def __init__(self, folder: Path | None, link: HostLink) -> None:
        self.folder = Path(tempfile.gettempdir()) if folder is None else folder
        self.link = link
        self.tensors: list[Tensor] = []
        """All tensors that lie in the file."""
        self.pretends = link.device.type == "meta" or _get_current_dispatch_mode() is not None
        """Whether tensors have no values (fake or meta), so that nothing is written."""
        self._file = -1 if self.pretends else self._open()
        self._end = 0
        self.reader, self.writer = ThreadPoolExecutor(1, "drive-read"), ThreadPoolExecutor(1, "drive-write")
        self._slots: list[dict[str, Tensor]] = [{} for _ in range(SLOTS)]

    @property
    def stored_bytes(self) -> int:
        """Bytes of all tensors in the file."""
        return sum(one.nbytes for one in self.tensors)

    @property
    def chunk(self) -> int:
        """Elements of each kind that are moved at a time; CHUNK at most, fewer if all tensors are small."""
        largest = max((one.numel() for one in self.tensors), default=0) or CHUNKS * CHUNK
        return min(CHUNK, -(-largest // (CHUNKS * _VECTOR)) * _VECTOR)

    def place(self, elements: int) -> FileRange:
        """Allocate `elements` fp32 numbers in the file, zeros at first. Raises HostError where there is no room."""
        start = self._end
        if self.pretends or not elements:
            states = torch.zeros(elements, dtype=torch.float32, device=self.link.memory)
        else:
            size = elements * _FP32
            try:
                if hasattr(os, "posix_fallocate"):
                    os.posix_fallocate(self._file, start, size)
                else:
                    os.ftruncate(self._file, start + size)
            except OSError as error:
                raise self._no_room(size, error) from error
            states = torch.frombuffer(mmap.mmap(self._file, size, offset=start), dtype=torch.float32)
            self._end += -(-size // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY
        self.tensors.append(states)
        return FileRange(start, states)

    def slot(self, number: int, kinds: Iterable[str], count: int) -> dict[str, Tensor]:
        """Host buffers of chunk `number`, `count` elements for each kind; allocated when first needed."""
        buffers = self._slots[number % SLOTS]
        for kind in kinds:
            if kind not in buffers:
                buffers[kind] = self.link.buffer(self.chunk, torch.float32, pinned=False)
        return {kind: buffers[kind][:count] for kind in kinds}

    def read(self, chunk: Chunk) -> None:
        """Fill the buffers of a chunk from the file."""
        for start, buffer in chunk.states.values():
            self._move(os.preadv, start, buffer)
            self.link.traffic.drive_read_bytes += buffer.nbytes

    def write(self, chunk: Chunk) -> None:
        """Write the buffers of a chunk to the file."""
        for start, buffer in chunk.states.values():
            self._move(os.pwritev, start, buffer)
            self.link.traffic.drive_written_bytes += buffer.nbytes

    def _move(self, call: Callable[[int, list[memoryview], int], int], start: int, buffer: Tensor) -> None:
        """Read or write a whole buffer at byte `start` of the file by repeated calls, and count the seconds."""
        view = buffer.numpy().data.cast("B")
        began, start_mark = time.perf_counter(), mark_on(self.link.memory)
        count = 0
        while count < len(view):
            try:
                moved_bytes = call(self._file, [view[count:]], start + count)
            except OSError as error:
                raise DriveError(error.errno, error.strerror, str(self.folder)) from error
            if not moved_bytes:
                raise DriveError(errno.EIO, "the file has become shorter", str(self.folder))
            count += moved_bytes
        self.link.traffic.drive_seconds += time.perf_counter() - began
        self.link.record("drive", start_mark, mark_on(self.link.memory))

    def _open(self) -> int:
        """Descriptor of a new file without a name in the drive's folder."""
        try:
            file, name = tempfile.mkstemp(prefix="meshwright-states-", dir=self.folder)
            os.unlink(name)
        except OSError as error:
            raise HostError(
                f"--drive {self.folder}: {(error.strerror or str(error)).lower()}",
                hint="name a folder of the drive that can be written to",
            ) from error
        weakref.finalize(self, os.close, file)
        return file

    def _no_room(self, size: int, error: OSError) -> HostError:
        """The error for a range that cannot be allocated on the drive."""
        if error.errno not in _FULL:
            return HostError(f"--drive {self.folder}: {(error.strerror or str(error)).lower()}")
        free = shutil.disk_usage(self.folder).free
        return HostError(
            f"--drive {self.folder} has no room for {format_bytes(size)} of optimizer states: {format_bytes(free)} are"
            f" free beside {format_bytes(self.stored_bytes)} that this rank has there",
            hint="name another folder, or offload fewer blocks",
        )


_WEIGHTS = "weights"


class HostOptimizer:
    """The CPU's update of some parameters of one optimizer, with the optimizer's states in host memory or on a drive.
    With `weights`, the parameters are on the drive as well.

    The optimizer holds what is on a drive as tensors mapped to the file, so checkpoints read and write them.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        updated: Sequence[nn.Parameter],
        make: Make,
        drive: Drive | None,
        *,
        weights: bool,
    ) -> None:
        self._optimizer, self._parameters, self._drive = optimizer, list(updated), drive
        self._places: list[dict[str, FileRange]] = []
        if drive is not None:
            self._at_work = nn.Parameter(torch.empty(0))
            self._updates = make([self._at_work])
            self._places = [_place_states(drive, optimizer, one, weights=weights) for one in self._parameters]

    def step(self, *arrivals: Arrival) -> None:
        """Update all parameters that have gradients, once these arrive; raises DriveError where the drive fails."""
        for arrival in arrivals:
            arrival.on_host()
        if self._drive is None or self._drive.pretends:
            self._optimizer.step()
            return
        self._updates.param_groups[0] |= {**self._optimizer.param_groups[0], "params": [self._at_work]}
        for hook in self._optimizer._optimizer_step_pre_hooks.values():
            hook(self._optimizer, (), {})
        self._run_chunks(self._drive, list(self._chunks(self._drive)))
        for parameter in self._parameters:
            if parameter.grad is not None and "step" in self._optimizer.state[parameter]:
                self._optimizer.state[parameter]["step"] += 1

    def read_weights_again(self) -> None:
        """Count the bytes of parameters that are read from the drive again, to be copied to the device."""
        for place in [places[_WEIGHTS] for places in self._places if _WEIGHTS in places]:
            assert self._drive is not None
            self._drive.link.traffic.drive_read_bytes += place.tensor.nbytes

    def host_tensors(self) -> Iterator[Tensor]:
        """Optimizer states in host memory; none if they are on a drive."""
        for parameter in self._parameters if self._drive is None else ():
            yield from (one for one in self._optimizer.state[parameter].values() if isinstance(one, Tensor))

    def _chunks(self, drive: Drive) -> Iterator[Chunk]:
        """Yield the chunks of all parameters that have gradients, in order."""
        number = 0
        for parameter, places in zip(self._parameters, self._places, strict=True):
            if parameter.grad is None:
                continue
            weights, gradient = (local(one.detach()).view(-1) for one in (parameter, parameter.grad))
            step = self._optimizer.state[parameter].get("step")
            for first in range(0, weights.numel(), drive.chunk):
                part = slice(first, first + drive.chunk)
                buffers = drive.slot(number, places, len(gradient[part]))
                states = {kind: (one.start + _FP32 * first, buffers[kind]) for kind, one in places.items()}
                yield Chunk(states, None if _WEIGHTS in places else weights[part], gradient[part], step)
                number += 1

    def _run_chunks(self, drive: Drive, chunks: list[Chunk]) -> None:
        """Read, update and write each chunk, three in flight: a buffer is read into once its last write is done."""
        reads: list[Future[None]] = []
        writes: list[Future[None]] = []

        def read(at: int) -> None:
            """Read the chunk with this index, once the last write of its buffers is done."""
            if at >= SLOTS:
                writes[at - SLOTS].result()
            drive.read(chunks[at])

        for at, chunk in enumerate(chunks):
            ahead = range(len(reads), min(at + 2, len(chunks)))
            reads += [drive.reader.submit(read, number) for number in ahead]
            reads[at].result()
            self._update(chunk)
            writes.append(drive.writer.submit(drive.write, chunk))
        for written in writes:
            written.result()

    def _update(self, chunk: Chunk) -> None:
        """Update one chunk in memory, whose states have been read."""
        parameter, states = self._at_work, {kind: buffer for kind, (_, buffer) in chunk.states.items()}
        parameter.grad = None
        weights = chunk.weights if chunk.weights is not None else states.pop(_WEIGHTS)
        parameter.data, parameter.grad = weights, chunk.gradient
        if chunk.step is not None:
            states["step"] = chunk.step.clone()
        self._updates.state[parameter] = states
        self._updates.step()


def _place_states(
    drive: Drive, optimizer: Optimizer, parameter: nn.Parameter, *, weights: bool
) -> dict[str, FileRange]:
    """Allocate a parameter's states on the drive; returns kind of state → its range in the file."""
    values, state = local(parameter.detach()), optimizer.state[parameter]
    moments = moments_of(optimizer)
    places = {kind: drive.place(values.numel()) for kind in (*[_WEIGHTS] * weights, *moments)}
    if weights:
        parameter.data = places[_WEIGHTS].tensor.view_as(values)
    if moments:
        state["step"] = torch.zeros((), dtype=torch.float32)
    state.update({moment: places[moment].tensor.view_as(values) for moment in moments})
    return places


@dataclass(frozen=True, slots=True)
class Chunk:
    """A run of elements of one parameter that is read, updated and written together."""

    states: dict[str, tuple[int, Tensor]]
    """Kind of each state on the drive → byte of the file at which this run of it begins, and its buffer in memory."""
    weights: Tensor | None
    """The weights that are updated, if they are in memory; None if they are on the drive."""
    gradient: Tensor
    step: Tensor | None
