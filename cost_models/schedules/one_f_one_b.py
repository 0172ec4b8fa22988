"""1F1B: after a short warm-up each rank alternates one forward and one backward (Narayanan et al. 2021)."""

from __future__ import annotations

import numpy as np

from cost_models.schedules.actions import ActionTable, table_of_units
from cost_models.schedules.schedule import PipelineSchedule


def _engine_objection(pp: int, vpp: int, microbatches: int) -> str | None:
    """PyTorch's engine wants a microbatch for every rank; others run fewer."""
    if microbatches < pp:
        return f"1f1b needs at least as many microbatches as pipeline ranks: {microbatches} < pp{pp}"
    return None


def _table(pp: int, vpp: int, microbatches: int) -> ActionTable:
    """The table `torch.distributed.pipelining.Schedule1F1B` executes.

    Rank r runs pp − 1 − r forwards before its first forward-backward pair: at most pp − r microbatches are
    live.
    """
    order_U = np.arange(microbatches)
    return table_of_units(
        "1f1b",
        pp=pp,
        vpp=vpp,
        warm_up_R=pp - 1 - np.arange(pp),
        chunk_U=np.zeros_like(order_U),
        microbatch_U=order_U,
    )


SCHEDULE = PipelineSchedule(
    name="1f1b",
    engine="Schedule1F1B",
    table=_table,
    engine_objection=_engine_objection,
    chunks=(1, 1),
    live=lambda pp, vpp, m, rank, chunk: np.minimum(m, pp - rank),
    steady="pairs",
)
