"""The runs the project ships: step times that others published, as a table like any other.

Nothing in `data/published/` was measured by this project; each row names its source.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from cost_models.validation.cases import Case, read_case
from cost_models.validation.rows import Row, parse_rows


@cache
def shipped_rows() -> tuple[Row, ...]:
    """Every shipped run, in file order."""
    table = files("cost_models") / "data" / "published" / "runs.csv"
    return parse_rows(table.read_text(encoding="utf-8"), "runs", place="published/runs.csv")


@cache
def shipped_cases() -> tuple[Case, ...]:
    """The same as questions with a layout."""
    return tuple(map(read_case, shipped_rows()))
