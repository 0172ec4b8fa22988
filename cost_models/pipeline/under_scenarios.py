"""Step times of one placed layout under every scenario of its profile, and the interval they leave."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import Layout
from cost_models.pipeline.costs import time_costs
from cost_models.pipeline.pipeline import Pipeline
from cost_models.pipeline.placed import place
from cost_models.question import MixedQuestion, Question
from cost_models.telling import deviation_on, half_width, pair_error_of
from cost_models.tried import untried_facts

Array = npt.NDArray[np.float64]


def seconds_under_scenarios(question: Question, layout: Layout) -> Array | None:
    """(K,) step seconds under the scenarios of the question's profile; None where it has none, or several pools."""
    hardware = question.hardware
    told = hardware.scenarios
    if told is None or isinstance(question, MixedQuestion):
        return None
    values = {name: getattr(hardware, name) * np.array(own) for name, own in told.by_constant.items()}
    placed = place(layout, question)
    columns = LayoutColumns.of([placed.layout])
    rows = columns.rows(np.zeros(told.count, dtype=np.int64))
    costs = time_costs(replace(question, hardware=hardware.model_copy(update=values)), rows)
    prices = [placed.pipeline(costs.rows(slice(at, at + 1))) for at in range(told.count)]
    seconds: Array = Pipeline.step_seconds_of_each(prices, placed.blocks)
    return seconds


def step_deviation(question: Question, layout: Layout, seconds: float) -> float | None:
    """Standard deviation of the logarithm of a step time around the predicted one; None without scenarios.

    Scenarios of the constants, what no constant explains, and for every axis, GPU or stack of the question that no run
    of the profile had, an error as large as one axis brings to the ratio of two times (`cost_models.telling`).
    """
    found = seconds_under_scenarios(question, layout)
    told = question.hardware.scenarios
    if found is None or told is None:
        return None
    untried = deviation_on(untried_facts(question, layout), pair_error_of(question))
    return math.hypot(float(np.log(found / seconds).std()), told.unexplained, untried)


def step_interval(
    question: Question, layout: Layout, seconds: float, share: float
) -> tuple[float, float] | None:
    """The step seconds between which a share of all cases should lie, around the predicted ones; None without
    scenarios."""
    deviation = step_deviation(question, layout, seconds)
    told = question.hardware.scenarios
    if deviation is None or told is None:
        return None
    wide = half_width(share) * deviation
    return seconds * math.exp(-told.faster * wide), seconds * math.exp(told.slower * wide)
