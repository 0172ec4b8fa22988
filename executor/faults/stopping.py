"""Stopping a run after the step it is in: a person's Ctrl-C, a scheduler's signal, or a save that failed.

Whoever starts the ranks writes a file; a rank that is itself interrupted takes note. All ranks agree after every step,
so that all of them stop after the same one.
"""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Self

import torch
import torch.distributed as dist

from cost_models.files.whole import write_whole
from executor.run_files import STOP, STOPPED


class StopRequest:
    """Knows whether this rank was asked to stop; inside its block Ctrl-C asks for it."""

    def __init__(self, folder: Path | None) -> None:
        self._file = None if folder is None or dist.get_rank() else folder / STOP
        self._interrupted = False
        self._before: signal.Handlers | Callable[[int, FrameType | None], object] | int | None = None

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    @property
    def made(self) -> bool:
        """Whether a signal to this process asked for it, or, on rank 0, the file."""
        return self._interrupted or (self._file is not None and self._file.exists())

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._interrupted = True


def any_rank(device: torch.device, *flags: bool) -> list[bool]:
    """Each flag, true where it is on any rank; every rank must call it."""
    together = torch.tensor([int(flag) for flag in flags], device=device)
    dist.all_reduce(together, op=dist.ReduceOp.MAX)
    return [bool(flag) for flag in together.tolist()]


def largest_count(device: torch.device, count: int) -> int:
    """The largest count of any rank; every rank must call it."""
    largest = torch.tensor(count, device=device)
    dist.all_reduce(largest, op=dist.ReduceOp.MAX)
    return int(largest)


def write_stopped(folder: Path, step: int, saved: int | None) -> None:
    """Write for the launcher after which step the run stopped."""
    write_whole(folder / STOPPED, json.dumps({"step": step, "saved": saved}))
