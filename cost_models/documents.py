"""Parsed files: plain values, and where in the file each was written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cost_models.errors import Problem

Key = tuple[str | int, ...]
"""Place of a value in a document: field names and list positions from the root."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A parsed file: its plain values, and where in the file each was written."""

    source: str
    """Name to print in messages: the path as the user gave it."""
    value: Any
    lines: Mapping[Key, int] = field(default_factory=dict)
    """1-based line of each key and list item; empty where lines are unknown (JSON)."""
    flags: Mapping[Key, str] = field(default_factory=dict)
    """Where a value came from if not from its own place in the file: a command-line flag, another key."""
    problems: Mapping[Key, Problem] = field(default_factory=dict)
    """Problems found with single values while reading; validation reports them with its own."""

    ended: bool = True
    """Whether the end of the file is marked, so that a part cannot pass for the whole: JSON always is, YAML by `...`.
    """

    def where(self, key: Key) -> str:
        """`file:line  field.path` of a value, with the line of its nearest parent that has one."""
        if key in self.flags:
            return self.flags[key]
        line = self.line(key)
        place = f"{self.source}:{line}" if line else self.source
        return f"{place}  {printable(show_key(key))}" if key else place

    def line(self, key: Key) -> int:
        """1-based line of a value or of its nearest parent that has one; 0 where none has."""
        parents = (self.lines.get(key[:length], 0) for length in range(len(key), 0, -1))
        return next(filter(None, parents), 0)


def show_key(key: Key) -> str:
    """A place in words: ("links", "tiers", 2, "latency") → `links.tiers[2].latency`."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in key).removeprefix(".")


def printable(text: str, limit: int | None = 300) -> str:
    """`text` without control characters and cut to `limit` characters, so that no file can write to the terminal."""
    clean = text[: None if limit is None else limit + 1]
    if not clean.isprintable():
        clean = "".join(char if char.isprintable() else "?" for char in clean)
    return clean if limit is None or len(text) <= limit else clean[:limit] + "…"
