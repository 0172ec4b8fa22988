"""The largest size of a family, or a model's longest sequence, that fits, with what of its blocks host memory may hold,
each proved by the next size.

Sizes are tried by doubling, then halving what is left between one that fits and one that does not. Whether a size fits
is asked where memory is least (`least_memory.where_least`): what does not fit there fits in no layout. Only the
largest is searched for its fastest layout.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace

from cost_models.axes.offload import RESIDENCIES, Offload
from cost_models.errors import InfeasibleError
from cost_models.question import Question
from planner.answers.least_memory import where_least
from planner.search.budget import Budget
from planner.search.result import SearchResult
from planner.space.families import Family
from planner.space.restrictions import Restrictions

FASTEST_SECONDS = 10.0
"""Seconds for the fastest layout of a largest size; then the best so far stands."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LargestSize:
    """The largest size that fits with one choice of what host memory may hold."""

    offloads: tuple[str, ...]
    """Residencies that were tried beside device memory; empty: none."""
    question: Question | None
    """The question of that size; None where not even the smallest fits."""
    size: int
    """The size in steps of its family; 0 where none fits."""
    result: SearchResult | None
    """Its fastest layout, or the best of so many seconds with its gap."""
    next_fails: bool
    """Whether the next size is proved to fit in no layout."""


def choices_of(question: Question) -> tuple[tuple[str, ...], ...]:
    """What host memory may hold, one residency after the other and then all together, as the stack has them; together
    also with states on the drive."""
    has = [part for part in Offload._fields if part in question.stack.residencies]
    if question.cluster.drive is None:
        has = [part for part in has if part != "drive"]
    if question.cluster.gpu.kind == "cpu" or question.cluster.host_memory is None:
        has = []
    single = [(part,) for part in has if part in RESIDENCIES]
    together = [tuple(has)] if len(has) > 1 else []
    return ((), *single, *together)


def largest_sizes(
    question: Question, family: Family, restrictions: Restrictions, budget: Budget
) -> Iterator[LargestSize]:
    """The largest size for every choice; the question's own model is not asked about.

    What fits without something in host memory fits where that is allowed.
    """
    found: list[LargestSize] = []
    for offloads in choices_of(question):
        sure = max((one.size for one in found if {*one.offloads} <= {*offloads}), default=0)
        search = _Sizes(question, family, restrictions, offloads, budget)
        found.append(search.largest(sure, guess=max([sure, *(one.size for one in found)]) or family.usual))
        yield found[-1]


class _Sizes:
    """Sizes of a family under one choice of residencies."""

    def __init__(
        self,
        question: Question,
        family: Family,
        restrictions: Restrictions,
        offloads: tuple[str, ...],
        budget: Budget,
    ) -> None:
        self._stack = question.stack.model_copy(update={"residencies": offloads})
        self._question, self._family, self._offloads = question, family, offloads
        self._limits = replace(restrictions, allowed=frozenset({"offload"} if offloads else ()))
        self._budget = budget
        self._known: dict[int, SearchResult] = {}

    def largest(self, sure: int, *, guess: int) -> LargestSize:
        """The largest size, of which `sure` is known to fit; a good guess saves searches."""
        low, high = self._bracket(sure, guess)
        while low + 1 < high <= self._family.most:
            middle = (low + high) // 2
            if (fits := self._fits(middle)) is None:
                break
            low, high = (middle, high) if fits else (low, middle)
        result = None
        if low:
            with suppress(InfeasibleError):
                result = self._budget.search(self._asked(low), self._limits, seconds=FASTEST_SECONDS, top=1)
            result = result or self._known.get(low)
        return LargestSize(
            offloads=self._offloads,
            question=replace(self._asked(low), stack=self._question.stack) if low else None,
            size=low,
            result=result,
            next_fails=high == low + 1 <= self._family.most and not self._budget.ended,
        )

    def _bracket(self, sure: int, guess: int) -> tuple[int, int]:
        """A size that fits and one that does not, or beyond the largest there is, in steps that double."""
        low, high = sure, self._family.most + 1
        step = 1
        if guess > sure and not self._fits(guess):
            high = guess
            while (size := high - step) > low:
                if self._fits(size):
                    return size, high
                high, step = size, 2 * step
            return low, high
        low = guess
        while (size := low + step) < high:
            if not self._fits(size):
                return low, size
            low, step = size, 2 * step
        return low, high

    def _fits(self, size: int) -> bool | None:
        """Whether some layout of a size fits; None where time ran out before that was known."""
        try:
            found = self._budget.search(self._asked(size), where_least(self._limits), effort="any")
        except InfeasibleError:
            return False
        if found is None:
            return None
        self._known[size] = found
        return True

    def _asked(self, size: int) -> Question:
        return replace(self._family.asked(self._question, size), stack=self._stack)
