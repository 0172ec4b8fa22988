"""What every exporter is: the plans that it takes, how it writes one, and what its trainer makes of the file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from planner.formats.words import Translation


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """A file of a trainer."""

    text: str
    remarks: tuple[str, ...] = ()
    """What the trainer has other words for, what it has none for, and how to use the file."""
    fields: tuple[Translation, ...] = ()
    """Every field of the plan with the trainer's words for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exporter:
    """One trainer's files."""

    name: str
    plan_kind: str
    """`kind` of the plan files that it takes."""
    noun: str
    """What those plans are: "shardings of recommenders"."""
    write: Callable[[Any, str, bool], Exported]
    """A plan, under the name of its file, as the trainer's file. Raises InputError for what the trainer cannot run, and
    unless a part of the plan is enough (True) InfeasibleError for what it has no words for; all of it at once."""
