"""One search made of several: the same question under one recompute policy at a time."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

import numpy as np

from cost_models.errors import InfeasibleError, NothingPlacedError
from cost_models.estimate import Estimate
from cost_models.question import Question
from planner.certificate import Certificate
from planner.placement.leaf import gap_of
from planner.search.branching import BEYOND
from planner.search.pools import count_layouts
from planner.search.result import SearchResult, by_speed
from planner.space.restrictions import Restrictions

Search = Callable[[Restrictions, float | None, float], SearchResult]
"""Searches within restrictions, in the seconds given (None: no limit), for layouts that take less than some seconds."""


def search_each_policy(
    search: Search,
    question: Question,
    parts: Sequence[Restrictions],
    top: int,
    time_limit: float | None,
    below: float = math.inf,
) -> SearchResult:
    """The best layouts over all `parts`, each of which restricts the question to one recompute policy; a layout that
    several policies have is one, under the fastest.

    Each is searched for what may still be among the best of those before it.

    Raises:
        InfeasibleError: nothing fits under any of them.
        NothingPlacedError: nothing was placed under any of them, and not all were ruled out.
    """
    start = time.monotonic()
    layouts = [count_layouts(question, limits) for limits in parts]
    answers: list[SearchResult] = []
    spaces: list[str] = []
    ranked: list[Estimate] = []
    left_open = 0
    nothing: InfeasibleError | NothingPlacedError = InfeasibleError("nothing was asked")
    for at, limits in enumerate(parts):
        if answers and answers[-1].interrupted:
            left_open += layouts[at]
            continue
        left = None if time_limit is None else max(0.001, time_limit - (time.monotonic() - start))
        share = None if left is None else left / (len(parts) - at)
        try:
            answers.append(search(limits, share, below))
            spaces.append(answers[-1].certificate.space)
            ranked = _each_layout_once([*ranked, *answers[-1].estimates])[:top]
            if len(ranked) == top:
                below = min(below, ranked[-1].compared_seconds * (1 + BEYOND))
        except InfeasibleError as error:
            nothing = nothing if left_open else error
            spaces += [error.space] * bool(error.space)
        except NothingPlacedError as error:
            nothing = error
            spaces.append(error.space)
            left_open += layouts[at]
    if not answers:
        raise nothing
    interrupted = answers[-1].interrupted
    answers.sort(key=lambda result: result.certificate.bound)  # the best one's program settles
    return SearchResult(
        estimates=tuple(ranked),
        certificate=_together(
            answers,
            ranked,
            layouts=max(layouts),
            space=" | ".join(dict.fromkeys(spaces)),
            left_open=left_open,
            seconds=time.monotonic() - start,
        ),
        interrupted=interrupted,
        searches=tuple(one for result in answers for one in result.searches),
    )


def _each_layout_once(found: Sequence[Estimate]) -> list[Estimate]:
    """The fastest estimate of each layout, however it recomputes and places its blocks, best first."""
    best: dict[str, Estimate] = {}
    for one in sorted(found, key=by_speed):
        best.setdefault(str(one.layout.model_copy(update={"layers": (), "recompute": ("none",)})), one)
    return list(best.values())


def _together(
    answers: Sequence[SearchResult],
    ranked: Sequence[Estimate],
    *,
    layouts: int,
    space: str,
    left_open: int,
    seconds: float,
) -> Certificate:
    """One certificate of all policies, which counts a layout once: as undecided where it is so under some policy, as
    solved where it is under one, as not fitting only where it surely fits under none.

    `layouts` are those of the policy with most, which has those of all others; `left_open` were not decided on under
    theirs.
    """
    found = [result.certificate for result in answers]
    bound = 0.0 if left_open else min(one.bound for one in found)
    undecided = min(layouts, sum(one.undecided for one in found) + left_open)
    infeasible = max(0, layouts - left_open - sum(one.layouts - one.infeasible for one in found))
    searches = [search for result in answers for search in result.searches]
    names = [search.names(search.rows.decided & np.isfinite(search.rows.bound)) for search in searches]
    solved = len(set().union(*names)) or max(one.solved for one in found)
    decided = layouts - undecided - infeasible
    return found[0].model_copy(
        update={
            "space": space,
            "layouts": layouts,
            "infeasible": infeasible,
            "pruned": max(0, decided - solved),
            "solved": min(solved, decided),
            "undecided": undecided,
            "bound": bound,
            "gap": gap_of(ranked[0].compared_seconds, bound) if ranked else 1.0,
            "seconds": seconds,
        }
    )
