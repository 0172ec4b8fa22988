"""The recommended layout beside the fastest on paper and the classical one, in words."""

from __future__ import annotations

from typing import Any

from cost_models.axes.layout import Layout
from cost_models.estimate import Estimate
from cost_models.question import Question
from cost_models.risk import Risk
from cost_models.uncertainty import coverage_of
from cost_models.units import counted, format_bytes, format_seconds, grouped
from meshwright.records.estimates import estimate_record
from meshwright.render.tables import Table, table
from meshwright.render.words import NEGLIGIBLE_SHARE, change, percent, sentence_list, wrapped
from planner.answers.recommended import Beside, Recommendation
from planner.plan import Plan

_FASTEST: dict[Risk, str] = {
    "none": "fastest on paper",
    "neutral": "least expected",
    "averse": "least slow",
}
"""What the optimum of all layouts is called."""
HEADERS = ("which", "layout", "step", "peak mem", "beside")


def recommendation_table(told: Recommendation) -> Table:
    """Two or three layouts with their step and memory; `beside` is the change against the recommended step."""
    rows = [_row("recommended", told.estimate, "")]
    if not told.is_fastest:
        rows.append(_beside(_FASTEST[told.risk], told, told.fastest))
    if told.classical is not None and told.classical.axes:
        rows.append(_beside("classical", told, told.classical))
    return table(HEADERS, rows, words=("layout",), names=("which",))


def recommendation_sentences(told: Recommendation) -> str:
    """Why the recommended layout is it, how sure the gain of the fastest is, and what the last memory buys."""
    lines = [_why(told)]
    if (near := told.within_error) is not None and near.layouts > 1:
        lines.append(
            f"No more than {counted(near.layouts, 'layout')} of all lie within {percent(near.share)} of the"
            f" {_FASTEST[told.risk]}: closer than that this model's times do not tell them apart"
        )
    if told.interval is not None:
        low, high = map(format_seconds, told.interval)
        lines.append(
            f"Its step should take {low} to {high} (meant for nine in ten, as constants differ between timed clusters)"
        )
    if (last := told.last_memory) is not None:
        peaks = f"{format_bytes(told.estimate.peak_bytes)} to {format_bytes(last.full.peak_bytes)}"
        gain = "less than 0.1 %" if last.gain < NEGLIGIBLE_SHARE else percent(last.gain)
        lines.append(f"Filling devices further, from {peaks}, would buy {gain}")
    return "\n".join(wrapped(line) for line in lines)


def tried_sentence(question: Question, estimate: Estimate) -> str:
    """The nearest timed runs with their error, and what of the layout nobody timed; empty where a profile has none."""
    told = coverage_of(question, estimate.layout)
    if told is None:
        return ""
    runs = told.nearest
    gpus = (
        grouped(runs.most_gpus)
        if runs.fewest_gpus == runs.most_gpus
        else f"{grouped(runs.fewest_gpus)} to {grouped(runs.most_gpus)}"
    )
    said = (
        f"Nearest timed runs: {counted(runs.runs, 'run')} of {runs.source} ({runs.stack} on {gpus} {runs.gpu}),"
        f" {percent(runs.median_error)} off"
    )
    beyond = [word for word in told.beyond_nearest if word not in told.uncovered]
    if beyond:
        said += f", none with {sentence_list(beyond)}"
    if told.uncovered:
        said += f"; no run of profile {question.hardware.name} had {sentence_list(told.uncovered)}"
    return wrapped(said)


def recommended_in_plan(plan: Plan) -> str:
    """Why a plan file's layout was recommended; empty where it was not."""
    told = plan.recommendation
    if told is None:
        return ""
    if not told.why:
        return wrapped(
            f"Recommended: the {_FASTEST[told.risk]}, as nothing simpler comes close enough to be taken for as fast."
        )
    own = plan.prediction
    gain = 1 - (told.fastest_weighed or told.fastest_seconds) / (own.weighed_seconds or own.step_seconds)
    return wrapped(
        f"Recommended: the fastest of those that {told.why}. {_paper(told.risk, gain, told.chance)}: "
        f"{told.fastest.brief}, {format_seconds(told.fastest_seconds)}."
    )


_COUNTS = "no axis but counts of blocks"
"""Where two layouts recompute or offload alike, but not as many blocks."""


def _why(told: Recommendation) -> str:
    if told.is_fastest:
        return (
            f"Recommended: the {_FASTEST[told.risk]}; nothing simpler comes so close that the model could not tell"
            " the two apart"
        )
    return (
        f"Recommended: the fastest of those that {told.why}. {_paper(told.risk, told.gain, told.fastest.chance)}: they"
        f" differ in {sentence_list(told.fastest.axes) or _COUNTS}, and this model's times of two such layouts are"
        f" {percent(told.pair_error * max(1, len(told.fastest.axes)) ** 0.5)} off against one another (median of timed"
        " pairs)"
    )


def _paper(risk: Risk, gain: float, chance: float) -> str:
    """ "The fastest on paper gains 4.8 %, with a chance of 62 % that it gains at all"."""
    return f"The {_FASTEST[risk]} gains {percent(gain)}, with a chance of {100 * chance:.0f} % that it gains at all"


def _beside(name: str, told: Recommendation, other: Beside) -> tuple[str, ...]:
    return _row(name, other.estimate, change(told.estimate.step_seconds, other.estimate.step_seconds))


def _row(name: str, estimate: Estimate, beside: str) -> tuple[str, ...]:
    return (
        name,
        estimate.layout.brief,
        format_seconds(estimate.step_seconds),
        format_bytes(estimate.peak_bytes),
        beside,
    )


def recommendation_record(told: Recommendation, question: Question) -> dict[str, Any]:
    """Seconds, bytes and shares; `fastest_on_paper` is the first of `plans`."""
    last = told.last_memory
    return {
        "plan": estimate_record(told.estimate),
        "step_seconds_90": None if told.interval is None else list(told.interval),
        "risk": told.risk,
        "why": told.why,
        "is_fastest": told.is_fastest,
        "fastest_on_paper": _beside_record(told.fastest),
        "gain": told.gain,
        "classical": None if told.classical is None else _beside_record(told.classical),
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


def _beside_record(other: Beside) -> dict[str, Any]:
    estimate = other.estimate
    return {
        "layout": str(estimate.layout),
        "step_seconds": estimate.step_seconds,
        "peak_bytes": estimate.peak_bytes,
        "differs_in": list(other.axes),
        "chance": other.chance,
    }
