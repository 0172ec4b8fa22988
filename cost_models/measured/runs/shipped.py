"""The runs that the project ships: published figures, as tables like any other.

Nothing in `data/published/` was measured by this project; each row names its source.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from cost_models.measured.runs.cases import Case, read_case
from cost_models.measured.runs.notes import UnpredictableError
from cost_models.measured.runs.row import Row, parse_rows


@cache
def shipped_rows() -> tuple[Row, ...]:
    """Every shipped run: the tables in the order of their names, each in file order."""
    tables = sorted((files("cost_models") / "data" / "published").iterdir(), key=lambda file: file.name)
    return tuple(
        row
        for table in tables
        if table.name.endswith(".csv")
        for row in parse_rows(
            table.read_text(encoding="utf-8"), table.name[:-4], place=f"published/{table.name}"
        )
    )


@cache
def timed_cases() -> tuple[Case, ...]:
    """The shipped runs that were timed and can be predicted, as cases."""
    timed = (row for row in shipped_rows() if row.number("step_time_best_s") is not None)
    return tuple(case for row in timed if (case := _case(row)) is not None)


def _case(row: Row) -> Case | None:
    try:
        return read_case(row)
    except UnpredictableError:
        return None
