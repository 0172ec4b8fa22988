"""The answer of `plot`: a figure with the data it shows, and what it passes over."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from meshwright.plots.drawn import Drawing
from meshwright.records import JSON_SCHEMA
from meshwright.render.words import wrapped


@dataclass(frozen=True, kw_only=True, repr=False)
class Plotted:
    """One kind of plot, drawn."""

    kind: str
    drawing: Drawing
    notes: tuple[str, ...] = ()
    """What the picture passes over."""
    file: Path | None = None
    """Where the picture is written."""

    @property
    def rows(self) -> list[dict[str, Any]]:
        """What is drawn, in base units."""
        return self.drawing.points

    def record(self) -> dict[str, Any]:
        """The JSON document."""
        return {
            "schema": JSON_SCHEMA,
            "plot": self.kind,
            "file": None if self.file is None else str(self.file),
            "title": self.drawing.title,
            "notes": list(self.notes),
            "points": self.rows,
        }

    @property
    def text(self) -> tuple[str, ...]:
        """What `meshwright plot` prints."""
        table = self.drawing.table
        return (wrapped(self.drawing.title), *(("", table) if table else ()))

    def __repr__(self) -> str:
        return self.drawing.title
