"""What all tests share: a law is checked however slow the machine is today."""

from __future__ import annotations

import pytest
from hypothesis import settings

settings.register_profile("meshwright", deadline=None)
settings.load_profile("meshwright")

_FIRST = ("executor", "docs", "planner", "fuzz")
"""Folders whose files take longest: begun first, they do not keep one process waiting for another at the end."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the slow folders first; within a folder nothing changes."""
    places = {folder: place for place, folder in enumerate(_FIRST)}
    items.sort(key=lambda item: min(places.get(part, len(_FIRST)) for part in item.path.parts))
