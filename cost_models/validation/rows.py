"""One published run as a row of a table: cells as printed, read leniently, because nobody else's table is complete.

The columns are those of `docs/guides/validating.md`; any may be missing or blank, and columns nobody knows are left
alone.
"""

from __future__ import annotations

import codecs
import csv
import io
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cost_models.errors import InputError, Problem
from cost_models.specs.documents import printable
from cost_models.units import MB

NEEDED_COLUMNS = ("num_gpus", "layers", "hidden")
"""Without these a table is not one of runs; their cells may be blank."""
MAX_BYTES = int(256 * MB)
"""Largest table read: a million rows."""
_DELIMITERS = (",", ";", "\t")
_COLUMNS_HINT = "docs/guides/validating.md lists the columns of a table of runs"
_YES = frozenset({"1", "true", "yes", "y", "on"})
_NO = frozenset({"0", "false", "no", "n", "off"})


@dataclass(frozen=True, slots=True)
class Row:
    """Cells of one run by column name."""

    cells: Mapping[str, str]

    @property
    def row_id(self) -> str:
        """What the table calls the run."""
        return self.text("row_id")

    @property
    def source(self) -> str:
        """Short name of who published it."""
        return self.text("source_id")

    def text(self, column: str) -> str:
        """The cell without surrounding blanks; empty where the table has none."""
        return (self.cells.get(column) or "").strip()

    def number(self, column: str) -> float | None:
        """The cell as a finite number, or None."""
        try:
            value = float(self.text(column).replace(",", ""))
        except ValueError:
            return None
        return value if math.isfinite(value) else None

    def count(self, column: str) -> int | None:
        """The cell as a positive whole number, or None; `8.0` counts as 8."""
        value = self.number(column)
        return int(value) if value is not None and value >= 1 and value == int(value) else None

    def flag(self, column: str) -> bool | None:
        """The cell as yes or no, or None where it says neither."""
        word = self.text(column).lower().removesuffix(".0")
        return True if word in _YES else False if word in _NO else None


def read_rows(path: Path) -> tuple[Row, ...]:
    """The runs of a CSV file; rows without an id are numbered.

    UTF-8 with or without a byte-order mark, UTF-16 with one, else Latin-1: spreadsheets write all of them.

    Raises:
        InputError: the file cannot be read, or is no table of runs.
    """
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise InputError(f"cannot read `{path}`: {(error.strerror or str(error)).lower()}") from None
    except ValueError as error:  # a null character in the path
        raise InputError(f"cannot read `{printable(str(path))}`: {error}") from None
    if len(raw) > MAX_BYTES:
        raise InputError(f"`{path}` is larger than {MAX_BYTES // int(MB)} MB; it is no table of runs")
    return parse_rows(_decoded(raw, path), path.stem, place=str(path))


def _decoded(raw: bytes, path: Path) -> str:
    """The text of a file."""
    try:
        if raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            return raw.decode("utf-16")
        if b"\0" not in raw:
            try:
                return raw.decode("utf-8-sig")
            except UnicodeDecodeError:
                return raw.decode("latin-1")
        where = raw.index(b"\0")
    except UnicodeDecodeError as error:
        where = error.start
    raise InputError(
        f"`{path}` is not a text file", problems=[Problem(str(path), f"byte {where} is no text")]
    )


def parse_rows(text: str, name: str, *, place: str) -> tuple[Row, ...]:
    """The runs of a CSV text; `name` stands in for a missing source, `place` is where errors point.

    Raises:
        InputError: it is no table of runs.
    """
    header = text.partition("\n")[0]
    delimiter = max(_DELIMITERS, key=header.count)
    table = csv.DictReader(io.StringIO(text, newline=""), delimiter=delimiter)
    try:
        columns = [column.strip().lower() for column in table.fieldnames or ()]
        table.fieldnames = columns
        rows = [{key: cell for key, cell in row.items() if isinstance(cell, str) and cell} for row in table]
    except csv.Error as error:
        raise InputError(
            f"`{place}` is not a table", problems=[Problem(f"{place}:{table.line_num}", str(error))]
        ) from None
    missing = [column for column in NEEDED_COLUMNS if column not in columns]
    if missing:
        named = ", ".join(f"`{column}`" for column in missing)
        raise InputError(f"`{place}` has no column {named}", hint=_COLUMNS_HINT)
    return tuple(
        Row({"row_id": f"{name}-{number:04}", "source_id": name} | row)
        for number, row in enumerate(rows, start=1)
    )
