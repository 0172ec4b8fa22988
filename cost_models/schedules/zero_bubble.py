"""ZB-H1, also called ZB1P: 1F1B whose weight halves fill the bubble (Qi et al. 2023, arXiv 2401.10241, section 3).

With several chunks a rank it is its interleaved form, which is one schedule in PyTorch.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from cost_models.arrays import Ints
from cost_models.schedules.actions import FORWARD, INPUT, WEIGHT, ActionTable, round_sizes
from cost_models.schedules.interleaved import live_in_rounds, rounds, rounds_objection, unit_order
from cost_models.schedules.schedule import PipelineSchedule


def _table(pp: int, vpp: int, microbatches: int) -> ActionTable:
    """The table `torch.distributed.pipelining.ScheduleInterleavedZeroBubble` executes.

    Rank r forwards w = (vpp − 1) · g + pp − 1 − r units (at most all), half of the warm-up of interleaved 1F1B. Then
    each forward is followed by the input half of a unit, and each input half from the r-th on by the oldest weight
    half. So input half j follows min(w + j + 1, U) forwards, j input halves and max(0, j − r) weight halves; weight
    half k follows input half k + r, or everything else where there is none.
    """
    units = microbatches * vpp
    round_size = microbatches // rounds(pp, microbatches)
    chunk_U, microbatch_U = unit_order(vpp, microbatches, round_size)
    i_U = np.arange(units)
    rank_R1 = np.arange(pp)[:, None]
    warm_up_R1 = np.minimum((vpp - 1) * round_size + pp - 1 - rank_R1, units)
    paired_RU = np.maximum(0, i_U - warm_up_R1)
    forward_RU = i_U + paired_RU + np.maximum(0, paired_RU - rank_R1)

    def input_place(j_RU: Ints) -> Ints:
        place_RU: Ints = np.minimum(warm_up_R1 + j_RU + 1, units) + j_RU + np.maximum(0, j_RU - rank_R1)
        return place_RU

    later_RU = i_U + rank_R1
    weight_RU = np.where(later_RU < units, input_place(later_RU) + 1, 2 * units + i_U)
    places = (forward_RU, input_place(np.broadcast_to(i_U, (pp, units))), weight_RU)

    def column(*values_U: Ints) -> Ints:
        column_RA = np.empty((pp, 3 * units), dtype=np.int64)
        for place_RU, value_U in zip(places, values_U, strict=True):
            np.put_along_axis(column_RA, place_RU, np.broadcast_to(value_U, (pp, units)), axis=1)
        column_RA.flags.writeable = False
        return column_RA

    backward_U = (vpp - 1 - chunk_U) * pp
    stage_RA = column(chunk_U * pp, backward_U, backward_U) + rank_R1
    stage_RA.flags.writeable = False
    return ActionTable(
        schedule="zero-bubble",
        pp=pp,
        vpp=vpp,
        microbatches=microbatches,
        kind=column(*(np.full(units, kind) for kind in (FORWARD, INPUT, WEIGHT))),
        stage=stage_RA,
        microbatch=column(microbatch_U, microbatch_U, microbatch_U),
        splits_backward=True,
    )


def _units(pp: Ints, vpp: Ints, m: Ints, rank: Ints) -> Ints:
    """Forwards of any rank before its first weight half: rank r has r fewer to warm up and r more until then."""
    units: Ints = np.minimum((vpp - 1) * round_sizes(pp, m) + pp, m * vpp) + np.zeros_like(rank)
    return units


SCHEDULE = PipelineSchedule(
    name="zero-bubble",
    engine="ScheduleInterleavedZeroBubble",
    table=_table,
    objection=partial(rounds_objection, "zero-bubble"),
    chunks=(1, None),
    live=lambda pp, vpp, m, rank, chunk: live_in_rounds(pp, vpp, m, _units(pp, vpp, m, rank), chunk),
    live_together=_units,
    splits="always",
)
