"""Predictions of published runs, each with its peak memory as the row measured it or the reason why there is
none, and of figures that papers state (ablations, MFU, days).

The point of a figure is a row of a shipped table with other cells; in a ladder it also has all that the points before
it changed, and the microbatch of the first. Nothing here is fitted: a point that is missed is shown with its residual.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import islice
from typing import Annotated, Any, Literal

from pydantic import Field

from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import Layout
from cost_models.base import Spec
from cost_models.documents import printable
from cost_models.errors import InputError
from cost_models.estimate import Estimate, Verdict
from cost_models.files import catalog, read_data
from cost_models.measured.runs.cases import Case, Profile, case_or_reason, read_case, shipped_rows
from cost_models.measured.runs.rows import Row, with_cells
from cost_models.memory.device import used_device_bytes
from cost_models.pipeline.pricing import estimate, estimate_each
from cost_models.pipeline.seconds import FRAGMENTATION
from cost_models.question import Question

_BATCH_ROWS = 256
"""Number of rows that are read and predicted together."""


def peak_bytes(case: Case, priced: Estimate) -> float:
    """Predicted peak memory in bytes on the rank that the row names or, if it names none, on the fullest
    rank. Counts allocated, reserved or used bytes, as the row's measured peak does."""
    rank, counts = case.row.peak_rank, case.row.peak_counts
    memory = priced.rank_memory[priced.fullest_rank if rank is None else rank]
    if counts == "in use":
        return float(used_device_bytes(case.question, LayoutColumns.of([priced.layout]), memory.total)[0])
    return memory.total if counts == "reserved" else memory.total - memory[FRAGMENTATION]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Prediction of one published run; all fields but the row are empty if `skipped` gives a reason."""

    row: Row
    case: Case | None = None
    step_seconds: float | None = None
    peak_bytes: float | None = None
    """Predicted peak as the row measured it: allocated on the rank it names, or as the driver reports."""
    fits: bool | None = None
    """Whether the run fits; None without a prediction, or if recompute is blank and only more of it would fit."""
    fits_probability: float | None = None
    """Chance of fitting in memory."""
    verdict: Verdict | None = None
    """Verdict on memory, `tight` where the error of peaks leaves it open; None without a prediction."""
    parts: dict[str, float] = field(default_factory=dict)
    """Seconds of the step by part."""
    assumptions: tuple[str, ...] = ()
    trust: str = ""
    skipped: str = ""
    anchor: bool = False
    """True for a row whose measured step time calibrates the rest of its sweep, so that it has no prediction."""


def predict(
    rows: Iterable[Row], *, stack: str | None = None, profile: Profile = None
) -> Iterator[Prediction]:
    """Yield the prediction of each row in order; a row that cannot be predicted has the reason in `skipped`.

    Of every `_BATCH_ROWS` rows those that ask the same question are priced together.
    """
    remaining = iter(rows)
    while batch := list(islice(remaining, _BATCH_ROWS)):
        results = dict(enumerate(case_or_reason(row, stack=stack, profile=profile) for row in batch))
        cases = {place: case for place, case in results.items() if isinstance(case, Case)}
        priced: dict[int, Estimate | str] = {at: one for at, one in results.items() if isinstance(one, str)}
        for place, case in cases.items():
            if place not in priced:
                alike = {at: one.layout for at, one in cases.items() if one.question == case.question}
                priced |= zip(alike, _estimates(case.question, list(alike.values())), strict=True)
        for place, row in enumerate(batch):
            yield _prediction(row, results[place], priced[place])


def _estimates(question: Question, layouts: Sequence[Layout]) -> Sequence[Estimate | str]:
    """Estimate layouts of one question together, or one by one if any fails; a failed estimate is replaced by
    its reason."""
    try:
        return estimate_each(question, layouts)
    except InputError as reason:
        if len(layouts) > 1:
            return [_estimates(question, [one])[0] for one in layouts]
        return [printable(str(reason).splitlines()[0])]


def _prediction(row: Row, case: Case | str, priced: Estimate | str) -> Prediction:
    """Prediction of a row from its case and estimate. If either is a text, which says why it is missing, the
    prediction is skipped."""
    if isinstance(case, str) or isinstance(priced, str):
        return Prediction(row=row, skipped=str(priced))
    memory = priced.rank_memory[priced.fullest_rank]
    states = sum(memory.get(part, 0.0) for part in ("weights", "gradients", "optimizer"))
    if states > priced.memory_limit and "degrees" in row.unstated:
        return Prediction(row=row, skipped="its degrees are blank, and undivided the model cannot fit")
    # a run that recomputed more than is assumed had more room
    is_certain = priced.fits or "recompute" not in row.unstated
    sized = "gpus" not in row.unstated  # else only its memory means something
    return Prediction(
        row=row,
        case=case,
        step_seconds=priced.step_seconds if sized else None,
        peak_bytes=peak_bytes(case, priced),
        fits=priced.fits if is_certain else None,
        fits_probability=priced.fits_probability if is_certain else None,
        verdict=priced.verdict if is_certain else None,
        parts=dict(priced.time) if sized else {},
        assumptions=row.assumptions,
        trust=str(priced.trust),
    )


_DAY = 86400.0
_UNSHOWN: Any = Field(default=None, exclude=True)
_UNSHOWN_GROUP: Any = Field(default_factory=dict, exclude=True)
"""Pydantic fields of the data file that describe the predicted run and are not printed with answers."""


class Figure(Spec):
    """Figure (MFU or days) that a paper states, its prediction, and the inputs of the prediction: a published
    run and changes to it."""

    name: str
    published: float
    """MFU in percent, or days."""
    predicted: float = math.nan
    """Predicted figure, in the unit of `published`; NaN until it is predicted."""
    off: float = math.nan
    """Error of the prediction: percentage points of MFU, or percent of days."""
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
    """Tolerance of predictions: percentage points of MFU, or percent of days."""
    ladder: bool = False
    """Whether each point also has the changes of the points before."""
    points: Annotated[tuple[Figure, ...], Field(strict=False)]
    profile: str | None = _UNSHOWN
    """Profile of all points; default: each row's own."""
    row: str | None = _UNSHOWN
    cells: dict[str, str] = _UNSHOWN_GROUP


@cache
def published_figures() -> tuple[Figures, ...]:
    """Groups of published figures in the shipped data, with predictions by the cost model; cached."""
    groups = [Figures(name=name, **group) for name, group in read_data("published/figures").items()]
    return tuple(group.model_copy(update={"points": tuple(_predicted(group))}) for group in groups)


def _predicted(group: Figures) -> Iterator[Figure]:
    """Yield the figures of a group with their predictions."""
    rows = {row.row_id: row for row in shipped_rows()}
    question: Question | None = None
    for point in group.points:
        if question is None or not group.ladder:
            row = rows[point.row or group.row or ""]
            case = read_case(with_cells(row, group.cells | point.cells), profile=group.profile)
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
