"""Kinds of words in the notation of layouts, with writer, parser and columns: `tp8`, `sp`,
`order=tp-pp-cp-dp`, `recompute=full*2,none`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from cost_models.base import MAX_LAYERS
from cost_models.documents import printable

MAX_STAGES = MAX_LAYERS
"""Maximum number of virtual stages of a pipeline, which is the maximum number of a model's blocks."""

_MOST_DIGITS = 12


@dataclass(frozen=True, slots=True)
class Word:
    """Kind of word in the notation of layouts: the name of an axis followed by a value."""

    sign: str = field(default="=", kw_only=True)
    """Text between the name of an axis and its value, `=` or empty."""
    simplest: int = field(default=0, kw_only=True)
    """Number in the column of layouts that do not set the axis."""

    def read(self, text: str) -> Any:
        """Parse the axis's value from a word's text after the axis name; None if the text is not of this kind
        of word.

        Raises:
            ValueError: the value cannot be parsed; the message says why.
        """
        has_sign = text.startswith(self.sign) and text.isascii()
        return self.parse(text.removeprefix(self.sign)) if has_sign else None

    def parse(self, text: str) -> Any:
        """Parse the axis's value from a word's text after the axis name and `sign`; None if the text is not
        of this kind of word."""
        return text

    def write(self, name: str, value: Any) -> str:
        """Text of the word for an axis name and its value, such as `tp8`."""
        return f"{name}{self.sign}{value}"

    def compare(self, name: str, value: Any) -> str:
        """Text of the word in comparisons of layouts, where an omitted value also has a text, such as "no sp"
        or "usual overlap"."""
        if value is None or value is False or (isinstance(self, (Counts, PerStage)) and not any(value)):
            return f"{'usual' if isinstance(self, (Choice, Subset)) else 'no'} {name}"
        return self.write(name, value)

    def columns(self, name: str) -> dict[str, Word]:
        """Columns that store the axis `name`, as a dictionary from column name to the kind of word for the
        number stored there."""
        return {name: self}

    def numbers(self, value: Any) -> tuple[int, ...]:
        """Encode an axis's value as one integer for each of its columns; the inverse of `value`."""
        return (int(value),)

    def value(self, *numbers: int) -> Any:
        """Decode an axis's value from the integers in its columns; the inverse of `numbers`."""
        return numbers[0]

    @property
    def number_range(self) -> range | None:
        """Range of the numbers allowed in the axis's column; None if all numbers from `simplest` up are
        allowed."""
        return None


@dataclass(frozen=True, slots=True)
class Number(Word):
    """Word with a number, written `tp8` or `tp=8`. If its sign is `=`, only the form `ring=4` is read."""

    sign: str = field(default="", kw_only=True)
    simplest: int = field(default=1, kw_only=True)
    low: int = 1
    high: int | None = None
    outside: str = "must be above zero"
    """Error message about a number below `low` or above `high`."""

    def parse(self, text: str) -> int | None:
        digits = text if self.sign else text.removeprefix("=")
        return int(digits) if digits.isdecimal() and len(digits) <= _MOST_DIGITS else None

    @property
    def number_range(self) -> range | None:
        return None if self.high is None else range(self.low, self.high + 1)


@dataclass(frozen=True, slots=True)
class Switch(Word):
    """Word that is on or off, written `sp` or `sp=1`, and `sp=0` for off. As a column of a `Subset` it says
    whether a name is in the subset, or is `UNSAID`."""

    sign: str = field(default="", kw_only=True)

    def parse(self, text: str) -> bool | None:
        return text != "=0" if text in ("", "=1", "=0") else None

    def write(self, name: str, value: Any) -> str:
        return name

    def value(self, *numbers: int) -> bool:
        return bool(numbers[0])

    @property
    def number_range(self) -> range:
        return range(self.simplest, 2)


UNSAID = -1
"""Number in an axis's column if the layout uses the software stack's default."""


@dataclass(frozen=True, slots=True)
class Choice(Word):
    """Word with one of several names, such as `schedule=zbv`, stored in a column as the name's index."""

    names: tuple[str, ...]

    def numbers(self, value: str | None) -> tuple[int, ...]:
        return (UNSAID if value is None else self.names.index(value),)

    def value(self, *numbers: int) -> str | None:
        return None if numbers[0] == UNSAID else self.names[numbers[0]]

    @property
    def number_range(self) -> range:
        return range(len(self.names))


