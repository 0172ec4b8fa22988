"""The pipeline schedules by name: what each forbids, and its action table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from cost_models.axes.layout import Schedule
from cost_models.errors import InputError, UnknownNameError
from cost_models.schedules.actions import CACHED_TABLES, ActionTable
from cost_models.schedules.dualpipev import dualpipev, dualpipev_objection
from cost_models.schedules.gpipe import gpipe, gpipe_objection
from cost_models.schedules.interleaved import interleaved, interleaved_objection
from cost_models.schedules.one_f_one_b import one_f_one_b, one_f_one_b_objection
from cost_models.schedules.zbv import zbv, zbv_objection
from cost_models.schedules.zero_bubble import zero_bubble, zero_bubble_objection


@dataclass(frozen=True, slots=True, kw_only=True)
class _PipelineSchedule:
    """Both take (pp, vpp, microbatches), all at least one."""

    table: Callable[[int, int, int], ActionTable]
    objection: Callable[[int, int, int], str | None]


_SCHEDULES: dict[Schedule, _PipelineSchedule] = {
    "gpipe": _PipelineSchedule(table=gpipe, objection=gpipe_objection),
    "1f1b": _PipelineSchedule(table=one_f_one_b, objection=one_f_one_b_objection),
    "interleaved": _PipelineSchedule(table=interleaved, objection=interleaved_objection),
    "zero-bubble": _PipelineSchedule(table=zero_bubble, objection=zero_bubble_objection),
    "zbv": _PipelineSchedule(table=zbv, objection=zbv_objection),
    "dualpipev": _PipelineSchedule(table=dualpipev, objection=dualpipev_objection),
}


def legal(schedule: Schedule, pp: int, vpp: int, microbatches: int) -> str | None:
    """None where the schedule can run, else a sentence that says what is wrong.

    Raises:
        UnknownNameError: no such schedule.
    """
    if schedule not in _SCHEDULES:
        raise UnknownNameError("schedule", schedule, _SCHEDULES)
    if min(pp, vpp, microbatches) < 1:
        return f"pp, vpp and microbatches start at one: pp{pp} vpp{vpp}, {microbatches} microbatches"
    return _SCHEDULES[schedule].objection(pp, vpp, microbatches)


@lru_cache(maxsize=CACHED_TABLES)
def build(
    schedule: Schedule, pp: int, vpp: int, microbatches: int, *, any_engine: bool = False
) -> ActionTable:
    """The actions of every pipeline rank, in the order `torch.distributed.pipelining` executes them.

    `any_engine` also makes the tables that this engine refuses and others run: 1F1B with fewer microbatches than ranks.

    Raises:
        InputError: the schedule cannot run with these numbers, or is unknown.
    """
    short = any_engine and schedule == "1f1b" and vpp == 1 and 1 <= microbatches < pp
    if not short and (wrong := legal(schedule, pp, vpp, microbatches)):
        raise InputError(wrong)
    return _SCHEDULES[schedule].table(pp, vpp, microbatches)
