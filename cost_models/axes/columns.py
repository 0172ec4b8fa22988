"""Table of many layouts with one numpy column per axis, so that costs are written once for all layouts.

Costs that depend on few columns are computed once per distinct combination of their values (`over_distinct`).
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import Field, fields, is_dataclass, make_dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import numpy as np

from cost_models.arrays import Array, Bools, Ints
from cost_models.axes.layout import AXES, MESH_AXES, PLACES, Layout, same_seats
from cost_models.axes.words import UNSAID, Word
from cost_models.question import Question
from cost_models.schedules.registry import REGISTRY
from cost_models.specs.choices import CONTEXTS, OVERLAPS, Context, Overlap

T = TypeVar("T")

_COLUMNS_OF = {name: word.columns(name) for name, word in AXES.items() if word.columns(name)}
"""Columns that store the value of each axis, by axis, without axes that have a value for each stage."""
COLUMNS: dict[str, Word] = {name: word for words in _COLUMNS_OF.values() for name, word in words.items()}
"""Kind of word (`Word`) that writes the number in each column, by column, in the order of the layout notation.
Recompute, chosen stage by stage, has none."""
USUAL_CONTEXT = UNSAID
"""Number in the column `context` for layouts that use the software stack's default method."""


def context_ways(question: Question, columns: LayoutColumns) -> Ints:
    """Method by which context-parallel ranks exchange keys and values, (N,), as an index into `CONTEXTS`: the
    layout's choice or else the stack's default."""
    default = CONTEXTS.index(question.stack.context_parallel)
    return np.where(columns.context == USUAL_CONTEXT, default, columns.context)


def exchanges_by(question: Question, columns: LayoutColumns, way: Context) -> Bools:
    """Whether context-parallel ranks exchange keys and values by the method `way` (ring, all-gather or
    all-to-all), (N,)."""
    return (columns.cp > 1) & np.equal(context_ways(question, columns), CONTEXTS.index(way))


def names_overlap(columns: LayoutColumns) -> Bools:
    """Whether each layout sets `overlap=`, which lists the axes whose communication overlaps compute,
    (N,)."""
    return np.asarray(np.any([getattr(columns, f"overlap_{axis}") != UNSAID for axis in OVERLAPS], axis=0))


def is_overlapped(columns: LayoutColumns, mesh_axis: Overlap, *, default: bool) -> Bools:
    """Whether communication over a mesh axis overlaps compute, (N,); `default` for layouts without
    `overlap=`."""
    column: Ints = getattr(columns, f"overlap_{mesh_axis}")
    return np.where(column == UNSAID, default, column == 1)


def is_scheduled(columns: LayoutColumns, schedules: Container[str]) -> Bools:
    """Whether the layout's pipeline schedule is one of `schedules`, (N,)."""
    return np.asarray(np.array([name in schedules for name in REGISTRY])[columns.schedule])


def places_ranks_as(columns: LayoutColumns, orders: Iterable[int]) -> Bools:
    """Whether a layout's own order of mesh axes places its ranks as one of `orders` does, (N,); `orders` are
    indices into `ORDERS`."""
    mesh = columns.cp, columns.dp, columns.pp
    seats = same_seats(*mesh, columns.order)
    return np.asarray(np.any([same_seats(*mesh, order) == seats for order in orders], axis=0))


if TYPE_CHECKING:

    class _AxisColumns:
        __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

        def __init__(self, **columns: Ints) -> None: ...

        def __getattr__(self, name: str) -> Ints: ...

else:
    _AxisColumns = make_dataclass("_AxisColumns", COLUMNS, frozen=True, slots=True, kw_only=True)


