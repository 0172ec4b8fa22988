"""Boxes of layouts that differ in nothing but counts of blocks: one entry stands for all counts between.

Counts are of blocks that offload keeps in host memory; the search tries hundreds in every mesh. It walks through boxes
of them in place of single ones, prices the corners of a box for a bound of all it holds (`planner.bounds.boxes`), and
halves those that may hold the best.

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
    """Counts of each column from `least` to `most`, of which no more than `room` together."""

    least: Ints
    """(N, R)"""
    most: Ints
    """(N, R)"""
    room: Ints
    """(N,)"""

    def __len__(self) -> int:
        return len(self.room)

    @classmethod
    def beside(cls, question: Question, columns: LayoutColumns) -> Boxes:
        """Of layouts whose counts stand for all from theirs on."""
        least = np.stack(counted_columns(columns), axis=1)
        counted, room = (least > 0) & (least < EVERY), countable(question, columns.pp)
        if not counted.any():
            return cls(least, least, room)
        others = np.where(counted, least, 0).sum(axis=1)[:, None] - least
        return cls(least, np.where(counted, room[:, None] - others, least), room)

    @classmethod
    def of(cls, columns: LayoutColumns) -> Boxes:
        """Of layouts with the counts that they have."""
        own = np.stack(counted_columns(columns), axis=1)
        return cls(own, own, np.where(own < EVERY, own, 0).sum(axis=1))

    @classmethod
    def joined(cls, some: Sequence[Boxes]) -> Boxes:
        """All of them, one after the other."""
        least = np.concatenate([one.least for one in some])
        alike = all(one._alike for one in some)
        most = least if alike else np.concatenate([one.most for one in some])
        return cls(least, most, np.concatenate([one.room for one in some]))

    def rows(self, index: Ints) -> Boxes:
        """Some of them."""
        least = self.least.take(index, axis=0)
        most = least if self._alike else self.most.take(index, axis=0)
        return Boxes(least, most, self.room[index])

    @property
    def _alike(self) -> bool:
        """Whether each holds one combination, as is known without looking."""
        return self.most is self.least

    @property
    def layouts(self) -> Ints:
        """(N,): combinations of counts in each: those of two columns lie below a line."""
        if self._alike:
            return np.ones(len(self), dtype=np.int64)
        sides = self.most - self.least + 1
        beyond = np.where(self.most < EVERY, self.most, 0).sum(axis=1) - self.room
        sides = -np.sort(-sides, axis=1)
        wide, high = sides[:, 0], sides[:, 1]

        def corner(side: Ints) -> Ints:
            reach: Ints = np.maximum(side, 0)
            return reach * (reach + 1) // 2

        cut = corner(beyond) - corner(beyond - wide) - corner(beyond - high) + corner(beyond - wide - high)
        return np.where(self.is_single, 1, wide * high - np.where(beyond > 0, cut, 0))

    @property
    def is_single(self) -> Bools:
        """(N,): whether a box holds one combination."""
        single: Bools = (self.least == self.most).all(axis=1)
        return single

    def corners(self) -> list[Ints]:
        """(N, R) each: every combination of least and most; the same one several times where few counts are open."""
        open_R: Bools = np.any(self.least < self.most, axis=0)
        ends = product(*((False, True) if is_open else (False,) for is_open in open_R.tolist()))
        return [np.where(np.array(at_most), self.most, self.least) for at_most in ends]

    def halves(self) -> tuple[Ints, Boxes]:
        """The box that each comes from, and both halves of each along its longest side; what is single stays so."""
        every = np.arange(len(self))
        side = (self.most - self.least).argmax(axis=1)
        middle = (self.least[every, side] + self.most[every, side]) // 2
        lower, upper = self.most.copy(), self.least.copy()
        lower[every, side], upper[every, side] = middle, middle + 1
        both = Boxes.joined([replace(self, most=lower), replace(self, least=upper)])
        tight = both._within_room()
        kept = np.flatnonzero((tight.least <= tight.most).all(axis=1))
        return np.tile(every, 2)[kept], tight.rows(kept)

    def _within_room(self) -> Boxes:
        """The same without counts for which the least of the others leaves no room."""
        counted = self.least < EVERY
        others = np.where(counted, self.least, 0).sum(axis=1)[:, None] - self.least
        return replace(
            self, most=np.where(counted, np.minimum(self.most, self.room[:, None] - others), self.most)
        )

    def singles(self) -> tuple[Ints, Ints]:
        """The box that each combination comes from, and (K, R) all combinations of all boxes."""
        box, combination = [], []
        for at, (least, most, room) in enumerate(
            zip(self.least.tolist(), self.most.tolist(), self.room.tolist(), strict=True)
        ):
            for counts in product(*(range(low, high + 1) for low, high in zip(least, most, strict=True))):
                if sum(one for one in counts if one < EVERY) <= room:
                    box.append(at)
                    combination.append(counts)
        return np.array(box, dtype=np.int64), np.array(combination, dtype=np.int64).reshape(-1, len(_COLUMNS))


def with_counts(columns: LayoutColumns, counts: Ints) -> LayoutColumns:
    """The same layouts with (N, R) other counts."""
    return replace(columns, **{name: counts[:, at] for at, name in enumerate(_COLUMNS)})


def counted_columns(columns: LayoutColumns) -> list[Ints]:
    """(N,) counts of blocks, one array for each column that counts."""
    return [getattr(columns, name) for name in _COLUMNS]


def speaks_of_counts(axes: set[str]) -> bool:
    """Whether restrictions on some axes speak of counts."""
    return bool(axes & set(_COLUMNS))
