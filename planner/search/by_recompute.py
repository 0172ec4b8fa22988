"""One search made of several: the same question under one recompute policy at a time."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

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
    """The best layouts over all `parts`, each of which restricts the question to one recompute policy.

    Each is searched for what may still be among the best of those before it.

    Raises:
        InfeasibleError: nothing fits under any of them.
        NothingPlacedError: nothing was placed under any of them, and not all were ruled out.
    """
    start = time.monotonic()
    answers: list[SearchResult] = []
    spaces: list[str] = []
    ranked: list[Estimate] = []
    unanswered, left_open = 0, 0
    nothing: InfeasibleError | NothingPlacedError = InfeasibleError("nothing was asked")
    for at, limits in enumerate(parts):
        if answers and answers[-1].interrupted:
            left_open += count_layouts(question, limits)
            continue
        left = None if time_limit is None else max(0.001, time_limit - (time.monotonic() - start))
        share = None if left is None else left / (len(parts) - at)
        try:
            answers.append(search(limits, share, below))
            spaces.append(answers[-1].certificate.space)
            ranked = sorted([*ranked, *answers[-1].estimates], key=by_speed)[:top]
            if len(ranked) == top:
                below = min(below, ranked[-1].compared_seconds * (1 + BEYOND))
        except InfeasibleError as error:
            nothing = nothing if left_open else error
            unanswered += count_layouts(question, limits)
        except NothingPlacedError as error:
            nothing = error
            spaces.append(error.space)
            left_open += count_layouts(question, limits)
    if not answers:
        raise nothing
    interrupted = answers[-1].interrupted
    answers.sort(key=lambda result: result.certificate.bound)  # the best one's program settles
    return SearchResult(
        estimates=tuple(ranked),
        certificate=_together(
            [result.certificate for result in answers],
            ranked,
            space=" | ".join(dict.fromkeys(spaces)),
            unanswered=unanswered,
            left_open=left_open,
            seconds=time.monotonic() - start,
        ),
        interrupted=interrupted,
        searches=tuple(one for result in answers for one in result.searches),
    )


def _together(
    found: Sequence[Certificate],
    ranked: Sequence[Estimate],
    *,
    space: str,
    unanswered: int,
    left_open: int,
    seconds: float,
) -> Certificate:
    """One certificate of all policies; `unanswered` layouts do not fit, `left_open` were not decided on."""
    bound = 0.0 if left_open else min(one.bound for one in found)
    return found[0].model_copy(
        update={
            "space": space,
            "layouts": sum(one.layouts for one in found) + unanswered + left_open,
            "infeasible": sum(one.infeasible for one in found) + unanswered,
            "pruned": sum(one.pruned for one in found),
            "solved": sum(one.solved for one in found),
            "undecided": sum(one.undecided for one in found) + left_open,
            "bound": bound,
            "gap": gap_of(ranked[0].compared_seconds, bound) if ranked else 1.0,
            "seconds": seconds,
        }
    )
