"""The answer of `report`: a plan as one page of HTML."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cost_models.files.whole import write_whole
from meshwright.records import JSON_SCHEMA


@dataclass(frozen=True, kw_only=True, repr=False)
class Reported:
    """A page about a plan; notebooks show it."""

    title: str
    chapters: tuple[str, ...]
    """Titles of its chapters."""
    html: str
    notes: tuple[str, ...] = ()
    """What the page passes over."""
    file: Path | None = None
    """Where it is written."""

    @property
    def rows(self) -> list[Mapping[str, Any]]:
        """A row for each chapter."""
        return [{"chapter": one} for one in self.chapters]

    def record(self) -> dict[str, Any]:
        """The JSON document."""
        return {
            "schema": JSON_SCHEMA,
            "file": None if self.file is None else str(self.file),
            "title": self.title,
            "chapters": list(self.chapters),
            "bytes": len(self.html.encode()),
            "notes": list(self.notes),
        }

    @property
    def text(self) -> tuple[str, ...]:
        """What `meshwright report` prints."""
        return (self.title, *(f"  {one}" for one in self.chapters))

    def save(self, path: str | Path) -> None:
        """Write the page, whole or not at all."""
        write_whole(Path(path), self.html)

    def __repr__(self) -> str:
        return "\n".join(self.text)

    def _repr_html_(self) -> str:
        return self.html
