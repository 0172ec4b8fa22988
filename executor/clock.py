"""Dates of a run by a clock that never goes back, and the seconds of each part of its start.

Dates lie as far apart as they should, whoever sets the host's clock meanwhile. The parts of a start, on rank 0:

processes    from the launcher's call, or the start of this process, until it can join: torchrun, Python, torch
groups       until all ranks have joined, and every group of the layout
weights      model and optimizer built, weights drawn
checkpoint   the newest whole one found and read
first_step   the first step, which allocates and connects what later ones have
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache

import psutil

from cost_models.base import Spec

BOOT_DATE = "MESHWRIGHT_BOOT_DATE"
"""Environment variable: when this host was booted, in seconds since 1970, as the launcher determined it."""


def date() -> float:
    """Now, in seconds since 1970: the wall clock read once, then advanced by the host's uptime."""
    return boot_date() + uptime()


@cache
def boot_date() -> float:
    """When this host was booted, in seconds since 1970, by the wall clock at the first call of the run."""
    return float(os.environ.get(BOOT_DATE) or time.time() - uptime())


def uptime() -> float:
    """Seconds since this host was booted, the same in all its processes."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


STARTED = "MESHWRIGHT_STARTED"
"""Environment variable: the date when the launcher was called."""
_spent: ContextVar[list[float] | None] = ContextVar("seconds of groups", default=None)


class StartReport(Spec):
    """Seconds of each part of a run's last start, on rank 0."""

    processes: float
    groups: float
    weights: float
    checkpoint: float = 0.0
    first_step: float = 0.0

    @property
    def parts(self) -> dict[str, float]:
        """Seconds of each part of the start that took any time."""
        return {part: seconds for part, seconds in self.model_dump().items() if seconds > 0}


class StartClock:
    """Stopwatch of the parts of a start, which follow one another; each is counted once."""

    def __init__(self, began: float) -> None:
        self._last = began
        self._seconds: dict[str, float] = {}

    def end(self, part: str, inside: float = 0.0) -> None:
        """End a part of the start; `inside`, its seconds of making process groups, is counted as `groups` instead."""
        now = date()
        if part not in self._seconds:
            self._seconds[part] = now - self._last - inside
            if inside:
                self._seconds["groups"] = self._seconds.get("groups", 0.0) + inside
        self._last = now

    def report(self) -> StartReport | None:
        """Seconds of each part; None before the weights exist, or in a process that was not started for the run."""
        is_complete = {"processes", "weights"} <= self._seconds.keys()
        return StartReport.model_validate(self._seconds) if is_complete else None


def process_began() -> float:
    """Date at which this process was started.

    Linux counts from when it booted, and tells the time of that in whole seconds: the seconds since then are exact.
    """
    created = psutil.Process().create_time()
    if not hasattr(time, "CLOCK_BOOTTIME"):
        return created
    return boot_date() + created - psutil.boot_time()


def began(restarts: int) -> float:
    """Date at which a start began: of the launcher's call, or of the process itself if ranks were restarted."""
    return process_began() if restarts or STARTED not in os.environ else float(os.environ[STARTED])


@contextmanager
def timing_groups() -> Iterator[list[float]]:
    """Context manager that yields a list, to which the seconds of making each process group inside are added."""
    spent: list[float] = []
    token = _spent.set(spent)
    try:
        yield spent
    finally:
        _spent.reset(token)


@contextmanager
def making_group() -> Iterator[None]:
    """Context manager around the making of a process group, which counts its seconds for `timing_groups`."""
    start = time.perf_counter()
    yield
    if (spent := _spent.get()) is not None:
        spent.append(time.perf_counter() - start)
