"""Rows of a table of published runs: cells as printed, read leniently, since no table is complete.

Tables are CSV files as spreadsheets write them, with the columns of `docs/guides/validating.md`; any may be missing or
blank, and unknown columns are ignored. What is assumed to predict a row is noted.
"""

from __future__ import annotations

import codecs
import csv
import io
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from cost_models.errors import InputError, Problem
from cost_models.files import read_data
from cost_models.files.reading import read_raw
from cost_models.units import MB

MAX_BYTES = int(256 * MB)
"""Largest table that is read, in bytes: a million rows."""
_DELIMITERS = (",", ";", "\t")


class TableRow(NamedTuple):
    """Row of a CSV table, with the line where it ends (counted from 1) and the non-empty cells by column."""

    line: int
    cells: dict[str, str]


def read_table(path: Path) -> str:
    """Read the text of a CSV file in UTF-8 with or without a byte-order mark, UTF-16 with one, else Latin-1.

    Raises:
        InputError: the file cannot be read, or is no text.
    """
    raw = read_raw(path, MAX_BYTES + 1)
    if len(raw) > MAX_BYTES:
        raise InputError(f"`{path}` is larger than {MAX_BYTES // int(MB)} MB; it is no table of runs")
    return _decoded(raw, path)


def parse_table(text: str, *, place: str, needed: Sequence[str], hint: str) -> list[TableRow]:
    """Parse a table separated by commas, semicolons or tabs into rows of cells by lower-case column name.
    `place` is the file in messages.

    Raises:
        InputError: it is no table, or a needed column is missing.
    """
    delimiter = max(_DELIMITERS, key=text.partition("\n")[0].count)
    table = csv.DictReader(io.StringIO(text, newline=""), delimiter=delimiter)
    try:
        columns = [column.strip().lower() for column in table.fieldnames or ()]
        table.fieldnames = columns
        rows = []
        for row in table:
            cells = {key: cell for key, cell in row.items() if isinstance(cell, str) and cell}
            rows.append(TableRow(table.line_num, cells))
    except csv.Error as error:
        problem = Problem(f"{place}:{table.line_num}", str(error))
        raise InputError(f"`{place}` is not a table", problems=[problem]) from None
    missing = [column for column in needed if column not in columns]
    if missing:
        names = ", ".join(f"`{column}`" for column in missing)
        raise InputError(f"`{place}` has no column {names}", hint=hint)
    return rows


def _decoded(raw: bytes, path: Path) -> str:
    """Decode the bytes of a text file; raise InputError where they are no text."""
    try:
        if raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            return raw.decode("utf-16")
        if b"\0" not in raw:
            try:
                return raw.decode("utf-8-sig")
            except UnicodeDecodeError:
                return raw.decode("latin-1")
        position = raw.index(b"\0")
    except UnicodeDecodeError as error:
        position = error.start
    problem = Problem(str(path), f"byte {position} is no text")
    raise InputError(f"`{path}` is not a text file", problems=[problem])


class UnpredictableError(Exception):
    """Raised for a row of a run table that cannot be predicted; the message is the reason shown to users."""


Notes = list[str]
"""Assumptions made while reading one row of a run table, in order."""


NEEDED_COLUMNS = ("num_gpus", "layers", "hidden")
"""Columns that a table of runs must have; their cells may be blank."""
_COLUMNS_HINT = "docs/guides/validating.md lists the columns of a table of runs"
_YES = frozenset({"1", "true", "yes", "y", "on"})
_NO = frozenset({"0", "false", "no", "n", "off"})


@dataclass(frozen=True, slots=True)
class Row:
    """Published run as a row of a table, with its cells by column name."""

    cells: Mapping[str, str]

    @property
    def row_id(self) -> str:
        """Name of the run in its table, from the column `row_id`."""
        return self.text("row_id")

    @property
    def source(self) -> str:
        """Short name of the run's publisher, from the column `source_id`."""
        return self.text("source_id")

    def text(self, column: str) -> str:
        """Text of the cell in `column` without surrounding blanks; empty where the cell is missing."""
        return (self.cells.get(column) or "").strip()

    def number(self, column: str) -> float | None:
        """Finite number in the cell of `column`; None where the cell holds none."""
        try:
            value = float(self.text(column).replace(",", ""))
        except ValueError:
            return None
        return value if math.isfinite(value) else None

    def count(self, column: str) -> int | None:
        """Positive whole number in the cell of `column` (`8.0` counts as 8); None where the cell holds none."""
        value = self.number(column)
        return int(value) if value is not None and value >= 1 and value == int(value) else None

    def flag(self, column: str) -> bool | None:
        """True or False for a cell of `column` that says yes or no; None where it says neither."""
        word = self.text(column).lower().removesuffix(".0")
        return True if word in _YES else False if word in _NO else None


@cache
def spellings() -> dict[str, Any]:
    """Patterns of words in cells with their meanings, by kind (`gpus`, `precisions`, ...), from
    `data/published/spellings.yaml`."""
    return read_data("published/spellings")


def meaning(kind: str, words: str) -> Any:
    """Meaning of the first pattern of a kind (`gpus`, `precisions`, ...) that is found in `words`, or None."""
    return next((meant for pattern, meant in spellings()[kind] if re.search(pattern, words)), None)


def read_rows(path: Path) -> tuple[Row, ...]:
    """Read the published runs of a CSV file; rows without an id are numbered.

    Raises:
        InputError: the file cannot be read, or is no table of runs.
    """
    return parse_rows(read_table(path), path.stem, place=str(path))


def parse_rows(text: str, name: str, *, place: str) -> tuple[Row, ...]:
    """Parse the published runs of a CSV text; `name` replaces a missing source, `place` is the file in error
    messages.

    Raises:
        InputError: it is no table of runs.
    """
    rows = parse_table(text, place=place, needed=NEEDED_COLUMNS, hint=_COLUMNS_HINT)
    return tuple(
        Row({"row_id": f"{name}-{number:04}", "source_id": name} | row.cells)
        for number, row in enumerate(rows, start=1)
    )
