"""What all tests share: a law is checked however slow the machine is; what each test costs, when asked."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import psutil
import pytest
from calling import Answer, told
from effort import THOROUGH
from hypothesis import settings

# The usual tests draw the same each time, so that one tree passes or fails alike everywhere.
settings.register_profile("meshwright", deadline=None, derandomize=not THOROUGH)
settings.load_profile("meshwright")

os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp(prefix="meshwright-cache-")  # of these tests alone

CPU_TABLE = os.environ.get("CPU_TABLE")
"""A CSV file that gets a line `test,CPU seconds` for each test, with the time of its fixtures and child processes."""


def _cpu_seconds() -> float:
    """Of this process, its live descendants, and those that it has waited for."""
    own = psutil.Process()
    total = sum(own.cpu_times()[:4])
    for child in own.children(recursive=True):
        try:
            total += sum(child.cpu_times()[:4])
        except psutil.Error:  # it ended meanwhile, and counts among those waited for
            continue
    return float(total)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    before = _cpu_seconds() if CPU_TABLE else 0.0
    result = yield
    if CPU_TABLE:
        with Path(CPU_TABLE).open("a", encoding="utf-8") as table:
            table.write(f'"{item.nodeid}",{_cpu_seconds() - before:.2f}\n')
    return result


@pytest.fixture
def meshwright(capsys: pytest.CaptureFixture[str]) -> Callable[..., Answer]:
    """Call the command line with these words."""
    return partial(told, capsys)
