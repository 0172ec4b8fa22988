"""What every exporter is: the plans that it takes, how it writes one, and what its trainer makes of the file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """A file of a trainer."""

    text: str
    remarks: tuple[str, ...] = ()
    """What the trainer has other words for, and how to use the file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exporter:
    """One trainer's files."""

    name: str
    plan_kind: str
    """`kind` of the plan files that it takes."""
    noun: str
    """What those plans are: "shardings of recommenders"."""
    write: Callable[[Any], Exported]
    """A plan as the trainer's file; raises InputError for what the trainer cannot run, all of it at once."""
