"""The recommended layout as plain data: what stands beside it, and how sure the difference is."""

from __future__ import annotations

from typing import Any

from cost_models.axes.layout import Layout
from cost_models.question import Question
from cost_models.uncertainty import coverage_of
from meshwright.records.estimates import estimate_record
from planner.answers.recommended import Beside, Recommendation


def recommendation_record(told: Recommendation, question: Question) -> dict[str, Any]:
    """Seconds, bytes and shares; `fastest_on_paper` is the first of `plans`."""
    last = told.last_memory
    return {
        "plan": estimate_record(told.estimate),
        "step_seconds_90": None if told.interval is None else list(told.interval),
        "risk": told.risk,
        "why": told.why,
        "is_fastest": told.is_fastest,
        "fastest_on_paper": _beside(told.fastest),
        "gain": told.gain,
        "classical": None if told.classical is None else _beside(told.classical),
        "pair_error": told.pair_error,
        "last_memory": None
        if last is None
        else {"layout": str(last.full.layout), "peak_bytes": last.full.peak_bytes, "gain": last.gain},
        "within_error": None
        if told.within_error is None
        else {"share": told.within_error.share, "layouts_at_most": told.within_error.layouts},
        "tried": tried_record(question, told.estimate.layout),
        "certificate": told.certificate.model_dump(mode="json"),
    }


def tried_record(question: Question, layout: Layout) -> dict[str, Any] | None:
    """The nearest timed runs of a layout, and the words of it that none had; None where its profile has none."""
    found = coverage_of(question, layout)
    if found is None:
        return None
    return {
        "nearest": found.nearest.model_dump(mode="json"),
        "beyond_nearest": list(found.beyond_nearest),
        "untried": list(found.uncovered),
    }


def _beside(other: Beside) -> dict[str, Any]:
    estimate = other.estimate
    return {
        "layout": str(estimate.layout),
        "step_seconds": estimate.step_seconds,
        "peak_bytes": estimate.peak_bytes,
        "differs_in": list(other.axes),
        "chance": other.chance,
    }
