"""Reading CSV files as spreadsheets write them: cells by column."""

from __future__ import annotations

import codecs
import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from cost_models.errors import InputError, Problem
from cost_models.files.pipes import read_raw
from cost_models.units import MB

MAX_BYTES = int(256 * MB)
"""Largest table that is read, in bytes: a million rows."""
_DELIMITERS = (",", ";", "\t")


class TableRow(NamedTuple):
    """One row: the line of the file where it ends, counted from 1, and its non-empty cells."""

    line: int
    cells: dict[str, str]


def read_table(path: Path) -> str:
    """The text of a CSV file: UTF-8 with or without a byte-order mark, UTF-16 with one, else Latin-1.

    Raises:
        InputError: the file cannot be read, or is no text.
    """
    raw = read_raw(path, MAX_BYTES + 1)
    if len(raw) > MAX_BYTES:
        raise InputError(f"`{path}` is larger than {MAX_BYTES // int(MB)} MB; it is no table of runs")
    return _decoded(raw, path)


def parse_table(text: str, *, place: str, needed: Sequence[str], hint: str) -> list[TableRow]:
    """Rows of cells by column in small letters, between commas, semicolons or tabs; `place` is the file in messages.

    Raises:
        InputError: it is no table, or a needed column is missing.
    """
    delimiter = max(_DELIMITERS, key=text.partition("\n")[0].count)
    table = csv.DictReader(io.StringIO(text, newline=""), delimiter=delimiter)
    try:
        columns = [column.strip().lower() for column in table.fieldnames or ()]
        table.fieldnames = columns
        rows = [
            TableRow(
                table.line_num, {key: cell for key, cell in row.items() if isinstance(cell, str) and cell}
            )
            for row in table
        ]
    except csv.Error as error:
        raise InputError(
            f"`{place}` is not a table", problems=[Problem(f"{place}:{table.line_num}", str(error))]
        ) from None
    missing = [column for column in needed if column not in columns]
    if missing:
        named = ", ".join(f"`{column}`" for column in missing)
        raise InputError(f"`{place}` has no column {named}", hint=hint)
    return rows


def _decoded(raw: bytes, path: Path) -> str:
    """The text of a file's bytes."""
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
