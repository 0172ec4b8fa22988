"""One search made of several: the same question under one recompute policy at a time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from cost_models.errors import InfeasibleError, NothingPlacedError
from cost_models.estimate import Estimate
from cost_models.question import Question
from planner.certificate import Certificate
from planner.placement.leaf import gap_of
from planner.search.pools import count_layouts
from planner.search.result import SearchResult, by_speed
from planner.space.restrictions import Restrictions

Search = Callable[[Question, Restrictions, float | None], SearchResult]
"""Searches a question within restrictions, in the seconds given (None: no limit)."""


def search_each_policy(
    search: Search, question: Question, parts: Sequence[Restrictions], top: int, time_limit: float | None
) -> SearchResult:
    """The best layouts over all `parts`, each of which restricts the question to one recompute policy.

    Raises:
        InfeasibleError: nothing fits under any of them.
        NothingPlacedError: nothing was placed under any of them, and not all were ruled out.
    """
    answers, certificate = _search_parts(search, question, parts, time_limit)
    estimates = [estimate for result in answers for estimate in result.estimates]
    ranked = sorted(estimates, key=by_speed)[:top]
    return replace(
        answers[0],
        estimates=tuple(ranked),
        certificate=_with_gap(certificate, ranked[0]),
        interrupted=answers[-1].interrupted,
        searches=tuple(one for result in answers for one in result.searches),
    )


def _search_parts(
    search: Search, question: Question, parts: Sequence[Restrictions], time_limit: float | None
) -> tuple[list[SearchResult], Certificate]:
    """Results of all parts that have one, each searched in its share of the time, and one certificate for all of them.

    Of a part that ended before anything was placed, as of those that an interruption leaves out, the layouts stay
    undecided, and the proven bound is 0.
    """
    start = time.monotonic()
    answers: list[SearchResult] = []
    spaces: list[str] = []
    unanswered, left_open = 0, 0
    nothing: InfeasibleError | NothingPlacedError = InfeasibleError("nothing was asked")
    for at, limits in enumerate(parts):
        if answers and answers[-1].interrupted:
            left_open += count_layouts(question, limits)
            continue
        left = None if time_limit is None else max(0.001, time_limit - (time.monotonic() - start))
        share = None if left is None else left / (len(parts) - at)
        try:
            answers.append(search(question, limits, share))
            spaces.append(answers[-1].certificate.space)
        except InfeasibleError as error:
            nothing = nothing if left_open else error
            unanswered += count_layouts(question, limits)
        except NothingPlacedError as error:
            nothing = error
            spaces.append(error.space)
            left_open += count_layouts(question, limits)
    if not answers:
        raise nothing
    found = [result.certificate for result in answers]
    together = found[0].model_copy(
        update={
            "space": " | ".join(dict.fromkeys(spaces)),
            "layouts": sum(one.layouts for one in found) + unanswered + left_open,
            "infeasible": sum(one.infeasible for one in found) + unanswered,
            "pruned": sum(one.pruned for one in found),
            "solved": sum(one.solved for one in found),
            "undecided": sum(one.undecided for one in found) + left_open,
            "bound": 0.0 if left_open else min(one.bound for one in found),
            "seconds": time.monotonic() - start,
        }
    )
    return answers, together


def _with_gap(certificate: Certificate, best: Estimate) -> Certificate:
    """The certificate with its gap to the best plan."""
    return certificate.model_copy(update={"gap": gap_of(best.compared_seconds, certificate.bound)})
