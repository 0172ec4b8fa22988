"""What an exact solve gives back: a status that is claimed only when proven, a value, a bound."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from cost_models.schedules import CriticalPath
from planner.placement.leaf import TOLERANCE, Placement

Status = Literal["optimal", "cut off", "infeasible", "stopped"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
    """The answer for one layout.

    `optimal`: `placement` is best and proven so. `cut off`: proven that nothing beats the cut-off that was asked for.
    `infeasible`: proven that nothing fits. `stopped`: out of time, `bound` holds all the same.
    """

    status: Status
    placement: Placement | None
    """The best one known; None where none is."""
    objective: float
    """Its exact step time, seconds; infinite without a placement."""
    bound: float
    """No placement takes less, seconds."""
    rounds: int
    """Label passes, or calls of the solver."""
    paths: tuple[CriticalPath, ...] = ()
    """Critical paths met on the way: lower bounds for any layout with the same schedule, ranks and microbatches."""

    @property
    def gap(self) -> float:
        """(objective − bound) / objective; 0 is proof, 1 without a placement."""
        if self.placement is None:
            return 1.0
        return max(0.0, 1.0 - self.bound / self.objective)


def proven(seconds: float, cut_off: float) -> Status:
    """What it says of a layout that nothing beats both its best placement and the cut-off."""
    if math.isfinite(seconds) and seconds <= cut_off * (1 + TOLERANCE):
        return "optimal"
    return "infeasible" if math.isinf(cut_off) else "cut off"
