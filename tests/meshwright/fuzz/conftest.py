"""How many inputs the fuzzer draws: 300 in every test run, always the same; in `make test-all` 50,000 new ones.

FUZZ_EXAMPLES=50000 python -m pytest tests/meshwright/fuzz                # says which seed it drew
FUZZ_EXAMPLES=50000 FUZZ_SEED=17 python -m pytest tests/meshwright/fuzz   # draws the same again
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from fuzz_budget import ASKED, SEED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What to type to draw the same again."""
    if SEED is not None:
        terminalreporter.write_line(f"FUZZ_EXAMPLES={ASKED} FUZZ_SEED={SEED}")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Iterator[Path]:
    """A working folder that all inputs of a test share; what one leaves, the next overwrites."""
    place = tmp_path_factory.mktemp("fuzz")
    before = Path.cwd()
    os.chdir(place)
    yield place
    os.chdir(before)
