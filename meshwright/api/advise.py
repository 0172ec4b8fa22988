"""Advice: what to change of what is run today, step by step to the best plan."""

from __future__ import annotations

from pathlib import Path
from typing import cast

from meshwright.answers.advised import Advised
from meshwright.families import verbs_of_plan
from meshwright.families.options import require_verb
from meshwright.inputs.plans import HasPlan, any_plan_of
from planner.any_plan import AnyPlan
from planner.search.budget import Budget


def advise(
    plan: AnyPlan | HasPlan | str | Path,
    layout: str | None = None,
    *,
    time_limit: float | None = None,
    budget: Budget | None = None,
) -> Advised:
    """Say what to change of a plan, or of a plan file that `estimate -o` wrote of what is run today.

    A `layout` is what is run instead of the plan's own, written in its notation. The best is within the plan's own
    restrictions; `time_limit` is in seconds. Of a recommender the answer is a `ShardingAdvised`.

    Raises:
        InputError: not a plan file, not a layout that can run, or a cluster of several pools.
        InfeasibleError: no layout fits at all.
        RunError: time ran out before anything was found.
    """
    loaded = any_plan_of(plan)
    verbs = verbs_of_plan(loaded)
    require_verb(verbs, "advise")
    spending = budget or Budget(time_limit=time_limit, keep_on_interrupt=True)
    return cast(Advised, verbs.advise(loaded, layout, spending))
