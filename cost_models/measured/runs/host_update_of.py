"""How fast a row's host updates parameters, where its log says how long that took (`cpu_update_s`)."""

from __future__ import annotations

from dataclasses import replace

from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import Layout
from cost_models.measured.runs.notes import Notes
from cost_models.measured.runs.row import Row
from cost_models.question import Question
from cost_models.tiers.channels import channel_seconds


def with_host_update(row: Row, question: Question, layout: Layout, notes: Notes) -> Question:
    """The question with the seconds a parameter that the row states; without such a cell as it is."""
    stated = row.number("cpu_update_s")
    if stated is None or stated <= 0:
        return question
    by_unit = channel_seconds(with_seconds(question, _UNIT), LayoutColumns.of([layout])).update[0] / _UNIT
    if by_unit == 0:
        return question
    notes.assume(f"its host updates a parameter in {stated / by_unit * 1e9:.2f} ns, as its log says")
    return with_seconds(question, stated / by_unit)


def with_seconds(question: Question, seconds: float) -> Question:
    """The question on a host that updates a parameter in so long."""
    return replace(question, hardware=question.hardware.model_copy(update={"host_update_seconds": seconds}))


_UNIT = 1e-9
