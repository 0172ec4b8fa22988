"""Candidates of a search: open rows (layouts, each with a bound and a state) and closed entries (bounds of many
layouts).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np

from cost_models.arrays import Array, Bools, Ints
from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import Layout
from cost_models.errors import InfeasibleError
from cost_models.pipeline.stage_costs import StageCosts
from cost_models.question import Question
from planner.placement.leaf import Leaf

Columns = TypeVar("Columns", LayoutColumns, StageCosts)


class Tally(NamedTuple):
    """Numbers of layouts of closed entries that are infeasible, pruned or undecided."""

    infeasible: int
    """Layouts without a placement that fits."""
    pruned: int
    """Layouts whose bound is not below the time to beat."""
    undecided: int


class Candidates(Protocol):
    """Search space of one question."""

    @property
    def question(self) -> Question:
        """The question whose layouts these are."""

    @property
    def max_memory(self) -> float | None:
        """Bytes a plan may fill of each device, where that is less than the device allows; None: no such limit."""

    def __len__(self) -> int:
        """Number of layouts in all."""

    def least_closed(self) -> float:
        """Lowest bound of the closed entries, seconds; infinite where none is left."""

    def open(self, threshold: float) -> Array:
        """Open closed entries, or sharpen their bounds; returns the quick bounds of the new rows, (N,), maybe empty.

        Only entries whose bound is below `threshold` seconds are opened.
        """

    def open_all(self) -> None:
        """Open every layout at once, in place of `open`: rows are then all layouts."""

    def tally(self, threshold: float) -> Tally:
        """Count the layouts of closed entries; bounds of `threshold` seconds or more mean pruned."""

    def capacity_bounds(self, rows: Ints, cut_off: float) -> Array:
        """Finer lower bounds of rows, seconds (N,); bounds above `cut_off` may be the cut-off."""

    def leaf(self, row: int) -> Leaf:
        """One row with its costs, ready to be placed."""

    def layout(self, row: int) -> Layout:
        """The layout of one row, without a placement."""

    def nothing_fits(self) -> InfeasibleError:
        """The error to raise when no placement of any layout fits."""

    def in_words(self) -> str:
        """Description of what the search covers."""


class Rows:
    """The rows of one search; every column has shape (N,)."""

    def __init__(self) -> None:
        self.bound: Array = np.empty(0)
        """Proven lower bound, seconds; infinite where nothing fits, the best step where the row is decided."""
        self.first_bound: Array = np.empty(0)
        """Bounds before any placement, seconds."""
        none = np.empty(0, dtype=np.bool_)
        self.refined: Bools = none
        """Whether the row has a capacity bound."""
        self.has_placement: Bools = none
        """Whether a good placement was sought."""
        self.decided: Bools = none
        """Whether the best placement is known."""
        self.solved: Bools = none
        """Whether the best placement was searched for and proven."""
        self.abandoned: Bools = none
        """Whether exact placement stopped with time to spare; only the row's bound is proven."""

    def __len__(self) -> int:
        return len(self.bound)

    def add(self, bound: Array) -> None:
        """Append newly opened rows with their quick bounds."""
        self.bound = np.concatenate([self.bound, bound])
        self.first_bound = np.concatenate([self.first_bound, bound])
        for name in ("refined", "has_placement", "decided", "solved", "abandoned"):
            closed = np.zeros(len(bound), dtype=np.bool_)
            setattr(self, name, np.concatenate([getattr(self, name), closed]))

    def refine(self, rows: Ints, bound: Array) -> None:
        """Give some rows their capacity bounds."""
        self.bound[rows] = self.first_bound[rows] = np.maximum(self.bound[rows], bound)
        self.refined[rows] = True

    def open_below(self, seconds: float) -> Bools:
        """Undecided rows that may take less than `seconds`, (N,)."""
        rows: Bools = ~self.decided & np.isfinite(self.bound) & (self.bound < seconds)
        return rows

    def decide(self, row: int, seconds: float) -> None:
        """Close a row: none of its placements is faster than `seconds`, or is of interest any more."""
        self.bound[row], self.decided[row] = max(self.bound[row], seconds), True

    def swap(self, first: int, second: int) -> None:
        """Swap two rows with equal costs."""
        for column in (self.bound, self.decided, self.solved):
            column[[first, second]] = column[[second, first]]


def lowest(bound: Array, rows: Ints, max_count: int) -> Ints:
    """At most `max_count` of `rows` with the lowest bounds, in no order."""
    return rows if len(rows) <= max_count else rows[np.argpartition(bound[rows], max_count)[:max_count]]


def joined(tables: Sequence[Columns]) -> Columns:
    """Rows of one or more tables, concatenated."""
    first, columns = tables[0], dict[str, Any]()
    for field in fields(first):
        parts = [getattr(table, field.name) for table in tables]
        if isinstance(parts[0], tuple):  # a table for each kind of block
            columns[field.name] = tuple(
                {name: np.concatenate([kind[name] for kind in kinds]) for name in kinds[0]}
                for kinds in zip(*parts, strict=True)
            )
        else:
            columns[field.name] = np.concatenate(parts)
    return type(first)(**columns)
