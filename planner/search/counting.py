"""How many layouts may take less than some seconds, counted from where a search ended."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from planner.search.branching import BranchAndBound
from planner.search.opening import UniformCandidates


def count_below(found: BranchAndBound, seconds: float, most: int, has_time: Callable[[], bool]) -> int | None:
    """Number of layouts whose bound is below some seconds; None where there are more than `most` or time is over.

    What the search discarded for a smaller time to beat is opened again; bounds that it stopped at that time are
    computed further.
    """
    candidates, rows = found.candidates, found.rows
    assert isinstance(candidates, UniformCandidates)
    rows.add(candidates.reopen(seconds))
    while candidates.least_closed() < seconds:
        rows.add(candidates.open(seconds))
        if int((rows.first_bound < seconds).sum()) > most or not has_time():
            return None
    near = rows.first_bound < seconds
    stopped = rows.first_bound >= found.kth_seconds
    some = np.flatnonzero(near & (~rows.refined | stopped))
    rows.refine(some, candidates.capacity_bounds(some, seconds))
    return int((rows.first_bound < seconds).sum())
