"""Read a plan given as an answer, a plan, or the path of a plan file."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from cost_models.axes.layout import parse_layout
from cost_models.errors import InputError
from cost_models.files.reading import is_file, is_pipe
from planner.plan import AnyPlan, Plan, load_any_plan


class HasPlan(Protocol):
    """Protocol of an answer that has a plan."""

    @property
    def plan(self) -> AnyPlan:
        """Plan of the answer, as a plan file holds it."""


def any_plan_of(plan: AnyPlan | HasPlan | str | Path) -> AnyPlan:
    """Plan of a transformer or recommender, from an answer, a plan, or a plan file. Raises InputError for a file that
    is no plan."""
    if isinstance(plan, (str, Path)):
        return load_any_plan(plan)
    return plan if isinstance(plan, AnyPlan) else plan.plan


def plan_of(plan: AnyPlan | HasPlan | str | Path) -> Plan:
    """Plan of a transformer, from an answer, a plan, or a plan file.

    Raises:
        InputError: not a plan file, or one of another family.
    """
    loaded = any_plan_of(plan)
    if not isinstance(loaded, Plan):
        raise InputError(f"a plan of a transformer is needed here; that of {loaded.model_name} is none")
    return loaded


def is_plan(choice: str | Path | AnyPlan) -> bool:
    """Whether a choice is a plan or a plan file; text that parses as a layout is a layout, even if a file has that
    name."""
    text = str(choice)
    if isinstance(choice, AnyPlan) or text.endswith((".yaml", ".yml", ".json")):
        return True
    try:
        parse_layout(text)
    except InputError:
        return is_file(text) or is_pipe(text)
    return False
