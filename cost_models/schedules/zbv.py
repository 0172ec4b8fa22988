"""ZB-V: two chunks a rank in a V, no bubble where F, I and W take equally long (Qi et al. 2023, section 6).

Stages go down the ranks and up again; what that means for any schedule of the kind is here, too.
"""

from __future__ import annotations

import numpy as np

from cost_models.arrays import Ints
from cost_models.schedules.actions import FORWARD, INPUT, WEIGHT, ActionTable, repeat, table_of_phases
from cost_models.schedules.schedule import PipelineSchedule


def live_in_v(pp: Ints, vpp: Ints, m: Ints, rank: Ints, chunk: Ints) -> Ints:
    """`PipelineSchedule.live` before the first backward pass: forwards of the first chunk until the first microbatch
    has gone down to the turn and come up again, and one of the second chunk for each rank that it met on the way up."""
    return np.minimum(m, np.where(chunk == 0, 2 * pp - 1 - rank, 1 + rank))


def _table(pp: int, vpp: int, microbatches: int) -> ActionTable:
    """The table `torch.distributed.pipelining.ScheduleZBVZeroBubble` executes.

    It is laid out for at least 2 · pp − 1 microbatches; with fewer the others are left out of it.
    """
    n = max(2 * pp - 1, microbatches)
    ranks = [_rank_phases(pp, rank, n) for rank in range(pp)]
    return table_of_phases("zbv", pp=pp, microbatches=microbatches, ranks=ranks)


def _rank_phases(pp: int, r: int, n: int) -> list[Ints]:
    """Two warm-ups, the first backward passes of the second chunk, the steady rounds, and the cool-down."""
    stable = n - pp
    return [
        repeat(2 * (pp - r) - 1, (FORWARD, 0, 0)),
        repeat(r, (FORWARD, 1, 0), (FORWARD, 0, 2 * (pp - r) - 1)),
        repeat(pp - r, (FORWARD, 1, r), (INPUT, 1, 0), (WEIGHT, 1, 0)),
        repeat(
            stable,
            (FORWARD, 0, 2 * pp - 1 - r),
            (INPUT, 0, 0),
            (WEIGHT, 0, 0),
            (FORWARD, 1, pp),
            (INPUT, 1, pp - r),
            (WEIGHT, 1, pp - r),
        ),
        repeat(r, (INPUT, 0, stable), (INPUT, 1, n - r)),
        repeat(pp - r, (INPUT, 0, stable + r), (WEIGHT, 0, stable)),
        repeat(r, (WEIGHT, 1, n - r)),
        repeat(r, (WEIGHT, 0, n - r)),
    ]


SCHEDULE = PipelineSchedule(
    name="zbv",
    engine="ScheduleZBVZeroBubble",
    table=_table,
    chunks=(2, 2),
    live=live_in_v,
    v_shaped=True,
    splits="always",
)
