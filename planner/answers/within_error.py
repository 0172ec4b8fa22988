"""How many layouts lie so close to the best that the model cannot tell them from it, by the search's own bounds.

A layout is counted where its lower bound does not exceed the best step by more than the model's error, so none that is
as close is missed, and some that are not may be in: the count is proved to be no less than the true one. Variants that
cost the same count each.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cost_models.errors import InfeasibleError
from cost_models.question import Question
from cost_models.uncertainty import pair_error_of
from planner.search.budget import Budget
from planner.search.opening import UniformCandidates
from planner.space.restrictions import Restrictions

MOST_COUNTED = 100_000
"""Layouts from which on it is enough to say that there are more."""


@dataclass(frozen=True, slots=True)
class WithinError:
    """Layouts whose steps the model cannot tell from the best."""

    share: float
    """How far above the best step they may lie: the profile's error of the ratio of two times."""
    layouts: int
    """No more lie within it."""


def within_error(
    question: Question, limits: Restrictions, best_seconds: float, budget: Budget
) -> WithinError | None:
    """Count them; None where there are more than are worth counting, or time has run out."""
    share = pair_error_of(question)
    found = 0
    for part in limits.by_recompute(question.training) or (limits,):
        more = _within(question, part, best_seconds * (1 + share), budget)
        if more is None:
            return None
        found += more
    return WithinError(share, found)


def _within(question: Question, limits: Restrictions, below: float, budget: Budget) -> int | None:
    """How many layouts have bounds below some seconds."""
    try:
        candidates = UniformCandidates(question, limits)
    except InfeasibleError:  # none is legal
        return 0
    found = opened = 0
    while candidates.least_closed() < below:
        bounds = candidates.open(below)
        opened += len(bounds)
        if opened > MOST_COUNTED or budget.seconds_left <= 0:
            return None
        rows = opened - len(bounds) + np.flatnonzero(bounds < below)
        if len(rows):
            found += int((candidates.capacity_bounds(rows, below) < below).sum())
    return found
