"""Worker processes that all tests of the executor share."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from processes import Processes


@pytest.fixture(scope="session")
def processes() -> Iterator[Processes]:
    """Started when first asked for; as many as the largest layout needs."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    pool = Processes()
    yield pool
    pool.stop()
