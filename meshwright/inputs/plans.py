"""Takes a plan as users have it: an answer, a plan, or the path of a plan file."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from planner.plan import Plan
from planner.plan_files import load_plan


class HasPlan(Protocol):
    """An answer that can be written as a plan."""

    @property
    def plan(self) -> Plan:
        """The answer as a plan."""


def plan_of(plan: Plan | HasPlan | str | Path) -> Plan:
    """The plan itself, read where it is a file.

    Raises:
        InputError: not a plan file.
    """
    if isinstance(plan, (str, Path)):
        return load_plan(plan)
    return plan if isinstance(plan, Plan) else plan.plan
