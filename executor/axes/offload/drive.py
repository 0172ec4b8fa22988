"""A rank's part of the host's drive: one file, in which optimizer states lie between updates.

The file has no name once it is open, so nothing is left behind however a run ends; what another run needs is in
checkpoints. Its room is allocated when states are placed there. Reads and writes are plain calls, whose errors are
reported.
"""

from __future__ import annotations

import errno
import mmap
import os
import shutil
import tempfile
import time
import weakref
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.utils._python_dispatch import _get_current_dispatch_mode

from cost_models.errors import HostError
from cost_models.units import format_bytes
from executor.axes.offload.link import HostLink
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


class DriveSlot:
    """Buffers in host memory for a chunk of each kind of state; made where they are first needed."""

    def __init__(self, drive: Drive) -> None:
        self._drive = weakref.proxy(drive)
        self._buffers: dict[str, tuple[Tensor, memoryview]] = {}
        self._written: Future[None] | None = None

    def tensors(self, places: Mapping[str, FileRange], count: int) -> dict[str, Tensor]:
        """The chunk in the slot, by kind."""
        return {kind: self._buffers[kind][0][:count] for kind in places}

    def begin_reading(self, places: Mapping[str, FileRange], first: int, count: int) -> Future[None]:
        """Begin to read `count` numbers of each kind into the slot, after its pending write."""
        for kind in places:
            if kind not in self._buffers:
                buffer = self._drive.link.buffer(self._drive.chunk, torch.float32, pinned=False)
                self._buffers[kind] = buffer, memoryview(buffer.numpy()).cast("B")
        written, self._written = self._written, None
        reading: Future[None] = self._drive.reader.submit(self._read, places, first, count, written)
        return reading

    def begin_writing(self, places: Mapping[str, FileRange], first: int, count: int) -> None:
        """Begin to write the slot to the file."""
        self._written = self._drive.writer.submit(self._write, places, first, count)

    def end_writing(self) -> None:
        """Wait until all is written; raises DriveError where it could not be."""
        if self._written is not None:
            self._written.result()

    def _read(
        self, places: Mapping[str, FileRange], first: int, count: int, written: Future[None] | None
    ) -> None:
        if written is not None:
            written.result()
        for kind, place in places.items():
            self._drive.read(place.start + _FP32 * first, self._buffers[kind][1][: _FP32 * count])

    def _write(self, places: Mapping[str, FileRange], first: int, count: int) -> None:
        for kind, place in places.items():
            self._drive.write(place.start + _FP32 * first, self._buffers[kind][1][: _FP32 * count])


class Drive:
    """The file of a rank, in a folder of the drive."""

    def __init__(self, folder: Path | None, link: HostLink) -> None:
        self.folder = Path(tempfile.gettempdir()) if folder is None else folder
        self.link = link
        self.tensors: list[Tensor] = []
        """All that lies there."""
        self.pretends = link.device.type == "meta" or _get_current_dispatch_mode() is not None
        """Whether tensors have no values (fake or meta), so that nothing is written."""
        self._file: int | None = None
        self._end = 0
        self.reader, self.writer = ThreadPoolExecutor(1, "drive-read"), ThreadPoolExecutor(1, "drive-write")
        self.slots = [DriveSlot(self) for _ in range(SLOTS)]

    @property
    def held(self) -> int:
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
            file = self._opened()
            try:
                _take_room(file, start, size)
            except OSError as error:
                raise self._no_room(size, error) from error
            made = torch.frombuffer(mmap.mmap(file, size, offset=start), dtype=torch.float32)
            self._end += -(-size // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY
        self.tensors.append(made)
        return FileRange(start, made)

    def read(self, start: int, into: memoryview) -> None:
        """Fill a buffer from the file, from byte `start`."""
        assert self._file is not None
        self._move(os.preadv, start, into)
        self.link.traffic.drive_read_bytes += len(into)

    def write(self, start: int, what: memoryview) -> None:
        """Write a buffer to the file, from byte `start`."""
        self._move(os.pwritev, start, what)
        self.link.traffic.drive_written_bytes += len(what)

    def _move(self, call: Callable[[int, list[memoryview], int], int], start: int, what: memoryview) -> None:
        assert self._file is not None
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

    def _opened(self) -> int:
        if self._file is None:
            try:
                self._file, name = tempfile.mkstemp(prefix="meshwright-states-", dir=self.folder)
                os.unlink(name)
            except OSError as error:
                raise HostError(
                    f"--drive {self.folder}: {(error.strerror or str(error)).lower()}",
                    hint="name a folder of the drive that can be written to",
                ) from error
            weakref.finalize(self, os.close, self._file)
        return self._file

    def _no_room(self, size: int, error: OSError) -> HostError:
        if error.errno not in _FULL:
            return HostError(f"--drive {self.folder}: {(error.strerror or str(error)).lower()}")
        free = shutil.disk_usage(self.folder).free
        return HostError(
            f"--drive {self.folder} has no room for {format_bytes(size)} of optimizer states: {format_bytes(free)} are"
            f" free beside {format_bytes(self.held)} that this rank has there",
            hint="name another folder, or offload fewer blocks",
        )


def _take_room(file: int, start: int, size: int) -> None:
    """Allocate bytes of a file on the drive, as zeros."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file, start, size)
    else:
        os.ftruncate(file, start + size)
