"""Step times of one placed layout under every scenario of its profile, what they weigh, and the interval they leave."""

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
from cost_models.pipeline.stage_costs import StageCosts
from cost_models.question import MixedQuestion, Question
from cost_models.risk import weigh
from cost_models.uncertainty import deviation_on, half_width, pair_error_of, uncovered_facts

Array = npt.NDArray[np.float64]


def scenarios_of(question: Question) -> tuple[Question, ...]:
    """The question under each scenario that its risk weighs; none where it weighs none, or its profile has none."""
    told = question.hardware.scenarios
    if told is None or question.risk == "none" or isinstance(question, MixedQuestion):
        return ()
    hardware, own = question.hardware, told.by_constant
    return tuple(
        replace(
            question,
            risk="none",
            hardware=hardware.model_copy(
                update={name: getattr(hardware, name) * own[name][at] for name in own}
            ),
        )
        for at in range(told.count)
    )


def costs_under_scenarios(question: Question, columns: LayoutColumns) -> StageCosts | None:
    """The seconds of one layout, a row for each scenario; None where its profile has none, or of several pools."""
    hardware = question.hardware
    told = hardware.scenarios
    if told is None or isinstance(question, MixedQuestion):
        return None
    values = {name: getattr(hardware, name) * np.array(own) for name, own in told.by_constant.items()}
    rows = columns.rows(np.zeros(told.count, dtype=np.int64))
    return time_costs(replace(question, hardware=hardware.model_copy(update=values)), rows)


def seconds_under_scenarios(question: Question, layout: Layout) -> Array | None:
    """(K,) step seconds under the scenarios of the question's profile; None where it has none, or several pools."""
    if question.hardware.scenarios is None or isinstance(question, MixedQuestion):
        return None
    placed = place(layout, question)
    costs = costs_under_scenarios(question, LayoutColumns.of([placed.layout]))
    assert costs is not None
    prices = [placed.pipeline(costs.rows(slice(at, at + 1))) for at in range(len(costs))]
    seconds: Array = Pipeline.step_seconds_of_each(prices, placed.blocks)
    return seconds


def weighed_seconds(question: Question, layout: Layout) -> float | None:
    """What the question's risk weighs of a step; None where it is the step on paper."""
    found = None if question.risk == "none" else seconds_under_scenarios(question, layout)
    return None if found is None else float(weigh(found, question.risk))


def step_deviation(question: Question, layout: Layout, seconds: float) -> float | None:
    """Standard deviation of the logarithm of a step time around the predicted one; None without scenarios.

    Scenarios of the constants, what no constant explains, and for every axis, GPU or stack of the question that no run
    of the profile had, an error as large as one axis brings to the ratio of two times (`cost_models.uncertainty`).
    """
    found = seconds_under_scenarios(question, layout)
    told = question.hardware.scenarios
    if found is None or told is None:
        return None
    untried = deviation_on(uncovered_facts(question, layout), pair_error_of(question))
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
