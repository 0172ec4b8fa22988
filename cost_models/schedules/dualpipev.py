"""DualPipeV: two chunks a rank in a V, forward and backward passes in pairs (DeepSeek-AI 2025, DualPipe).

PyTorch's engine runs the two of a pair one after the other, so nothing of them overlaps on the device; it sends what
both made when both are done.
"""

from __future__ import annotations

import numpy as np

from cost_models.arrays import Ints
from cost_models.schedules.actions import (
    BACKWARD,
    FORWARD,
    INPUT,
    KIND,
    OVERLAPPED,
    WEIGHT,
    ActionTable,
    overlap,
    repeat,
    table_of_phases,
)
from cost_models.schedules.schedule import PipelineSchedule
from cost_models.schedules.zbv import live_in_v


def _objection(pp: int, vpp: int, microbatches: int) -> str | None:
    if microbatches < pp * vpp:
        return f"dualpipev needs at least as many microbatches as stages: {microbatches} < {pp * vpp}"
    return None


def _table(pp: int, vpp: int, microbatches: int) -> ActionTable:
    """The table `torch.distributed.pipelining.ScheduleDualPipeV` executes."""
    ranks = [_rank_phases(pp, rank, microbatches) for rank in range(pp)]
    return table_of_phases("dualpipev", pp=pp, microbatches=microbatches, ranks=ranks)


def _rank_phases(pp: int, r: int, m: int) -> list[Ints]:
    """Rank r, with `after` ranks below it in the V: warm-up, pairs, then what is left of the backward passes.

    The second half of those left is split; their weight halves wait in a queue and fill the last gaps.
    """
    after, pairs = pp - 1 - r, m - 2 * pp + r + 1
    forwards = [
        repeat(2 * after, (FORWARD, 0, 0)),
        repeat(r + 1, (FORWARD, 0, 2 * after), (FORWARD, 1, 0)),
        repeat(after, (INPUT, 1, 0), (WEIGHT, 1, 0), (FORWARD, 1, r + 1)),
    ]
    down, up = ((FORWARD, 0, pp + after), (BACKWARD, 1, after)), ((FORWARD, 1, pp), (BACKWARD, 0, 0))
    steady = overlap(repeat(pairs, *down, *up), (0,), 1)
    if r == pp - 1:  # the turn of the V takes its first pair apart
        steady[:2, OVERLAPPED] = 0
    last_forwards = repeat(
        after, (BACKWARD, 1, after + pairs), (FORWARD, 1, pp + pairs), (BACKWARD, 0, pairs)
    )
    alternating = repeat(r + 1, (BACKWARD, 1, 2 * after + pairs), (BACKWARD, 0, after + pairs))
    alternating[r + 1 :, KIND] = INPUT
    last_inputs = repeat(after, (INPUT, 0, pp + pairs))
    weights = np.concatenate([alternating[r + 1 :], last_inputs])
    weights[:, KIND] = WEIGHT
    in_turn = np.stack([weights[:after], last_inputs], axis=1).reshape(-1, 4)
    last_forwards = overlap(last_forwards, (1, 2), 3)
    return [*forwards, steady, last_forwards, alternating, in_turn, weights[after:]]


SCHEDULE = PipelineSchedule(
    name="dualpipev",
    engine="ScheduleDualPipeV",
    table=_table,
    objection=_objection,
    chunks=(2, 2),
    live=live_in_v,
    v_shaped=True,
    splits="sometimes",
    keeps_all_logits=True,
)
