"""Collects what is wrong with several inputs, so that one error tells all of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from cost_models.errors import InputError, Problem

T = TypeVar("T")


@dataclass(slots=True)
class Problems:
    """The errors met so far."""

    errors: list[InputError] = field(default_factory=list)

    def read(self, reader: Callable[[], T]) -> T | None:
        """Return what `reader` returns; None where it raised, which `require` will tell."""
        try:
            return reader()
        except InputError as error:
            self.errors.append(error)
            return None

    def require(self) -> None:
        """Do nothing where nothing was wrong. Raises InputError: the one that was met, or all of them as one."""
        if len(self.errors) == 1:
            raise self.errors[0]
        if self.errors:
            problems = [
                problem for one in self.errors for problem in one.problems or (Problem("", one.headline),)
            ]
            hint = next((one.hint for one in self.errors if one.hint), "")
            raise InputError(f"{len(problems)} problems in what was asked", problems=problems, hint=hint)
