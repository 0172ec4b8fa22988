"""The price of a saved plan today: under the memory limit of its question, and under that which it was held to."""

from __future__ import annotations

from cost_models.axes.layout import Layout
from cost_models.estimate import Estimate
from cost_models.pipeline.estimating import estimate
from planner.plan import Plan


def priced_again(plan: Plan, layout: Layout | None = None) -> Estimate:
    """The estimate of the plan's layout, or of another, for its question, under the memory limit that was asked for."""
    priced, limit = estimate(plan.question, layout or plan.layout), plan.asked.max_memory
    return priced if limit is None else priced.within(limit)


def priced_as_held(plan: Plan) -> Estimate:
    """The same under the limit of what it was chosen from: a recommended layout must fit with a higher confidence."""
    within = plan.restrictions.read
    priced = estimate(within.held(plan.question), plan.layout)
    return priced if within.max_memory is None else priced.within(within.max_memory)
