"""How far to trust predictions: whether a gain is real, and what of a layout no run had.

Two predicted times of one question err together, so what counts is the error of their ratio. On one axis in which two
layouts differ its median is the profile's `pair_error` e, on n axes e·√n; the median of a normal error being 0.6745 of
its deviation, a predicted ratio r = exp(g) is above one with the chance Φ(0.6745 · g / (e·√n)). The median error of a
profile is that of all its runs; a layout may be like none of them, which is told.
"""

from __future__ import annotations

import math
from statistics import NormalDist

from cost_models.axes.layout import AXES, COMPARED, Layout, axes_that_differ, axis_value
from cost_models.axes.words import Number
from cost_models.question import Question
from cost_models.specs.hardware import TimedRuns

CLEAR = 2 / 3
"""Chance from which a gain on paper decides between a simpler and a faster layout."""
USUAL_PAIR_ERROR = 0.06
"""The error of pairs where a profile has none of its own: that of 668 runs of seven sources on A100."""
_NORMAL = NormalDist()
_MEDIAN = _NORMAL.inv_cdf(0.75)
"""Median of the absolute value of a standard normal."""


def pair_error_of(question: Question) -> float:
    """Median error of the ratio of two times of a question, on one axis in which layouts differ."""
    return question.hardware.pair_error or USUAL_PAIR_ERROR


def deviation(one: Layout, other: Layout, pair_error: float) -> float:
    """Standard deviation of the logarithm of the ratio of two layouts' times."""
    return deviation_on(max(1, len(axes_that_differ(one, other))), pair_error)


def deviation_on(axes: int, pair_error: float) -> float:
    """Standard deviation of the logarithm of the ratio of two times of layouts that differ on `axes` axes."""
    return pair_error / _MEDIAN * math.sqrt(axes)


def error_between(one: Layout, other: Layout, question: Question) -> float:
    """Median error of the ratio of two layouts' times: a smaller difference on paper decides nothing."""
    return pair_error_of(question) * math.sqrt(max(1, len(axes_that_differ(one, other))))


def chance_of_gain(log_ratio: float, one: Layout, other: Layout, pair_error: float) -> float:
    """Chance that the ratio of two layouts' times, predicted as exp(`log_ratio`), is above one."""
    return _NORMAL.cdf(log_ratio / deviation(one, other, pair_error))


def half_width(share: float) -> float:
    """Half width, in deviations, of the central interval of a normal error that holds a `share` of all cases: 1.645 for
    0.9."""
    return _NORMAL.inv_cdf((1 + share) / 2)


_PLAINEST = Layout()


def timed_under(question: Question) -> tuple[TimedRuns, ...]:
    """The profile's timed runs under the question's own stack; all its timed runs where there are none."""
    timed = question.hardware.timed
    return tuple(runs for runs in timed if runs.stack == question.stack.name) or timed


def untried(question: Question, layout: Layout) -> tuple[str, ...]:
    """Words of a layout that no run of the question's profile had, or any larger: "cp8", "12,288 GPUs"; none where it
    lists no runs."""
    timed = question.hardware.timed
    return _uncovered(layout, timed) if timed else ()


def uncovered_facts(question: Question, layout: Layout) -> int:
    """Number of facts of a step that no timed run of its profile covers: values of axes, GPU, stack; 0 where the
    profile lists no runs."""
    timed = question.hardware.timed
    if not timed:
        return 0
    other_gpu = question.cluster.gpu.name not in {runs.gpu for runs in timed}
    other_stack = question.stack.name not in {runs.stack for runs in timed}
    return len(_uncovered(layout, timed)) + other_gpu + other_stack


def _uncovered(layout: Layout, timed: tuple[TimedRuns, ...]) -> tuple[str, ...]:
    """Words of the layout that no run covers: degrees larger than in any run, names that no run has."""
    words = []
    for axis in COMPARED:
        value = axis_value(axis, layout)
        timed_values = {used for runs in timed for used in runs.used(axis)}
        if value == axis_value(axis, _PLAINEST) or value in timed_values:
            continue
        if isinstance(AXES[axis], Number) and value.isdecimal():
            if int(value) > max((int(used) for used in timed_values if used.isdecimal()), default=1):
                words.append(f"{axis}{value}")
        else:
            words.append(axis if value == "True" else f"{axis}={value}")
    if layout.num_gpus > max(runs.most_gpus for runs in timed):
        words.append(f"{layout.num_gpus:,} GPUs")
    return tuple(words)
