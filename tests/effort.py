"""How much one run of the tests covers: some of each kind of evidence, or all of it (`make test-all`)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypeVar

import pytest

THOROUGH = bool(os.environ.get("THOROUGH"))
"""Set by `make test-all`."""

Case = TypeVar("Case")


def few(cases: int) -> pytest.MarkDecorator:
    """Marks a test of which so many cases, evenly spread, run every time, and all of them in a thorough run."""
    return pytest.mark.few(cases)


def spread(items: Sequence[Case], kept: int) -> list[Case]:
    """So many of the items, as far apart as can be."""
    return [items[number * len(items) // kept] for number in range(min(kept, len(items)))]


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
