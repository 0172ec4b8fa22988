"""Comparisons: plans and layouts side by side, part by part."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from cost_models.errors import InputError
from cost_models.pipeline.estimating import estimate as price
from meshwright.answers.compared import Compared, PricedPlan
from meshwright.inputs.problems import Problems
from planner.explaining.completing import completed
from planner.plan import Plan
from planner.plan_files import load_plan
from planner.repricing import priced_again
from planner.rules.legality import require_legal
from planner.search.given_layout import place_layout
from planner.trainers import trainer_named

MAX_COMPARED = 6
"""As many columns as fit a line of 80."""


def compare(*choices: str | Path | Plan, trainer: str | None = None) -> Compared:
    """Set every quantity of two to six plans side by side; the first is what the others are measured against.

    After the first, a choice may be a layout, priced for the question of the first, whose words it has where it leaves
    them out. Layouts obey the rules of the `trainer`.

    Raises:
        InputError: fewer than two or too many, a broken plan, or a layout that cannot run (for the trainer).
    """
    if not 2 <= len(choices) <= MAX_COMPARED:
        raise InputError(
            f"compare takes two to {MAX_COMPARED} plans, not {len(choices)}",
            hint='after the first, a layout will do: meshwright compare plan.yaml "tp8 pp4 dp2"',
        )
    if not _is_plan(choices[0]):
        raise InputError(f"`{choices[0]}` is no plan file", hint="the first of what is compared must be one")
    first = _loaded(choices[0])
    if trainer is not None:
        trainer_named(trainer)
    problems = Problems()
    found = [problems.read(partial(_priced_plan, first, trainer))]
    found += [problems.read(partial(_priced, choice, first, trainer)) for choice in choices[1:]]
    problems.require()
    return Compared(plans=tuple(one for one in found if one is not None))


def _priced(choice: str | Path | Plan, first: Plan, trainer: str | None) -> PricedPlan:
    """A plan, or a layout under the question of the first plan."""
    if _is_plan(choice):
        return _priced_plan(_loaded(choice), trainer)
    question = first.question
    layout = completed(question, first.layout, str(choice), trainer).layout
    require_legal(question, layout, trainer)
    estimate, limit = price(question, place_layout(question, layout)), first.restrictions.max_memory
    return PricedPlan(question=question, estimate=estimate if limit is None else estimate.within(limit))


def _priced_plan(plan: Plan, trainer: str | None) -> PricedPlan:
    require_legal(plan.question, plan.layout, trainer)
    return PricedPlan(question=plan.question, estimate=priced_again(plan))


def _is_plan(choice: str | Path | Plan) -> bool:
    return isinstance(choice, Plan) or str(choice).endswith((".yaml", ".yml")) or Path(choice).exists()


def _loaded(choice: str | Path | Plan) -> Plan:
    return choice if isinstance(choice, Plan) else load_plan(Path(choice))
