"""The expected step with its interval, and the timed runs nearest to it, in words and as a record."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from cost_models.axes.layout import Layout
from cost_models.estimate import words_beyond_runs
from cost_models.expected import SPLIT, ExpectedStep, NearRuns
from cost_models.question import Question
from cost_models.units import format_seconds, grouped
from meshwright.render.words import percent, sentence_list, wrapped

_TIMES = {1: "once", 2: "twice"}
_FEW = 3
"""Differences up to which times can be compared."""
_LAYOUT = {*SPLIT, "zero", "recompute"}
"""Differences of another layout for the same question, whose times can always be compared."""


def expected_sentence(expected: ExpectedStep | None) -> str:
    """ "Expected step 14.7 s, 90 % interval 13.8 s to 16.1 s"; empty where nothing is known."""
    if expected is None:
        return ""
    low, high = map(format_seconds, expected.interval)
    return wrapped(f"Expected step {format_seconds(expected.seconds)}, 90 % interval {low} to {high}")


def nearest_sentence(question: Question, layout: Layout, expected: ExpectedStep | None) -> str:
    """The runs nearest to a layout, and what of it nobody timed; empty where nothing is known."""
    if expected is None or expected.nearest is None:
        return ""
    runs, missing = expected.nearest, words_beyond_runs(question, layout)
    span = format_seconds(runs.least_seconds)
    if format_seconds(runs.most_seconds) != span:
        span += f" to {format_seconds(runs.most_seconds)}"
    times = _TIMES.get(runs.runs, f"{runs.runs} times")
    if not runs.differs:
        return wrapped(f"Timed {times}: {span} ({_whose(runs)})")
    if runs.differs == ("vpp",):
        return wrapped(f"Timed {times} with another vpp: {span} for {runs.layout} ({_whose(runs)})")
    said = (
        f"Nearest timed: {span} for {runs.layout} ({_whose(runs)}), {percent(abs(runs.off))} off;"
        f" differs in {sentence_list(list(runs.differs))}"
    )
    of_layout = _LAYOUT.issuperset(runs.differs)
    if of_layout and runs.most_seconds < expected.seconds:
        said += "; it ran faster than this layout is expected to"
    if len(runs.differs) > _FEW and not of_layout:
        said = f"Nothing like it was timed; the nearest, {_whose(runs)}, is {percent(abs(runs.off))} off"
    if expected.borrowed:
        said = f"Nothing was timed on this GPU; the nearest, {_whose(runs)}, is {percent(abs(runs.off))} off"
    if missing:
        said += f"; no run of profile {question.hardware.name} had {sentence_list(list(missing))}"
    return wrapped(said)


def _whose(runs: NearRuns) -> str:
    return f"{runs.source}: {runs.model}, {runs.stack} on {grouped(runs.gpus)} {runs.gpu}"


def expected_record(
    question: Question, layout: Layout | None, expected: ExpectedStep | None
) -> dict[str, Any] | None:
    """Seconds of the expected step and its interval, the runs nearest to it, and what of a layout none had."""
    if expected is None:
        return None
    near = expected.nearest
    return {
        "step_seconds": expected.seconds,
        "step_seconds_90": list(expected.interval),
        "borrowed": expected.borrowed,
        "nearest": None if near is None else {**asdict(near), "differs": list(near.differs)},
        "untried": [] if layout is None else list(words_beyond_runs(question, layout)),
    }
