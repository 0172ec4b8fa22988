"""Comparisons of transformers' plans and layouts, side by side and part by part."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from cost_models.pipeline.estimating import estimate as price
from meshwright.answers.compared import Compared, PricedPlan
from meshwright.inputs.plans import is_plan, plan_of
from meshwright.inputs.problems import Problems
from planner.any_plan import AnyPlan
from planner.explaining.completing import completed
from planner.formats.trainers import trainer_named
from planner.plan import Plan
from planner.repricing import priced_again
from planner.rules.legality import require_legal
from planner.search.given_layout import place_layout


def compare(first: Plan, others: Sequence[str | Path | AnyPlan], trainer: str | None) -> Compared:
    """Price all under the rules of the trainer. Raises InputError: what cannot be; everything, at once."""
    if trainer is not None:
        trainer_named(trainer)
    problems = Problems()
    found = [problems.read(partial(_priced_plan, first, trainer))]
    found += [problems.read(partial(_priced, choice, first, trainer)) for choice in others]
    problems.require()
    return Compared(plans=tuple(one for one in found if one is not None))


def _priced(choice: str | Path | AnyPlan, first: Plan, trainer: str | None) -> PricedPlan:
    """A plan, or a layout under the question of the first plan."""
    if is_plan(choice):
        return _priced_plan(plan_of(choice), trainer)
    question = first.question
    layout = completed(question, first.layout, str(choice), trainer).layout
    require_legal(question, layout, trainer)
    estimate, limit = price(question, place_layout(question, layout)), first.restrictions.max_memory
    return PricedPlan(question=question, estimate=estimate if limit is None else estimate.within(limit))


def _priced_plan(plan: Plan, trainer: str | None) -> PricedPlan:
    require_legal(plan.question, plan.layout, trainer)
    return PricedPlan(question=plan.question, estimate=priced_again(plan))
