"""Comparisons: plans and layouts side by side, part by part."""

from __future__ import annotations

from pathlib import Path
from typing import cast

from cost_models.errors import InputError
from meshwright.answers.compared import Compared
from meshwright.families import verbs_of_plan
from meshwright.families.options import require_options
from meshwright.inputs.plans import any_plan_of, is_plan
from planner.plan import Plan

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
    if not is_plan(choices[0]):
        raise InputError(f"`{choices[0]}` is no plan file", hint="the first of what is compared must be one")
    first = any_plan_of(choices[0])
    verbs = verbs_of_plan(first)
    require_options(verbs, "compare", () if trainer is None else ("trainer",))
    return cast(Compared, verbs.compare(first, choices[1:], trainer))
