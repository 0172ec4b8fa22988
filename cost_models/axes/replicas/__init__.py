"""Whole replicas of the model in several pools: each lies in one, and faster ones take more microbatches of a step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cost_models.axes.axis import Axis
from cost_models.axes.words import PerStage
from cost_models.question import Question
from cost_models.units import counted

if TYPE_CHECKING:
    from cost_models.axes.layout import Layout

MOST_REPLICAS = 2**16
"""Most replicas that a layout names the pools of."""


def _replicas_complaint(layout: Layout) -> str:
    if layout.replicas and layout.pools:
        return "`pools` says where stages lie, `replicas` where whole replicas do: one of them"
    if len(layout.replicas) > MOST_REPLICAS:
        return f"replicas names {len(layout.replicas):,}; {MOST_REPLICAS:,} are the most that lie in different pools"
    if layout.replicas and len(layout.replicas) != layout.dp:
        return f"replicas names {counted(len(layout.replicas), 'replica')}; dp is {layout.dp}"
    return ""


def _opens_nothing(question: Question, trainer: str | None) -> str:
    if len(question.by_pool) == 1:
        return f"it puts replicas in different pools, and `{question.cluster.name}` has one"
    return f"{trainer} gives every replica as many microbatches" if trainer else ""


REPLICAS = Axis(
    word=PerStage(most=MOST_REPLICAS),
    text="Whole replicas of the model lie in each of several pools, and share a batch as they are fast.",
    complaint=_replicas_complaint,
    closed=True,
    opens_nothing=_opens_nothing,
    price="cost_models.axes.replicas.ranks:PRICE",
    search="planner.axes.replicas:SEARCHED",
)
