"""What a search walks through: rows (layouts, each with a bound), what is known of each that is open, and closed
entries (bounds of many layouts).
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np

from cost_models.arrays import Array, Bools, Ints
from cost_models.axes.layout import Layout
from cost_models.errors import InfeasibleError
from cost_models.question import Question
from planner.placement.leaf import Leaf


class Tally(NamedTuple):
    """How many layouts of closed entries are infeasible, pruned or undecided."""

    infeasible: int
    """Layouts of which no placement fits."""
    pruned: int
    """Layouts whose bound is not below the time to beat."""
    undecided: int


class Candidates(Protocol):
    """The search space of one question."""

    @property
    def question(self) -> Question:
        """The question whose layouts these are."""

    @property
    def max_memory(self) -> float | None:
        """Bytes a plan may fill of each device, where that is less than the device allows; None: no such limit."""

    def __len__(self) -> int:
        """Number of layouts in all."""

    def least_closed(self) -> float:
        """Least bound of the closed entries, seconds; infinite where none is left."""

    def open(self, below: float) -> Array:
        """Open closed entries or sharpen their bounds; returns the quick bounds (N,) of the new rows, which may be
        none.

        Nothing whose bound is `below` seconds or more is opened.
        """

    def open_all(self) -> None:
        """Open every layout at once, in place of `open`: rows are then all layouts."""

    def tally(self, below: float) -> Tally:
        """Count the layouts of closed entries; those whose bound is `below` seconds or more are pruned."""

    def capacity_bounds(self, rows: Ints, cut_off: float) -> Array:
        """(N,) finer lower bounds of rows; a bound need not be computed beyond `cut_off` seconds."""

    def leaf(self, row: int) -> Leaf:
        """One row with its costs, ready to be placed."""

    def layout(self, row: int) -> Layout:
        """The layout of one row, without a placement."""

    def nothing_fits(self) -> InfeasibleError:
        """The error to raise when no placement of any layout fits."""

    def in_words(self) -> str:
        """What the search covers, in words."""


class Rows:
    """The rows of one search; every column has shape (N,)."""

    def __init__(self) -> None:
        self.bound: Array = np.empty(0)
        """Proven lower bound, seconds; infinite where the row fits nowhere; the best time where it is decided."""
        self.first_bound: Array = np.empty(0)
        """The bounds as they were before anything was placed."""
        none = np.empty(0, dtype=np.bool_)
        self.refined: Bools = none
        """It has a capacity bound."""
        self.placed: Bools = none
        """It has a good placement, or none was found."""
        self.decided: Bools = none
        """Its best placement is known."""
        self.solved: Bools = none
        """Its best placement was searched for and proven."""
        self.given_up: Bools = none
        """Neither placed best nor ruled out, though there was time; the row's bound is all that is proven."""

    def __len__(self) -> int:
        return len(self.bound)

    def add(self, bound: Array) -> None:
        """Append newly opened rows with their quick bounds."""
        self.bound = np.concatenate([self.bound, bound])
        self.first_bound = np.concatenate([self.first_bound, bound])
        for name in ("refined", "placed", "decided", "solved", "given_up"):
            closed = np.zeros(len(bound), dtype=np.bool_)
            setattr(self, name, np.concatenate([getattr(self, name), closed]))

    def refine(self, rows: Ints, bound: Array) -> None:
        """Give some rows their capacity bounds."""
        self.bound[rows] = self.first_bound[rows] = np.maximum(self.bound[rows], bound)
        self.refined[rows] = True

    def below(self, seconds: float) -> Bools:
        """Rows that are undecided and may take less than so many seconds."""
        rows: Bools = ~self.decided & np.isfinite(self.bound) & (self.bound < seconds)
        return rows

    def decide(self, row: int, seconds: float) -> None:
        """Nothing in this row is faster than so many seconds, or is searched for any more."""
        self.bound[row], self.decided[row] = max(self.bound[row], seconds), True

    def swap(self, one: int, other: int) -> None:
        """Let each of two rows that cost the same stand where the other did."""
        for column in (self.bound, self.decided, self.solved):
            column[[one, other]] = column[[other, one]]
