"""The exact Pareto frontier of two objectives: plans that no covered plan beats in one without losing in the other.

On a fixed number of GPUs step time, GPU-hours and money rise together, so the time-optimal plan is the best in all of
them; over several numbers each size offers one such plan (for MFU one for each padding of the vocabulary), and the
frontier is what is left of them once the beaten ones are gone. Peak memory is another matter: against it every size has
a frontier of its own, walked by the epsilon-constraint method (Haimes et al. 1971): the time-optimal plan, then the
time-optimal plan of less peak memory than that, until nothing fits.

Every point is a proven optimum. Where more points were found than asked for the walk takes larger steps, so points may
lie between those shown, but none above them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from cost_models.errors import InfeasibleError, InputError
from cost_models.estimate import Estimate
from cost_models.question import Question
from cost_models.units import format_bytes
from planner.answers.least_memory import below, least_memory
from planner.answers.optimising import paddings
from planner.objectives import Objective, ObjectiveName
from planner.placement.leaf import TOLERANCE
from planner.search.budget import Budget
from planner.search.result import SearchResult
from planner.space.gpu_counts import resized
from planner.space.restrictions import Restrictions

POINTS = 12
"""Most points of a walk against memory unless the user says otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One plan on the frontier."""

    question: Question
    estimate: Estimate
    gap: float
    """Share of its step time that could still be gained on as many GPUs within as much memory; 0 is proof."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Frontier:
    """The Pareto frontier of two objectives, from the best plan in the first to the best in the second."""

    objectives: tuple[Objective, Objective]
    points: tuple[Point, ...]
    complete: bool
    """Whether no point is missing: no plan was skipped, and no search ran out of time."""


def exact_frontier(
    question: Question,
    objectives: tuple[Objective, Objective],
    *,
    sizes: Sequence[int] = (),
    points: int | None = POINTS,
    restrictions: Restrictions | None = None,
    budget: Budget | None = None,
) -> Frontier:
    """The frontier over all layouts, placements and numbers of GPUs in `sizes` (default: the question's own).

    Where memory is one of the objectives, at most `points` points of each size are searched; None: all. On Ctrl-C and
    at the budget's limit the points found so far are returned.

    Raises:
        InputError: an objective lacks what it needs, or both are the same.
        InfeasibleError: nothing fits on any of the sizes.
        RunError: time ran out before anything was placed.
    """
    first, second = objectives
    if first.name == second.name:
        raise InputError(f"a frontier needs two objectives, not `{first.name}` twice")
    for objective in objectives:
        objective.require_complete(question, alone=False)
    limits, spending = restrictions or Restrictions(), budget or Budget()
    names = {first.name, second.name}
    found: list[Point] = []
    complete, failure = True, None
    counts = tuple(sizes) or (question.cluster.num_gpus,)
    for gpus in counts:
        there = resized(question, gpus) if sizes else question
        for group in paddings(there, limits) if "mfu" in names else [limits]:
            try:
                whole = _walk(there, names, group, points, spending, found)
            except InfeasibleError as error:
                failure = failure or error
                continue
            complete = complete and whole
    if not found:
        raise failure or spending.nothing_found()
    kept = _unbeaten(found, objectives)
    proven = all(point.gap <= 0 for point in kept) and not spending.ended
    return Frontier(objectives=objectives, points=tuple(kept), complete=complete and proven)


def _walk(
    question: Question,
    names: set[ObjectiveName],
    limits: Restrictions,
    points: int | None,
    budget: Budget,
    found: list[Point],
) -> bool:
    """Add the points of one number of GPUs to `found`; returns whether these are all of them.

    Raises:
        InfeasibleError: nothing fits.
    """
    if names == {"memory", "gpus"}:
        least = least_memory(question, Objective(name="memory"), limits, top=1, budget=budget)
        if least is not None:
            found.append(_point(question, least.result))
        return True
    fastest = budget.search(question, limits, effort="bounds")
    if fastest is None:
        return True
    if "memory" not in names:
        found.append(_point(question, fastest))
        return True
    return _down_the_memory(question, limits, points, budget, fastest, found)


