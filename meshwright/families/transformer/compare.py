"""`compare` of transformers' plans and layouts, part by part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cost_models.estimate import Estimate
from cost_models.pipeline.estimating import estimate as price
from cost_models.question import Question
from meshwright.inputs.plans import is_plan, plan_of
from meshwright.inputs.problems import Problems
from meshwright.records import JSON_SCHEMA
from meshwright.records.estimates import estimate_record, question_record
from meshwright.render.plans.comparison import comparison_table, differences_table
from meshwright.render.tables import Table
from meshwright.render.words import wrapped
from planner.any_plan import AnyPlan
from planner.explaining.compare import Line
from planner.explaining.compare import compare as lines_of
from planner.explaining.completing import completed
from planner.explaining.differing import Difference, differences, same_work
from planner.formats.trainers import trainer_named
from planner.plan import Plan
from planner.repricing import priced_again
from planner.rules.legality import require_legal
from planner.search.given_layout import place_layout

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedPlan:
    """A question and the price of one layout for it."""

    question: Question
    estimate: Estimate


@dataclass(frozen=True, kw_only=True, repr=False)
class Compared:
    """Plans, every quantity of which is set beside that of the first."""

    plans: tuple[PricedPlan, ...]

    @property
    def questions(self) -> list[Question]:
        """One for each plan, in their order."""
        return [plan.question for plan in self.plans]

    @property
    def estimates(self) -> list[Estimate]:
        """One for each plan, in their order."""
        return [plan.estimate for plan in self.plans]

    @property
    def differs(self) -> tuple[Difference, ...]:
        """In what the questions differ; nothing where they are the same."""
        return tuple(differences(self.questions))

    @property
    def lines(self) -> tuple[Line, ...]:
        """Every quantity, with a value for each plan."""
        return tuple(lines_of(self.estimates, self.questions))

    @property
    def rows(self) -> list[dict[str, Any]]:
        """A row for each quantity."""
        return [
            {"group": line.group, "quantity": line.name, "unit": line.unit}
            | {f"plan_{number}": value for number, value in enumerate(line.values, start=1)}
            for line in self.lines
        ]

    def record(self) -> dict[str, Any]:
        """The JSON document."""
        return {
            "schema": JSON_SCHEMA,
            "differs": [{"what": one.what, "values": list(one.values)} for one in self.differs],
            "same_work": same_work(self.questions),
            "questions": [question_record(question) for question in self.questions],
            "plans": [estimate_record(estimate) for estimate in self.estimates],
        }

    @property
    def text(self) -> tuple[str | Table, ...]:
        """What `meshwright compare` prints."""
        named = [
            wrapped(
                f"{number}: {estimate.layout.brief}{'' if estimate.fits else ', does not fit'}", indent="   "
            )
            for number, estimate in enumerate(self.estimates, start=1)
        ]
        return *named, *self._differences(), "", comparison_table(self.lines)

    def _differences(self) -> tuple[str | Table, ...]:
        """What differs in the questions, said before anything is compared."""
        if not self.differs:
            return ()
        said = "They answer different questions:"
        if not same_work(self.questions):
            said = (
                "They answer different questions, and their steps do different work: parts are shares of their"
                " own step."
            )
        return "", wrapped(said), differences_table(self.differs)

    def to_frame(self) -> pd.DataFrame:
        """The rows as a frame."""
        import pandas as pd

        return pd.DataFrame(self.rows)

    def __repr__(self) -> str:
        return "\n".join(map(str, self.text))


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
