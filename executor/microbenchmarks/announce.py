"""Lines by which a calibrating process tells its parent what it begins, among warnings."""

from __future__ import annotations

FAMILY_MARK = "measuring: "
"""Start of the line; the family's name follows."""


def announce(family: str) -> None:
    """Write the line and flush it."""
    print(f"{FAMILY_MARK}{family}", flush=True)
