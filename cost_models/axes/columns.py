"""Many layouts at once: one numpy column per axis, so that costs are written once for all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import Field, dataclass, make_dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import numpy as np
import numpy.typing as npt

from cost_models.arrays import Array, Bools, Ints
from cost_models.axes.axis import Axis, Matter
from cost_models.axes.layout import AXES, Layout
from cost_models.axes.words import Word

Numbers = TypeVar("Numbers", bound=np.generic)


def taken(column: npt.NDArray[Numbers], index: Ints | slice) -> npt.NDArray[Numbers]:
    """Some rows of a column; what is one number for all of them stays that."""
    if isinstance(index, slice) or column.strides != (0,):
        return column[index]
    return np.broadcast_to(column[:1], index.shape) if len(column) else column[index]


_FIELDS = {
    name: (axis.word.value, tuple(columns))
    for name, axis in AXES.items()
    if (columns := axis.word.columns(name))
}
"""The fields of layouts before placement, what makes one of numbers, and in which columns these are."""
_NUMBERS = {
    column: (axis.comes_to or attrgetter(name), number)
    for name, axis in AXES.items()
    for column, (number, _) in axis.word.columns(name).items()
}
"""Column → the value in a layout, and the number that stands for it."""


@dataclass(frozen=True, slots=True)
class Column:
    """What the numbers of a column mean."""

    axis: Axis
    word: Word
    """How one of them is written after the column's name: as the axis, or where that has parts as a number."""


COLUMNS = {
    column: Column(axis, word)
    for name, axis in AXES.items()
    for column, (_, word) in axis.word.columns(name).items()
}
"""By name, in the order of the notation; recompute, chosen stage by stage, is none."""


def columns_that_touch(matter: Matter) -> tuple[str, ...]:
    """Those of axes on which something hangs."""
    return tuple(name for name, column in COLUMNS.items() if matter in column.axis.touches)


_BEHIND = [axis.behind for axis in AXES.values() if axis.behind]


def updated_elsewhere(columns: LayoutColumns) -> Bools:
    """(N,): which layouts may have parameters updated by something else than the device."""
    told = [axis.updates_elsewhere(columns) for axis in AXES.values() if axis.updates_elsewhere]
    found: Bools = np.any([np.zeros(len(columns), dtype=np.bool_), *told], axis=0)
    return found


def runs_behind(columns: LayoutColumns, mesh_axis: str, *, always: bool) -> Bools:
    """(N,): whose communication over a mesh axis runs behind compute; `always` says it of layouts that do not."""
    behind = np.full(len(columns), always)
    for own in _BEHIND:
        behind = own(columns, mesh_axis, behind)
    return behind


def fewest_blocks(columns: LayoutColumns) -> Ints:
    """(N,) blocks that every rank has at least, as axes say."""
    told = [axis.fewest_blocks(columns) for axis in AXES.values() if axis.fewest_blocks]
    found: Ints = np.max([np.zeros(len(columns), dtype=np.int64), *told], axis=0)
    return found


class _Columns:
    """N layouts: (N,) integers for each of `COLUMNS`, a choice as the index of its name."""

    __slots__ = ()

    if TYPE_CHECKING:
        __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

        def __init__(self, **columns: Ints) -> None: ...

        def __getattr__(self, name: str) -> Ints: ...

    def __len__(self) -> int:
        return len(self.tp)

    @classmethod
    def of(cls, layouts: Sequence[Layout]) -> LayoutColumns:
        """Columns of some layouts, in order."""
        return LayoutColumns(
            **{
                name: np.array([number(value(layout)) for layout in layouts], dtype=np.int64)
                for name, (value, number) in _NUMBERS.items()
            }
        )

    def layout(self, row: int) -> Layout:
        """Row → `Layout` (not placed)."""
        return Layout(
            **{
                name: value(*[int(getattr(self, column)[row]) for column in columns])
                for name, (value, columns) in _FIELDS.items()
            }
        )

    def rows(self, index: Ints | slice) -> LayoutColumns:
        """The same columns for some of the layouts."""
        return LayoutColumns(**{name: taken(getattr(self, name), index) for name in COLUMNS})

    def microbatches(self, global_batch: int) -> Ints:
        """(N,) microbatches per pipeline and step, m = B / (b·d)."""
        return global_batch // (self.mbs * self.dp)

    def tokens(self, sequence_length: int) -> Array:
        """(N,) tokens of one microbatch on one rank, b·s/c."""
        return self.mbs * sequence_length / self.cp

    @property
    def replicas(self) -> Ints:
        """(N,) ranks with the same parameters (experts aside) and different tokens: dp × cp."""
        return self.dp * self.cp

    @property
    def expert_replicas(self) -> Ints:
        """(N,) ranks with the same experts: what expert parallelism leaves of tp × dp × cp."""
        return self.tp * self.replicas // (self.ep * self.etp)

    @property
    def expert_shard(self) -> Ints:
        """(N,) ranks that ZeRO shards experts over; hybrid sharding keeps as many copies of them as of the rest."""
        same = self.expert_replicas
        copies: Ints = np.gcd(same, self.replicas // self.shard)
        return same // copies

    @property
    def ranks(self) -> Ints:
        """(N,) GPUs the layout occupies."""
        return self.tp * self.cp * self.pp * self.dp


if TYPE_CHECKING:
    LayoutColumns = _Columns
else:
    LayoutColumns = make_dataclass(
        "LayoutColumns",
        [(name, Ints) for name in COLUMNS],
        bases=(_Columns,),
        frozen=True,
        slots=True,
        kw_only=True,
        namespace={"__module__": __name__, "__doc__": _Columns.__doc__},
    )
