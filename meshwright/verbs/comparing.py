"""`compare`: plans and layouts side by side."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from cost_models.errors import InputError
from cost_models.estimate import Estimate
from cost_models.estimating import estimate as price
from cost_models.question import Question
from meshwright.output import Output
from meshwright.records import JSON_SCHEMA, estimate_record
from meshwright.render.comparison import comparison_table
from meshwright.verbs.estimating import priced_layout
from planner.compare import compare as compare_estimates
from planner.plan import load_plan

MAX_COMPARED = 6
"""As many columns as fit a line."""


def compare(choices: Sequence[str], *, output: Output) -> None:
    """Print every quantity of all choices; the first is what the others are measured against.

    Raises:
        InputError: fewer than two or too many, a broken plan, or a layout that cannot run.
    """
    if not 2 <= len(choices) <= MAX_COMPARED:
        raise InputError(
            f"compare takes two to {MAX_COMPARED} plans, not {len(choices)}",
            hint='after the first, a layout will do: meshwright compare plan.yaml "tp8 pp4 dp2"',
        )
    estimates = estimates_of(choices)
    lines = compare_estimates(estimates)
    output.answer(
        {"schema": JSON_SCHEMA, "plans": [estimate_record(estimate) for estimate in estimates]},
        [
            {"group": line.group, "quantity": line.name, "unit": line.unit}
            | {f"plan_{number}": value for number, value in enumerate(line.values, start=1)}
            for line in lines
        ],
        *[f"{number}  {estimate.layout.brief}" for number, estimate in enumerate(estimates, start=1)],
        "",
        comparison_table(lines),
    )


def estimates_of(choices: Sequence[str]) -> list[Estimate]:
    """Plan files, priced again; a layout is priced for the question of the first plan."""
    question: Question | None = None
    estimates = []
    for choice in choices:
        if _is_file(choice):
            plan = load_plan(Path(choice))
            asked = plan.question
            question = question or asked
            estimates.append(price(asked, plan.layout))
        elif question is None:
            raise InputError(f"`{choice}` is no plan file", hint="the first of what is compared must be one")
        else:
            estimates.append(priced_layout(question, choice))
    return estimates


def _is_file(choice: str) -> bool:
    return choice.endswith((".yaml", ".yml")) or Path(choice).exists()
