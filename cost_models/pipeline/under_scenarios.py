"""Steps under the scenarios of a profile: what they weigh, the interval they leave, and costs that bound weighed steps.

A step is a maximum over paths of sums of stage costs, plus two more maxima (`stage_costs`): a convex function of the
costs. So for any set of scenarios

    mean of the steps in them ≥ the step at the mean of their costs                         (Jensen 1906)

and what risk weighs is no less than the mean over any set of as many scenarios (`cost_models.risk`). The set may be
another one for each row; here it is that in which the row's own work takes longest, which makes the bound tight.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from cost_models.arrays import Array, Ints
from cost_models.axes.columns import LayoutColumns, over_distinct
from cost_models.axes.layout import Layout
from cost_models.pipeline.placed import place
from cost_models.pipeline.stage_costs import SECONDS, StageCosts, as_priced, stage_costs, time_costs
from cost_models.pipeline.terms import AXES
from cost_models.question import MixedQuestion, Question
from cost_models.risk import slowest, weigh
from cost_models.uncertainty import deviation_on, half_width, pair_error_of, uncovered_facts


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
    return placed.pipeline(costs).step_seconds_under(costs.in_sorts, placed.blocks)


def weighed_seconds(question: Question, layout: Layout) -> float | None:
    """Seconds of a step weighed by the question's risk; None where it is the predicted step."""
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


_FARTHEST = 50.0
"""Logarithm of the most that a step may take in place of its predicted seconds: scenarios may differ by any power."""


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
    return seconds * math.exp(-told.faster * wide), seconds * math.exp(min(told.slower * wide, _FARTHEST))


def weighed_costs(question: Question, columns: LayoutColumns) -> StageCosts:
    """Price N layouts at once, at mean costs where the question weighs scenarios; bytes are the same in all.

    Raises:
        InputError: the GPU has no rate for the training precision.
    """
    cases = scenarios_of(question)
    if not cases:
        return stage_costs(question, columns)
    return over_distinct(
        as_priced(question, columns), AXES, lambda rows: _weighed_costs(question, cases, rows)
    )


def _weighed_costs(question: Question, cases: tuple[Question, ...], rows: LayoutColumns) -> StageCosts:
    each = [time_costs(case, rows) for case in cases]
    m, layers = rows.microbatches(question.training.global_batch), question.model.num_layers
    work_KN = np.stack([_work(own, m, layers, rows.pp) for own in each])
    counted_KN = slowest(work_KN, question.risk)
    count = max(1, int(counted_KN[:, :1].sum()))

    def mean(of_each: Sequence[Array]) -> Array:
        """Over the scenarios that count."""
        total = np.zeros_like(of_each[0])
        for value, counted in zip(of_each, counted_KN, strict=True):
            total += value * (counted if value.ndim == 1 else counted[:, None])
        return total / count

    found = stage_costs(question, rows)
    kinds = tuple(
        own | {name: mean([one.kinds[kind][name] for one in each]) for name in own if name in SECONDS}
        for kind, own in enumerate(found.kinds)
    )
    means = {name: mean([getattr(own, name) for own in each]) for name in SECONDS}
    return replace(found, **means, kinds=kinds)


def _work(costs: StageCosts, m: Ints, layers: int, pp: Ints) -> Array:
    """(N,) seconds of a rank's share of the work, without waiting: what tells slow scenarios from fast ones."""
    block = costs.layer_forward + costs.layer_backward[:, 0]
    ends = costs.embedding_forward + costs.embedding_backward + costs.head_forward + costs.head_backward
    stage = costs.stage_forward + costs.stage_backward
    once = costs.rank_sync + costs.rank_optimizer + costs.step_overhead
    once = once + layers / pp * (costs.layer_sync + costs.layer_optimizer)
    return m * ((layers * block + ends) / pp + stage) + once
