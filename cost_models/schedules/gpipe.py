"""GPipe: all forwards, then all backwards, both in the order of the microbatches (Huang et al. 2019)."""

from __future__ import annotations

import numpy as np

from cost_models.schedules.actions import ActionTable, table_of_units
from cost_models.schedules.schedule import PipelineSchedule


def _table(pp: int, vpp: int, microbatches: int) -> ActionTable:
    """The table `torch.distributed.pipelining.ScheduleGPipe` executes; at the peak all are live."""
    order_U = np.arange(microbatches)
    return table_of_units(
        "gpipe",
        pp=pp,
        vpp=vpp,
        warm_up_R=np.full(pp, microbatches),
        chunk_U=np.zeros_like(order_U),
        microbatch_U=order_U,
    )


SCHEDULE = PipelineSchedule(
    name="gpipe",
    engine="ScheduleGPipe",
    table=_table,
    chunks=(1, 1),
    live=lambda pp, vpp, m, rank, chunk: m,
    keeps_all_logits=True,
    steady="queue",
)
