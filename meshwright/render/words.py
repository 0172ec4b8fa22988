"""Pieces of text: percentages, changes, units, wrapped sentences, and facts (named figures that open an answer)."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TypeVar

from cost_models.estimate import Breakdown
from cost_models.units import format_bytes, format_count, format_seconds, grouped

T = TypeVar("T")
LINE_WIDTH = 80
"""Characters of a line if stdout is no terminal."""
_LEAST_WIDTH = 20
_LONGEST_LINE = 120
"""Largest number of characters of a line of sentences, for easy reading; tables use the terminal's full width. Beyond
it the eye loses the next line, however wide the terminal; tables take all of it."""
_BROKEN = ContextVar("broken", default=True)
"""Whether `wrapped` breaks sentences into lines."""
NOT_PROVED = "warning: optimality is not proved; allow more time to close the gap"
"""Warning printed below an answer whose search ended before a proof."""
NEGLIGIBLE_SHARE = 0.0005
"""Share of the total below which a part is left out of sentences."""
_ROUNDING = 1e-6
"""Largest relative difference that counts as rounding between a plan file's prediction and its price now."""
_MANIFOLD = 10.0
"""Ratio from which a change is written as a multiple ("12x")."""
_TIME_SCALES = (("s", 1.0), ("ms", 1e-3), ("us", 1e-6))
_UNIT = r"(?:%|pt|[mu]?s|[KMGT]?i?B|[kMT]|[MGT]?B/s|TFLOP/s)(?![\w/])"
_WORD = re.compile(rf"\S+(?:(?<=\d) {_UNIT}\S*)?")
"""Pattern of a unit that no line breaks: a word, or a number with its unit."""
_BREAKS = re.compile(rf"(?<=\d) (?={_UNIT})|(?<=\d-)(?=\d\d\b)")
"""Pattern of places where a browser would part a number from its unit, or a date."""
_SIGNS = re.compile(r"[^/=:+]+[/=:+]*|[/=:+]+")
_GAP = 3
"""Blanks between the longest name of a fact and its value."""
_SIZE_SCALES = (("TiB", 2.0**40), ("GiB", 2.0**30), ("MiB", 2.0**20), ("KiB", 2.0**10), ("B", 1.0))


def part_label(part: str) -> str:
    """Label of a part of a step or of memory: `tp_comm` → "tp comm"."""
    return part.replace("_", " ")


def percent(share: float, form: str = ".1%") -> str:
    """Share as percent text: 0.489 → "48.9 %"; with the format `form`, such as "+.0%", "+49 %"."""
    return f"{share:{form}}".replace("%", " %")


def change(start: float, final: float) -> str:
    """Relative change from `start` to `final`: "-3.6 %"; "same" if it rounds to zero, "12x" from tenfold on."""
    relative = final / start - 1
    if relative >= _MANIFOLD - 1:
        return f"{final / start:.0f}x"
    return "same" if abs(relative) < NEGLIGIBLE_SHARE else percent(relative, "+.1%")


def change_words(write: Callable[[float], str], unit: str, start: float, final: float) -> str:
    """Words on how a figure changed, such as "-3.6 %": points for shares, "same" if both values print alike, "new" if
    it was zero."""
    if write(start) == write(final):
        return "same"
    if unit == "share":
        return f"{100 * (final - start):+.1f} pt"
    return change(start, final) if start else "new"


def drift_note(name: object, then: float, today: float, write: Callable[[float], str]) -> str:
    """Note that the predicted step time of a plan has changed since its file was written; empty if unchanged."""
    if abs(today / then - 1) <= _ROUNDING:
        return ""
    return f"note: {name} was written with a step of {write(then)}; this version prices it at {write(today)}"


def money(amount: float) -> str:
    """Amount of money as text: 2.5 → "$2.50", 1270 → "$1,270", 508000 → "$508.0 k", 1168000 → "$1.168 M"."""
    if amount < 100:
        return f"${amount:.2f}" if amount >= 0.01 else f"${amount:.2g}"
    if amount < 1e4:
        return f"${amount:,.0f}"
    return f"${amount / 1e3:.1f} k" if amount < 1e6 else f"${format_count(amount)}"


UNIT_TEXTS: dict[str, Callable[[float], str]] = {
    "seconds": format_seconds,
    "bytes": format_bytes,
    "share": percent,
    "money": money,
    "tokens/s": format_count,
    "FLOP/s": format_count,
}
"""Unit of a quantity → how its values are written."""


def time_unit(seconds: float) -> tuple[str, float]:
    """Unit of time that suits a duration: its name and its length in seconds."""
    return next((scale for scale in _TIME_SCALES if abs(seconds) >= scale[1]), _TIME_SCALES[-1])


def size_unit(size_bytes: float) -> tuple[str, float]:
    """Unit of memory that suits a number of bytes: its name and its size in bytes."""
    return next((scale for scale in _SIZE_SCALES if abs(size_bytes) >= scale[1]), _SIZE_SCALES[-1])


