"""Answers as text of a format: strict JSON, and CSV that a spreadsheet takes for nothing else."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from cost_models.documents import printable

Row = Mapping[str, Any]


def as_json(document: Mapping[str, Any]) -> str:
    """Strict JSON, insertion order kept; what is not a finite number becomes null, and what could write to a terminal
    is escaped."""
    text = json.dumps(_plain(document), indent=2, allow_nan=False, ensure_ascii=False)
    return _ODD.sub(lambda odd: odd[0] if odd[0].isprintable() else json.dumps(odd[0])[1:-1], text)


_ODD = re.compile(r"[^\n\x20-\x7e]")


def as_csv(rows: Sequence[Row]) -> str:
    """Rows → CSV text; columns in order of first appearance, missing cells empty."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writerow({column: _cell(column) for column in columns})
    writer.writerows({column: _cell(value) for column, value in row.items()} for row in rows)
    return text.getvalue()


def _cell(value: Any) -> Any:
    """Text that a spreadsheet would take for a formula begins with an apostrophe; numbers stay numbers."""
    if not isinstance(value, str):
        return value
    text = printable(value, limit=None)
    return f"'{text}" if text.startswith(("=", "+", "-", "@")) and not _is_number(text) else text


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _plain(value: Any) -> Any:
    """JSON has no NaN, infinity, tuples or numpy scalars."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, (bool, int, str)) or value is None:
        return value
    if hasattr(value, "item"):
        return _plain(value.item())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return str(value)
