"""Advice: what to change of what is run today, step by step to the best plan."""

from __future__ import annotations

from pathlib import Path

from cost_models.axes.layout import parse_layout
from meshwright.answers.advised import Advised
from meshwright.inputs.plans import HasPlan, plan_of
from planner.explaining.advice import advise as advice_on
from planner.plan import Plan
from planner.search.budget import Budget


def advise(
    plan: Plan | HasPlan | str | Path,
    layout: str | None = None,
    *,
    time_limit: float | None = None,
    budget: Budget | None = None,
) -> Advised:
    """Say what to change of a plan, or of a plan file that `estimate -o` wrote of what is run today.

    A `layout` is what is run instead of the plan's own, written in its notation. The best is within the plan's own
    restrictions; `time_limit` is in seconds.

    Raises:
        InputError: not a plan file, not a layout that can run, or a cluster of several pools.
        InfeasibleError: no layout fits at all.
        RunError: time ran out before anything was found.
    """
    loaded = plan_of(plan)
    today = loaded.layout if layout is None else parse_layout(layout)
    restrictions = loaded.restrictions.read
    spending = budget or Budget(time_limit=time_limit, keep_on_interrupt=True)
    return Advised(
        advice=advice_on(loaded.question, today, restrictions, spending), restrictions=restrictions
    )
