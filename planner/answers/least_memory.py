"""The least peak memory of any layout and placement, by time-optimal searches under falling limits.

A limit under which nothing fits proves that every plan peaks above it. The limits are halved until the gap is small,
then taken to just below the least peak known, until nothing fits: there are finitely many peaks, so this ends, and the
last plan is the least. Two peaks closer than a billionth are the same.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from cost_models.axes.columns import LayoutColumns
from cost_models.errors import InfeasibleError
from cost_models.memory.device import memory_limit
from cost_models.question import MixedQuestion, Question
from cost_models.units import format_bytes
from planner.certificate import Effort
from planner.objectives import Objective
from planner.placement.leaf import TOLERANCE
from planner.search.budget import Budget
from planner.search.result import SearchResult
from planner.space.restrictions import Restrictions

CLOSE = 5e-3
"""Relative gap at which halving the limit ends."""


@dataclass(frozen=True, slots=True)
class LeastMemory:
    """The fastest plans among those with the least peak memory, and the proven lower bound of every peak."""

    result: SearchResult
    bound: float
    """Lower bound of every peak, bytes; within a billionth of the least peak where that is proven."""


def below(size: float) -> float:
    """The largest memory limit that excludes a peak of `size` bytes."""
    return size * (1 - TOLERANCE)


def least_memory(
    question: Question,
    objective: Objective,
    restrictions: Restrictions,
    *,
    top: int,
    budget: Budget,
    known: SearchResult | None = None,
) -> LeastMemory | None:
    """Plans that meet the objective's deadline with the least peak; None where none was found before time ran out.

    `known` is what searching for the fastest found.

    Raises:
        InfeasibleError: nothing fits, or nothing that fits meets the deadline.
    """
    best = known or budget.search(question, restrictions, top=top)
    if best is None:
        return None
    if not objective.meets_deadline(question, best.best):
        raise InfeasibleError("nothing that fits meets the deadline")
    floor, peak = 0.0, best.best.peak_bytes
    while not budget.ended and floor < below(peak):
        limit = (floor + peak) / 2 if peak - floor > CLOSE * peak else below(peak)
        budget.tell(f"least memory between {format_bytes(floor)} and {format_bytes(peak)}")
        try:
            found = _under(question, objective, restrictions, limit, budget)
        except InfeasibleError:
            floor = limit
            continue
        if found is None:
            break
        best, peak = found, min(limit, *(one.peak_bytes for one in found.estimates))
    last = budget.search(question, replace(restrictions, max_memory=peak * (1 + TOLERANCE)), top=top)
    return LeastMemory(_within_own_limit(question, restrictions, last or best), floor)


def _within_own_limit(question: Question, restrictions: Restrictions, result: SearchResult) -> SearchResult:
    """The plans with the user's memory limit, in place of the tighter one that found them."""
    if isinstance(question, MixedQuestion):
        return result
    asked = math.inf if restrictions.max_memory is None else restrictions.max_memory
    limits = memory_limit(question, LayoutColumns.of([one.layout for one in result.estimates])).tolist()
    pairs = zip(result.estimates, limits, strict=True)
    return replace(result, estimates=tuple(replace(one, memory_limit=min(own, asked)) for one, own in pairs))


def _under(
    question: Question, objective: Objective, restrictions: Restrictions, limit: float, budget: Budget
) -> SearchResult | None:
    """Some plan within `limit` bytes that meets the deadline, the first found if it does; None where time ran out.

    Raises:
        InfeasibleError: there is none.
    """
    limits = replace(restrictions, max_memory=limit)
    efforts: tuple[Effort, ...] = ("any", "bounds")
    for effort in efforts:
        found = budget.search(question, limits, effort=effort)
        if found is not None and objective.meets_deadline(question, found.best):
            return found
        if found is not None and not objective.may_meet_deadline(question, found.certificate.bound):
            raise InfeasibleError("nothing that fits meets the deadline")
        if budget.ended:
            break
    return None


def where_least(limits: Restrictions) -> Restrictions:
    """The part of the restrictions' space that needs least memory."""
    unused = limits.unused | ({"order", "shard"} - limits.only.keys() - limits.never.keys())
    return replace(limits, extreme_mbs=True, unused=frozenset(unused))
