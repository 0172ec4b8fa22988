"""Takes a plan as users have it: an answer, a plan, or the path of a plan file."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from cost_models.axes.layout import parse_layout
from cost_models.errors import InputError
from cost_models.files.reading import is_file, is_pipe
from planner.plan import AnyPlan, Plan, load_any_plan


class HasPlan(Protocol):
    """An answer that can be written as a plan."""

    @property
    def plan(self) -> AnyPlan:
        """The answer as a plan."""


def any_plan_of(plan: AnyPlan | HasPlan | str | Path) -> AnyPlan:
    """The plan itself, of whichever family, read where it is a file. Raises InputError: not a plan file."""
    if isinstance(plan, (str, Path)):
        return load_any_plan(plan)
    return plan if isinstance(plan, AnyPlan) else plan.plan


def plan_of(plan: AnyPlan | HasPlan | str | Path) -> Plan:
    """The plan of a transformer itself, read where it is a file.

    Raises:
        InputError: not a plan file, or one of another family.
    """
    loaded = any_plan_of(plan)
    if not isinstance(loaded, Plan):
        raise InputError(f"a plan of a transformer is needed here; that of {loaded.model_name} is none")
    return loaded


def is_plan(choice: str | Path | AnyPlan) -> bool:
    """Whether a choice means a plan or a plan file. A word that reads as a layout is one, whatever files are called."""
    text = str(choice)
    if isinstance(choice, AnyPlan) or text.endswith((".yaml", ".yml", ".json")):
        return True
    try:
        parse_layout(text)
    except InputError:
        return is_file(text) or is_pipe(text)
    return False
