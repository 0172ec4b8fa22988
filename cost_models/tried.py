"""How close a layout is to runs that were timed: which axes of it nobody timed, and how far off the nearest runs are.

The median error of a profile is that of all its runs; a plan may be like none of them.
"""

from __future__ import annotations

from dataclasses import dataclass

from cost_models.axes.differing import COMPARED, axis_value
from cost_models.axes.layout import AXES, Layout
from cost_models.axes.words import Number
from cost_models.question import Question
from cost_models.specs.hardware import TimedRuns

_PLAINEST = Layout()


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """What timed runs say of one layout."""

    nearest: TimedRuns
    """The runs that leave fewest of its axes untried; of those under its stack, of its GPU, the most."""
    untried: tuple[str, ...]
    """Words of the layout that no run of the profile had, or any larger: "cp8"; "12,288 GPUs"."""
    beyond_nearest: tuple[str, ...]
    """The same of the nearest runs alone."""


def timed_under(question: Question) -> tuple[TimedRuns, ...]:
    """The timed runs that say most about a question: under its own stack, else all that its profile rests on."""
    timed = question.hardware.timed
    return tuple(runs for runs in timed if runs.stack == question.stack.name) or timed


def tried(question: Question, layout: Layout) -> Tried | None:
    """What the timed runs of the question's profile say of a layout; None where it has none."""
    timed = question.hardware.timed
    if not timed:
        return None
    missing = {place: _untried(layout, (runs,)) for place, runs in enumerate(timed)}

    def distance(place: int) -> tuple[int, bool, bool, int]:
        runs = timed[place]
        return (
            len(missing[place]),
            runs.stack != question.stack.name,
            runs.gpu != question.cluster.gpu.name,
            -runs.runs,
        )

    nearest = min(range(len(timed)), key=distance)
    return Tried(nearest=timed[nearest], untried=_untried(layout, timed), beyond_nearest=missing[nearest])


def untried_facts(question: Question, layout: Layout) -> int:
    """How many facts of a step no timed run of its profile had: values of axes, its GPU, its stack; 0 where nobody
    says what was timed."""
    timed = question.hardware.timed
    if not timed:
        return 0
    other_gpu = question.cluster.gpu.name not in {runs.gpu for runs in timed}
    other_stack = question.stack.name not in {runs.stack for runs in timed}
    return len(_untried(layout, timed)) + other_gpu + other_stack


def _untried(layout: Layout, timed: tuple[TimedRuns, ...]) -> tuple[str, ...]:
    """Words of what a layout has and none of these runs: a degree larger than any, a name that none has."""
    words = []
    for name in COMPARED:
        own, plain = axis_value(name, layout), axis_value(name, _PLAINEST)
        known = {value for runs in timed for value in runs.used(name)}
        if own == plain or own in known:
            continue
        if isinstance(AXES[name].word, Number) and own.isdecimal():
            if int(own) <= max((int(value) for value in known if value.isdecimal()), default=1):
                continue
            words.append(f"{name}{own}")
        else:
            words.append(name if own == "True" else f"{name}={own}")
    if layout.num_gpus > max(runs.most_gpus for runs in timed):
        words.append(f"{layout.num_gpus:,} GPUs")
    return tuple(words)
