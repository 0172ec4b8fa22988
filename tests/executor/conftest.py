"""Worker processes that all tests of the executor share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from processes import Processes

_POOL = Processes()


@pytest.fixture(scope="session")
def processes() -> Processes:
    """Started when first asked for; as many as the largest layout needs."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    return _POOL


def pytest_runtest_teardown(nextitem: pytest.Item | None) -> None:
    """Idle ranks would take processor time from the tests that come after."""
    if nextitem is None or Path(__file__).parent not in nextitem.path.parents:
        _POOL.stop()