class LayoutColumns(_AxisColumns):
    """Columns of N layouts, integers (N,) for each of `COLUMNS`; a choice is stored as the index of its name."""

    __slots__ = ()

    def __len__(self) -> int:
        return len(self.tp)

    @classmethod
    def of(cls, layouts: Sequence[Layout]) -> LayoutColumns:
        """Convert a sequence of layouts to columns, a row for each layout."""
        values: dict[str, Ints] = {}
        for axis, names in _COLUMNS_OF.items():
            numbers = [AXES[axis].numbers(layout.resolve(axis)) for layout in layouts]
            values |= zip(names, np.array(numbers, dtype=np.int64).reshape(-1, len(names)).T, strict=True)
        return LayoutColumns(**values)

    def layout(self, row: int) -> Layout:
        """Convert row number `row` to a layout, with blocks not yet placed on stages."""
        values: dict[str, Any] = {}
        for axis, names in _COLUMNS_OF.items():
            values[axis] = AXES[axis].value(*[int(getattr(self, name)[row]) for name in names])
        return Layout(**values)

    def rows(self, index: Ints | slice) -> LayoutColumns:
        """Columns of the layouts in the rows `index`."""
        return LayoutColumns(**{name: take_rows(getattr(self, name), index) for name in COLUMNS})

    def microbatches(self, global_batch: int) -> Ints:
        """Number of microbatches per pipeline and step, global batch / (mbs × dp), (N,)."""
        return global_batch // (self.mbs * self.dp)

    def tokens(self, sequence_length: int) -> Array:
        """Number of tokens of one microbatch on one rank, mbs × sequence length / cp, (N,)."""
        return self.mbs * sequence_length / self.cp

    @property
    def replicas(self) -> Ints:
        """Number of ranks with the same parameters (except experts) and different tokens, dp × cp, (N,)."""
        return self.dp * self.cp

    @property
    def expert_replicas(self) -> Ints:
        """Number of ranks with the same experts, tp × dp × cp / (ep × etp), (N,)."""
        return self.tp * self.replicas // (self.ep * self.etp)

    @property
    def expert_shard(self) -> Ints:
        """Number of ranks over which ZeRO shards experts, (N,). With hybrid sharding experts have as many
        copies as other parameters."""
        expert_replicas = self.expert_replicas
        copies: Ints = np.gcd(expert_replicas, self.replicas // self.shard)
        return expert_replicas // copies

    def shards(self, part: str = "block", zero: int = 0) -> Ints:
        """Number of ranks over which ZeRO shards the routed experts (`part` "experts") or all other
        parameters, (N,); 1 below ZeRO stage `zero`."""
        return np.where(self.zero >= zero, self.expert_shard if part == "experts" else self.shard, 1)

    @property
    def ranks(self) -> Ints:
        """Number of GPUs that the layout occupies, (N,)."""
        return self.tp * self.cp * self.pp * self.dp

    def stride(self, axis: str) -> Ints:
        """Difference in rank between neighbours along a mesh axis other than tp, (N,): tp times the degrees
        of the axes that vary faster with the rank."""
        places = PLACES[self.order]
        cp, dp, pp = (places < places[:, [MESH_AXES.index(axis)]]).T
        return np.asarray(self.tp * self.cp**cp * self.dp**dp * self.pp**pp)


MIN_ROWS_TO_DEDUPLICATE = 256
"""Minimum number of rows at which costs are computed only once for equal rows. With fewer, finding equal rows
takes longer than computing them."""
_DENSE = 4
"""Maximum range of a column's values, as a multiple of its length, at which a lookup table numbers distinct
values. Beyond it they are sorted."""


def codes_of(columns: Sequence[Ints]) -> Ints:
    """Integer code for each row's combination of values in several columns, (N,). A smaller value in the
    first column gives a smaller code."""
    code, size = np.zeros_like(columns[0]), 1
    if not len(code):
        return code
    table_size = _DENSE * len(code)
    for column in columns:
        if column.strides == (0,):
            continue
        values = column - int(column.min())
        span = int(values.max()) + 1
        if span == 1:
            continue
        if size * span > table_size:
            code, size = _value_indices(code)
        if size * span > table_size:
            values, span = _value_indices(values)
        code, size = code * span + values if size > 1 else values, size * span
    return code


def _value_indices(column: Ints) -> tuple[Ints, int]:
    """Index of each value of a column among its sorted distinct values, (N,), and the number of distinct
    values."""
    if not len(column):
        return column, 1
    offset = column - int(column.min())
    span = int(offset.max()) + 1
    if span <= _DENSE * len(column):
        present = np.zeros(span, dtype=np.bool_)
        present[offset] = True
        rank = np.cumsum(present) - 1
        return rank[offset], int(rank[-1]) + 1
    distinct, index = np.unique(column, return_inverse=True)
    return index.reshape(-1), len(distinct)


def first_of_each(columns: Sequence[Ints]) -> tuple[Ints, Ints]:
    """First row of each distinct combination of values in several columns, and index of each row's
    combination, (N,)."""
    kind, count = _value_indices(codes_of(columns))
    first = np.empty(count if len(kind) else 0, dtype=np.int64)
    first[kind[::-1]] = np.arange(len(kind))[::-1]
    return first, kind


def over_distinct(columns: LayoutColumns, names: Iterable[str], compute: Callable[[LayoutColumns], T]) -> T:
    """Call `compute` on one row for each distinct combination of values in the columns `names`, and copy the
    results to all rows. The result, a record of (N,) arrays, may depend only on those columns."""
    if len(columns) < MIN_ROWS_TO_DEDUPLICATE:
        return compute(columns)
    first, kind = first_of_each([getattr(columns, name) for name in names])
    if len(first) > len(columns) // 2:
        return compute(columns)
    spread: T = take_rows(compute(columns.rows(first)), kind)
    return spread


def take_rows(value: Any, index: Ints | slice) -> Any:
    """Copy of a record (dataclass, tuple or dict) with only the rows `index` of each array. An array
    broadcast from one number stays broadcast."""
    if isinstance(value, np.ndarray):
        if isinstance(index, slice):
            return value[index]
        return np.broadcast_to(value[:1], index.shape) if value.strides == (0,) else value.take(index, axis=0)
    if isinstance(value, tuple):
        rows = [take_rows(one, index) for one in value]
        return type(value)(*rows) if hasattr(value, "_fields") else tuple(rows)
    if isinstance(value, dict):
        return {name: take_rows(one, index) for name, one in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        return type(value)(**{own.name: take_rows(getattr(value, own.name), index) for own in fields(value)})
    return value
