"""Explanations: what binds a plan, what it wins by, what would change it, and why another layout lost."""

from __future__ import annotations

from pathlib import Path
from typing import cast

from meshwright.answers.explained import Explained, NotChosen
from meshwright.families import verbs_of_plan
from meshwright.inputs.plans import HasPlan, any_plan_of
from planner.plan import Plan


def explain(plan: Plan | HasPlan | str | Path) -> Explained:
    """Explain a plan or a plan file: what binds it, its rivals, and what would change it.

    Raises:
        InputError: not a plan file.
    """
    loaded = any_plan_of(plan)
    return cast(Explained, verbs_of_plan(loaded).explain(loaded))


def why_not(plan: Plan | HasPlan | str | Path, layout: str) -> NotChosen:
    """Say why a layout is not the plan; words that the layout leaves out are the plan's.

    Raises:
        InputError: not a plan file, or not a layout.
    """
    loaded = any_plan_of(plan)
    return cast(NotChosen, verbs_of_plan(loaded).why_not(loaded, layout))
