"""Boxes of layouts that differ only in counts of blocks: one entry stands for all counts between two corners.

Counts are of blocks that offload keeps in host memory; the search tries hundreds in every mesh. It searches boxes of
counts, prices the corners of a box for a bound of the whole box (`planner.bounds.boxes`), and halves the boxes that may
hold the best.

Shape legend: N boxes, R columns that count.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from cost_models.arrays import Bools, Ints
from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import RESIDENCIES
from cost_models.axes.words import EVERY
from cost_models.question import Question
from planner.space.axes import countable

_COLUMNS = tuple(f"offload_{part}" for part in RESIDENCIES)


@dataclass(frozen=True, slots=True)
class Boxes:
    """Ranges of the numbers of offloaded blocks of N layouts, one box (hyperrectangle) of counts for each
    layout. Each count goes from `least` to `most`; the sum of the counts is at most `room`."""

    least: Ints
    """(N, R)"""
    most: Ints
    """(N, R)"""
    room: Ints
    """(N,)"""

    def __len__(self) -> int:
        return len(self.room)

    @classmethod
    def from_minimum(cls, question: Question, columns: LayoutColumns) -> Boxes:
        """Boxes from the offload counts of the given layouts up to the largest counts possible."""
        minimum, room = np.stack(counted_columns(columns), axis=1), countable(question, columns.pp)
        counted = minimum % EVERY
        if not counted.any():
            return cls(minimum, minimum, room)
        others = counted.sum(axis=1)[:, None] - counted
        return cls(minimum, np.where(counted > 0, room[:, None] - others, minimum), room)

    @classmethod
    def of(cls, columns: LayoutColumns) -> Boxes:
        """Boxes that hold exactly the offload counts of the given layouts."""
        counts = np.stack(counted_columns(columns), axis=1)
        return cls(counts, counts, (counts % EVERY).sum(axis=1))

    @classmethod
    def joined(cls, parts: Sequence[Boxes]) -> Boxes:
        """Concatenation of several `Boxes`."""
        minimum = np.concatenate([part.least for part in parts])
        all_single = all(part._all_single for part in parts)
        maximum = minimum if all_single else np.concatenate([part.most for part in parts])
        return cls(minimum, maximum, np.concatenate([part.room for part in parts]))

    def rows(self, index: Ints) -> Boxes:
        """Subset of the boxes at the given indices."""
        minimum = self.least.take(index, axis=0)
        maximum = minimum if self._all_single else self.most.take(index, axis=0)
        return Boxes(minimum, maximum, self.room[index])

    @property
    def _all_single(self) -> bool:
        """Whether every box holds a single combination of counts by construction."""
        return self.most is self.least

    @property
    def layouts(self) -> Ints:
        """Number of combinations of counts in each box, (N,). With two columns of counts a box is a rectangle
        cut by a line."""
        if self._all_single:
            return np.ones(len(self), dtype=np.int64)
        sides = self.most - self.least + 1
        over = (self.most % EVERY).sum(axis=1) - self.room
        long, high = np.sort(sides, axis=1)[:, :-3:-1].T

        def corner(side: Ints) -> Ints:
            reach: Ints = np.maximum(side, 0)
            return reach * (reach + 1) // 2

        cut = corner(over) - corner(over - long) - corner(over - high) + corner(over - long - high)
        return np.where(self.is_single, 1, long * high - np.where(over > 0, cut, 0))

    @property
    def is_single(self) -> Bools:
        """Whether a box holds only one combination of counts, (N,)."""
        single: Bools = (self.least == self.most).all(axis=1)
        return single

    def corners(self, columns: LayoutColumns) -> list[LayoutColumns]:
        """Layouts at the corners of the boxes, one table of N layouts for each combination of `least` and
        `most`. Single counts repeat corners."""
        open_R: Bools = np.any(self.least < self.most, axis=0)
        ends = product(*((False, True) if is_open else (False,) for is_open in open_R.tolist()))
        return [with_counts(columns, np.where(np.array(most), self.most, self.least)) for most in ends]

    def halves(self) -> tuple[Ints, Boxes]:
        """Split each box of counts along its longest side; return the index of the parent of each half, and the
        halves. Single boxes stay."""
        boxes = np.arange(len(self))
        side = (self.most - self.least).argmax(axis=1)
        middle = (self.least[boxes, side] + self.most[boxes, side]) // 2
        lower, upper = self.most.copy(), self.least.copy()
        lower[boxes, side], upper[boxes, side] = middle, middle + 1
        halves = Boxes.joined([replace(self, most=lower), replace(self, least=upper)])
        counted = halves.least % EVERY
        spare = halves.room - counted.sum(axis=1)
        # at the least counts of other columns
        most = np.where(halves.least < EVERY, np.minimum(halves.most, counted + spare[:, None]), halves.most)
        nonempty = np.flatnonzero((halves.least <= most).all(axis=1))
        return np.tile(boxes, 2)[nonempty], replace(halves, most=most).rows(nonempty)

    def singles(self, columns: LayoutColumns) -> tuple[Ints, LayoutColumns, Boxes]:
        """Every combination of counts in the boxes: the index of its box, (K,), the layout of that box with
        these counts, and a box of it alone."""
        bounds = zip(self.least.tolist(), self.most.tolist(), self.room.tolist(), strict=True)
        combinations = [
            (box, *counts)
            for box, (lows, highs, room) in enumerate(bounds)
            for counts in product(*(range(low, high + 1) for low, high in zip(lows, highs, strict=True)))
            if sum(count % EVERY for count in counts) <= room
        ]
        table = np.array(combinations, dtype=np.int64).reshape(-1, 1 + len(_COLUMNS))
        index, counts = table[:, 0], table[:, 1:]
        return index, with_counts(columns.rows(index), counts), Boxes(counts, counts, self.room[index])


def with_counts(columns: LayoutColumns, counts: Ints) -> LayoutColumns:
    """Copies of the layouts with the given counts of offloaded blocks, (N, R)."""
    return replace(columns, **{name: counts[:, at] for at, name in enumerate(_COLUMNS)})


def counted_columns(columns: LayoutColumns) -> list[Ints]:
    """Counts of offloaded blocks for each residency, an array (N,) each."""
    return [getattr(columns, name) for name in _COLUMNS]


def speaks_of_counts(axes: set[str]) -> bool:
    """Whether any of the named axes is a count of offloaded blocks."""
    return bool(axes & set(_COLUMNS))
