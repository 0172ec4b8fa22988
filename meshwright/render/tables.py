"""Tables of at most eight columns that fit 80: one column of words may wrap, numbers stay whole."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

MAX_COLUMNS = 8


def table(
    headers: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    words: Sequence[str] = (),
    names: Sequence[str] = (),
) -> Table:
    """A borderless table: columns in `words` wrap, columns in `names` are left-aligned too, the others hold numbers."""
    assert len(headers) <= MAX_COLUMNS
    drawn = Table(box=None, pad_edge=False, padding=(0, 2, 0, 1), header_style="bold")
    for header in headers:
        if header in words:
            drawn.add_column(header, overflow="fold")
        else:
            drawn.add_column(header, justify="left" if header in names else "right", no_wrap=True)
    for row in rows:
        drawn.add_row(*row)
    return drawn
