"""Rows as other people's tables print them, as canonical rows."""

from __future__ import annotations

from collections.abc import Mapping

from cost_models.measured.runs.conversion import canonical_cells
from cost_models.measured.runs.printed import PrintedRow
from cost_models.measured.runs.rows import Row, parse_row


def from_printed(cells: Mapping[str, str]) -> Row:
    """Canonical row of printed cells."""
    return parse_row(canonical_cells(PrintedRow(cells)), "runs.csv:2")
