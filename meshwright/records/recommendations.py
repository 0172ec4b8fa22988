"""The recommended layout as plain data: what stands beside it, and how sure the difference is."""

from __future__ import annotations

from typing import Any

from meshwright.records.estimates import estimate_record
from planner.answers.recommended import Beside, Recommendation


def recommendation_record(told: Recommendation) -> dict[str, Any]:
    """Seconds, bytes and shares; `fastest_on_paper` is the first of `plans`."""
    last = told.last_memory
    return {
        "plan": estimate_record(told.estimate),
        "why": told.why,
        "is_fastest": told.is_fastest,
        "fastest_on_paper": _beside(told.fastest),
        "gain": told.gain,
        "classical": None if told.classical is None else _beside(told.classical),
        "pair_error": told.pair_error,
        "last_memory": None
        if last is None
        else {"layout": str(last.full.layout), "peak_bytes": last.full.peak_bytes, "gain": last.gain},
        "certificate": told.certificate.model_dump(mode="json"),
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
