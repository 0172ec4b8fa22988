"""A rank's part of the host's drive: one file, in which optimizer states lie between updates.

The file has no name once it is open, so nothing is left behind however a run ends; what another run needs is in
checkpoints. Its room is allocated when states are placed there. Reads and writes are plain calls, whose errors are
reported.

A chunk is read, updated and written while the next is read and the one before is written (Rajbhandari et al. 2021,
ZeRO-Infinity, section 5.1.2). An update works on each number alone, and chunks are whole vectors, so the bits are those
of one update of all.
"""

from __future__ import annotations

import errno
import mmap
import os
import shutil
import tempfile
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _get_current_dispatch_mode

from cost_models.errors import HostError
from cost_models.units import format_bytes
from executor.axes.offload.link import HostLink
from executor.mesh import local
from executor.timing import mark_on

CHUNK = 4 * 2**20
"""Numbers of each kind that are read at a time, at most, and chunks of the largest tensor at least, so that there is
something to overlap: our stack says the same of itself."""
CHUNKS = 4
_VECTOR = 16
"""Chunks are whole vectors of any processor."""
SLOTS = 3
"""One chunk is read, one updated, one written."""
_FP32 = torch.float32.itemsize
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class DriveError(OSError):
    """A drive that could not be read or written in the middle of a run."""


@dataclass(frozen=True, slots=True)
class FileRange:
    """A run of fp32 numbers in the file that begins at byte `start`; `tensor` maps it into memory."""

    start: int
    tensor: Tensor


