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
from planner.search.branching import TIE_TOLERANCE
from planner.search.pools import count_layouts
from planner.search.result import SearchResult, by_speed
from planner.space.restrictions import Restrictions

Search = Callable[[Restrictions, float | None, float], SearchResult]
"""Called with restrictions, a time limit in seconds (None: no limit) and the step seconds to beat."""


def search_each_policy(
    search: Search,
    question: Question,
    parts: Sequence[Restrictions],
    top: int,
    time_limit: float | None,
    cut_off: float = math.inf,
) -> SearchResult:
    """Best layouts over all `parts`, each of which restricts the question to one recompute policy. A layout counts
    once, under its fastest policy.

    Each part is searched only for layouts that may be among the best of the parts before it.

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
        seconds_left = None if time_limit is None else max(0.001, time_limit - (time.monotonic() - start))
        share = None if seconds_left is None else seconds_left / (len(parts) - at)
        try:
            answers.append(search(limits, share, cut_off))
            spaces.append(answers[-1].certificate.space)
            ranked = _each_layout_once([*ranked, *answers[-1].estimates])[:top]
            if len(ranked) == top:
                cut_off = min(cut_off, ranked[-1].compared_seconds * (1 + TIE_TOLERANCE))
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
        certificate=_combined_certificate(
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


def _each_layout_once(estimates: Sequence[Estimate]) -> list[Estimate]:
    """Fastest estimate of each layout over recompute policies and placements, best first."""
    fastest: dict[str, Estimate] = {}
    for plan in sorted(estimates, key=by_speed):
        fastest.setdefault(str(plan.layout.model_copy(update={"layers": (), "recompute": ("none",)})), plan)
    return list(fastest.values())


def _combined_certificate(
    answers: Sequence[SearchResult],
    ranked: Sequence[Estimate],
    *,
    layouts: int,
    space: str,
    left_open: int,
    seconds: float,
) -> Certificate:
    """Certificate over all policies, which counts a layout once: undecided if any policy leaves it undecided, solved if
    some policy solves it, infeasible only if it is infeasible under all.

    `layouts` is the number under the policy with most, which includes those of all others; `left_open` were not
    searched under their policy.
    """
    proofs = [result.certificate for result in answers]
    bound = 0.0 if left_open else min(proof.bound for proof in proofs)
    undecided = min(layouts, sum(proof.undecided for proof in proofs) + left_open)
    infeasible = max(0, layouts - left_open - sum(proof.layouts - proof.infeasible for proof in proofs))
    searches = [search for result in answers for search in result.searches]
    names = [search.names(search.rows.decided & np.isfinite(search.rows.bound)) for search in searches]
    solved = len(set().union(*names)) or max(proof.solved for proof in proofs)
    decided = layouts - undecided - infeasible
    return proofs[0].model_copy(
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
