"""Durations of a run come from clocks that nobody sets."""

from __future__ import annotations

import re
import time
from pathlib import Path
from unittest import mock

from executor import clock
from executor.clock import BOOT_DATE, boot_date, date
from executor.launch.environment import worker_environment

WALL = re.compile(r"\btime\.time(_ns)?\(|\bdatetime\.(now|utcnow)\(")


def test_dates_of_a_run_are_as_far_apart_as_they_should_be() -> None:
    """Whatever the wall clock is set to between them; and about right."""
    first = date()
    assert abs(first - time.time()) < 3600
    with mock.patch("time.time", return_value=first + 3 * 86400):
        assert 0 <= date() - first < 3600
        assert float(worker_environment()[BOOT_DATE]) == boot_date()  # ranks count from there, too


def test_only_the_clock_of_a_run_asks_the_wall_clock() -> None:
    """But for the day of a calibration."""
    sources = Path(str(clock.__file__)).parent.rglob("*.py")
    assert [one.name for one in sources if WALL.search(one.read_text("utf-8"))] == ["clock.py"]
