"""The published runs that the project ships, as tables like any other, and notes on their sources.

Nothing in `data/published/` was measured by this project; each row names its source.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from cost_models.base import Spec
from cost_models.documents import printable
from cost_models.files import data_files, read_data
from cost_models.measured.runs.cases import Case, read_case
from cost_models.measured.runs.rows import Row, UnpredictableError, parse_rows


@cache
def shipped_rows() -> tuple[Row, ...]:
    """Every shipped run: the tables in the order of their names, each in file order."""
    return tuple(
        row
        for table in data_files("published", ".csv")
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


class SourceNote(Spec):
    """The note on one source, in three lines."""

    title: str
    """Name of the source in plots."""
    measured: str
    """Who measured what, and on which hardware."""
    unknown: str
    """Facts that were not printed, or read at second hand: possible causes of residuals."""


@cache
def source_notes() -> Mapping[str, SourceNote]:
    """Source → note, for the shipped tables."""
    return {name: SourceNote(**note) for name, note in read_data("published/sources").items()}


def source_title(source: str) -> str:
    """Name of a shipped source in words; of any other source its name in the table."""
    note = source_notes().get(source)
    return printable(source, 32) if note is None else note.title
