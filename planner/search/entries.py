"""Closed entries of a search: cores of layouts, and pairs of a core and a variant, with a bound of what each holds."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, TypeVar

import numpy as np

from cost_models.arrays import Array, Ints
from cost_models.axes.columns import LayoutColumns
from cost_models.pipeline.stage_costs import StageCosts
from planner.bounds.passes import Passes, core_bounds, passes_of
from planner.bounds.pricing import Pricing
from planner.bounds.relaxed import known_seconds, relaxed_bounds
from planner.placement.leaf import TOLERANCE
from planner.space.cores import ONE_CHUNK
from planner.space.counts import Boxes, with_counts

Columns = TypeVar("Columns", LayoutColumns, StageCosts, Passes)


SEEDS = 64
"""Cores opened first, for an early incumbent."""
FIRST_OPENED, MOST_OPENED = 128, 20_000
"""Entries opened in one batch: few at first, twice as many each time."""
FIRST_RELAXED, MOST_RELAXED = 4096, 65_536
"""Cores relaxed in one batch: few at first, twice as many each time."""
FEWEST_PARTS = 256
"""Boxes of counts priced together, where halving some leaves fewer."""
TIES = 4 * TOLERANCE
"""Relative margin above the time to beat within which a layout may tie with the best and has to be opened."""
TOGETHER = 50_000
"""Rows priced in one batch, which bounds memory."""


class Cores:
    """Cores under their ideal bound and, once relaxed, under their sharper relaxed bound."""

    def __init__(self, pricing: Pricing) -> None:
        self._pricing = pricing
        self.bound = known_seconds(pricing.space, pricing.allowed_at_all)
        self.is_relaxed = np.zeros(len(self.bound), dtype=np.bool_)
        self.is_open = np.zeros(len(self.bound), dtype=np.bool_)
        self._together = FIRST_RELAXED

    def least(self) -> float:
        """Least bound of the closed cores, seconds; infinite where none is left."""
        return float(np.min(self.bound, where=~self.is_open, initial=np.inf))

    def seeds(self) -> Ints:
        """Cores that are likely to hold a good layout: the best of every (tp, pp, cp) under their ideal bound."""
        cores = self._pricing.space.cores
        order = np.argsort(self.bound, kind="stable")
        kind = (cores.tp * (1 << 40) + cores.pp * (1 << 20) + cores.cp)[order]
        _, first = np.unique(kind, return_index=True)
        chosen: Ints = order[np.union1d(first, np.arange(min(len(order), SEEDS)))]
        return chosen

    def relax(self, cores: Ints) -> None:
        """Replace ideal bounds of some cores by relaxed ones."""
        cores = cores[~self.is_relaxed[cores]]
        for start in range(0, len(cores), TOGETHER):
            some = cores[start : start + TOGETHER]
            sharper = relaxed_bounds(
                self._pricing.space, some, self._pricing.allowed_at_all, self._pricing.max_memory
            )
            self.bound[some] = np.maximum(self.bound[some], sharper)
        self.is_relaxed[cores] = True

    def next(self, below: float, most: int) -> Ints:
        """At most `most` closed cores with the least bounds below a limit, relaxed first where they are not."""
        while True:
            closed = np.flatnonzero(~self.is_open & (self.bound < below))
            rows = _least(self.bound, closed, most)
            if self.is_relaxed[rows].all():
                return rows
            some = _least(self.bound, closed[~self.is_relaxed[closed]], self._together)
            self.relax(np.sort(some))  # neighbours have more in common
            self._together = min(2 * self._together, MOST_RELAXED)


class Pairs:
    """Pairs of a core and one of its variants, under the core's bound at the costs of that variant; each stands for a
    box of counts of offloaded blocks, which is halved before its shapes are written out."""

    def __init__(self, pricing: Pricing) -> None:
        self._pricing = pricing
        self.core = np.empty(0, dtype=np.int64)
        self.variant = np.empty((0, 2), dtype=np.int64)
        self.counts = pricing.space.counts.rows(self.core)
        self.layouts = np.empty(0, dtype=np.int64)
        """(N,) number of layouts of each pair."""
        self.passes: Passes | None = None
        self.bound = np.empty(0)
        self.is_open = np.empty(0, dtype=np.bool_)

    def add(self, cores: Ints) -> None:
        """Add every variant of some cores."""
        space = self._pricing.space
        variants = [space.variants[family] for family in space.family[cores].tolist()]
        core = np.repeat(cores, [len(own) for own in variants])
        self._append(core, np.concatenate([self.variant[:0], *variants]), space.counts.rows(core))

    def halve(self, pairs: Ints) -> None:
        """Replace some by halves of their counts, or smaller parts where there are few: pricing one takes as long as
        pricing many."""
        self.is_open[pairs] = True
        own, counts = self.counts.rows(pairs).halves()
        while len(own) < FEWEST_PARTS and not counts.is_single.all():
            part, counts = counts.halves()
            own = own[part]
        self._append(self.core[pairs[own]], self.variant[pairs[own]], counts)

    def _append(self, core: Ints, variant: Ints, counts: Boxes) -> None:
        space = self._pricing.space
        bound, allowed = np.empty(len(core)), self._pricing.allowed_at_all
        for start in range(0, len(core), TOGETHER):
            some = np.arange(start, min(start + TOGETHER, len(core)))
            own = counts.rows(some)
            columns = with_counts(
                space.rows(core[some], variant[some], np.array([[1, ONE_CHUNK]])), own.least
            )
            costs = self._pricing.costs(columns, own)
            passes = passes_of(space, columns.pp, costs, allowed)
            bound[some] = core_bounds(space, core[some], costs, passes, allowed)
            self.passes = passes if self.passes is None else joined(self.passes, passes)
        self.core = np.concatenate([self.core, core])
        self.variant = np.concatenate([self.variant, variant])
        self.counts = Boxes.joined([self.counts, counts])
        shapes = space.shape_counts(core, variant[:, 0])
        self.layouts = np.concatenate([self.layouts, shapes * counts.layouts])
        self.bound = np.concatenate([self.bound, bound])
        self.is_open = np.concatenate([self.is_open, np.zeros(len(core), dtype=np.bool_)])

    def least(self) -> float:
        """Least bound of the closed pairs, seconds; infinite where none is left."""
        return float(np.min(self.bound, where=~self.is_open, initial=np.inf))

    def next(self, below: float, most: int) -> Ints:
        """At most `most` closed pairs with the least bounds below a limit."""
        return _least(self.bound, np.flatnonzero(~self.is_open & (self.bound < below)), most)


def _least(bound: Array, rows: Ints, most: int) -> Ints:
    """At most `most` of `rows`, those with the least bounds, in no order."""
    return rows if len(rows) <= most else rows[np.argpartition(bound[rows], most)[:most]]


def joined(one: Columns, other: Columns) -> Columns:
    """The rows of both tables, one after the other."""
    both: dict[str, Any] = {}
    for field in fields(one):
        own, more = getattr(one, field.name), getattr(other, field.name)
        if isinstance(own, tuple):  # a table for each kind of block
            both[field.name] = tuple(
                {name: np.concatenate([first[name], second[name]]) for name in first}
                for first, second in zip(own, more, strict=True)
            )
        else:
            both[field.name] = np.concatenate([own, more])
    return type(one)(**both)
