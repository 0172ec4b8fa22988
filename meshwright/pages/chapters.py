"""Chapters of an HTML page: a heading, and below it sentences, tables, pictures and listings of files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from meshwright.plots.drawing import Drawing
from meshwright.render.tables import Table
from meshwright.render.words import Fact


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """Drawing on a page, and the command that draws it again."""

    drawing: Drawing
    command: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """Text of a file on a page, to copy."""

    text: str


Block = str | Table | Picture | Listing | tuple[Fact, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chapter:
    """Chapter of a page: a heading and the blocks below it."""

    title: str
    blocks: Sequence[Block]

    @property
    def name(self) -> str:
        """Anchor of the chapter's heading."""
        return "-".join(self.title.lower().split())


def paragraphs(text: str) -> list[tuple[str, list[str]]]:
    """Split printed text into pairs of a sentence and its list items; unindented lines are sentences, indented lines
    below are items."""
    words: list[tuple[str, list[str]]] = []
    for line in filter(str.strip, text.splitlines()):
        is_item = line.startswith(" ")
        if not is_item or not words:
            words.append(("" if is_item else line, []))
        if is_item:
            words[-1][1].append(line.strip())
    return words
