"""Cache of spaces that the searches of one answer share: many search the same layouts under another memory limit or
other recompute policies."""

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
"""Degrees whose restriction only selects cores of the unrestricted space."""
_MOST_CORES = 1_000_000
"""Maximum cores of the cached spaces, latest first: each takes some 200 bytes."""


@dataclass(frozen=True, slots=True)
class _SpaceKey:
    """Cache key: the parts of a query that decide which layouts are legal."""

    question: Question
    restrictions: Restrictions
    schedules: frozenset[str]
    """Schedules that run under some permitted recompute policy."""

    @classmethod
    def of(cls, question: Question, restrictions: Restrictions) -> _SpaceKey:
        """Key of a query, without memory limit and confidence of fitting, which no rule of legality reads."""
        policies = set(restrictions.recompute(question))
        runs = (name for name in question.stack.schedules if policies & set(allowed_recompute(name)))
        free = replace(restrictions, max_memory=None, confidence=None, forbidden_recompute=frozenset())
        return cls(replace(question, confidence=EVEN), free, frozenset(runs))

    def includes(self, narrower: _SpaceKey) -> bool:
        """Whether every layout of a narrower space is in this space."""
        matches = self.question == narrower.question and self.schedules >= narrower.schedules
        return matches and self.restrictions.contains(narrower.restrictions)


class SpaceCache:
    """Latest spaces, with the cached bounds of their cores."""

    def __init__(self) -> None:
        self._entries: list[tuple[_SpaceKey, Space]] = []

    @contextmanager
    def shared(self) -> Iterator[None]:
        """Context in which `legal_space` uses this cache."""
        token = _SHARED.set(self)
        try:
            yield
        finally:
            _SHARED.reset(token)

    def of(
        self, question: Question, restrictions: Restrictions, make: Callable[[Question, Restrictions], Space]
    ) -> Space:
        """Space of a question: cached, selected from the space of all degrees, or new."""
        key = _SpaceKey.of(question, restrictions)
        space = next((cached for known, cached in self._entries if known == key), None)
        all_degrees = replace(key, restrictions=key.restrictions.without(_DEGREES))
        wider = next((cached for known, cached in self._entries if known == all_degrees), None)
        if space is None and wider is not None:
            values = {name: getattr(wider.cores, name) for name in _DEGREES}
            if all(
                restrictions.only.get(name, frozenset()) <= {*tried.tolist()}
                for name, tried in values.items()
            ):  # tensor ranks over nodes are there where they are asked for alone
                masks = [restrictions.permits(name, tried) for name, tried in values.items()]
                return wider.of_cores(np.logical_and.reduce(masks)).with_confidence(question)
        if space is None:
            space = make(question, restrictions)
            wider = next((cached for known, cached in self._entries if known.includes(key)), None)
            if wider is not None:
                _copy_known_bounds(space, wider)
        elif space.question != question:
            space = space.with_confidence(question)
        entries, cores = [(key, space)], len(space.cores)
        for entry in self._entries:
            if entry[0] != key:
                cores += len(entry[1].cores)
                entries += [entry] * (cores <= _MOST_CORES)
        self._entries = entries
        return space


def _copy_known_bounds(space: Space, wider: Space) -> None:
    """Copy the cached bounds of a wider space: they hold for fewer variants, too."""
    if not (space.counts.is_single.all() and wider.counts.is_single.all()):
        return
    columns = [
        np.concatenate([getattr(part.cores, column.name) for part in (wider, space)])
        for column in fields(space.cores)
    ]
    (_, kind), num_wider = first_of_each(columns), len(wider.cores)
    place = np.full(int(kind.max(initial=-1)) + 1, -1)
    place[kind[:num_wider]] = np.arange(num_wider)
    at = place[kind[num_wider:]]
    if (at < 0).any():
        return
    for target, source in ((space.priced_cache, wider.priced_cache), (space.bound_cache, wider.bound_cache)):
        target |= {key: values[at] for key, values in source.items() if isinstance(values, np.ndarray)}
    if "ideal" in wider.priced_cache:
        ranks, costs, kinds = wider.priced_cache["ideal"]
        space.priced_cache["ideal"] = ranks, costs, kinds[at]


_SHARED: ContextVar[SpaceCache | None] = ContextVar("_SHARED", default=None)


def shared_spaces() -> SpaceCache:
    """Cache of the current context, or a new cache."""
    return _SHARED.get() or SpaceCache()


def shared(
    question: Question, restrictions: Restrictions, make: Callable[[Question, Restrictions], Space]
) -> Space:
    """Space of a question, cached if the context shares spaces."""
    spaces = _SHARED.get()
    return make(question, restrictions) if spaces is None else spaces.of(question, restrictions, make)
