"""Requests to stop a run after its current step, and messages of ranks that are ended from outside.

The launcher writes a file; a rank that is itself interrupted remembers it. All ranks agree after every step, so that
they stop after the same one.

torchrun ends the remaining ranks as soon as one is gone. Each of them writes that it was told to end, so that the one
that was lost first can be told from them.
"""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist

from cost_models.files.whole import write_whole
from executor.faults.failures import LAUNCH, read_signs, write_end
from executor.run_config import STOP, STOPPED


@contextmanager
def stop_request(folder: Path) -> Iterator[Callable[[], bool]]:
    """Context manager that yields a function: whether this rank is asked to stop after its step, by Ctrl-C inside the
    context or, on rank 0, by a file that launchers of this run write to `folder`.
    """
    interrupts: list[int] = []

    def is_made() -> bool:
        """Whether the stop was requested."""
        if dist.get_rank() or not (folder / STOP).exists():
            return bool(interrupts)
        ours = {sign.get("launch") for sign in read_signs(folder).values()} | {os.environ.get(LAUNCH)}
        return bool(interrupts) or (folder / STOP).read_text("utf-8") in ours

    in_main = threading.current_thread() is threading.main_thread()
    outer_handler = (
        signal.signal(signal.SIGINT, lambda number, _: interrupts.append(number)) if in_main else None
    )
    try:
        yield is_made
    finally:
        if outer_handler is not None:
            signal.signal(signal.SIGINT, outer_handler)


def any_rank(device: torch.device, *flags: bool) -> list[bool]:
    """Each flag, true if it is true on any rank; every rank must call it."""
    return [largest > 0 for largest in largest_counts(device, *flags)]


def largest_counts(device: torch.device, *counts: int) -> list[int]:
    """Maximum over ranks of each count; every rank must call it."""
    largest = torch.tensor([int(count) for count in counts], device=device)
    dist.all_reduce(largest, op=dist.ReduceOp.MAX)
    return [int(count) for count in largest.tolist()]


def write_stopped(folder: Path, step: int, saved: int | None) -> None:
    """Write, for the launcher, the step after which the run stopped and the step of its last checkpoint."""
    write_whole(folder / STOPPED, json.dumps({"step": step, "saved": saved}))


_listening = False


@contextmanager
def last_words(folder: Path, rank: int) -> Iterator[None]:
    """Context manager in which SIGTERM has this process write a failure to `folder`, and end.

    Nothing changes outside the main thread, or where somebody else handles the signal.

    A rank mostly waits for another one inside a collective, where Python's own handlers never get their turn: the
    signal's number comes through a pipe to a thread that listens.
    """
    global _listening
    in_main = threading.current_thread() is threading.main_thread()
    if not in_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    ear, mouth = os.pipe()
    os.set_blocking(mouth, False)

    def listen() -> None:
        """Wait for signals through the pipe; at SIGTERM write a failure and end the process."""
        while heard := os.read(ear, 1):
            if heard[0] == signal.SIGTERM:
                try:
                    write_end(folder, rank)
                finally:
                    os._exit(128 + signal.SIGTERM)
        os.close(ear)

    threading.Thread(target=listen, name="last words", daemon=True).start()
    descriptor = signal.set_wakeup_fd(mouth, warn_on_full_buffer=False)
    signal.signal(signal.SIGTERM, lambda number, frame: None)
    _listening = True
    try:
        yield
    finally:
        _listening = False
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.set_wakeup_fd(descriptor)
        os.close(mouth)


def _in_child() -> None:
    """Close the signal pipe in a forked process, which inherited it from its parent."""
    if _listening:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.set_wakeup_fd(-1)


os.register_at_fork(after_in_child=_in_child)
