"""What an axis may ask of the planner beyond its record in the layout: the `search` of its `Axis`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from cost_models.arrays import Bools
from cost_models.axes.axis import loaded
from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import AXES, Layout
from cost_models.axes.rule import Words
from cost_models.errors import InfeasibleError
from cost_models.question import MixedQuestion, Question


@dataclass(frozen=True, slots=True, kw_only=True)
class Searched:
    """What the planner does for one axis; what is left out it does for none."""

    objections: Callable[[MixedQuestion, Layout], list[Words] | None] | None = None
    """What is wrong with where a layout puts its ranks in pools; None: the axis does not place this one."""
    asked_as: Callable[[Question, Layout], Question] | None = None
    """The question that rules are asked of a layout."""
    trains_in_pools: Callable[[MixedQuestion, LayoutColumns], Bools] | None = None
    """(N,) layouts that our own executor trains on several pools."""
    place: Callable[[Question, Layout], Layout | None] | None = None
    """A given layout with its blocks placed; None: the axis does not place this one."""
    beside: Callable[[Question, Any], Callable[..., Any] | None] | None = None
    """For restrictions that ask for it, what searches a space of its own beside the usual one, which it is given."""
    count: Callable[[Question, Any], int] | None = None
    """How many layouts that space has within restrictions."""
    most_held: Callable[[Question, LayoutColumns, Any], tuple[LayoutColumns, Bools]] | None = None
    """The layout of each box of counts that late rules allow and that takes least of the device, and (N,) whether
    they allow it."""
    nothing_held: Callable[[Question, LayoutColumns], InfeasibleError] | None = None
    """The error where late rules allow none of some layouts."""
    remedies: Callable[[Question, float], Iterator[tuple[str, Question]]] | None = None
    """Flags and questions in which states of so many bytes may fit, where `--allow` has opened the axis."""


@cache
def searched() -> dict[str, Searched]:
    """Of every axis that has one, by its name."""
    return {name: loaded(axis.search) for name, axis in AXES.items() if axis.search is not None}
