"""How much one run of the tests covers: some of each kind of evidence, or all of it (`make test-all`)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypeVar

THOROUGH = bool(os.environ.get("THOROUGH"))
"""Set by `make test-all`."""

Case = TypeVar("Case")


def number(usual: int, thorough: int) -> int:
    """How many random questions to ask."""
    return thorough if THOROUGH else usual


def first_of(usual: int, cases: Sequence[Case]) -> list[Case]:
    """So many of the cases in every run, all of them in a thorough one."""
    return list(cases) if THOROUGH else list(cases[:usual])


def some_of(cases: Sequence[Case], *usual: Case) -> list[Case]:
    """The `usual` cases in every run, all of them in a thorough one."""
    missing = [case for case in usual if case not in cases]
    assert not missing, f"no such case: {missing}"
    return list(cases) if THOROUGH else list(usual)
