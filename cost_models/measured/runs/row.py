"""Rows of a table of published runs: cells as printed, read leniently, since nobody's table is complete.

The columns are those of `docs/guides/validating.md`; any may be missing or blank, and columns nobody knows are left
alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cost_models.measured.runs.tables import parse_table, read_table

NEEDED_COLUMNS = ("num_gpus", "layers", "hidden")
"""Columns that a table of runs must have; their cells may be blank."""
_COLUMNS_HINT = "docs/guides/validating.md lists the columns of a table of runs"
_YES = frozenset({"1", "true", "yes", "y", "on"})
_NO = frozenset({"0", "false", "no", "n", "off"})


@dataclass(frozen=True, slots=True)
class Row:
    """One run: its cells by column name."""

    cells: Mapping[str, str]

    @property
    def row_id(self) -> str:
        """What the table calls the run."""
        return self.text("row_id")

    @property
    def source(self) -> str:
        """Short name of the run's publisher."""
        return self.text("source_id")

    def text(self, column: str) -> str:
        """The cell without surrounding blanks; empty where there is none."""
        return (self.cells.get(column) or "").strip()

    def number(self, column: str) -> float | None:
        """The cell as a finite number; None where it is none."""
        try:
            value = float(self.text(column).replace(",", ""))
        except ValueError:
            return None
        return value if math.isfinite(value) else None

    def count(self, column: str) -> int | None:
        """The cell as a positive whole number (`8.0` counts as 8); None where it is none."""
        value = self.number(column)
        return int(value) if value is not None and value >= 1 and value == int(value) else None

    def flag(self, column: str) -> bool | None:
        """The cell as yes or no; None where it says neither."""
        word = self.text(column).lower().removesuffix(".0")
        return True if word in _YES else False if word in _NO else None


def read_rows(path: Path) -> tuple[Row, ...]:
    """The runs of a CSV file; rows without an id are numbered.

    Raises:
        InputError: the file cannot be read, or is no table of runs.
    """
    return parse_rows(read_table(path), path.stem, place=str(path))


def parse_rows(text: str, name: str, *, place: str) -> tuple[Row, ...]:
    """The runs of a CSV text; `name` stands in for a missing source, `place` is the file in error messages.

    Raises:
        InputError: it is no table of runs.
    """
    rows = parse_table(text, place=place, needed=NEEDED_COLUMNS, hint=_COLUMNS_HINT)
    return tuple(
        Row({"row_id": f"{name}-{number:04}", "source_id": name} | row.cells)
        for number, row in enumerate(rows, start=1)
    )
