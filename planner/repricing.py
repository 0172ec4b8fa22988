"""The price of a saved plan today, within the memory limit it was planned for."""

from __future__ import annotations

from cost_models.estimate import Estimate
from cost_models.pipeline.estimating import estimate
from planner.plan import Plan


def priced_again(plan: Plan) -> Estimate:
    """The estimate of the plan's layout for its question, under the memory limit of its restrictions."""
    priced, limit = estimate(plan.question, plan.layout), plan.restrictions.max_memory
    return priced if limit is None else priced.within(limit)
