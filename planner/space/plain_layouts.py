"""A cloud of layouts for plots, not for proofs: plain axes only, few enough to be priced and drawn."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import Layout
from cost_models.question import Question
from planner.space.layouts import enumerate_layouts
from planner.space.restrictions import Restrictions

MOST_ROWS = 20_000
"""Maximum layouts of a cloud; of more, every n-th is taken."""
_PLAIN = ("etp", "shard", "order")
"""Axes that keep their defaults unless the user restricts them."""


def cloud(question: Question, limits: Restrictions, like: Layout | None = None) -> LayoutColumns:
    """Legal layouts within the restrictions; cp and ep are 1 or, with a plan to compare with, its own."""
    named_axes = limits.named_axes
    degrees = {axis: {1} if like is None else {1, getattr(like, axis)} for axis in ("cp", "ep")}
    only = {axis: frozenset(values) for axis, values in degrees.items() if axis not in named_axes}
    plain = frozenset(axis for axis in _PLAIN if axis not in named_axes)
    columns = enumerate_layouts(
        question, replace(limits, only={**limits.only, **only}, unused=limits.unused | plain)
    )
    stride = max(1, -(-len(columns) // MOST_ROWS))
    return columns.rows(np.arange(0, len(columns), stride))
