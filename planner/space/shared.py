"""Spaces that the searches of one answer share: many ask for the same layouts under another limit of memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import TYPE_CHECKING

from cost_models.question import Question
from planner.space.restrictions import Restrictions

if TYPE_CHECKING:
    from planner.space.layouts import Space

_MOST_KEPT = 3
"""Spaces that are kept, those asked for last: one may have a million cores."""


class Spaces:
    """The spaces that were asked for last, with what is known of their cores."""

    def __init__(self) -> None:
        self._kept: list[tuple[Question, Restrictions, Space]] = []

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
        """The space of a question, made where it is not kept. No rule of legality reads limits of device memory."""
        wide = replace(restrictions, max_memory=None, confidence=None)
        for known in self._kept:
            if known[0] == question and known[1] == wide:
                self._kept.remove(known)
                break
        else:
            known = (question, wide, make(question, restrictions))
        self._kept = [known, *self._kept[: _MOST_KEPT - 1]]
        return known[2]


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
