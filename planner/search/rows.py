"""What a search knows of each row that is open: its bounds, and what has been done with it."""

from __future__ import annotations

import numpy as np

from cost_models.arrays import Array, Bools, Ints


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
