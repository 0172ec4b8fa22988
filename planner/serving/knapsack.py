"""Choice of the rows of tables that a cache holds, as a knapsack over the hits that each row gives for its
bytes.

    maximise    Σ_c w_c h_c(f_c)             w_c: share of accesses, h_c: hits by rows cached, concave
    subject to  Σ_c N_c f_c b_c ≤ capacity   f_c rows of b_c bytes of each of the N_c tables of class c

Rows in the order of hits per byte, over all tables, are the optimum of the relaxed program for every capacity, as a
table's later rows never give more than its earlier ones. What fits of the row where the capacity ends is cut off to
whole rows: that loses less than one row of each table of one class, and the relaxed optimum bounds what it loses.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cost_models.arrays import Array, Ints
from cost_models.recommender.caching import CachedTables


@dataclass(frozen=True, slots=True, kw_only=True)
class Filling:
    """Number of rows of each embedding table in a GPU cache, with bytes and hit rate."""

    rows: Array
    """(C,) number of cached rows of each table, by class of tables."""
    bytes: float
    """Bytes of the rows."""
    hits: float
    """Share of all accesses that find their row in the cache."""
    bound: float
    """Upper bound on the hit rate of any cache of this many bytes."""

    @classmethod
    def of(cls, tables: CachedTables, rows: Array, bound: float = 0.0) -> Filling:
        """A cache of `rows` of each table; no rows of as many bytes hit more than `bound`, or than these."""
        hits, size = tables.hits(rows), float(tables.counts @ (rows * tables.row_bytes))
        return cls(rows=rows, bytes=size, hits=hits, bound=max(bound, hits))


@dataclass(frozen=True, slots=True, kw_only=True)
class FillingOrder:
    """Order in which embedding rows enter a growing GPU cache, as S steps of rows."""

    tables: CachedTables
    step_class: Ints
    step_rows: Array
    """(S,) number of rows that each step adds for each table of its class."""
    bytes_up_to: Array
    """(S + 1,) bytes of the rows of all steps before each step, then the total."""
    hits_up_to: Array
    """(S + 1,) share of all accesses served by the rows of all steps before each step, then the total."""

    def hits(self, capacity: npt.ArrayLike) -> Array:
        """Upper bound on the hit rate of a cache of this many bytes, as if rows were divisible."""
        return np.interp(np.asarray(capacity, np.float64), self.bytes_up_to, self.hits_up_to)

    def bytes_for(self, share: npt.ArrayLike) -> Array:
        """Lower bound on the bytes of a cache with this hit rate, as if rows were divisible."""
        rising = np.concatenate(([True], np.diff(self.hits_up_to) > 0))
        return np.interp(np.asarray(share, np.float64), self.hits_up_to[rising], self.bytes_up_to[rising])

    def fill(self, capacity: float) -> Filling:
        """Rows of each table for a cache of this many bytes."""
        step, part = self._at(capacity)
        return self._filling(step, np.floor(part * (1 + 1e-12)), float(self.hits(capacity)))

    def smallest(self, share: float) -> Filling:
        """Rows of each table for the smallest cache with this hit rate."""
        least_bytes = float(self.bytes_for(share))
        step, part = self._at(least_bytes)
        return self._filling(step, np.ceil(part * (1 - 1e-12)), share)

    def _at(self, capacity: float) -> tuple[int, float]:
        """The first step that does not fit fully, and the number of rows of the step that fit."""
        step = int(np.searchsorted(self.bytes_up_to, capacity, side="right")) - 1
        if step >= len(self.step_class):
            return step, 0.0
        share = (capacity - self.bytes_up_to[step]) / (self.bytes_up_to[step + 1] - self.bytes_up_to[step])
        return step, float(share * self.step_rows[step])

    def _filling(self, step: int, part: float, bound: float) -> Filling:
        tables = self.tables
        rows = np.zeros(len(tables.counts))
        np.add.at(rows, self.step_class[:step], self.step_rows[:step])
        if step < len(self.step_class):
            rows[self.step_class[step]] += part
        rows = np.minimum(rows if tables.policy == "hottest" else np.floor(rows * (1 + 1e-12)), tables.rows)
        return Filling.of(tables, rows, bound)


def filling_order(tables: CachedTables) -> FillingOrder:
    """Sort the rows of all tables by hits per byte, best first."""
    curves = tables.curves
    step_class = np.repeat(np.arange(len(curves)), [len(curve.rows) for curve in curves])
    rows = np.concatenate([curve.rows for curve in curves])
    worth = np.concatenate([np.minimum.accumulate(curve.share_of_row) for curve in curves])
    worth = worth * (tables.lookups / tables.row_bytes)[step_class]
    order = np.argsort(-worth, kind="stable")
    shares = np.concatenate([curve.shares for curve in curves])
    filled = (rows * (tables.counts * tables.row_bytes)[step_class])[order]
    hits = (shares * tables.weights[step_class])[order]
    return FillingOrder(
        tables=tables,
        step_class=step_class[order],
        step_rows=rows[order],
        bytes_up_to=np.concatenate(([0.0], np.cumsum(filled))),
        hits_up_to=np.concatenate(([0.0], np.minimum(np.cumsum(hits), 1.0))),
    )


def one_share(tables: CachedTables, capacity: float) -> Filling:
    """Cache that holds the same share of rows of every table, as with a single load factor; `bound` is its hit
    rate."""
    share = min(1.0, capacity / tables.cached_whole_bytes)
    return Filling.of(tables, np.floor(share * tables.rows))
