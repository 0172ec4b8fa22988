"""The predicted step of every pipeline rank, span by span: its passes, then what it does once a step.

    passes      as the schedule's timeline has them
    sync        gradients reduced after the rank's last pass
    optimizer   the update, once the last rank is so far
    overhead    of the whole step, once the last rank has updated

so the last span ends with the step (`cost_models.pipeline.stage_costs`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import Layout
from cost_models.pipeline.costs import stage_costs
from cost_models.pipeline.estimating import once_a_step, place, stage_seconds
from cost_models.pipeline.pool_estimating import mixed_durations, mixed_once_a_step
from cost_models.question import MixedQuestion, Question
from cost_models.schedules import KINDS, ActionTable, compile_timeline
from cost_models.schedules.actions import IDLE

Floats = npt.NDArray[np.float64]


class PredictedSpan(NamedTuple):
    """One thing one pipeline rank does; seconds from the start of the step."""

    rank: int
    kind: str
    """Of a pass as in the action table; else `sync`, `optimizer`, `overhead`."""
    stage: int
    """Virtual stage of a pass, else -1."""
    microbatch: int
    """Of a pass, else -1."""
    start: float
    end: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PassSpans:
    """(R, A) start and end of every action of a table, in seconds."""

    table: ActionTable
    start: Floats
    end: Floats


def pass_spans(question: Question, layout: Layout) -> PassSpans:
    """When every pass of a placed layout starts and ends.

    Raises:
        InputError: the layout cannot be placed or scheduled.
    """
    placed = place(layout, question)
    if isinstance(question, MixedQuestion):
        (forward, backward, weight), delay = mixed_durations(question, placed.layout)
    else:
        costs = stage_costs(question, LayoutColumns.of([layout]))
        (forward, backward, weight), delay = stage_seconds(placed, costs), float(costs.p2p[0])
    start, end = compile_timeline(placed.table).spans(forward, backward, delay, weight)
    return PassSpans(table=placed.table, start=start, end=end)


def predicted_spans(question: Question, layout: Layout) -> tuple[PredictedSpan, ...]:
    """The whole step, rank by rank in order of time; spans of no length are left out.

    Raises:
        InputError: the layout cannot be placed or scheduled.
    """
    passes = pass_spans(question, layout)
    table = passes.table
    spans = [
        PredictedSpan(
            at[0],
            KINDS[kind],
            int(table.stage[at]),
            int(table.microbatch[at]),
            float(passes.start[at]),
            float(passes.end[at]),
        )
        for at, kind in np.ndenumerate(table.kind)
        if kind != IDLE
    ]
    sync_R, optimizer_R, overhead = _once_a_step(question, layout)
    last_R = passes.end[:, -1]
    updating = float(np.max(last_R + sync_R))
    updated = updating + float(np.max(optimizer_R))
    for rank, (last, sync, optimizer) in enumerate(zip(last_R, sync_R, optimizer_R, strict=True)):
        for kind, start, seconds in (
            ("sync", float(last), float(sync)),
            ("optimizer", updating, float(optimizer)),
            ("overhead", updated, overhead),
        ):
            spans.append(PredictedSpan(rank, kind, -1, -1, start, start + seconds))
    lasting = (span for span in spans if span.end > span.start)
    return tuple(sorted(lasting, key=lambda span: (span.rank, span.start)))


def _once_a_step(question: Question, layout: Layout) -> tuple[Floats, Floats, float]:
    """(R,) seconds of sync and optimizer, and the overhead."""
    if isinstance(question, MixedQuestion):
        return mixed_once_a_step(question, layout)
    placed, costs = place(layout, question), stage_costs(question, LayoutColumns.of([layout]))
    sync, optimizer = (once_a_step(placed, costs, kind) for kind in ("sync", "optimizer"))
    return sync, optimizer, float(costs.step_overhead[0])
