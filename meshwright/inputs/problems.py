"""Collects problems of several inputs, so that one error tells them all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, TypeVar

from cost_models.errors import InputError, Problem

T = TypeVar("T")


def read_flag(flag: str, value: Any, parse: Callable[[Any], T], headline: str = "") -> T | None:
    """Parse a flag's value with `parse`; None if the flag was not given.

    Raises:
        InputError: it cannot be read, as the flag's problem under a headline, or in the headline itself.
    """
    try:
        return None if value is None else parse(value)
    except ValueError as error:
        reason = error.headline if isinstance(error, InputError) else str(error)
        problems = [Problem(flag, reason)] if headline else []
        raise InputError(headline or f"{flag}: {reason}", problems=problems) from None


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

    def require(self, headline: str = "") -> None:
        """Do nothing where nothing was wrong. Raises InputError: the one that was met, or all as one of a headline."""
        if len(self.errors) == 1:
            raise self.errors[0]
        if self.errors:
            groups = [one.problems or (Problem("", one.headline),) for one in self.errors]
            problems, hint = list(chain(*groups)), next((one.hint for one in self.errors if one.hint), "")
            headline = headline or f"{len(problems)} problems in what was asked"
            raise InputError(headline, problems=problems, hint=hint)
