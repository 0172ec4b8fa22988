"""Collect the problems of several inputs, so that one error lists them all."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, ParamSpec, TypeVar, cast

from cost_models.documents import printable
from cost_models.errors import InputError, Problem, did_you_mean

P = ParamSpec("P")
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


def refuse(headline: str, problems: Sequence[Problem], hint: str = "") -> None:
    """Raise InputError with these problems; do nothing if there are none."""
    if problems:
        raise InputError(headline, problems=problems, hint=hint)


def require_given(inputs: Mapping[str, object], headline: str, hint: str) -> None:
    """Raise InputError if inputs are missing; `inputs` are their values by the names that users know."""
    refuse(headline, [Problem(name, "missing") for name, value in inputs.items() if not value], hint)


def not_one_of(word: object, choices: Sequence[str]) -> str:
    """Message such as "`x` is not one of a, b", with the most similar choice."""
    text = str(word)
    return f"`{printable(text)}` is not one of {', '.join(choices)}{did_you_mean(text, choices)}"


@dataclass(slots=True)
class Problems:
    """Input errors collected so far."""

    errors: list[InputError] = field(default_factory=list)

    def read(self, reader: Callable[P, T], *arguments: P.args, **keywords: P.kwargs) -> T:
        """Call `reader` and return its value; collect its InputError instead of raising it, and return None."""
        try:
            return reader(*arguments, **keywords)
        except InputError as error:
            self.errors.append(error)
            return cast(T, None)

    def require(self, headline: str = "") -> None:
        """Raise the collected InputError, or several as one error under the headline, each problem once; do nothing if
        there are none."""
        errors = list({(one.headline, *one.problems): one for one in self.errors}.values())
        if len(errors) == 1:
            raise errors[0]
        if errors:
            groups = [one.problems or (Problem("", one.headline),) for one in errors]
            problems, hint = (
                list(dict.fromkeys(chain(*groups))),
                next((one.hint for one in errors if one.hint), ""),
            )
            headline = headline or f"{len(problems)} problems in what was asked"
            raise InputError(headline, problems=problems, hint=hint)
