"""A parsed file: plain values, and where each of them was written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cost_models.errors import Problem

Key = tuple[str | int, ...]
"""Where a value sits: field names and list positions from the root."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A parsed file: its value, and where each part of it was written."""

    source: str
    """Name to print: the path as the user gave it."""
    value: Any
    lines: Mapping[Key, int] = field(default_factory=dict)
    """1-based line of each key and list item; empty where lines are unknown (JSON)."""
    flags: Mapping[Key, str] = field(default_factory=dict)
    """Where a value was written, if not in the file under its own name: a command-line flag, another key."""
    problems: Mapping[Key, Problem] = field(default_factory=dict)
    """What was wrong with single values; the validation reports it together with its own problems."""

    ended: bool = True
    """Its end is written, so that a part of it could not be taken for all: JSON always does, YAML with `...`."""

    def where(self, key: Key) -> str:
        """`file:line  field.path`, with the line of the nearest parent that was written down."""
        if key in self.flags:
            return self.flags[key]
        line = self.line(key)
        place = f"{self.source}:{line}" if line else self.source
        return f"{place}  {printable(show_key(key))}" if key else place

    def line(self, key: Key) -> int:
        """Line of a value or of the nearest parent that was written down; 0 where none was."""
        parents = (self.lines.get(key[:length], 0) for length in range(len(key), 0, -1))
        return next(filter(None, parents), 0)


def show_key(key: Key) -> str:
    """("links", "tiers", 2, "latency") → `links.tiers[2].latency`."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in key).removeprefix(".")


def printable(text: str, limit: int | None = 300) -> str:
    """`text` without control characters and not endless, so that no file can write to the terminal."""
    clean = "".join(
        char if char.isprintable() else "?" for char in text[: None if limit is None else limit + 1]
    )
    return clean if limit is None or len(text) <= limit else clean[:limit] + "…"
