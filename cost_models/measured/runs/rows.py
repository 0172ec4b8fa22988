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
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

from cost_models.errors import InputError, Problem
from cost_models.files import read_data
from cost_models.files.reading import read_raw
from cost_models.units import MB

MAX_BYTES = int(256 * MB)
"""Largest table that is read, in bytes: a million rows."""


def read_table(path: Path) -> str:
    """Read the text of a CSV file in UTF-8 with or without a byte-order mark, UTF-16 with one, else Latin-1.

    Raises:
        InputError: the file cannot be read, or is no text.
    """
    raw = read_raw(path, MAX_BYTES + 1)
    if len(raw) > MAX_BYTES:
        raise InputError(f"`{path}` is larger than {MAX_BYTES // int(MB)} MB; it is no table of runs")
    encodings, position = ["utf-8-sig", "latin-1"], raw.find(b"\0")
    if raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        encodings, position = ["utf-16"], -1
    for encoding in encodings if position < 0 else []:
        try:
            return raw.decode(encoding)
        except UnicodeDecodeError as error:
            position = error.start
    problem = Problem(str(path), f"byte {position} is no text")
    raise InputError(f"`{path}` is not a text file", problems=[problem])


def parse_table(
    text: str, *, place: str, needed: Sequence[str], hint: str
) -> list[tuple[int, dict[str, str]]]:
    """Parse a table separated by commas, semicolons or tabs into rows: the line where each ends (counted from 1), and
    its non-empty cells by lower-case column name. `place` is the file in messages.

    Raises:
        InputError: it is no table, or a needed column is missing.
    """
    delimiter = max((",", ";", "\t"), key=text.partition("\n")[0].count)
    table = csv.DictReader(io.StringIO(text, newline=""), delimiter=delimiter)
    try:
        columns = table.fieldnames = [column.strip().lower() for column in table.fieldnames or ()]
        filled = ({key: cell for key, cell in row.items() if isinstance(cell, str) and cell} for row in table)
        rows = [(table.line_num, cells) for cells in filled]
    except csv.Error as error:
        problem = Problem(f"{place}:{table.line_num}", str(error))
        raise InputError(f"`{place}` is not a table", problems=[problem]) from None
    if names := ", ".join(f"`{column}`" for column in needed if column not in columns):
        raise InputError(f"`{place}` has no column {names}", hint=hint)
    return rows


T = TypeVar("T")


Notes = list[str]
"""Assumptions made while reading one row of a run table, in order."""


_FLAGS = dict.fromkeys(["1", "true", "yes", "y", "on"], True)
_FLAGS |= dict.fromkeys(["0", "false", "no", "n", "off"], False)
"""Words of cells that say yes or no, and what they mean."""


def with_note(value: T, words: str, notes: Notes) -> T:
    """Return `value`, an assumption of which the `words` go into the notes."""
    notes.append(words)
    return value


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

    def words(self, *columns: str) -> str:
        """Text of the cells in `columns` in small letters, with `; ` between cells."""
        return "; ".join(map(self.text, columns)).lower()

    def number(self, column: str) -> float | None:
        """Finite number in the cell of `column`; None where the cell holds none."""
        try:
            value = float(self.text(column).replace(",", ""))
        except ValueError:
            return None
        return value if math.isfinite(value) else None

    def positive(self, column: str) -> float | None:
        """Finite number above zero in the cell of `column`; None where the cell holds none."""
        value = self.number(column)
        return value if value is not None and value > 0 else None

    def count(self, column: str) -> int | None:
        """Positive whole number in the cell of `column` (`8.0` counts as 8); None where the cell holds none."""
        value = self.positive(column)
        return int(value) if value is not None and value.is_integer() else None

    def count_or(self, column: str, default: int, words: str, notes: Notes) -> int:
        """Whole number in the cell of `column`; where it holds none, `default`, noted in `words` with a `{}` for it."""
        if (count := self.count(column)) is None:
            notes.append(words.format(count := default))
        return count

    def flag(self, column: str) -> bool | None:
        """True or False for a cell of `column` that says yes or no; None where it says neither."""
        return _FLAGS.get(self.words(column).removesuffix(".0"))


def spellings() -> dict[str, Any]:
    """Patterns of words in cells with their meanings, by kind (`gpus`, `precisions`, ...), from
    `data/published/spellings.yaml`."""
    return read_data("published/spellings")


def meaning(kind: str, words: str) -> Any:
    """Meaning of the first pattern of a kind (`gpus`, `precisions`, ...) that is found in `words`, or None."""
    return next((meant for pattern, meant in spellings()[kind] if re.search(pattern, words)), None)


def read_rows(path: Path) -> tuple[Row, ...]:
    """Read the published runs of a CSV file; rows without an id are numbered, the file's name replaces a missing
    source.

    Raises:
        InputError: the file cannot be read, or is no table of runs.
    """
    hint = "docs/guides/validating.md lists the columns of a table of runs"
    rows = parse_table(read_table(path), place=str(path), needed=("num_gpus", "layers", "hidden"), hint=hint)
    names = ({"row_id": f"{path.stem}-{number:04}", "source_id": path.stem} for number in count(1))
    return tuple(Row(name | cells) for name, (_, cells) in zip(names, rows, strict=False))
