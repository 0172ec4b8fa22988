"""Text tables that fit a line: columns of words wrap, numbers stay whole, and columns without room go below."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from itertools import groupby, zip_longest

from meshwright.render.words import line_width, lines_of

_GAPS = (3, 2, 1)
"""Candidate numbers of blanks between columns, widest first."""
_NARROW, _WORD = 19, 24
"""Characters below which no column of words is squeezed: those of `recompute=selective`; and up to which a word stays
whole where that pushes no column below."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """Column of a text table: a header, its cells, and how they wrap."""

    header: str
    cells: tuple[str, ...]
    wraps: bool
    """Whether cells wrap, as words do; numbers stay whole."""
    is_left: bool
    narrow: int = _NARROW
    """Characters below which a wrapping column is not squeezed."""

    @property
    def need(self) -> int:
        """Length in characters of the longest cell or header."""
        return max(len(cell) for cell in (self.header, *self.cells))

    @property
    def least_width(self) -> int:
        """Smallest width of the column in characters."""
        return min(self.need, max(self.narrow, len(self.header))) if self.wraps else self.need

    @property
    def with_words_whole(self) -> Column:
        """Copy of the column that is not squeezed below its longest word, up to 24 characters. A word behind a sign,
        as in "+ tp8", does not count."""
        words = (word for cell in self.cells for word in re.split(r"(?<=,)|(?<!\+) ", cell))
        return replace(self, narrow=min(_WORD, max([_NARROW, *map(len, words)])))

    def cell_lines(self, width: int) -> list[list[str]]:
        """Lines of every cell, header first, each padded to `width` characters."""
        cells = [lines_of(cell, width, cut=True) if self.wraps else [cell] for cell in self.cells]
        side = "<" if self.is_left else ">"
        return [[f"{line:{side}{width}}" for line in lines] for lines in ([self.header], *cells)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Text table without borders, laid out for the width at hand."""

    columns: tuple[Column, ...]

    @property
    def rows(self) -> list[tuple[str, ...]]:
        """Cells of each row, without headers."""
        return list(zip(*(one.cells for one in self.columns), strict=True))

    def __str__(self) -> str:
        """Table as text that fits the terminal."""
        return "\n".join(self.lines(line_width()))

    @property
    def html(self) -> str:
        """Table as an HTML element, with every cell escaped."""
        sides = [' style="text-align: left"' if one.is_left or one.wraps else "" for one in self.columns]

        def row(cells: Sequence[str], tag: str) -> str:
            """HTML row of these cells, each in the element `tag`."""
            filled = zip(cells, sides, strict=True)
            return "<tr>" + "".join(f"<{tag}{side}>{escape(cell)}</{tag}>" for cell, side in filled) + "</tr>"

        head = row([one.header for one in self.columns], "th")
        body = "".join(row(cells, "td") for cells in self.rows)
        return f"<table><thead>{head}</thead><tbody>{body}</tbody></table>"

    def lines(self, width: int) -> list[str]:
        """Table as lines of at most `width` characters; columns that do not fit follow in blocks below, which repeat
        the first column.

        Only a number that fills more than a line goes beyond it.
        """
        ideal = _side_by_side([column.with_words_whole for column in self.columns], width)
        squeezed = _side_by_side(self.columns, width)
        fits = len(ideal) == len(squeezed) and all(_gap(columns, width) is not None for columns in ideal)
        blocks = [_block(columns, width) for columns in (ideal if fits else squeezed)]
        return [line for block in blocks for line in ("", *block)][1:]


def table(
    headers: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    words: Sequence[str] = (),
    names: Sequence[str] = (),
) -> Table:
    """Make a text table: columns in `words` are left-aligned and wrap, columns in `names` are left-aligned, the
    others hold numbers."""
    cells = zip(*rows, strict=True) if rows else [()] * len(headers)
    return table_of(dict(zip(headers, cells, strict=True)), words=words, names=names)


def table_of(
    columns: Mapping[str, Sequence[str]], *, words: Sequence[str] = (), names: Sequence[str] = ()
) -> Table:
    """Make a text table from columns, by header; `words` and `names` as for `table`."""
    made_columns = [
        Column(header=header, cells=tuple(cells), wraps=header in words, is_left=header in (*words, *names))
        for header, cells in columns.items()
    ]
    return Table(columns=tuple(made_columns))


def in_notebook(text: Sequence[str | Table]) -> str:
    """Sentences and tables as HTML for a notebook: text preformatted, tables as elements."""
    parts = []
    for is_table, blocks in groupby(text, key=lambda block: isinstance(block, Table)):
        if is_table:
            parts += [block.html for block in blocks if isinstance(block, Table)]
        elif plain := "\n".join(map(str, blocks)).strip("\n"):
            parts.append(f"<pre>{escape(plain)}</pre>")
    return "".join(parts)


def _side_by_side(columns: Sequence[Column], width: int) -> list[list[Column]]:
    """Split columns into blocks that each fit a line, the first column in every block."""
    first, *followers = columns
    blocks = [[first]]
    for column in followers:
        if len(blocks[-1]) > 1 and _gap([*blocks[-1], column], width) is None:
            blocks.append([first])
        blocks[-1].append(column)
    return blocks


def _gap(columns: Sequence[Column], width: int) -> int | None:
    """Widest gap with which these columns fit a line of `width` characters; None if they do not fit."""
    min_width = sum(column.least_width for column in columns)
    return next((gap for gap in _GAPS if min_width + gap * (len(columns) - 1) <= width), None)


def _block(columns: Sequence[Column], width: int) -> list[str]:
    """Lines of a table of these columns, headers first."""
    gap = _gap(columns, width) or _GAPS[-1]
    widths = _widths(columns, width - gap * (len(columns) - 1))
    cells_drawn = [column.cell_lines(wide) for column, wide in zip(columns, widths, strict=True)]
    lines = []
    for cells in zip(*cells_drawn, strict=True):
        for parts in zip_longest(*cells, fillvalue=""):
            padded = [f"{part:<{wide}}" for part, wide in zip(parts, widths, strict=True)]
            lines.append((" " * gap).join(padded).rstrip())
    return lines


def _widths(columns: Sequence[Column], free: int) -> list[int]:
    """Width of each column in characters: its least width, plus an even share of the `free` characters up to its
    longest cell."""
    widths = [column.least_width for column in columns]
    wishes = [column.need - column.least_width for column in columns]
    free = max(0, free - sum(widths))
    for number, place in enumerate(sorted(range(len(columns)), key=wishes.__getitem__)):
        share = min(wishes[place], free // (len(columns) - number))
        widths[place] += share
        free -= share
    return widths
