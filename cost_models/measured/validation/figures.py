"""Figures that papers state beside their tables of runs (ablations, MFU, days), predicted by shipped profiles.

A point is a row of a shipped table with other cells; in a ladder it also has all that the points before it changed, and
the microbatch of the first. Nothing here is fitted: a point that is missed is shown with its residual.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Annotated, Any, Literal

from pydantic import Field

from cost_models.axes.layout import Layout
from cost_models.base import Spec
from cost_models.files import catalog, read_data
from cost_models.measured.runs.cases import read_case
from cost_models.measured.runs.rows import Row
from cost_models.measured.runs.shipped import shipped_rows
from cost_models.pipeline.pricing import estimate
from cost_models.question import Question

Quantity = Literal["mfu", "days"]
_DAY = 86400.0


class PointSpec(Spec):
    """Figure that a paper states (MFU or days), with the published run that it refers to and changes to that run."""

    name: str
    published: float
    """MFU in percent, or days."""
    row: str | None = None
    """Row of a shipped table; default: the group's."""
    cells: dict[str, str] = Field(default_factory=dict)
    model: dict[str, Any] = Field(default_factory=dict)
    training: dict[str, Any] = Field(default_factory=dict)
    stack: str | None = None
    """Stack whose `fields` replace the row's."""
    fields: Annotated[tuple[str, ...], Field(strict=False)] = ()
    tokens: float | None = None
    """Tokens of the whole training, for days."""


class FiguresSpec(Spec):
    """Group of figures of one quantity that one source states, as in the data file."""

    title: str
    source: str
    quantity: Quantity
    within: float
    """How near a prediction should come: points of MFU, percent of days."""
    ladder: bool = False
    """Whether each point also has the changes of the points before."""
    profile: str | None = None
    """Profile of all points; default: each row's own."""
    row: str | None = None
    cells: dict[str, str] = Field(default_factory=dict)
    points: Annotated[tuple[PointSpec, ...], Field(strict=False)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """Published figure with its prediction and the difference."""

    name: str
    published: float
    predicted: float
    off: float
    """Points of MFU; percent of days."""
    profile: str
    layout: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Group of published figures with their predictions."""

    name: str
    title: str
    source: str
    quantity: Quantity
    within: float
    ladder: bool
    points: tuple[Figure, ...] = field(default=())

    @property
    def within_tolerance(self) -> int:
        """Number of figures in the group whose prediction is within the tolerance."""
        return sum(abs(point.off) <= self.within for point in self.points)


@cache
def published_figures() -> tuple[Figures, ...]:
    """Groups of published figures in the shipped data, with predictions by the cost model."""
    groups = {name: FiguresSpec(**group) for name, group in read_data("published/figures").items()}
    return tuple(
        Figures(
            name=name,
            points=tuple(_predicted(group)),
            **group.model_dump(include={"title", "source", "quantity", "within", "ladder"}),
        )
        for name, group in groups.items()
    )


def _predicted(group: FiguresSpec) -> Iterator[Figure]:
    rows = {row.row_id: row for row in shipped_rows()}
    base: tuple[Question, Layout] | None = None
    for point in group.points:
        if base is None or not group.ladder:
            row = rows[point.row or group.row or ""]
            case = read_case(Row({**row.cells, **group.cells, **point.cells}), profile=group.profile)
            base = case.question, case.layout
        question, layout = base
        stack = catalog.load_stack(point.stack) if point.stack else question.stack
        fields = {name: getattr(stack, name) for name in point.fields}
        question = replace(
            question,
            model=question.model.model_copy(update=point.model),
            training=question.training.model_copy(update=point.training),
            stack=question.stack.model_copy(update=fields),
        )
        base = question, layout
        estimated = estimate(question, layout)
        if group.quantity == "mfu":
            predicted = 100 * estimated.mfu
            off = predicted - point.published
        else:
            steps = (point.tokens or 0.0) / question.training.tokens_per_step
            predicted = steps * estimated.step_seconds / _DAY
            off = 100 * (predicted / point.published - 1)
        yield Figure(
            name=point.name,
            published=point.published,
            predicted=predicted,
            off=off,
            profile=question.hardware.name,
            layout=str(layout.model_copy(update={"layers": ()})),
        )
