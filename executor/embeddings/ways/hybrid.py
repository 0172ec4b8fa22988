"""Hot rows apart: those used most, the first of a table, are copied on every rank; the rest goes its own way.

A sum over a bag is the sum over its hot ids and the one over its others, so both parts are tables of their own.
"""

from __future__ import annotations

from dataclasses import replace

from cost_models.specs.recommender.sharding import Placed
from executor.embeddings.places import Slice


def parts(table: Slice, placed: Placed) -> tuple[list[Slice], Slice]:
    """(the copy of its hot rows, or none; the rest of the table)."""
    hot = hot_rows(table.rows, placed.option.hot)
    if not hot:
        return [], table
    copy = replace(table, form="copy", rows=hot, cached=1.0)
    return [copy], replace(table, first=hot, rows=table.rows - hot)


def hot_rows(rows: int, share: float) -> int:
    """How many rows are copied: never all of them."""
    return min(round(rows * share), rows - 1)
