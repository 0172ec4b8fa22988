"""Whole replicas in several pools: their rules, their placements and their search."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cost_models.axes.axis import loaded
from cost_models.axes.layout import Layout
from cost_models.question import MixedQuestion, Question
from planner.axes.replicas.rules import holds_replicas, replica_objections, with_mean_batch
from planner.rules.searched import Searched

_SEARCH, _SPACE = "planner.axes.replicas.search", "planner.axes.replicas.space"


def _beside(question: Question, limits: Any) -> Callable[..., Any] | None:
    asks = loaded(f"{_SPACE}:asks_for_replicas")(question, limits)
    return loaded(f"{_SEARCH}:search_beside_stages") if asks else None


def _count(question: Question, limits: Any) -> int:
    return int(loaded(f"{_SPACE}:count_replicas")(question, limits))


def _place(question: Question, layout: Layout) -> Layout | None:
    if not (isinstance(question, MixedQuestion) and layout.replicas):
        return None
    placed: Layout = loaded(f"{_SEARCH}:placed")(question, layout)
    return placed


SEARCHED = Searched(
    objections=lambda question, layout: replica_objections(question, layout) if layout.replicas else None,
    asked_as=with_mean_batch,
    trains_in_pools=holds_replicas,
    place=_place,
    beside=_beside,
    count=_count,
)
