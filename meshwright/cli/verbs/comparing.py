"""`compare`: plans and layouts side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from cost_models.errors import InputError
from cost_models.estimate import Estimate
from cost_models.pipeline.estimating import estimate as price
from cost_models.question import Question
from meshwright.api.problems import Together
from meshwright.cli.output import JSON_SCHEMA, Output
from meshwright.records.estimates import estimate_record, question_record
from meshwright.render.plans.comparison import comparison_table, differences_table
from meshwright.render.tables import Table
from meshwright.render.words import wrapped
from planner.explaining.compare import compare as compare_estimates
from planner.explaining.completing import completed
from planner.explaining.differing import Difference, differences, same_work
from planner.plan import Plan
from planner.plan_files import load_plan
from planner.repricing import priced_again
from planner.rules.legality import require_legal
from planner.search.given_layout import place_layout
from planner.trainers import trainer_named

MAX_COMPARED = 6
"""As many columns as fit a line of 80."""


def compare(choices: Sequence[str], *, trainer: str | None = None, output: Output) -> None:
    """Print every quantity of all choices; the first is what the others are measured against.

    Raises:
        InputError: fewer than two or too many, a broken plan, or a layout that cannot run (for the trainer).
    """
    if not 2 <= len(choices) <= MAX_COMPARED:
        raise InputError(
            f"compare takes two to {MAX_COMPARED} plans, not {len(choices)}",
            hint='after the first, a layout will do: meshwright compare plan.yaml "tp8 pp4 dp2"',
        )
    compared = _priced(choices, trainer)
    estimates, questions = [one.estimate for one in compared], [one.question for one in compared]
    lines, asked = compare_estimates(estimates, questions), differences(questions)
    output.answer(
        {
            "schema": JSON_SCHEMA,
            "differs": [{"what": one.what, "values": list(one.values)} for one in asked],
            "same_work": same_work(questions),
            "questions": [question_record(question) for question in questions],
            "plans": [estimate_record(estimate) for estimate in estimates],
        },
        [
            {"group": line.group, "quantity": line.name, "unit": line.unit}
            | {f"plan_{number}": value for number, value in enumerate(line.values, start=1)}
            for line in lines
        ],
        *[
            wrapped(
                f"{number}: {estimate.layout.brief}{'' if estimate.fits else ', does not fit'}", indent="   "
            )
            for number, estimate in enumerate(estimates, start=1)
        ],
        *_asked_text(asked, same_work(questions)),
        "",
        comparison_table(lines),
    )


def _asked_text(asked: Sequence[Difference], same: bool) -> tuple[str | Table, ...]:
    """What differs in the questions, before anything is compared; nothing where they are the same."""
    if not asked:
        return ()
    said = "They answer different questions:"
    if not same:
        said = "They answer different questions, and their steps do different work: parts are shares of their own step."
    return "", wrapped(said), differences_table(asked)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Compared:
    question: Question
    estimate: Estimate


def _priced(choices: Sequence[str], trainer: str | None) -> list[_Compared]:
    """Plan files, priced again; a layout is priced for the question of the first plan."""
    if not _is_file(choices[0]):
        raise InputError(f"`{choices[0]}` is no plan file", hint="the first of what is compared must be one")
    first = load_plan(Path(choices[0]))
    if trainer is not None:
        trainer_named(trainer)
    together = Together()
    found = [together.read(partial(_plan_again, first, trainer))]
    found += [together.read(partial(_one, choice, first, trainer)) for choice in choices[1:]]
    together.require()
    return [one for one in found if one is not None]


def _plan_again(plan: Plan, trainer: str | None) -> _Compared:
    require_legal(plan.question, plan.layout, trainer)
    return _Compared(question=plan.question, estimate=priced_again(plan))


def _one(choice: str, first: Plan, trainer: str | None) -> _Compared:
    """A plan file, or a layout under the question of the first plan, whose words it has where it leaves them out."""
    if _is_file(choice):
        return _plan_again(load_plan(Path(choice)), trainer)
    question = first.question
    layout = completed(question, first.layout, choice, trainer).layout
    require_legal(question, layout, trainer)
    estimate, limit = price(question, place_layout(question, layout)), first.restrictions.max_memory
    return _Compared(question=question, estimate=estimate if limit is None else estimate.within(limit))


def _is_file(choice: str) -> bool:
    return choice.endswith((".yaml", ".yml")) or Path(choice).exists()
