"""Tables that fit a line: columns of words wrap, numbers stay whole, and columns too many for a line follow below."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from itertools import groupby, zip_longest

from meshwright.render.words import line_width, lines_of

_GAPS = (3, 2, 1)
"""Blanks between columns: as many as a line has room for."""
_NARROW, _WORD = 19, 24
"""Characters below which no column of words is squeezed: those of `recompute=selective`; and up to which a word stays
whole where that pushes no column below."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A header and its cells."""

    header: str
    cells: tuple[str, ...]
    wraps: bool
    """Words; numbers stay whole."""
    left: bool
    narrow: int = _NARROW
    """Characters below which it is not squeezed."""

    @property
    def need(self) -> int:
        """Characters of the longest cell."""
        return max(len(cell) for cell in (self.header, *self.cells))

    @property
    def least(self) -> int:
        """Characters it cannot do without."""
        return min(self.need, max(self.narrow, len(self.header))) if self.wraps else self.need

    @property
    def with_words_whole(self) -> Column:
        """The same, not squeezed below its longest word; one behind a sign as in "+ tp8" is no word of its own."""
        words = (word for cell in self.cells for word in re.split(r"(?<=,)|(?<!\+) ", cell))
        return replace(self, narrow=min(_WORD, max([_NARROW, *map(len, words)])))

    def drawn(self, width: int) -> list[list[str]]:
        """Every cell, the header's first, as lines of so many characters."""
        cells = [lines_of(cell, width, cut=True) if self.wraps else [cell] for cell in self.cells]
        return [
            [f"{line:<{width}}" if self.left else f"{line:>{width}}" for line in lines]
            for lines in ([self.header], *cells)
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Columns without borders, drawn for the width at hand."""

    columns: tuple[Column, ...]

    def __str__(self) -> str:
        """As it fits the terminal."""
        return "\n".join(self.lines(line_width()))

    @property
    def html(self) -> str:
        """As the element of a page that has its own style; every cell is escaped."""
        sides = [' style="text-align: left"' if one.left or one.wraps else "" for one in self.columns]

        def row(cells: Sequence[str], tag: str) -> str:
            filled = zip(cells, sides, strict=True)
            return "<tr>" + "".join(f"<{tag}{side}>{escape(cell)}</{tag}>" for cell, side in filled) + "</tr>"

        head = row([one.header for one in self.columns], "th")
        body = "".join(row(cells, "td") for cells in zip(*(one.cells for one in self.columns), strict=True))
        return f"<table><thead>{head}</thead><tbody>{body}</tbody></table>"

    def lines(self, width: int) -> list[str]:
        """Lines of `width` characters; columns that find no room stand below, after the first one again.

        Only a number that fills more than a line goes beyond it.
        """
        whole = _side_by_side([column.with_words_whole for column in self.columns], width)
        squeezed = _side_by_side(self.columns, width)
        fits = len(whole) == len(squeezed) and all(_gap(columns, width) is not None for columns in whole)
        blocks = [_block(columns, width) for columns in (whole if fits else squeezed)]
        return [line for block in blocks for line in ("", *block)][1:]


def table(
    headers: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    words: Sequence[str] = (),
    names: Sequence[str] = (),
) -> Table:
    """A table of text: columns in `words` wrap, columns in `names` are left-aligned too, the others hold numbers."""
    assert all(len(row) == len(headers) for row in rows)
    return Table(
        columns=tuple(
            Column(
                header=header,
                cells=tuple(row[place] for row in rows),
                wraps=header in words,
                left=header in (*words, *names),
            )
            for place, header in enumerate(headers)
        )
    )


def table_of(
    columns: Mapping[str, Sequence[str]], *, words: Sequence[str] = (), names: Sequence[str] = ()
) -> Table:
    """A table of columns of text by their headers; `words` and `names` as for `table`."""
    return table(tuple(columns), list(zip(*columns.values(), strict=True)), words=words, names=names)


def in_notebook(text: Sequence[str | Table]) -> str:
    """An answer as HTML: its sentences as they are printed, its tables as tables."""
    parts = []
    for is_table, blocks in groupby(text, key=lambda block: isinstance(block, Table)):
        if is_table:
            parts += [block.html for block in blocks if isinstance(block, Table)]
        elif said := "\n".join(map(str, blocks)).strip("\n"):
            parts.append(f"<pre>{escape(said)}</pre>")
    return "".join(parts)


def _side_by_side(columns: Sequence[Column], width: int) -> list[list[Column]]:
    """As many columns as fit a line, then the next after the first one again."""
    first, *rest = columns
    blocks = [[first]]
    for column in rest:
        if len(blocks[-1]) > 1 and _gap([*blocks[-1], column], width) is None:
            blocks.append([first])
        blocks[-1].append(column)
    return blocks


def _gap(columns: Sequence[Column], width: int) -> int | None:
    """The widest gap with which these columns fit a line, if any does."""
    least = sum(column.least for column in columns)
    return next((gap for gap in _GAPS if least + gap * (len(columns) - 1) <= width), None)


def _block(columns: Sequence[Column], width: int) -> list[str]:
    """These columns as lines of a table, the headers first."""
    gap = _gap(columns, width) or _GAPS[-1]
    widths = _widths(columns, width - gap * (len(columns) - 1))
    drawn = [column.drawn(wide) for column, wide in zip(columns, widths, strict=True)]
    lines = []
    for cells in zip(*drawn, strict=True):
        for parts in zip_longest(*cells, fillvalue=""):
            whole = [f"{part:<{wide}}" for part, wide in zip(parts, widths, strict=True)]
            lines.append((" " * gap).join(whole).rstrip())
    return lines


def _widths(columns: Sequence[Column], free: int) -> list[int]:
    """Give each column its least width, and share what is left evenly among those that could use more."""
    widths = [column.least for column in columns]
    wanted = [column.need - column.least for column in columns]
    free = max(0, free - sum(widths))
    for number, place in enumerate(sorted(range(len(columns)), key=wanted.__getitem__)):
        more = min(wanted[place], free // (len(columns) - number))
        widths[place] += more
        free -= more
    return widths
