"""Spaces that the searches of one answer share: many ask for the same layouts under another limit of memory or another
choice of recompute."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

import numpy as np

from cost_models.axes.columns import first_of_each
from cost_models.axes.recompute import allowed_recompute
from cost_models.question import Question
from cost_models.risk import EVEN
from planner.space.restrictions import Restrictions

if TYPE_CHECKING:
    from planner.space.layouts import Space

_DEGREES = ("tp", "pp")
"""Of a mesh: layouts with some of them are part of those with any."""
_MOST_CORES = 1_000_000
"""Cores of the spaces that are kept, those asked for last: each takes some 200 bytes."""


@dataclass(frozen=True, slots=True)
class _Asked:
    """What decides which layouts are legal, of all that a search is asked."""

    question: Question
    restrictions: Restrictions
    schedules: frozenset[str]
    """Those that run under some recompute policy left."""

    @classmethod
    def of(cls, question: Question, restrictions: Restrictions) -> _Asked:
        """No rule of legality reads the limit of device memory nor how surely a layout must fit."""
        left = set(restrictions.recompute(question))
        runs = (name for name in question.stack.schedules if left & set(allowed_recompute(name)))
        wide = replace(restrictions, max_memory=None, confidence=None, forbidden_recompute=frozenset())
        return cls(replace(question, confidence=EVEN), wide, frozenset(runs))

    def includes(self, other: _Asked) -> bool:
        """Whether every layout of another space is in this one."""
        same = self.question == other.question and self.schedules >= other.schedules
        return same and self.restrictions.include(other.restrictions)


class Spaces:
    """The spaces that were asked for last, with what is known of their cores."""

    def __init__(self) -> None:
        self._kept: list[tuple[_Asked, Space]] = []

    @contextmanager
    def shared(self) -> Iterator[None]:
        """Let `legal_space` look here first, for as long as this lasts."""
        token = _SHARED.set(self)
        try:
            yield
        finally:
            _SHARED.reset(token)

    def of(
        self, question: Question, restrictions: Restrictions, make: Callable[[Question, Restrictions], Space]
    ) -> Space:
        """The space of a question, made where neither it is kept nor that of any degrees."""
        asked = _Asked.of(question, restrictions)
        space = next((one for known, one in self._kept if known == asked), None)
        whole = replace(asked, restrictions=asked.restrictions.without(_DEGREES))
        wider = next((one for known, one in self._kept if known == whole), None)
        if space is None and wider is not None:
            values = {name: getattr(wider.cores, name) for name in _DEGREES}
            if all(
                restrictions.only.get(name, frozenset()) <= {*own.tolist()} for name, own in values.items()
            ):  # tensor ranks over nodes are there where they are asked for alone
                each = [restrictions.permits(name, own) for name, own in values.items()]
                return wider.of_cores(np.logical_and.reduce(each)).held_to(question)
        if space is None:
            space = make(question, restrictions)
            if (wider := next((one for known, one in self._kept if known.includes(asked)), None)) is not None:
                _learn(space, wider)
        elif space.question != question:
            space = space.held_to(question)
        kept, cores = [(asked, space)], len(space.cores)
        for other in self._kept:
            if other[0] != asked:
                cores += len(other[1].cores)
                kept += [other] * (cores <= _MOST_CORES)
        self._kept = kept
        return space


def _learn(space: Space, wider: Space) -> None:
    """Let what is known of cores in a wider space be known of them here: its bounds hold for fewer variants, too."""
    if not (space.counts.is_single.all() and wider.counts.is_single.all()):
        return
    both = [
        np.concatenate([getattr(one.cores, own.name) for one in (wider, space)])
        for own in fields(space.cores)
    ]
    (_, kind), known = first_of_each(both), len(wider.cores)
    place = np.full(int(kind.max(initial=-1)) + 1, -1)
    place[kind[:known]] = np.arange(known)
    at = place[kind[known:]]
    if (at < 0).any():
        return
    for mine, theirs in ((space.kept, wider.kept), (space.remembered, wider.remembered)):
        mine |= {key: values[at] for key, values in theirs.items() if isinstance(values, np.ndarray)}
    if "ideal" in wider.kept:
        ranks, costs, kinds = wider.kept["ideal"]
        space.kept["ideal"] = ranks, costs, kinds[at]


_SHARED: ContextVar[Spaces | None] = ContextVar("_SHARED", default=None)


def shared_spaces() -> Spaces:
    """Those that are shared here, or new ones."""
    return _SHARED.get() or Spaces()


def shared(
    question: Question, restrictions: Restrictions, make: Callable[[Question, Restrictions], Space]
) -> Space:
    """The space of a question: one that is shared here, or a new one."""
    spaces = _SHARED.get()
    return make(question, restrictions) if spaces is None else spaces.of(question, restrictions, make)
