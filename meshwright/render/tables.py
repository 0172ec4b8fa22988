"""Tables of at most eight columns that fit 80: one column of words may wrap, numbers stay whole."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import JustifyMethod
from rich.table import Table

from meshwright.render.words import LINE_WIDTH, lines_of

MAX_COLUMNS = 8
_GAP = 3
"""Blanks between columns."""


def table(
    headers: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    words: Sequence[str] = (),
    names: Sequence[str] = (),
) -> Table:
    """A borderless table: columns in `words` wrap, columns in `names` are left-aligned too, the others hold numbers."""
    assert len(headers) <= MAX_COLUMNS
    widths = _widths(headers, rows, words)
    drawn = Table(box=None, pad_edge=False, padding=(0, 2, 0, 1), header_style="bold")
    for header in headers:
        justify: JustifyMethod = "left" if header in words or header in names else "right"
        drawn.add_column(header, justify=justify, no_wrap=True)
    for row in rows:
        cells = zip(headers, row, strict=True)
        drawn.add_row(*("\n".join(lines_of(cell, widths[h])) if h in widths else cell for h, cell in cells))
    return drawn


def _widths(headers: Sequence[str], rows: Sequence[Sequence[str]], words: Sequence[str]) -> dict[str, int]:
    """Columns for each column of words: what it needs, or an even share of what the numbers leave of a line."""
    needs = {
        header: max(len(cell) for cell in cells)
        for header, *cells in zip(headers, headers, *rows, strict=True)
    }
    free = (
        LINE_WIDTH
        - _GAP * (len(headers) - 1)
        - sum(needs[header] for header in headers if header not in words)
    )
    widths: dict[str, int] = {}
    wanted = sorted((header for header in headers if header in words), key=needs.__getitem__)
    for number, header in enumerate(wanted):
        widths[header] = max(min(needs[header], free // (len(wanted) - number)), 1)
        free -= widths[header]
    return widths
