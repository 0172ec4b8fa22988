"""Cases of a test as a table of text, which is read in one look."""

from __future__ import annotations

from collections.abc import Mapping

from cost_models.measured.runs.conversion import canonical_cells
from cost_models.measured.runs.printed import PrintedRow
from cost_models.measured.runs.rows import Row, parse_row


def rows(text: str, mark: str = " | ") -> list[tuple[str, ...]]:
    """Cells of a table, a row for each line that is not empty; the mark parts cells, `\\n` in one is a line end, and a
    dash alone is an empty cell."""
    lines = [line.strip() for line in text.splitlines()]
    cells = [[cell.strip().replace("\\n", "\n") for cell in line.split(mark)] for line in lines if line]
    return [tuple("" if cell == "-" else cell for cell in row) for row in cells]


def unnamed(said: str, *named: str) -> list[str]:
    """Those of the words that a text lacks."""
    return [one for one in named if one not in said]


def from_printed(cells: Mapping[str, str]) -> Row:
    """Canonical row of the cells of somebody else's table."""
    return parse_row(canonical_cells(PrintedRow(cells)), "runs.csv:2")
