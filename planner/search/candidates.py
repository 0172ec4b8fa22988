"""What a search walks through: layouts with bounds, some written out, the others behind entries to be opened."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from cost_models.axes.columns import Ints
from cost_models.axes.layout import Layout
from cost_models.errors import InfeasibleError
from cost_models.question import Question
from planner.placement.leaf import Leaf

Floats = npt.NDArray[np.float64]


class Tally(NamedTuple):
    """What became of the layouts that were never written out."""

    infeasible: int
    """No placement of them fits."""
    pruned: int
    """They cannot beat the time asked."""
    undecided: int


class Candidates(Protocol):
    """The space of one question."""

    @property
    def question(self) -> Question:
        """What was asked."""

    @property
    def max_memory(self) -> float | None:
        """Bytes of a device a plan may fill, where that is less than the device allows."""

    def __len__(self) -> int:
        """Layouts in all."""

    def least_closed(self) -> float:
        """The least bound of what is not written out, seconds; infinite where nothing is left."""

    def open(self, below: float) -> Floats:
        """Write out more layouts, or sharpen what is closed: the quick bounds (N,) of the new rows, which may be none.

        Nothing whose bound is `below` seconds or more is opened.
        """

    def tally(self, below: float) -> Tally:
        """What is not written out, if only layouts that take less than `below` seconds are asked for."""

    def capacity_bounds(self, rows: Ints, cut_off: float) -> Floats:
        """(N,) finer bounds of written-out rows; where none takes less than `cut_off` seconds, that is enough."""

    def leaf(self, row: int) -> Leaf:
        """One written-out layout, to be placed."""

    def layout(self, row: int) -> Layout:
        """The same, not placed."""

    def nothing_fits(self) -> InfeasibleError:
        """The error to raise when no placement of any layout fits."""

    def in_words(self) -> str:
        """What is covered."""
