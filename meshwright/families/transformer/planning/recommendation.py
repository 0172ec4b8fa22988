"""The recommended layout beside the fastest on paper and the classical one, in words."""

from __future__ import annotations

from typing import Any

from cost_models.estimate import pair_error_of
from cost_models.risk import Risk
from cost_models.units import counted, format_seconds
from meshwright.records.estimates import estimate_record
from meshwright.render.expected import expected_record
from meshwright.render.words import percent, wrapped
from planner.answers.recommend import Alternative, Recommendation
from planner.plan import Plan, PlanChoice

FASTEST: dict[Risk, str] = {
    "none": "fastest on paper",
    "neutral": "fastest on average over the scenarios",
    "averse": "fastest in the slow scenarios",
}
"""What the optimum of all layouts is called."""


def near_sentence(told: Recommendation) -> str:
    """How many layouts the model cannot tell from the fastest; empty where it can, or they were not counted."""
    if told.within_error is None or told.within_error <= 1:
        return ""
    return wrapped(
        f"Up to {counted(told.within_error, 'layout')} lie within {percent(pair_error_of(told.question))} of the"
        f" {FASTEST[told.question.risk]},"
        " the model's error between two layouts"
    )


def choice_words(choice: PlanChoice) -> str:
    """Why a layout was chosen in place of the fastest of its kind on paper."""
    first, share = choice.first.brief, percent(choice.share)
    own, other = format_seconds(choice.middle_seconds), format_seconds(choice.first_middle_seconds)
    return (
        f"least mean step over the middle half of the constants that timed runs leave open, {own}, of"
        f" {counted(choice.layouts, 'layout')} within {share} of the fastest on paper; {first},"
        f" {format_seconds(choice.first_seconds)} on paper, has {other}"
    )


def recommended_in_plan(plan: Plan) -> str:
    """Why a plan file's layout was recommended; empty where it was not."""
    told = plan.recommendation
    if told is None:
        return ""
    if not told.why:
        return wrapped(
            f"Recommended: the {FASTEST[told.risk]}; no simpler layout comes within the model's error."
        )
    own, kind = plan.prediction, f"the fastest of the layouts that {told.why}"
    if told.choice is not None:
        kind = f"of the layouts that {told.why} the one with the {choice_words(told.choice)}"
    gain = 1 - (told.fastest_weighed or told.fastest_seconds) / (own.weighed_seconds or own.step_seconds)
    return wrapped(
        f"Recommended: {kind}. The {FASTEST[told.risk]},"
        f" {told.fastest.brief}, takes {format_seconds(told.fastest_seconds)} ({percent(gain)} less), with a chance of"
        f" {100 * told.chance:.0f} % that it is faster at all."
    )


def recommendation_record(told: Recommendation) -> dict[str, Any]:
    """Seconds, bytes and shares; `fastest_on_paper` is the first of `plans`."""
    pair_error = pair_error_of(told.question)
    return {
        "plan": estimate_record(told.estimate),
        "risk": told.question.risk,
        "why": told.why,
        "is_fastest": told.is_fastest,
        "fastest_on_paper": _beside_record(told.fastest),
        "gain": told.gain,
        "classical": None if told.classical is None else _beside_record(told.classical),
        "pair_error": pair_error,
        "fills_devices": told.fills_devices,
        "within_error": None
        if told.within_error is None
        else {"share": pair_error, "layouts_at_most": told.within_error},
        "expected": expected_record(told.question, told.estimate.layout, told.expected),
        "choice": None if told.choice is None else told.choice.model_dump(mode="json"),
        "certificate": told.certificate.model_dump(mode="json"),
    }


def _beside_record(other: Alternative) -> dict[str, Any]:
    estimate = other.estimate
    return {
        "layout": str(estimate.layout),
        "step_seconds": estimate.step_seconds,
        "peak_bytes": estimate.peak_bytes,
        "fits_probability": estimate.fits_probability,
        "differs_in": list(other.axes),
        "chance": other.chance,
    }
