"""Explanations of transformers' plans: what binds, what would change it, and why another layout lost."""

from __future__ import annotations

from cost_models.estimate import Estimate
from cost_models.units import format_seconds
from meshwright.answers.explained import Explained, NotChosen
from planner.explaining.explain import Origin
from planner.explaining.explain import explain as explanation_of
from planner.explaining.why_not import why_not as reason_against
from planner.plan import Plan
from planner.repricing import priced_again
from planner.space.notes import notes_of

DRIFT = 1e-6
"""Relative difference between a plan's prediction and its price today that is not rounding."""


def explain(plan: Plan) -> Explained:
    """What binds a plan, its rivals, and what would change it."""
    notes = notes_of(plan.question, plan.restrictions.read)
    explanation = explanation_of(plan, priced_again(plan))
    return Explained(question=plan.question, explanation=explanation, notes=notes, plan=plan)


def why_not(plan: Plan, layout: str) -> NotChosen:
    """Why a layout is not the plan; words that it leaves out are the plan's. Raises InputError where it is none."""
    priced = priced_again(plan)
    restrictions, origin = plan.restrictions.read, Origin.of(plan)
    return NotChosen(answer=reason_against(plan.question, priced, layout, restrictions, origin), plan=priced)


def drift_of(plan: Plan, name: object) -> str:
    """A note where the plan in a file was written with another step time than it has today; else nothing."""
    priced: Estimate = priced_again(plan)
    if abs(priced.step_seconds / plan.prediction.step_seconds - 1) <= DRIFT:
        return ""
    return (
        f"note: {name} was written with a step of {format_seconds(plan.prediction.step_seconds)};"
        f" this version prices it at {format_seconds(priced.step_seconds)}"
    )
