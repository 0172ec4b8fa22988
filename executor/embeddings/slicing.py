"""From a sharding to the slices of all tables, the same list on every rank."""

from __future__ import annotations

from collections.abc import Sequence

from cost_models.errors import InputError, Problem
from cost_models.specs.recommender.model import TableSpec
from cost_models.specs.recommender.sharding import Placed, Sharding
from executor.embeddings.host import device_share
from executor.embeddings.places import Places, Slice
from executor.embeddings.ways import columns, copies, hybrid, nodes, rows, whole

_WAYS = {
    "whole": whole.slices,
    "column": columns.slices,
    "row": rows.slices,
    "node-row": nodes.slices,
    "copy": copies.slices,
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


def _slices(index: int, table: TableSpec, placed: Placed, places: Places) -> list[Slice]:
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
    copy, rest = hybrid.parts(complete, placed)
    return [*copy, *_WAYS[placed.option.form](rest, placed, places)]


def _impossible(table: TableSpec, placed: Placed, places: Places) -> str:
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
