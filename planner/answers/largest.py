"""The largest size of a family, or a model's longest sequence, that fits, with what of its blocks host memory may hold,
each proved by larger ones.

Sizes are tried by doubling, then halving what is left between one that fits and one that does not. A larger one may
still fit that degrees divide which do not divide the next, so the first of each kind above is asked too, and where it
fits, more of its kind (`Family.alike`). What fits at a size fits at every smaller one of its kind, so where none of
the first ones fits none above does. Whether a size fits is asked where memory is least (`least_memory.where_least`):
what does not fit there fits in no layout. Only the largest is searched for its fastest layout.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np

from cost_models.arrays import Ints
from cost_models.axes.offload import RESIDENCIES, Offload
from cost_models.errors import InfeasibleError
from cost_models.question import Question
from planner.answers.optimum import where_least
from planner.search.budget import Budget
from planner.search.result import SearchResult
from planner.space.cores import ONE_CHUNK
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
        self._known: dict[int, SearchResult | None] = {}
        self._decided = True
        """Whether every size that was asked about is known to fit or not to."""

    def largest(self, sure: int, *, guess: int) -> LargestSize:
        """The largest size, of which `sure` is known to fit; a good guess saves searches."""
        size = self._last(np.arange(1, self._family.most + 1), sure, guess)
        while (larger := self._larger(size)) is not None:
            size = larger
        result = None
        if size:
            with suppress(InfeasibleError):
                result = self._budget.search(self._asked(size), self._limits, seconds=FASTEST_SECONDS, top=1)
            result = result or self._known.get(size)
        return LargestSize(
            offloads=self._offloads,
            question=replace(self._asked(size), stack=self._question.stack) if size else None,
            size=size,
            result=result,
            next_fails=size < self._family.most and self._decided and self._comparable,
            comparable=self._comparable,
        )

    def _larger(self, size: int) -> int | None:
        """A larger size that fits, as degrees divide it that do not divide the next; None where the first of every
        kind above does not fit."""
        above = [np.flatnonzero(alike_N[size:]) + size + 1 for alike_N in self._family.alike(self._question)]
        above = sorted((sizes for sizes in above if len(sizes)), key=len, reverse=True)
        kinds = {int(sizes[0]): sizes for sizes in above}  # of those with the same first size the narrowest
        for first in sorted(kinds):
            if self._fits(first):
                return int(kinds[first][self._last(kinds[first], 1, 1) - 1])
        return None

    @property
    def _comparable(self) -> bool:
        """Whether a layout that fits some size fits the smaller ones of its kind: blocks are alike or their number
        stays, and where it grows every number of them may be spread over pipelines."""
        alike = self._question.kinds.number == 1
        chosen = (("schedule", ONE_CHUNK), ("vpp", 1))
        spread = all(self._limits.permits(axis, np.array([plain]))[0] for axis, plain in chosen)
        return self._family.by == "sequence" or (spread and alike)

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
        if size not in self._known:
            least = where_least(self._limits)
            try:
                self._known[size] = self._budget.search(self._asked(size), least, effort="any")
                self._decided &= self._known[size] is not None
            except InfeasibleError:
                self._known[size] = None
        return self._known[size] is not None

    def _asked(self, size: int) -> Question:
        return replace(self._family.asked(self._question, size), stack=self._stack)
