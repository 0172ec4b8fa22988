"""Figures that papers state beside their tables of runs (ablations, MFU, days), predicted by shipped profiles.

A point is a row of a shipped table with other cells; in a ladder it also has all that the points before it changed, and
the microbatch of the first. Nothing here is fitted: a point that is missed is shown with its residual.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cache
from typing import Annotated, Any, Literal

from pydantic import Field

from cost_models.base import Spec
from cost_models.files import catalog, read_data
from cost_models.measured.runs.cases import read_case
from cost_models.measured.runs.rows import Row
from cost_models.measured.runs.shipped import shipped_rows
from cost_models.pipeline.pricing import estimate
from cost_models.question import Question

_DAY = 86400.0
_UNSHOWN: Any = Field(default=None, exclude=True)
_UNSHOWN_GROUP: Any = Field(default_factory=dict, exclude=True)
"""Fields of the data file that say what is predicted, and are no part of the answer."""


class Figure(Spec):
    """Figure that a paper states (MFU or days), its prediction, and the published run with changes it refers to."""

    name: str
    published: float
    """MFU in percent, or days."""
    predicted: float = math.nan
    """As `published`; NaN until it is predicted."""
    off: float = math.nan
    """Points of MFU; percent of days."""
    profile: str = ""
    layout: str = ""
    row: str | None = _UNSHOWN
    """Row of a shipped table; default: the group's."""
    cells: dict[str, str] = _UNSHOWN_GROUP
    model: dict[str, Any] = _UNSHOWN_GROUP
    training: dict[str, Any] = _UNSHOWN_GROUP
    stack: str | None = _UNSHOWN
    """Stack whose `fields` replace the row's."""
    fields: Annotated[tuple[str, ...], Field(strict=False, exclude=True)] = ()
    tokens: float | None = _UNSHOWN
    """Tokens of the whole training, for days."""


class Figures(Spec):
    """Group of published figures of one quantity that one source states, with their predictions."""

    name: str
    title: str
    source: str
    quantity: Literal["mfu", "days"]
    within: float
    """How near a prediction should come: points of MFU, percent of days."""
    ladder: bool = False
    """Whether each point also has the changes of the points before."""
    points: Annotated[tuple[Figure, ...], Field(strict=False)]
    profile: str | None = _UNSHOWN
    """Profile of all points; default: each row's own."""
    row: str | None = _UNSHOWN
    cells: dict[str, str] = _UNSHOWN_GROUP

    @property
    def within_tolerance(self) -> int:
        """Number of figures in the group whose prediction is within the tolerance."""
        return sum(abs(point.off) <= self.within for point in self.points)


@cache
def published_figures() -> tuple[Figures, ...]:
    """Groups of published figures in the shipped data, with predictions by the cost model."""
    groups = [Figures(name=name, **group) for name, group in read_data("published/figures").items()]
    return tuple(group.model_copy(update={"points": tuple(_predicted(group))}) for group in groups)


def _predicted(group: Figures) -> Iterator[Figure]:
    rows = {row.row_id: row for row in shipped_rows()}
    question: Question | None = None
    for point in group.points:
        if question is None or not group.ladder:
            row = rows[point.row or group.row or ""]
            case = read_case(Row({**row.cells, **group.cells, **point.cells}), profile=group.profile)
            question, layout = case.question, case.layout
        stack = catalog.load_stack(point.stack) if point.stack else question.stack
        question = question.updated("stack", **{name: getattr(stack, name) for name in point.fields})
        question = question.updated("model", **point.model).updated("training", **point.training)
        estimated = estimate(question, layout)
        steps = (point.tokens or 0.0) / question.training.tokens_per_step
        of_mfu, published = group.quantity == "mfu", point.published
        predicted = 100 * estimated.mfu if of_mfu else steps * estimated.step_seconds / _DAY
        off = predicted - published if of_mfu else 100 * (predicted / published - 1)
        notation = str(layout.model_copy(update={"layers": ()}))
        answer = {"predicted": predicted, "off": off, "profile": question.hardware.name, "layout": notation}
        yield point.model_copy(update=answer)
