"""How words of a layout are written and read: `tp8`, `sp`, `order=tp-pp-cp-dp`, `recompute=full*2,none`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import groupby
from typing import Any, ClassVar

from cost_models.base import MAX_LAYERS
from cost_models.documents import printable

MAX_STAGES = MAX_LAYERS
"""Virtual stages of a pipeline: more than blocks nobody has."""

_MOST_DIGITS = 12


@dataclass(frozen=True, slots=True)
class Word:
    """A kind of word: a name, and what follows it."""

    sign: ClassVar[str] = "="
    """What every such word has after its name."""

    def read(self, rest: str) -> Any:
        """The value that stands after the name; None where this is another word.

        Raises:
            ValueError: the value cannot be read; the message says why.
        """
        return rest[1:] if rest.startswith(self.sign) and rest.isascii() else None

    def write(self, name: str, value: Any) -> str:
        """The word for a value."""
        return f"{name}={value}"

    def number(self, value: Any) -> int:
        """The value in a column."""
        return int(value)

    def value(self, number: int) -> Any:
        """The other way round."""
        return number


@dataclass(frozen=True, slots=True)
class Number(Word):
    """`tp8` or `tp=8`."""

    sign: ClassVar[str] = ""

    least: int = 1
    most: int | None = None
    outside: str = "must be above zero"
    """What is wrong with a number below the least or above the most."""

    def read(self, rest: str) -> int | None:
        digits = rest[1:] if rest.startswith("=") else rest
        return (
            int(digits) if digits.isdecimal() and digits.isascii() and len(digits) <= _MOST_DIGITS else None
        )

    def write(self, name: str, value: Any) -> str:
        return f"{name}{value}"


@dataclass(frozen=True, slots=True)
class Switch(Word):
    """`sp` or `sp=1`; `sp=0` says that it is off."""

    sign: ClassVar[str] = ""

    def read(self, rest: str) -> bool | None:
        return rest != "=0" if rest in ("", "=1", "=0") else None

    def write(self, name: str, value: Any) -> str:
        return name

    def value(self, number: int) -> bool:
        return bool(number)


UNSAID = -1
"""In a column: a choice that the layout leaves to the software stack."""


@dataclass(frozen=True, slots=True)
class Choice(Word):
    """`schedule=zbv`: one of some names, in a column the index of it."""

    names: tuple[str, ...]

    def number(self, value: Any) -> int:
        return UNSAID if value is None else self.names.index(value)

    def value(self, number: int) -> str | None:
        return None if number == UNSAID else self.names[number]


@dataclass(frozen=True, slots=True)
class PerStage(Word):
    """`layers=12*7,11`: a value for each stage, equal neighbours as one run. No column: the planner chooses them."""

    item: Callable[[str], Any] = str
    """Reads one value; raises ValueError."""

    def read(self, rest: str) -> tuple[Any, ...] | None:
        text = Word.read(self, rest)
        if text is None:
            return None
        try:
            return tuple(self.item(value) for value in _expand(text))
        except ValueError:
            raise ValueError(f"`{printable(text)}` is not a list like `12*7,11`") from None

    def write(self, name: str, value: Any) -> str:
        return f"{name}={_run_lengths(value)}"


def _run_lengths(values: Iterable[object]) -> str:
    """(12, 12, 11) → "12*2,11"."""
    runs = [(value, len(list(group))) for value, group in groupby(values)]
    return ",".join(f"{value}*{count}" if count > 1 else str(value) for value, count in runs)


def _expand(text: str) -> list[str]:
    """`12*2,11` → ["12", "12", "11"]; raises ValueError on anything else, and on more than there are stages."""
    values: list[str] = []
    for run in text.split(",", MAX_STAGES):
        value, star, count = run.partition("*")
        repeats = int(count) if star else 1
        if not 1 <= repeats <= MAX_STAGES - len(values):
            raise ValueError(f"`{run}` repeats {repeats} times")
        values += [value] * repeats
    return values
