"""How words of a layout are written and read: `tp8`, `sp`, `order=tp-pp-cp-dp`, `recompute=full*2,none`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from cost_models.base import MAX_LAYERS
from cost_models.documents import printable

MAX_STAGES = MAX_LAYERS
"""Maximum number of virtual stages of a pipeline: as many as a model may have blocks."""

_MOST_DIGITS = 12


@dataclass(frozen=True, slots=True)
class Word:
    """A kind of word: a name, and what follows it."""

    @property
    def sign(self) -> str:
        """Sign between the name of an axis and its value."""
        return "="

    def read(self, rest: str) -> Any:
        """The value that stands after the name; None where this is another word.

        Raises:
            ValueError: the value cannot be read; the message says why.
        """
        return rest[1:] if rest.startswith(self.sign) and rest.isascii() else None

    def write(self, name: str, value: Any) -> str:
        """The word for a value."""
        return f"{name}={value}"

    def compare(self, name: str, value: Any) -> str:
        """The word for a value among compared values, where the absent one has a word too: "no sp", "usual overlap"."""
        if value is None or value is False or (isinstance(self, (Counts, PerStage)) and not any(value)):
            return f"{'usual' if isinstance(self, (Choice, Subset)) else 'no'} {name}"
        return self.write(name, value)

    def columns(self, name: str) -> dict[str, Word]:
        """The columns that such an axis has, and how a number of each is written."""
        return {name: self}

    def numbers(self, value: Any) -> tuple[int, ...]:
        """The numbers in these columns that stand for a value."""
        return (int(value),)

    def value(self, *numbers: int) -> Any:
        """The value that numbers in these columns stand for."""
        return numbers[0]

    @property
    def simplest(self) -> int:
        """Number in the column of a layout without the axis."""
        return 0

    @property
    def every(self) -> range | None:
        """Numbers that a column may hold; None: any from the simplest on."""
        return None


@dataclass(frozen=True, slots=True)
class Number(Word):
    """`tp8` or `tp=8`; where a usual one goes without saying, only `ring=4`."""

    least: int = 1
    most: int | None = None
    outside: str = "must be above zero"
    """Complaint about a number below the least or above the most."""
    usual: int | None = None

    @property
    def sign(self) -> str:
        return "" if self.usual is None else "="

    def read(self, rest: str) -> int | None:
        digits = rest.removeprefix("=") if rest.startswith(self.sign) else ""
        is_number = digits.isdecimal() and digits.isascii() and len(digits) <= _MOST_DIGITS
        return int(digits) if is_number else None

    def write(self, name: str, value: Any) -> str:
        return f"{name}{self.sign}{value}"

    @property
    def simplest(self) -> int:
        return self.least if self.usual is None else self.usual

    @property
    def every(self) -> range | None:
        return None if self.most is None else range(self.least, self.most + 1)


@dataclass(frozen=True, slots=True)
class Switch(Word):
    """`sp` or `sp=1`; `sp=0` says that it is off. Of a subset whether a name is in it, or `UNSAID`, the simplest."""

    simplest: int = 0

    @property
    def sign(self) -> str:
        return ""

    def read(self, rest: str) -> bool | None:
        return rest != "=0" if rest in ("", "=1", "=0") else None

    def write(self, name: str, value: Any) -> str:
        return name

    def value(self, *numbers: int) -> bool:
        return bool(numbers[0])

    @property
    def every(self) -> range:
        return range(self.simplest, 2)


UNSAID = -1
"""In a column: a choice that the layout leaves to the software stack."""


@dataclass(frozen=True, slots=True)
class Choice(Word):
    """`schedule=zbv`: one of some names, in a column the index of it."""

    names: tuple[str, ...]

    def numbers(self, value: str | None) -> tuple[int, ...]:
        return (UNSAID if value is None else self.names.index(value),)

    def value(self, *numbers: int) -> str | None:
        return None if numbers[0] == UNSAID else self.names[numbers[0]]

    @property
    def every(self) -> range:
        return range(len(self.names))


NONE = "none"


@dataclass(frozen=True, slots=True)
class Subset(Word):
    """`overlap=tp,dp`: some of some names, or `none` of them, a column each. Unsaid is the software stack's choice."""

    names: tuple[str, ...]

    def read(self, rest: str) -> tuple[str, ...] | None:
        text = Word.read(self, rest)
        if text is None:
            return None
        said = [] if text == NONE else text.split(",")
        for name in said:
            if name not in self.names:
                raise ValueError(f"`{printable(name)}` is none of {', '.join(self.names)}, {NONE}")
        return tuple(name for name in self.names if name in said)

    def write(self, name: str, value: Any) -> str:
        return f"{name}={','.join(value) or NONE}"

    def columns(self, name: str) -> dict[str, Word]:
        return {f"{name}_{one}": Switch(UNSAID) for one in self.names}

    def numbers(self, value: tuple[str, ...] | None) -> tuple[int, ...]:
        return tuple(UNSAID if value is None else int(name in value) for name in self.names)

    def value(self, *numbers: int) -> tuple[str, ...] | None:
        if all(number == UNSAID for number in numbers):
            return None
        return tuple(name for name, number in zip(self.names, numbers, strict=True) if number == 1)


