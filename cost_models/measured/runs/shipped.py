"""The published runs that the project ships, as tables like any other, and notes on their sources.

Nothing in `data/published/` was measured by this project; each row names its source.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from cost_models.base import Spec
from cost_models.documents import printable
from cost_models.files import data_files, read_data
from cost_models.measured.runs.cases import Case, case_or_reason
from cost_models.measured.runs.rows import Row, read_rows


@cache
def shipped_rows() -> tuple[Row, ...]:
    """Rows of all shipped tables of published runs, in the order of table names and of lines."""
    return tuple(row for table in data_files("published", ".csv") for row in read_rows(table))


@cache
def timed_cases() -> tuple[Case, ...]:
    """Shipped runs that have a step time and can be predicted, as cases."""
    timed = (row for row in shipped_rows() if row.number("step_time_best_s") is not None)
    return tuple(case for row in timed if isinstance(case := case_or_reason(row), Case))


class SourceNote(Spec):
    """Note on one source of published runs, with title, measurement and unknown facts."""

    title: str
    """Name of the source in plots."""
    measured: str
    """Who measured what, and on which hardware."""
    unknown: str
    """Facts that were not printed, or read at second hand: possible causes of residuals."""


@cache
def source_notes() -> Mapping[str, SourceNote]:
    """Note on each source of the shipped run tables, by source id."""
    return {name: SourceNote(**note) for name, note in read_data("published/sources").items()}


def source_title(source: str) -> str:
    """Title of a shipped source; for any other source, its name in the table."""
    note = source_notes().get(source)
    return printable(source, 32) if note is None else note.title
