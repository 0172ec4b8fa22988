"""GPipe: all forwards, then all backwards, both in the order of the microbatches (Huang et al. 2019)."""

from __future__ import annotations

import numpy as np

from cost_models.schedules.actions import ActionTable, table_of_units
from cost_models.schedules.schedule import PipelineSchedule


def _objection(pp: int, vpp: int, microbatches: int) -> str | None:
    """What forbids GPipe here, as a sentence, or None."""
    if vpp != 1:
        return f"gpipe runs one chunk per pipeline rank, not vpp{vpp}"
    return None


def _table(pp: int, vpp: int, microbatches: int) -> ActionTable:
    """The table `torch.distributed.pipelining.ScheduleGPipe` executes; at the peak all are live."""
    order_U = np.arange(microbatches)
    return table_of_units(
        "gpipe",
        pp=pp,
        vpp=vpp,
        warm_up_R=np.full(pp, microbatches),
        forward_chunk_U=np.zeros_like(order_U),
        forward_microbatch_U=order_U,
        backward_chunk_U=np.zeros_like(order_U),
        backward_microbatch_U=order_U,
    )


SCHEDULE = PipelineSchedule(
    name="gpipe",
    engine="ScheduleGPipe",
    table=_table,
    objection=_objection,
    chunks=(1, 1),
    live=lambda pp, vpp, m, rank, chunk: m,
    keeps_all_logits=True,
    steady="queue",
)
