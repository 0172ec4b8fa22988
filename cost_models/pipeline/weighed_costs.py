"""Stage costs at which every placement takes no longer than its weighed step: means over scenarios.

A step is a maximum over paths of sums of stage costs, plus two more maxima (`stage_costs`): a convex function of the
costs. So for any set of scenarios

    mean of the steps in them ≥ the step at the mean of their costs                         (Jensen 1906)

and what risk weighs is no less than the mean over any set of as many scenarios (`cost_models.risk`). The set may be
another one for each row; here it is that in which the row's own work takes longest, which makes the bound tight.
"""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import numpy.typing as npt

from cost_models.axes.columns import Ints, LayoutColumns
from cost_models.axes.distinct import over_distinct
from cost_models.pipeline.costs import as_priced, stage_costs, time_costs
from cost_models.pipeline.stage_costs import StageCosts
from cost_models.pipeline.time_terms import TimeTerms
from cost_models.pipeline.under_scenarios import scenarios_of
from cost_models.question import Question
from cost_models.risk import slowest

Array = npt.NDArray[np.float64]


def weighed_costs(question: Question, columns: LayoutColumns) -> StageCosts:
    """Price N layouts at once, at mean costs where the question weighs scenarios; bytes are the same in all.

    Raises:
        InputError: the GPU has no rate for the training precision.
    """
    cases = scenarios_of(question)
    if not cases:
        return stage_costs(question, columns)
    names = [field.name for field in fields(LayoutColumns)]
    return over_distinct(
        as_priced(question, columns), names, lambda rows: _weighed_costs(question, cases, rows)
    )


def _weighed_costs(question: Question, cases: tuple[Question, ...], rows: LayoutColumns) -> StageCosts:
    each = [time_costs(case, rows) for case in cases]
    m, layers = rows.microbatches(question.training.global_batch), question.model.num_layers
    work_KN = np.stack([_work(own, m, layers, rows.pp) for own in each])
    counted_KN = slowest(work_KN, question.risk)
    count = int(counted_KN[:, :1].sum())
    seconds: dict[str, Array] = {}
    for name in (field.name for field in fields(TimeTerms)):
        total = np.zeros_like(getattr(each[0], name))
        for own, counted in zip(each, counted_KN, strict=True):
            value = getattr(own, name)
            total += value * (counted if value.ndim == 1 else counted[:, None])
        seconds[name] = total / max(count, 1)
    return replace(stage_costs(question, rows), **seconds)


def _work(costs: StageCosts, m: Ints, layers: int, pp: Ints) -> Array:
    """(N,) seconds of a rank's share of the work, without waiting: what tells slow scenarios from fast ones."""
    block = costs.layer_forward + costs.layer_backward[:, 0]
    ends = costs.embedding_forward + costs.embedding_backward + costs.head_forward + costs.head_backward
    stage = costs.stage_forward + costs.stage_backward
    once = costs.rank_sync + costs.rank_optimizer + costs.step_overhead
    once = once + layers / pp * (costs.layer_sync + costs.layer_optimizer)
    work: Array = m * ((layers * block + ends) / pp + stage) + once
    return work