NONE = "none"


@dataclass(frozen=True, slots=True)
class Subset(Word):
    """Word with a subset of several names or `none`, such as `overlap=tp,dp`, stored in a column for each
    name. Omitted, it means the stack's default."""

    names: tuple[str, ...]

    def parse(self, text: str) -> tuple[str, ...]:
        selected = [] if text == NONE else text.split(",")
        if unknown := [name for name in selected if name not in self.names]:
            raise ValueError(f"`{printable(unknown[0])}` is none of {', '.join(self.names)}, {NONE}")
        return tuple(name for name in self.names if name in selected)

    def write(self, name: str, value: Any) -> str:
        return f"{name}={','.join(value) or NONE}"

    def columns(self, name: str) -> dict[str, Word]:
        return {f"{name}_{one}": Switch(simplest=UNSAID) for one in self.names}

    def numbers(self, value: tuple[str, ...] | None) -> tuple[int, ...]:
        return tuple(UNSAID if value is None else int(name in value) for name in self.names)

    def value(self, *numbers: int) -> tuple[str, ...] | None:
        names = tuple(name for name, number in zip(self.names, numbers, strict=True) if number == 1)
        return None if {*numbers} == {UNSAID} else names


EVERY = 10**6
"""Number of blocks that stands for all blocks."""


@dataclass(frozen=True, slots=True)
class Counts(Word):
    """Word with a number of blocks for several parts, such as `offload=streamed:28/states:4`, stored in a
    column for each part. Omitted parts are zero; a part without a number means all blocks
    (`offload=streamed`)."""

    parts: tuple[str, ...]

    def parse(self, text: str) -> tuple[int, ...]:
        counts = dict.fromkeys(self.parts, 0)
        for word in text.split("/"):
            part, colon, count = word.partition(":")
            valid = part in counts and (not colon or (count.isdecimal() and count.isascii()))
            if not valid or (colon and int(count[:_MOST_DIGITS]) >= EVERY):
                all_of_them = "/".join(f"{part}:1" for part in self.parts)
                raise ValueError(f"`{printable(word)}` is not a part like those of `{all_of_them}`")
            counts[part] += int(count) if colon else EVERY
        return tuple(counts.values())

    def write(self, name: str, value: Any) -> str:
        counts = zip(self.parts, value, strict=True)
        words = [part if count >= EVERY else f"{part}:{count}" for part, count in counts if count]
        return f"{name}={'/'.join(words)}"

    def columns(self, name: str) -> dict[str, Word]:
        return {f"{name}_{part}": Number(low=0, simplest=0) for part in self.parts}

    def numbers(self, value: tuple[int, ...]) -> tuple[int, ...]:
        return value

    def value(self, *numbers: int) -> tuple[int, ...]:
        return numbers


@dataclass(frozen=True, slots=True)
class PerStage(Word):
    """Word with a value for each stage, such as `layers=12*7,11`, where `12*7` repeats 12 seven times. It has
    no column, as the planner chooses the values."""

    item: Callable[[str], Any] = str
    """Function that parses one value; it raises ValueError."""
    high: int = MAX_STAGES
    """Maximum number of values in the word."""

    def parse(self, text: str) -> tuple[Any, ...]:
        values: list[Any] = []
        try:
            for run in text.split(",", self.high):
                value, star, count = run.partition("*")
                repeats = int(count) if star else 1
                if not 1 <= repeats <= self.high - len(values):
                    raise ValueError(f"{repeats} values")
                values += [self.item(value)] * repeats
        except ValueError:
            raise ValueError(f"`{printable(text)}` is not a list like `12*7,11`") from None
        return tuple(values)

    def write(self, name: str, value: Any) -> str:
        runs = [(one, len(list(group))) for one, group in groupby(value)]
        return f"{name}={','.join(f'{one}*{count}' if count > 1 else str(one) for one, count in runs)}"

    def columns(self, name: str) -> dict[str, Word]:
        return {}
