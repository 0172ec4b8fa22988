"""Verification: prices a plan again and proves it again."""

from __future__ import annotations

from pathlib import Path

from planner.plan import Plan
from planner.plan_files import read_plan
from planner.proof.checks import Check
from planner.proof.verifying import verify as checks_of
from planner.search.budget import Budget


def verify(
    plan: str | Path | Plan, *, time_limit: float | None = None, budget: Budget | None = None
) -> tuple[Check, ...]:
    """Check a plan or a plan file; it is true where every check passed.

    Raises:
        InputError: not a plan file.
    """
    loaded = plan if isinstance(plan, Plan) else read_plan(plan)
    return tuple(checks_of(loaded, budget or Budget(time_limit=time_limit)))