def in_unit(value: float, unit: tuple[str, float]) -> str:
    """Number in a unit, without the unit's name, with enough decimals that parts visibly add up."""
    scaled = value / unit[1]
    if abs(scaled) >= 1000:
        return grouped(round(scaled))
    decimals = 2 if abs(scaled) < 100 else 1
    return f"{scaled:.{decimals}f}"


def parts_sentence(breakdown: Breakdown, unit: tuple[str, float], *, hidden: Breakdown | None = None) -> str:
    """Words on a breakdown's parts that are not negligible: "compute 112.6 + tp comm 14.4 (16.6 more overlapped) +
    bubble 0.5".

    `hidden` are seconds of parts that overlap with other work.
    """
    behind, words = hidden or Breakdown(), list[str]()
    for part, value in breakdown.items():
        extra = behind.get(part, 0.0)
        if abs(value) + extra <= NEGLIGIBLE_SHARE * abs(breakdown.total):
            continue
        words.append(f"{part_label(part)} {in_unit(value, unit)}")
        if extra > NEGLIGIBLE_SHARE * breakdown.total:
            words[-1] += f" ({in_unit(extra, unit)} more overlapped)"
    return " + ".join(words)


@contextmanager
def lines_of_any_length() -> Iterator[None]:
    """Context in which `wrapped` breaks no lines: for HTML pages, which break lines themselves."""
    token = _BROKEN.set(False)
    try:
        yield
    finally:
        _BROKEN.reset(token)


def line_width() -> int:
    """Characters of a line of the terminal (or `COLUMNS`); 80 if stdout is no terminal."""
    return max(shutil.get_terminal_size((LINE_WIDTH, 0)).columns, _LEAST_WIDTH)


def wrapped(text: str, *, indent: str = "  ") -> str:
    """Break a sentence into lines that fit the terminal, with all lines but the first indented.

    Lines end at spaces but not before a unit; a word longer than a line, such as a placement, ends after one of its
    commas.
    """
    return text if not _BROKEN.get() else "\n".join(sentence_lines(text, indent=indent))


def sentence_lines(text: str, *, less: int = 0, indent: str = "") -> list[str]:
    """Break a sentence into lines that are at least `less` characters shorter than the terminal, or than 120 if that
    is wider."""
    return lines_of(text, min(line_width(), _LONGEST_LINE) - less, indent=indent)


def lines_of(text: str, width: int, *, indent: str = "", cut: bool = False) -> list[str]:
    """Break text at spaces into lines of at most `width` characters; words longer than a line are split after their
    commas.

    A number stays beside its unit. With `cut`, a word without commas that fills more than a line is cut as well.
    """
    first = " " * (len(text) - len(text.lstrip(" ")))
    lines, line = [], first
    for word in _WORD.findall(text):
        for number, piece in enumerate(_pieces(word, width - len(indent), cut=cut)):
            glue = " " if number == 0 and line.strip() else ""
            if line.strip() and len(line) + len(glue) + len(piece) > width:
                lines.append(line)
                line, glue = indent, ""
            line += glue + piece
    return [*lines, line] if line.strip() or not lines else lines


def _pieces(word: str, width: int, *, cut: bool) -> list[str]:
    """Pieces of a word, split after commas if it is longer than a line; with `cut` also after other signs, and then
    anywhere."""
    if len(word) <= width:
        return [word]
    parts = re.findall(r"[^,]+,?|,", word)
    if cut:
        parts = [sign for part in parts for sign in ([part] if len(part) <= width else _SIGNS.findall(part))]
        parts = [part[at : at + width] for part in parts for at in range(0, len(part), width)]
    return parts


def spaced(*blocks: T) -> tuple[T | str, ...]:
    """Sentences and tables with an empty line between each two."""
    return tuple(part for block in blocks for part in ("", block))[1:]


def unbroken(text: str) -> str:
    """Text for HTML, in which browsers part no number from its unit and split no date."""
    return _BREAKS.sub(lambda match: "\u00a0" if match[0] else "\u2060", text)


def sentence_list(words: Sequence[str]) -> str:
    """Words as an English list: ["a", "b", "c"] → "a, b and c"."""
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]])) if words else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """Named figure, as in "step: 17.88 s"."""

    name: str
    value: str


def facts_text(facts: Iterable[Fact]) -> str:
    """Text with a line for each fact, values aligned; long values wrap below their beginning."""
    listed = list(facts)
    indent = max((len(fact.name) for fact in listed), default=0) + _GAP
    lines = []
    for fact in listed:
        first, *followers = sentence_lines(fact.value, less=indent)
        lines += [f"{fact.name:<{indent}}{first}", *(" " * indent + line for line in followers)]
    return "\n".join(lines)
