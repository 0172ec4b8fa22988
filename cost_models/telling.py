"""Whether a model can tell two layouts apart: the chance that the one it predicts to be faster is.

Two predicted times of one question err together, so what counts is the error of their ratio. On one axis in which two
layouts differ its median is the profile's `pair_error` e, on n axes e·√n; the median of a normal error being 0.6745 of
its deviation, a predicted ratio r = exp(g) is above one with the chance Φ(0.6745 · g / (e·√n)).
"""

from __future__ import annotations

import math
from statistics import NormalDist

from cost_models.axes.differing import axes_that_differ
from cost_models.axes.layout import Layout
from cost_models.question import Question

CLEAR = 2 / 3
"""Chance from which a gain on paper decides between a simpler and a faster layout."""
UNTRIED = 0.06
"""The error of pairs where a profile has none of its own: that of 668 runs of seven sources on A100."""
_NORMAL = NormalDist()
_MEDIAN = _NORMAL.inv_cdf(0.75)
"""Median of the absolute value of a standard normal."""


def pair_error_of(question: Question) -> float:
    """Median error of the ratio of two times of a question, on one axis in which layouts differ."""
    return question.hardware.pair_error or UNTRIED


def deviation(one: Layout, other: Layout, pair_error: float) -> float:
    """Standard deviation of the logarithm of the ratio of two layouts' times."""
    return deviation_on(max(1, len(axes_that_differ(one, other))), pair_error)


def deviation_on(axes: int, pair_error: float) -> float:
    """Standard deviation of the logarithm of such a ratio on so many axes."""
    return pair_error / _MEDIAN * math.sqrt(axes)


def chance_of_gain(log_ratio: float, one: Layout, other: Layout, pair_error: float) -> float:
    """Chance that the ratio of two layouts' times, predicted as exp(`log_ratio`), is above one."""
    return _NORMAL.cdf(log_ratio / deviation(one, other, pair_error))


def half_width(share: float) -> float:
    """Deviations to each side of a normal error that hold a share of all cases: 1.645 of nine in ten."""
    return _NORMAL.inv_cdf((1 + share) / 2)
