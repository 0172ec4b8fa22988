"""What a search walks through: rows (layouts, each with a bound) and closed entries (bounds of many layouts)."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from cost_models.arrays import Array, Ints
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
