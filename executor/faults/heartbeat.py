"""Writes to disk where this rank is, for others to see, and ends it when it has made no progress for too long.

A rank that hangs makes all others wait inside a collective, so each rank's watch finds its own standing still: the
ranks say how far they came, and the one that came least far, or that says nothing, is the one that hangs.
"""

from __future__ import annotations

import json
import math
import os
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from executor.clock import date

PHASES = ("start", "data", "forward and backward", "update", "save", "end")
"""Phases of a rank, in the order of a step."""
_OF_ANY_LENGTH = ("start", "end")
"""Phases without a time limit: building a model, checking a checkpoint, measuring."""
SIGN = "alive-{rank}.json"
LAUNCH = "MESHWRIGHT_LAUNCH"
"""Environment variable: the token of the launcher that started this rank."""
_WIDTH = 2048
"""Bytes of a sign: their room is taken when the rank starts, so that it can say later that the disk is full."""
_LONGEST_HOST = 64
_LAST_FRAMES = 4

OnHang = Callable[[str, int, list[str]], None]
"""Called with phase, step and the last frames of the training thread; it may not return."""


class Heartbeat:
    """The sign of life of one rank. Steps count from 1; without a folder nothing is written."""

    def __init__(self, folder: Path | None, rank: int) -> None:
        self._rank = rank
        self._home = {
            "node": int(os.environ.get("GROUP_RANK", "0")),
            "host": socket.gethostname()[:_LONGEST_HOST],
            "launch": os.environ.get(LAUNCH, ""),
        }
        self._file: int | None = None
        if folder is not None:
            self._path = folder / SIGN.format(rank=rank)
            self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        self.beat(0, PHASES[0])

    def beat(self, step: int, phase: str) -> None:
        """This rank begins `phase` of `step`."""
        self.step, self.phase = step, phase
        self._at = math.inf if phase in _OF_ANY_LENGTH else time.monotonic()
        if self._file is not None:
            sign = {"rank": self._rank, "pid": os.getpid(), "step": step, "phase": phase, "at": date()}
            with naming(self._path):
                os.pwrite(self._file, json.dumps(sign | self._home).ljust(_WIDTH).encode(), 0)

    def alive(self) -> None:
        """Say that this phase goes on, as it should: the time without progress starts over."""
        self._at = time.monotonic()

    def watch(self, longest_seconds: float, on_hang: OnHang) -> None:
        """Start a thread that calls `on_hang` when there was no progress for so long."""
        training = threading.get_ident()

        def look() -> None:
            while time.monotonic() - self._at < longest_seconds:
                time.sleep(min(1.0, longest_seconds / 20))
            on_hang(self.phase, self.step, _frames(sys._current_frames().get(training)))

        threading.Thread(target=look, name="watch", daemon=True).start()


Sign = dict[str, object]


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Name the file in errors of system calls that know it by a descriptor."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


def write_into_sign(folder: Path, rank: int, fields: Sign) -> None:
    """Put this into the sign of a rank, in the room that it has, where that is enough."""
    path = folder / SIGN.format(rank=rank)
    text = json.dumps(_read(path) | fields).encode()
    if len(text) <= _WIDTH:
        descriptor = os.open(path, os.O_WRONLY)
        try:
            os.pwrite(descriptor, text.ljust(_WIDTH), 0)
        finally:
            os.close(descriptor)


def read_signs(folder: Path) -> dict[int, Sign]:
    """Last sign of each rank: `pid`, `step`, `phase`, `at` (seconds since 1970), `node` as torchrun counts, `host`, and
    `launch`, its launcher's token."""
    signs = [_read(path) for path in folder.glob(SIGN.format(rank="*"))]
    return {int(str(sign["rank"])): sign for sign in signs if sign}


def read_sign(folder: Path, rank: int) -> Sign:
    """The last sign of one rank; empty where there is none."""
    return _read(folder / SIGN.format(rank=rank))


def last_sign(folder: Path) -> float | None:
    """When a rank that trained gave its last sign, seconds since 1970; None where none got beyond its start."""
    trained = [sign for sign in read_signs(folder).values() if sign["phase"] != PHASES[0]]
    return max((float(str(sign["at"])) for sign in trained), default=None)


def delete_signs(folder: Path) -> None:
    """Delete all signs, before the ranks of a new run start."""
    for path in folder.glob(SIGN.format(rank="*")):
        path.unlink(missing_ok=True)


def _read(path: Path) -> Sign:
    """The sign in a file; empty while it is being written, or where a rank was killed then."""
    try:
        sign: Sign = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return sign


def _frames(frame: FrameType | None) -> list[str]:
    """The innermost calls of a thread, innermost last."""
    calls = traceback.extract_stack(frame)[-_LAST_FRAMES:] if frame is not None else []
    return [f"{Path(call.filename).name}:{call.lineno} in {call.name}" for call in calls]
