"""Verification: prices a plan again and proves it again."""

from __future__ import annotations

from pathlib import Path

from meshwright.families import verbs_of_plan
from planner.any_plan import AnyPlan
from planner.plan_files import read_any_plan
from planner.proof.checks import Check
from planner.search.budget import Budget


def verify(
    plan: str | Path | AnyPlan, *, time_limit: float | None = None, budget: Budget | None = None
) -> tuple[Check, ...]:
    """Check a plan or a plan file; it is true where every check passed.

    Raises:
        InputError: not a plan file.
    """
    loaded = plan if isinstance(plan, AnyPlan) else read_any_plan(plan)
    return tuple(verbs_of_plan(loaded).verify(loaded, budget or Budget(time_limit=time_limit)))
