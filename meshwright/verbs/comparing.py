"""`compare`: plans and layouts side by side."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from cost_models.errors import InputError
from cost_models.estimate import Estimate
from cost_models.estimating import estimate as price
from cost_models.question import Question
from meshwright.output import JSON_SCHEMA, Output
from meshwright.records import estimate_record
from meshwright.render.comparison import comparison_table
from meshwright.render.words import wrapped
from meshwright.together import Together
from meshwright.verbs.estimating import priced_layout
from planner.compare import compare as compare_estimates
from planner.legality import require_legal
from planner.plan import load_plan
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
    estimates = estimates_of(choices, trainer)
    lines = compare_estimates(estimates)
    output.answer(
        {"schema": JSON_SCHEMA, "plans": [estimate_record(estimate) for estimate in estimates]},
        [
            {"group": line.group, "quantity": line.name, "unit": line.unit}
            | {f"plan_{number}": value for number, value in enumerate(line.values, start=1)}
            for line in lines
        ],
        *[
            wrapped(f"{number}: {estimate.layout.brief}", indent="   ")
            for number, estimate in enumerate(estimates, start=1)
        ],
        "",
        comparison_table(lines),
    )


def estimates_of(choices: Sequence[str], trainer: str | None = None) -> list[Estimate]:
    """Plan files, priced again; a layout is priced for the question of the first plan."""
    if not _is_file(choices[0]):
        raise InputError(f"`{choices[0]}` is no plan file", hint="the first of what is compared must be one")
    first = load_plan(Path(choices[0])).question
    if trainer is not None:
        trainer_named(trainer)
    together = Together()
    estimates = [together.read(partial(_estimate_of, choice, first, trainer)) for choice in choices]
    together.require()
    return [estimate for estimate in estimates if estimate is not None]


def _estimate_of(choice: str, question: Question, trainer: str | None) -> Estimate:
    if not _is_file(choice):
        return priced_layout(question, choice, trainer)
    plan = load_plan(Path(choice))
    require_legal(plan.question, plan.layout, trainer)
    return price(plan.question, plan.layout)


def _is_file(choice: str) -> bool:
    return choice.endswith((".yaml", ".yml")) or Path(choice).exists()
