"""Rows that are alike: which combination of some columns each has, and what is computed once for all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

import numpy as np

from cost_models.arrays import Ints
from cost_models.axes.columns import LayoutColumns, taken

T = TypeVar("T")

WORTH_IT = 256
"""Rows below which looking for equal ones takes longer than computing them all."""
_DENSE = 4
"""Values that span no more than so many times their number are numbered by a table, which is faster than sorting."""


def codes_of(columns: Sequence[Ints]) -> Ints:
    """(N,): a number for each combination of values, rising with the first column."""
    code, size = np.zeros_like(columns[0]), 1
    if not len(code):
        return code
    most = _dense(len(code))
    for column in columns:
        if column.strides == (0,):
            continue
        low = int(column.min())
        own, span = column, int(column.max()) - low + 1
        if span == 1:
            continue
        if size * span > most:
            code, size = _numbered(code)
        if size * span > most:
            own, span = _numbered(column)
            low = 0
        code, size = (code * span + (own - low) if size > 1 else own - low), size * span
    return code


def _dense(rows: int) -> int:
    """The widest span of values that a table numbers faster than sorting does."""
    return _DENSE * rows


def _numbered(column: Ints) -> tuple[Ints, int]:
    """(N,) the rank of each value among the distinct ones, and how many these are."""
    if not len(column):
        return column, 1
    low = int(column.min())
    span = int(column.max()) - low + 1
    if span <= _dense(len(column)):
        met = np.zeros(span, dtype=np.bool_)
        met[column - low] = True
        distinct = np.flatnonzero(met)
        rank = np.empty(span, dtype=np.int64)
        rank[distinct] = np.arange(len(distinct))
        return rank[column - low], len(distinct)
    distinct, index = np.unique(column, return_inverse=True)
    return index.reshape(-1), len(distinct)


def first_of_each(columns: Sequence[Ints]) -> tuple[Ints, Ints]:
    """The first row of each different combination of values, and (N,) which combination each row has."""
    kind, count = _numbered(codes_of(columns))
    first = np.empty(count if len(kind) else 0, dtype=np.int64)
    first[kind[::-1]] = np.arange(len(kind))[::-1]
    return first, kind


def over_distinct(columns: LayoutColumns, names: Sequence[str], compute: Callable[[LayoutColumns], T]) -> T:
    """`compute(columns)`, a record of (N,) arrays that depends on the named columns alone, computed once for each
    combination of them."""
    if len(columns) < WORTH_IT:
        return compute(columns)
    first, kind = first_of_each([getattr(columns, name) for name in names])
    if len(first) > len(columns) // 2:
        return compute(columns)
    spread: T = _taken(compute(columns.rows(first)), kind)
    return spread


def _taken(value: Any, index: Ints) -> Any:
    """The same record with some rows of its arrays."""
    if isinstance(value, np.ndarray):
        return taken(value, index)
    if isinstance(value, tuple):
        return tuple(_taken(one, index) for one in value)
    if isinstance(value, dict):
        return {name: _taken(one, index) for name, one in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        return type(value)(**{own.name: _taken(getattr(value, own.name), index) for own in fields(value)})
    return value
