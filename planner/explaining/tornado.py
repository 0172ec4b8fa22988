"""What a quarter more and a quarter less of each thing does to a plan's step, as a data frame."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cost_models.estimate import Estimate
from cost_models.pipeline.estimating import estimate as price
from cost_models.question import Question
from planner.explaining.whatif import (
    QUANTITIES,
    Change,
    faster_under,
    scaled,
    searched_space,
    seconds_to_beat,
)
from planner.search.budget import Budget
from planner.space.restrictions import Restrictions

if TYPE_CHECKING:
    import pandas as pd

FACTORS = (0.75, 1.25)
"""Alike for every quantity, so that its bars can be held beside one another."""


def tornado_frame(
    question: Question,
    estimate: Estimate,
    restrictions: Restrictions | None = None,
    budget: Budget | None = None,
) -> pd.DataFrame:
    """A row for each quantity and factor, those first that move the plan's step most.

    Columns: `quantity`, `factor`, `held_seconds` of the plan as it is, `held_fits`, `step_seconds` and `layout` of the
    best plan then (NaN and empty where nothing fits, or time ran out), `plan_seconds`. Quantities that the question
    lacks are left out.
    """
    import pandas as pd

    spending, limits, rows = budget or Budget(), restrictions or Restrictions(), []
    with spending.spaces.shared():
        space = searched_space(question, limits)
    for name in QUANTITIES:
        for factor in FACTORS:
            change = Change(name, factor)
            if (changed := change.of(question)) is None:
                continue
            spending.tell(f"{factor:.0%} of {name}")
            within = scaled(limits, question, changed)
            held = price(changed, estimate.layout).within(within.max_memory)
            found = faster_under(change, (question, changed), limits, seconds_to_beat(held), space, spending)
            best = found or (held if held.fits else None)
            rows.append(
                {
                    "quantity": name,
                    "factor": factor,
                    "held_seconds": held.step_seconds,
                    "held_fits": held.fits,
                    "step_seconds": float("nan") if best is None else best.step_seconds,
                    "layout": "" if best is None else best.layout.brief,
                    "plan_seconds": estimate.step_seconds,
                }
            )
    frame = pd.DataFrame(rows)
    moved = frame[["held_seconds", "step_seconds"]].sub(estimate.step_seconds, axis=0).abs().max(axis=1)
    order = moved.groupby(frame["quantity"]).transform("max")
    return (
        frame.assign(order=order)
        .sort_values(["order", "quantity", "factor"], ascending=[False, True, True])
        .drop(columns="order")
        .reset_index(drop=True)
    )
