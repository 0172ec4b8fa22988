"""The largest size of a family, or a model's longest sequence, that fits, with what of its blocks host memory may hold,
each proved by larger ones.

Sizes are tried by doubling, then halving what is left between one that fits and one that does not. A larger one may
still fit that degrees divide which do not divide the next, so the first of each kind above is asked too, and where it
fits, more of its kind (`Family.divisible_sizes`). What fits at a size fits at every smaller one of its kind, so where
none of the first ones fits none above does. Whether a size fits is asked where memory is least
(`least_memory.where_least`): what does not fit there fits in no layout. Only the largest is searched for its fastest
layout.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace

import numpy as np

from cost_models.arrays import Ints
from cost_models.axes.layout import RESIDENCIES, Offload
from cost_models.errors import InfeasibleError
from cost_models.question import Question
from planner.answers.optimum import where_least
from planner.search.branching import SearchResult
from planner.search.search import Budget
from planner.space.restrictions import Restrictions
from planner.space.sizes import Family
from planner.space.space import ONE_CHUNK

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
    """Fastest layout of that size, or the best found within `FASTEST_SECONDS`."""
    next_fails: bool
    """Whether the next size, and every larger one, is proved to fit in no layout."""
    comparable: bool
    """Whether larger sizes can be ruled out by the first of each kind."""


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
    largest: list[LargestSize] = []
    for offloads in choices_of(question):
        sure = max((one.size for one in largest if {*one.offloads} <= {*offloads}), default=0)
        allowed = frozenset({"offload"} if offloads else ())
        sizes = _Sizes(question, family, replace(restrictions, allowed=allowed), offloads, budget)
        largest.append(
            sizes.largest(sure, guess=max([sure, *(one.size for one in largest)]) or family.base_size)
        )
        yield largest[-1]


@dataclass(slots=True)
class _Sizes:
    """Sizes of a family under one choice of residencies."""

    question: Question
    family: Family
    limits: Restrictions
    offloads: tuple[str, ...]
    budget: Budget
    plans: dict[int, SearchResult | None] = field(default_factory=dict)
    """Some plan of each size that was asked about; None where it does not fit, or time ran out."""
    decided: bool = True
    """Whether every size that was asked about is known to fit or not to."""

    def largest(self, sure: int, *, guess: int) -> LargestSize:
        """The largest size, of which `sure` is known to fit; a good guess saves searches.

        A larger one than the last may fit, as degrees divide it that do not divide the next; none does where the first
        of every kind above does not fit.
        """
        size, result = self._last(np.arange(1, self.family.largest_size + 1), sure, guess), None
        while True:
            larger_sizes = [
                np.flatnonzero(alike_N[size:]) + size + 1
                for alike_N in self.family.divisible_sizes(self.question)
            ]
            larger_sizes = sorted((sizes for sizes in larger_sizes if len(sizes)), key=len, reverse=True)
            kinds = {
                int(sizes[0]): sizes for sizes in larger_sizes
            }  # of those with the same first size the narrowest
            first = next((one for one in sorted(kinds) if self._fits(one)), None)
            if first is None:
                break
            size = int(kinds[first][self._last(kinds[first], 1, 1) - 1])
        if size:
            with suppress(InfeasibleError):
                sized, seconds = self._question_of_size(size), FASTEST_SECONDS
                result = self.budget.search(sized, self.limits, seconds=seconds, top=1)
            result = result or self.plans.get(size)
        # whether a layout that fits some size fits the smaller ones of its kind: blocks are alike or their number
        # stays, and where it grows every number of them may be spread over pipelines
        plain = (("schedule", ONE_CHUNK), ("vpp", 1))
        spread = all(self.limits.permits(axis, np.array([value]))[0] for axis, value in plain)
        uniform = spread and self.question.kinds.number == 1
        comparable = self.family.by == "sequence" or uniform
        return LargestSize(
            offloads=self.offloads,
            question=self.family.question_of_size(self.question, size) if size else None,
            size=size,
            result=result,
            next_fails=size < self.family.largest_size and self.decided and comparable,
            comparable=comparable,
        )

    def _last(self, sizes: Ints, sure: int, guess: int) -> int:
        """How many of some sizes fit, in rising order, of which the first `sure` do, in steps that double and then
        halve."""

        def fits(number: int) -> bool:
            return self._fits(int(sizes[number - 1]))

        down = guess > sure and not fits(guess)
        low, high = (sure, guess) if down else (guess, len(sizes) + 1)
        step = 1
        while low < (number := high - step if down else low + step) < high:
            fitting, step = fits(number), 2 * step
            low, high = (number, high) if fitting else (low, number)
            if fitting == down:
                break
        while low + 1 < high:
            middle = (low + high) // 2
            low, high = (middle, high) if fits(middle) else (low, middle)
        return low

    def _fits(self, size: int) -> bool:
        """Whether some layout of a size fits, as far as time sufficed to know."""
        if size not in self.plans:
            self.plans[size], sized = None, self._question_of_size(size)
            with suppress(InfeasibleError):
                self.plans[size] = self.budget.search(sized, where_least(self.limits), effort="any")
                self.decided &= self.plans[size] is not None
        return self.plans[size] is not None

    def _question_of_size(self, size: int) -> Question:
        """Question about a size, on the stack with only the residencies of the choice."""
        return self.family.question_of_size(self.question, size).updated("stack", residencies=self.offloads)