def _down_the_memory(
    question: Question,
    limits: Restrictions,
    points: int | None,
    budget: Budget,
    fastest: SearchResult,
    found: list[Point],
) -> bool:
    """Walk from the fastest plan to the one that needs least memory; returns whether no plan between was skipped.

    Each point is followed by its successor, the fastest plan of less memory; a successor that is as fast takes its
    place. Once a plan was skipped, only such are searched for between two levels.
    """
    point = _point(question, fastest)
    levels, last = _levels(question, limits, points, budget, fastest)
    complete = True
    while True:
        budget.tell(f"frontier below {format_bytes(point.estimate.peak_bytes)}")
        walks = complete or last is None
        least = below(point.estimate.peak_bytes)
        successor = _below(question, limits, least, budget, None if walks else point)
        if successor is not None and _as_fast(successor, point):
            point = successor
            continue
        found.append(point)
        if (walks and successor is None) or budget.ended:
            break
        if last is None and successor is not None:
            point = successor
            continue
        levels = [level for level in levels if level < point.estimate.peak_bytes]
        if not levels:
            ends = last is not None and successor is not None and not _smaller(last, successor)
            complete = complete and ends
            break
        jump = successor if successor is not None and successor.estimate.peak_bytes <= levels[0] else None
        jump = jump or _below(question, limits, levels[0], budget)
        complete = complete and jump is successor
        if jump is None:
            break
        point = jump
    found += [last] if last is not None else []
    return complete and not budget.ended


def _levels(
    question: Question, limits: Restrictions, points: int | None, budget: Budget, fastest: SearchResult
) -> tuple[list[float], Point | None]:
    """Falling memory limits in even ratios, and the plan that needs least memory; ([], None) where all points are
    wanted."""
    if points is None:
        return [], None
    least = least_memory(question, Objective(name="memory"), limits, top=1, budget=budget, known=fastest)
    if least is None:
        return [], None
    last = _point(question, least.result)
    high, low = fastest.best.peak_bytes, last.estimate.peak_bytes
    steps = max(points - 1, 1)
    return [high * (low / high) ** (step / steps) * (1 + TOLERANCE) for step in range(1, steps)], last


def _smaller(one: Point, other: Point) -> bool:
    return one.estimate.peak_bytes < below(other.estimate.peak_bytes)


def _as_fast(one: Point, other: Point) -> bool:
    return one.estimate.step_seconds <= other.estimate.step_seconds * (1 + TOLERANCE)


def _below(
    question: Question, limits: Restrictions, limit: float, budget: Budget, as_fast_as: Point | None = None
) -> Point | None:
    """The fastest plan within a memory limit, or of those as fast as a point; None where there is none, or time ran
    out."""
    within = replace(limits, max_memory=limit)
    try:
        if as_fast_as is None:
            result = budget.search(question, within, effort="bounds")
            return None if result is None else _point(question, result)
        slowest = as_fast_as.estimate.compared_seconds * (1 + TOLERANCE)
        found = budget.faster_than(slowest, question, within, seconds=math.inf, space=None)
    except InfeasibleError:
        return None
    return None if found is None else Point(question=question, estimate=found, gap=0.0)


def _point(question: Question, result: SearchResult) -> Point:
    return Point(question=question, estimate=result.best, gap=result.certificate.gap)


def _unbeaten(found: Sequence[Point], objectives: tuple[Objective, Objective]) -> list[Point]:
    """The points that no other is at least as good as in both objectives, from the best in the first on."""

    def losses(point: Point) -> tuple[float, float]:
        first, second = (o.measure.loss(o.value(point.question, point.estimate)) for o in objectives)
        return first, second

    kept: list[Point] = []
    least = math.inf
    for point in sorted(found, key=losses):
        second = losses(point)[1]
        if second < least - TOLERANCE * abs(second):
            kept.append(point)
            least = second
    return kept
