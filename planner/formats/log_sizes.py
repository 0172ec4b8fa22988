"""Sizes that a trainer's log prints of its job, compared with a plan."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from cost_models.documents import printable
from cost_models.errors import Problem
from cost_models.units import grouped
from planner.formats.exporter import PARTS, Job
from planner.formats.table import table_of
from planner.plan import Plan

if TYPE_CHECKING:
    from cost_models.measured.logs import Log

GPUS = "gpus"
_NOTHING = ("none", "null", "", "-1")
"""How trainers print that a size was not given."""


def contradictions(log: Log, plan: Plan) -> Iterator[Problem]:
    """Yield a problem for every printed size of layout, batch or model in a training log that differs from the
    plan. Passed over are other settings, and settings whose meaning depends on others."""
    job = Job(plan.question, plan.layout)
    rows = table_of(log.format.table).arguments if log.format.table else {}
    settings = ((name, *setting) for name, values in log.settings.items() for setting in values.items())
    for name, value, place in settings:
        field = name if name.partition(".")[0] in (GPUS, *PARTS) else log.format.fields.get(name)
        row = rows.get(name)
        if field is not None:
            expected = plan.layout.num_gpus if field == GPUS else job.value(field)
        elif row is not None and row.written and ("mixtures" not in row.written or job.model.has_experts):
            expected = row.trainer_value(job.value(row.field.removeprefix("not ")))
        else:
            continue
        printed = printable(value.strip(), limit=80)
        if not _agrees(printed, expected):
            text = printed.strip("'\"")
            is_count = text.isdecimal() and text.isascii() and len(text) < 20
            message = f"the log has {grouped(int(text)) if is_count else text}, the plan {_words(expected)}"
            yield Problem(f"{place}  {name}", message)


def _agrees(printed: str, expected: Any) -> bool:
    """Whether a value printed in a log equals the plan's; true for an empty value or one of an unexpected
    kind."""
    text = printed.strip().strip("'\"")
    if text.lower() in _NOTHING:
        return True
    if isinstance(expected, bool):
        return text.lower() not in ("true", "false") or (text.lower() == "true") == expected
    if isinstance(expected, str):
        return text == expected
    with suppress(ValueError):
        return float(text.replace(",", "")) == float(expected or 0)
    return True


def _words(expected: Any) -> str:
    if isinstance(expected, int) and not isinstance(expected, bool):
        return grouped(expected)
    return "none" if expected is None else str(expected)