EVERY = 10**6
"""A count of parts that means all there are."""


@dataclass(frozen=True, slots=True)
class Counts(Word):
    """`offload=streamed:28/states:4`: so many of each of some parts, a column each; parts left out have none, and one
    without a count means all there are (`offload=streamed`)."""

    parts: tuple[str, ...]

    def read(self, rest: str) -> tuple[int, ...] | None:
        text = Word.read(self, rest)
        if text is None:
            return None
        counts = dict.fromkeys(self.parts, 0)
        for word in text.split("/"):
            part, colon, count = word.partition(":")
            known = part in counts and (not colon or (count.isdecimal() and count.isascii()))
            if not known or (colon and int(count[:_MOST_DIGITS]) >= EVERY):
                all_of_them = "/".join(f"{part}:1" for part in self.parts)
                raise ValueError(f"`{printable(word)}` is not a part like those of `{all_of_them}`")
            counts[part] += int(count) if colon else EVERY
        return tuple(counts.values())

    def write(self, name: str, value: Any) -> str:
        named = [
            part if count >= EVERY else f"{part}:{count}"
            for part, count in zip(self.parts, value, strict=True)
            if count
        ]
        return f"{name}={'/'.join(named)}"

    def columns(self, name: str) -> dict[str, Word]:
        return {f"{name}_{part}": Number(least=0) for part in self.parts}

    def numbers(self, value: tuple[int, ...]) -> tuple[int, ...]:
        return value

    def value(self, *numbers: int) -> tuple[int, ...]:
        return numbers


@dataclass(frozen=True, slots=True)
class PerStage(Word):
    """`layers=12*7,11`: a value for each stage, equal neighbours as one run. No column: the planner chooses them."""

    item: Callable[[str], Any] = str
    """Reads one value; raises ValueError."""
    most: int = MAX_STAGES
    """Values there may be."""

    def read(self, rest: str) -> tuple[Any, ...] | None:
        text = Word.read(self, rest)
        if text is None:
            return None
        try:
            return tuple(self.item(value) for value in _expand(text, self.most))
        except ValueError:
            raise ValueError(f"`{printable(text)}` is not a list like `12*7,11`") from None

    def write(self, name: str, value: Any) -> str:
        return f"{name}={_run_lengths(value)}"

    def columns(self, name: str) -> dict[str, Word]:
        return {}

    def numbers(self, value: Any) -> tuple[int, ...]:
        return ()


def _run_lengths(values: Iterable[object]) -> str:
    """(12, 12, 11) → "12*2,11"."""
    runs = [(value, len(list(group))) for value, group in groupby(values)]
    return ",".join(f"{value}*{count}" if count > 1 else str(value) for value, count in runs)


def _expand(text: str, most: int) -> list[str]:
    """`12*2,11` → ["12", "12", "11"]; raises ValueError on anything else, and on more than there may be."""
    values: list[str] = []
    for run in text.split(",", most):
        value, star, count = run.partition("*")
        repeats = int(count) if star else 1
        if not 1 <= repeats <= most - len(values):
            raise ValueError(f"`{run}` repeats {repeats} times")
        values += [value] * repeats
    return values
