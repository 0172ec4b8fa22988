"""The predicted step of every pipeline rank, span by span: its passes, then what it does once a step.

    passes      as the schedule's timeline has them
    sync        gradients reduced after the rank's last pass
    <part>      what an axis makes a rank wait for, as `offload` for its moves to and from host memory
    optimizer   the update, once the last rank is so far
    overhead    of the whole step, once the last rank has updated

so the last span ends with the step (`cost_models.pipeline.stage_costs`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from cost_models.axes.layout import TIME_PARTS as AXIS_PARTS
from cost_models.axes.layout import Layout
from cost_models.pipeline.placed import PricedRanks, price_ranks
from cost_models.question import Question
from cost_models.schedules import KINDS, ActionTable
from cost_models.schedules.actions import IDLE

Floats = npt.NDArray[np.float64]


class PredictedSpan(NamedTuple):
    """One thing one pipeline rank does; seconds from the start of the step."""

    rank: int
    kind: str
    """Of a pass as in the action table; else `sync`, a part of an axis, `optimizer`, `overhead`."""
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
    return _pass_spans(price_ranks(question, layout))


def _pass_spans(ranks: PricedRanks) -> PassSpans:
    pipeline, blocks = ranks.pipeline, ranks.placed.blocks
    first, second = pipeline.halves(blocks)
    start, end = pipeline.timeline.spans(pipeline.forward(blocks), first, pipeline.cost("p2p"), second)
    return PassSpans(table=pipeline.table, start=start, end=end)


def predicted_spans(question: Question, layout: Layout) -> tuple[PredictedSpan, ...]:
    """The whole step, rank by rank in order of time; spans of no length are left out.

    Raises:
        InputError: the layout cannot be placed or scheduled.
    """
    ranks = price_ranks(question, layout)
    pipeline, blocks = ranks.pipeline, ranks.placed.blocks
    passes, table = _pass_spans(ranks), pipeline.table
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
    sync_R, optimizer_R = pipeline.once_a_step("sync", blocks), pipeline.once_a_step("optimizer", blocks)
    once = ranks.times.rank_optimizer
    waits_AR = [np.broadcast_to(once.get(part, np.zeros(1)), optimizer_R.shape) for part in AXIS_PARTS]
    last_R = passes.end[:, -1]
    updating = float(np.max(last_R + sync_R))
    updated = updating + float(np.max(optimizer_R))
    for rank, (last, sync, optimizer) in enumerate(zip(last_R, sync_R, optimizer_R, strict=True)):
        own, begin = [("sync", float(last), float(sync))], updating
        for part, waits_R in zip(AXIS_PARTS, waits_AR, strict=True):
            own.append((part, begin, float(waits_R[rank])))
            begin += float(waits_R[rank])
        waits = sum(seconds for _, _, seconds in own[1:])
        own += [("optimizer", begin, float(optimizer - waits)), ("overhead", updated, pipeline.overhead)]
        spans += [PredictedSpan(rank, kind, -1, -1, start, start + seconds) for kind, start, seconds in own]
    lasting = (span for span in spans if span.end > span.start)
    return tuple(sorted(lasting, key=lambda span: (span.rank, span.start)))
