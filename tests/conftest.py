"""What all tests share: a law is checked however slow the machine is; what each test costs, when asked."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from calling import CommandLine
from effort import THOROUGH, spread
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


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "few(cases): so many cases in a usual run, all in a thorough one")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out cases of tests that are marked `few`, unless all run or one was named."""
    if THOROUGH or any("::" in argument for argument in config.args):
        return
    cases: dict[tuple[Path, str, int], list[pytest.Item]] = {}
    for item in items:
        if mark := item.get_closest_marker("few"):
            cases.setdefault((item.path, getattr(item, "originalname", item.name), mark.args[0]), []).append(
                item
            )
    kept = {one for (_, _, number), those in cases.items() for one in spread(those, number)}
    left_out = [item for those in cases.values() for item in those if item not in kept]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in set(left_out)]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    before = _cpu_seconds() if CPU_TABLE else 0.0
    result = yield
    if CPU_TABLE:
        with Path(CPU_TABLE).open("a", encoding="utf-8") as table:
            table.write(f'"{item.nodeid}",{_cpu_seconds() - before:.2f}\n')
    return result


@pytest.fixture
def meshwright(capsys: pytest.CaptureFixture[str]) -> CommandLine:
    """Call the command line with these words."""
    return CommandLine(capsys)
