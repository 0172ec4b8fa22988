"""Dates of a run that lie as far apart as they should, whoever sets the host's clock meanwhile."""

from __future__ import annotations

import os
import time
from functools import cache

BOOT_DATE = "MESHWRIGHT_BOOT_DATE"
"""Environment variable: when this host was booted, in seconds since 1970, as the launcher's first date had it."""


def date() -> float:
    """Seconds since 1970: the wall clock once, and from there on the clock that only goes on."""
    return boot_date() + uptime()


@cache
def boot_date() -> float:
    """When this host was booted, in seconds since 1970, by the wall clock at the first call of the run."""
    return float(os.environ.get(BOOT_DATE) or time.time() - uptime())


def uptime() -> float:
    """Seconds since this host was booted, the same in all its processes."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()
