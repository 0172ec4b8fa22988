"""Explanations: what binds a plan, what it wins by, what would change it, and why another layout lost."""

from __future__ import annotations

from pathlib import Path

from cost_models.estimate import Estimate
from cost_models.units import format_seconds
from meshwright.answers.explained import Explained, NotChosen
from meshwright.inputs.plans import HasPlan, plan_of
from planner.explaining.explain import Origin
from planner.explaining.explain import explain as explanation_of
from planner.explaining.why_not import why_not as reason_against
from planner.plan import Plan
from planner.repricing import priced_again
from planner.space.notes import notes_of

DRIFT = 1e-6
"""Relative difference between a plan's prediction and its price today that is not rounding."""


def explain(plan: Plan | HasPlan | str | Path) -> Explained:
    """Explain a plan or a plan file: what binds it, its rivals, and what would change it.

    Raises:
        InputError: not a plan file.
    """
    loaded = plan_of(plan)
    notes = notes_of(loaded.question, loaded.restrictions.read)
    explanation = explanation_of(loaded, priced_again(loaded))
    return Explained(question=loaded.question, explanation=explanation, notes=notes, plan=loaded)


def why_not(plan: Plan | HasPlan | str | Path, layout: str) -> NotChosen:
    """Say why a layout is not the plan; words that the layout leaves out are the plan's.

    Raises:
        InputError: not a plan file, or not a layout.
    """
    loaded = plan_of(plan)
    priced = priced_again(loaded)
    restrictions, origin = loaded.restrictions.read, Origin.of(loaded)
    return NotChosen(
        answer=reason_against(loaded.question, priced, layout, restrictions, origin), plan=priced
    )


def drift_of(plan: Plan, name: object) -> str:
    """A note where the plan in a file was written with another step time than it has today; else nothing."""
    priced: Estimate = priced_again(plan)
    if abs(priced.step_seconds / plan.prediction.step_seconds - 1) <= DRIFT:
        return ""
    return (
        f"note: {name} was written with a step of {format_seconds(plan.prediction.step_seconds)};"
        f" this version prices it at {format_seconds(priced.step_seconds)}"
    )