class Drive:
    """The file of a rank, in a folder of the drive."""

    def __init__(self, folder: Path | None, link: HostLink) -> None:
        self.folder = Path(tempfile.gettempdir()) if folder is None else folder
        self.link = link
        self.tensors: list[Tensor] = []
        """All that lies there."""
        self.pretends = link.device.type == "meta" or _get_current_dispatch_mode() is not None
        """Whether tensors have no values (fake or meta), so that nothing is written."""
        self._file = -1 if self.pretends else self._open()
        self._end = 0
        self.reader, self.writer = ThreadPoolExecutor(1, "drive-read"), ThreadPoolExecutor(1, "drive-write")
        self._slots: list[dict[str, Tensor]] = [{} for _ in range(SLOTS)]

    @property
    def stored_bytes(self) -> int:
        """Bytes that lie there."""
        return sum(one.nbytes for one in self.tensors)

    @property
    def chunk(self) -> int:
        """Numbers of each kind that are moved at a time, also where an optimizer without states has none there."""
        largest = max((one.numel() for one in self.tensors), default=0) or CHUNKS * CHUNK
        return min(CHUNK, -(-largest // (CHUNKS * _VECTOR)) * _VECTOR)

    def place(self, elements: int) -> FileRange:
        """Allocate fp32 numbers, zeros at first. Raises HostError where there is no room."""
        start = self._end
        if self.pretends or not elements:
            made = torch.zeros(elements, dtype=torch.float32, device=self.link.memory)
        else:
            size = elements * _FP32
            try:
                if hasattr(os, "posix_fallocate"):
                    os.posix_fallocate(self._file, start, size)
                else:
                    os.ftruncate(self._file, start + size)
            except OSError as error:
                raise self._no_room(size, error) from error
            made = torch.frombuffer(mmap.mmap(self._file, size, offset=start), dtype=torch.float32)
            self._end += -(-size // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY
        self.tensors.append(made)
        return FileRange(start, made)

    def slot(self, number: int, kinds: Iterable[str], count: int) -> dict[str, Tensor]:
        """The buffers in host memory of chunk `number`, for numbers of each kind; made where they are first needed."""
        buffers = self._slots[number % SLOTS]
        for kind in kinds:
            if kind not in buffers:
                buffers[kind] = self.link.buffer(self.chunk, torch.float32, pinned=False)
        return {kind: buffers[kind][:count] for kind in kinds}

    def read(self, places: Mapping[str, FileRange], first: int, slot: Mapping[str, Tensor]) -> None:
        """Fill the buffers from the file, from number `first` of each range on."""
        for kind, buffer in slot.items():
            self._move(os.preadv, places[kind].start + _FP32 * first, buffer)
            self.link.traffic.drive_read_bytes += buffer.nbytes

    def write(self, places: Mapping[str, FileRange], first: int, slot: Mapping[str, Tensor]) -> None:
        """Write the buffers to the file."""
        for kind, buffer in slot.items():
            self._move(os.pwritev, places[kind].start + _FP32 * first, buffer)
            self.link.traffic.drive_written_bytes += buffer.nbytes

    def _move(self, call: Callable[[int, list[memoryview], int], int], start: int, buffer: Tensor) -> None:
        what = buffer.numpy().data.cast("B")
        began, start_mark = time.perf_counter(), mark_on(self.link.memory)
        done = 0
        while done < len(what):
            try:
                moved = call(self._file, [what[done:]], start + done)
            except OSError as error:
                raise DriveError(error.errno, error.strerror, str(self.folder)) from error
            if not moved:
                raise DriveError(errno.EIO, "the file has become shorter", str(self.folder))
            done += moved
        self.link.traffic.drive_seconds += time.perf_counter() - began
        self.link.record("drive", start_mark, mark_on(self.link.memory))

    def _open(self) -> int:
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
        if error.errno not in _FULL:
            return HostError(f"--drive {self.folder}: {(error.strerror or str(error)).lower()}")
        free = shutil.disk_usage(self.folder).free
        return HostError(
            f"--drive {self.folder} has no room for {format_bytes(size)} of optimizer states: {format_bytes(free)} are"
            f" free beside {format_bytes(self.stored_bytes)} that this rank has there",
            hint="name another folder, or offload fewer blocks",
        )


_WEIGHTS = "weights"
_MOMENTS: dict[type[torch.optim.Optimizer], tuple[str, ...]] = {
    torch.optim.AdamW: ("exp_avg", "exp_avg_sq"),
    torch.optim.SGD: (),
}


class HostOptimizer:
    """The CPU's update of some parameters, all of one optimizer, whose states are in host memory, or on a drive; there
    with `weights` the parameters themselves, too.

    The optimizer holds what is on a drive as tensors mapped to the file, so checkpoints read and write them.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        parameters: Sequence[nn.Parameter],
        make: Callable[[list[nn.Parameter]], torch.optim.Optimizer],
        drive: Drive | None,
        *,
        weights: bool,
    ) -> None:
        self._optimizer, self._parameters, self._drive = optimizer, list(parameters), drive
        self._places: list[dict[str, FileRange]] = []
        if drive is not None:
            self._at_work = nn.Parameter(torch.empty(0))
            self._updates = make([self._at_work])
            self._places = [_placed(drive, optimizer, one, weights=weights) for one in self._parameters]

    def step(self) -> None:
        """Update all parameters with gradients; raises DriveError where the drive fails."""
        if self._drive is None or self._drive.pretends:
            self._optimizer.step()
            return
        for key, value in self._optimizer.param_groups[0].items():
            if key != "params":
                self._updates.param_groups[0][key] = value
        for hook in self._optimizer._optimizer_step_pre_hooks.values():
            hook(self._optimizer, (), {})
        self._run_chunks(self._drive, list(self._chunks(self._drive.chunk)))
        for parameter in self._parameters:
            if parameter.grad is not None and "step" in self._optimizer.state[parameter]:
                self._optimizer.state[parameter]["step"] += 1

    def read_weights_again(self) -> None:
        """Count the read of the parameters for the device, where they are on a drive."""
        for place in [places[_WEIGHTS] for places in self._places if _WEIGHTS in places]:
            assert self._drive is not None
            self._drive.link.traffic.drive_read_bytes += place.tensor.nbytes

    def host_tensors(self) -> Iterator[Tensor]:
        """States in host memory."""
        for parameter in self._parameters if self._drive is None else ():
            yield from (one for one in self._optimizer.state[parameter].values() if isinstance(one, Tensor))

    def _chunks(self, length: int) -> Iterator[_Chunk]:
        for parameter, places in zip(self._parameters, self._places, strict=True):
            if parameter.grad is None:
                continue
            weights, gradient = (local(one.detach()).view(-1) for one in (parameter, parameter.grad))
            step = self._optimizer.state[parameter].get("step")
            for first in range(0, weights.numel(), length):
                part = slice(first, first + length)
                own = None if _WEIGHTS in places else weights[part]
                yield _Chunk(places, first, own, gradient[part], step)

    def _run_chunks(self, drive: Drive, chunks: list[_Chunk]) -> None:
        """Read, update and write each chunk, three in flight: a buffer is read into once its last write is done."""
        slots = [drive.slot(at, chunk.places, chunk.gradient.numel()) for at, chunk in enumerate(chunks)]
        reads: list[Future[None]] = []
        writes: list[Future[None]] = []

        def read(at: int) -> None:
            if at >= SLOTS:
                writes[at - SLOTS].result()
            drive.read(chunks[at].places, chunks[at].first, slots[at])

        for at, chunk in enumerate(chunks):
            ahead = range(len(reads), min(at + 2, len(chunks)))
            reads += [drive.reader.submit(read, number) for number in ahead]
            reads[at].result()
            self._update(chunk, dict(slots[at]))
            writes.append(drive.writer.submit(drive.write, chunk.places, chunk.first, slots[at]))
        for written in writes:
            written.result()

    def _update(self, chunk: _Chunk, states: dict[str, Tensor]) -> None:
        one = self._at_work
        one.grad = None
        weights = chunk.weights if chunk.weights is not None else states.pop(_WEIGHTS)
        one.data, one.grad = weights, chunk.gradient
        state = self._updates.state[one]
        state.clear()
        if chunk.step is not None:
            state["step"] = chunk.step.clone()
        state.update(states)
        self._updates.step()


def _placed(
    drive: Drive, optimizer: torch.optim.Optimizer, parameter: nn.Parameter, *, weights: bool
) -> dict[str, FileRange]:
    """Kind of state of a parameter → where it lies on the drive from now on."""
    values, state = local(parameter.detach()), optimizer.state[parameter]
    moments = _MOMENTS[type(optimizer)]
    places = {kind: drive.place(values.numel()) for kind in (*[_WEIGHTS] * weights, *moments)}
    if weights:
        parameter.data = places[_WEIGHTS].tensor.view_as(values)
    if moments:
        state["step"] = torch.zeros((), dtype=torch.float32)
    state.update({moment: places[moment].tensor.view_as(values) for moment in moments})
    return places


@dataclass(frozen=True, slots=True)
class _Chunk:
    """Some numbers of one parameter."""

    places: dict[str, FileRange]
    first: int
    weights: Tensor | None
    """The weights that are updated, where they are in memory."""
    gradient: Tensor
    step: Tensor | None
