"""The choice among the fastest layouts of one kind: where the model cannot tell their steps apart, the constants that
timed runs leave open decide.

Compared are the layouts whose step lies within the deviation that no constant explains of the fastest on paper: of each
choice of degrees and microbatch one, placed as is fastest. Chosen is the one with the least mean over the middle half
of the profile's scenarios: single scenarios are far off, as some constants were timed by nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from cost_models.axes.layout import Layout
from cost_models.errors import InfeasibleError
from cost_models.pipeline.under_scenarios import seconds_under_scenarios
from cost_models.question import MixedQuestion, Question
from cost_models.risk import middle
from cost_models.uncertainty import pair_error_of
from planner.plan import PlanChoice
from planner.search.branching import BranchAndBound
from planner.search.budget import Budget
from planner.search.opening import UniformCandidates, count_below, nearest_below
from planner.search.result import SearchResult
from planner.space.restrictions import Restrictions

TIED = 1e-3
"""Share of the mean step by which another layout must have less: the fastest on paper is not given up for nothing."""
MOST_COMPARED = 8
"""Layouts that are compared, those that are fastest on paper: each takes some hundredths of a second."""


def share_compared(question: Question) -> float | None:
    """How far above the fastest on paper a layout may lie to be chosen in its place; None where nothing is chosen: the
    profile has no scenarios, or the question says itself how they are weighed."""
    told = question.hardware.scenarios
    if told is None or question.risk != "none" or isinstance(question, MixedQuestion):
        return None
    return told.unexplained


def choose(
    question: Question,
    limits: Restrictions,
    found: SearchResult,
    fits: Callable[[Layout], bool],
    has_time: Callable[[], bool],
) -> tuple[Layout, PlanChoice] | None:
    """The layout to take in place of the best of a search that ended, and what it was compared with; None where the
    best is the one."""
    share, first = share_compared(question), found.best
    if share is None:
        return None
    below, searches = first.compared_seconds * (1 + share), found.searches or _unsearched(question, limits)
    near = nearest_below(searches, below, MOST_COMPARED - 1, first.layout, has_time)
    layouts = [first.layout, *near]
    seconds = [middle_seconds(question, one) for one in layouts]
    ranked = np.argsort([seconds[0] * (1 - TIED), *seconds[1:]], kind="stable").tolist()
    least = next(at for at in ranked if not at or fits(layouts[at]))
    if not least:
        return None
    return layouts[least], PlanChoice(
        first=first.layout,
        first_seconds=first.step_seconds,
        share=share,
        layouts=len(layouts),
        middle_seconds=seconds[least],
        first_middle_seconds=seconds[0],
    )


def middle_seconds(question: Question, layout: Layout) -> float:
    """Mean step of a layout over the middle half of the scenarios, which the profile must have."""
    found = seconds_under_scenarios(question, layout)
    assert found is not None
    return middle(found)


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
    question: Question, limits: Restrictions, found: SearchResult, budget: Budget
) -> WithinError | None:
    """Count them from where the search ended; None where they are not worth counting, or time has run out."""
    share = pair_error_of(question)
    below, total, names = found.best.compared_seconds * (1 + share), 0, set[str]()
    searches = found.searches or tuple(_unsearched(question, limits))
    for search in searches:
        near = count_below(search, below, MOST_COUNTED, lambda: budget.seconds_left > 0)
        if near is None:
            return None
        total += near
        if len(searches) > 1:  # of several recompute policies, which have the same layouts
            names |= search.names(search.rows.first_bound < below)
    return WithinError(share, len(names) or total)


def _unsearched(question: Question, limits: Restrictions) -> tuple[BranchAndBound, ...]:
    """Searches of a question that was proved in another way, before they start."""
    found = []
    for part in limits.by_recompute(question) or (limits,):
        with suppress(InfeasibleError):  # none is legal
            found.append(BranchAndBound(UniformCandidates(question, part), 1, time.monotonic(), None, None))
    return tuple(found)
