"""Figures with their names, such as "step  14.88 s": an answer's first lines, on a screen and on a page."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from meshwright.render.words import sentence_lines

_GAP = 3
"""Blanks between the longest name and the values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """A figure with its name, as in "step: 17.88 s"."""

    name: str
    value: str


def facts_text(facts: Iterable[Fact]) -> str:
    """A line for each fact, values below one another; a long value goes on below its beginning."""
    shown = list(facts)
    indent = max((len(fact.name) for fact in shown), default=0) + _GAP
    lines = []
    for fact in shown:
        first, *rest = sentence_lines(fact.value, less=indent)
        lines += [f"{fact.name:<{indent}}{first}", *(" " * indent + line for line in rest)]
    return "\n".join(lines)
