"""From a sharding to the slices of all tables, the same list on every rank.

Hot rows, the first of a table, are copied on every rank; the rest is sharded as its option says. A sum over a bag is
the sum over its hot ids and the one over its others, so both parts are tables of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from cost_models.errors import InputError, Problem
from cost_models.specs.recommender.model import TableSpec
from cost_models.specs.recommender.sharding import Sharding, TablePlacement
from executor.embeddings.copies import copy_slices
from executor.embeddings.holding import device_share
from executor.embeddings.places import Places, Slice
from executor.embeddings.ways import column_slices, node_slices, row_slices, whole_slices

_WAYS = {
    "whole": whole_slices,
    "column": column_slices,
    "row": row_slices,
    "node-row": node_slices,
    "copy": copy_slices,
}
"""What each form makes of a table: the same for all, so that a new one is a file and a line."""


def all_slices(tables: Sequence[TableSpec], sharding: Sharding, places: Places) -> list[Slice]:
    """Every slice of every table, by table.

    Raises:
        InputError: places that are not there, or more slices than columns or rows; all problems at once.
    """
    problems = [
        Problem(f"table:{index}", complaint)
        for index, (table, placed) in enumerate(zip(tables, sharding.tables, strict=True))
        if (complaint := _impossible(table, placed, places))
    ]
    if problems:
        raise InputError("the sharding does not go with these ranks", problems=problems)
    return [
        one
        for index, (table, placed) in enumerate(zip(tables, sharding.tables, strict=True))
        for one in _slices(index, table, placed, places)
    ]


def _slices(index: int, table: TableSpec, placed: TablePlacement, places: Places) -> list[Slice]:
    share = device_share(placed.option)
    bags = int(table.pooling) if table.combiner == "concat" else 1
    complete = Slice(
        table=index,
        form=placed.option.form,
        rows=table.rows,
        end=table.width,
        bags=bags,
        cached=share,
        hashed=table.hashed,
    )
    copy, rest = hot_and_rest(complete, placed)
    return [*copy, *_WAYS[placed.option.form](rest, placed, places)]


def _impossible(table: TableSpec, placed: TablePlacement, places: Places) -> str:
    form = placed.option.form
    there = places.nodes if form == "node-row" else places.ranks
    missing = [place for place in placed.at if place >= there]
    if missing:
        return f"there is no {'node' if form == 'node-row' else 'GPU'} {missing[0]}; the last is {there - 1}"
    if form == "column" and placed.option.shards > table.width:
        return f"{placed.option.shards} slices of {table.width} columns"
    if table.hashed and placed.option.hot:
        return "nobody knows which keys are hot before they come; `hot` is for row numbers"
    return ""


def hot_and_rest(table: Slice, placed: TablePlacement) -> tuple[list[Slice], Slice]:
    """(the copy of its hot rows, or none; the rest of the table)."""
    hot = hot_rows(table.rows, placed.option.hot)
    if not hot:
        return [], table
    copy = replace(table, form="copy", rows=hot, cached=1.0)
    return [copy], replace(table, first=hot, rows=table.rows - hot)


def hot_rows(rows: int, share: float) -> int:
    """Number of rows that are copied: never all of them."""
    return min(round(rows * share), rows - 1)
