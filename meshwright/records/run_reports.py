"""Reads reports of runs, of whichever family."""

from __future__ import annotations

from pathlib import Path

from cost_models.documents import Document
from cost_models.errors import InputError, Problem
from cost_models.families import family_of_plan_kind, part
from cost_models.files.parsing import validate
from cost_models.files.reading import parse_json, read_text
from cost_models.units import MB
from executor.measure.any_report import AnyReport
from executor.measure.report import RunReport

MAX_REPORT_BYTES = int(1000 * MB)
"""Largest report read: a number for each step of each rank."""
_MOST_PROBLEMS = 5
_HINT = "meshwright run writes run-report.json"


def read_any_report(path: Path) -> AnyReport:
    """A run report from its file; the plan that it holds says of which family it is.

    Raises:
        InputError: missing, too large, or no run report.
    """
    text = read_text(path, most_bytes=MAX_REPORT_BYTES)
    try:
        document = parse_json(text, source=str(path))
        report_type: type[AnyReport] = part(family_of_plan_kind(_kind_of_plan(document)).report)
        return validate(document, report_type)
    except InputError as error:
        problems = error.problems or (Problem("", error.headline),)
        raise InputError(
            f"`{path}` is no run report", problems=problems[:_MOST_PROBLEMS], hint=_HINT
        ) from None


def read_report(path: Path) -> RunReport:
    """The report of a transformer's run from its file.

    Raises:
        InputError: missing, no run report, or one of another family.
    """
    found = read_any_report(path)
    if not isinstance(found, RunReport):
        raise InputError(f"`{path}` is of a run of another kind of model; a transformer's is needed here")
    return found


def _kind_of_plan(document: Document) -> object:
    plan = document.value.get("plan") if isinstance(document.value, dict) else None
    return plan.get("kind") if isinstance(plan, dict) else None
