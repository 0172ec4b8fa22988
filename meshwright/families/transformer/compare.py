"""`compare` of transformers' plans and layouts, part by part."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cost_models.estimate import Estimate
from cost_models.question import Question
from cost_models.units import format_bytes, format_count, format_seconds
from meshwright.inputs.plans import is_plan, plan_of
from meshwright.inputs.problems import Problems
from meshwright.records import JSON_SCHEMA
from meshwright.records.estimates import estimate_record, meant_record, question_record
from meshwright.render.explanation import filled_sentence
from meshwright.render.tables import Table, table
from meshwright.render.words import change_words, part_label, percent, wrapped
from meshwright.verbs.contract.answer import AnswerBase
from planner.any_plan import AnyPlan
from planner.explaining.compare import Line
from planner.explaining.compare import compare as lines_of
from planner.explaining.completing import Meant, meant
from planner.explaining.differing import Difference, differences, same_work
from planner.formats.trainers import trainer_named
from planner.plan import Plan
from planner.repricing import priced_again
from planner.rules.legality import require_legal

if TYPE_CHECKING:
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedPlan:
    """A question and the price of one layout for it."""

    question: Question
    estimate: Estimate
    meant: Meant | None = None
    """How a layout was read; None of a plan."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Compared(AnswerBase):
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
        return {
            "schema": JSON_SCHEMA,
            "differs": [{"what": one.what, "values": list(one.values)} for one in self.differs],
            "same_work": same_work(self.questions),
            "questions": [question_record(question) for question in self.questions],
            "plans": [
                estimate_record(one.estimate) | ({} if one.meant is None else meant_record(one.meant))
                for one in self.plans
            ],
        }

    @property
    def text(self) -> tuple[str | Table, ...]:
        named = [
            wrapped(
                f"{number}: {estimate.layout.brief}{'' if estimate.fits else ', does not fit'}", indent="   "
            )
            for number, estimate in enumerate(self.estimates, start=1)
        ]
        filled = [filled_sentence(one.meant) if one.meant else "" for one in self.plans]
        read = [f"{number}: {words}" for number, words in enumerate(filled, start=1) if words]
        return *named, *read, *self._differences(), "", comparison_table(self.lines)

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
    limits = first.asked if trainer is None else replace(first.asked, trainer=trainer)
    found = meant(first.question, str(choice), limits)
    return PricedPlan(question=first.question, estimate=found.estimate, meant=found)


def _priced_plan(plan: Plan, trainer: str | None) -> PricedPlan:
    require_legal(plan.question, plan.layout, trainer)
    return PricedPlan(question=plan.question, estimate=priced_again(plan))


_FORMATS: dict[str, Callable[[float], str]] = {
    "seconds": format_seconds,
    "bytes": format_bytes,
    "share": percent,
    "tokens/s": format_count,
    "FLOP/s": format_count,
}
_TOTALS = ("step", "peak memory")


def comparison_table(lines: Sequence[Line]) -> Table:
    """Parts are indented under their totals; `change` sets the last plan against the first."""
    plans = len(lines[0].values)
    headers = ["", *[str(number) for number in range(1, plans + 1)], "change"]
    rows = [
        [_name(line), *[_cell(line, value) for value in line.values], _change(line)]
        for line in _ordered(lines)
    ]
    return table(headers, rows, words=("",))


def differences_table(differences: Sequence[Difference]) -> Table:
    """What the plans were asked differently, a row for each."""
    plans = [str(number) for number in range(1, len(differences[0].values) + 1)]
    rows = [(difference.what, *difference.values) for difference in differences]
    return table(["", *plans], rows, words=["", *plans])


def _cell(line: Line, value: float) -> str:
    return _FORMATS[line.unit](value) if value else "-"


def _ordered(lines: Sequence[Line]) -> list[Line]:
    """The step with its parts first, then what follows from it, then memory."""
    step, *rest = lines
    times = [line for line in rest if line.group == "time"]
    return [step, *times, *[line for line in rest if line.group != "time"]]


def _name(line: Line) -> str:
    is_part = line.group == "time" or (line.group == "memory" and line.name not in _TOTALS)
    return f"{'  ' * is_part}{part_label(line.name)}"


def _change(line: Line) -> str:
    """Shares in points, everything else relative; a part is measured against the plan's own part."""
    first, last = line.values[0], line.values[-1]
    return change_words(_FORMATS[line.unit], line.unit, first, last) if line.comparable else ""
