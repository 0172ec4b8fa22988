"""A plan's price today, within the memory it was planned for."""

from __future__ import annotations

from cost_models.estimate import Estimate
from cost_models.pipeline.estimating import estimate
from planner.plan import Plan


def priced_again(plan: Plan) -> Estimate:
    """The plan's layout under its question, on devices that may be filled as far as its restrictions say."""
    priced, limit = estimate(plan.question, plan.layout), plan.restrictions.max_memory
    return priced if limit is None else priced.within(limit)
