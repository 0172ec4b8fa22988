"""Interleaved 1F1B: v chunks per rank, a bubble v times shorter (Narayanan et al. 2021, section 2.2)."""

from __future__ import annotations

from functools import partial

import numpy as np

from cost_models.arrays import Ints
from cost_models.schedules.actions import ActionTable, round_sizes, table_of_units
from cost_models.schedules.schedule import PipelineSchedule


def rounds_objection(schedule: str, pp: int, vpp: int, microbatches: int) -> str | None:
    """Sentence that says why microbatches cannot pass through the chunks in equal rounds of about pp; None if they can.

    This is the rule of `torch.distributed.pipelining` 2.13; Megatron-LM is stricter and wants a multiple of pp.
    """
    number = rounds(pp, microbatches)
    if microbatches % number:
        return f"{microbatches} microbatches do not make {number} equal rounds of {schedule} on pp{pp}"
    return None


def _table(pp: int, vpp: int, microbatches: int) -> ActionTable:
    """The table `torch.distributed.pipelining.ScheduleInterleaved1F1B` executes.

    A round of g microbatches passes chunk after chunk; rank r runs (vpp − 1) · g + 2 (pp − 1 − r) forwards,
    at most all of them, before its first forward-backward pair.
    """
    round_size = microbatches // rounds(pp, microbatches)
    chunk_U, microbatch_U = unit_order(vpp, microbatches, round_size)
    warm_up_R = (vpp - 1) * round_size + 2 * (pp - 1 - np.arange(pp))
    return table_of_units(
        "interleaved",
        pp=pp,
        vpp=vpp,
        warm_up_R=np.minimum(warm_up_R, microbatches * vpp),
        chunk_U=chunk_U,
        microbatch_U=microbatch_U,
    )


def unit_order(vpp: int, microbatches: int, round_size: int) -> tuple[Ints, Ints]:
    """(U,) chunk and (U,) microbatch of each forward of a rank: a round passes chunk after chunk."""
    unit_U = np.arange(microbatches * vpp)
    chunk_U = (unit_U // round_size) % vpp
    return chunk_U, unit_U // (round_size * vpp) * round_size + unit_U % round_size


def rounds(pp: int, microbatches: int) -> int:
    """Rounds of about pp microbatches."""
    return max(1, microbatches // pp)


def live_in_rounds(pp: Ints, vpp: Ints, microbatches: Ints, units: Ints, chunk: Ints) -> Ints:
    """Live microbatches of a chunk when its rank has run so many forwards and no backward pass: those of whole rounds
    on every chunk, and those of the last round, which the first chunks have run."""
    size = round_sizes(pp, microbatches)
    whole, rest = np.divmod(units, size * vpp)
    live: Ints = whole * size + np.clip(rest - chunk * size, 0, size)
    return live


def _units(pp: Ints, vpp: Ints, m: Ints, rank: Ints) -> Ints:
    """Forwards of a rank before its first backward pass: the warm-up and one more."""
    units: Ints = np.minimum((vpp - 1) * round_sizes(pp, m) + 2 * (pp - 1 - rank) + 1, m * vpp)
    return units


SCHEDULE = PipelineSchedule(
    name="interleaved",
    engine="ScheduleInterleaved1F1B",
    table=_table,
    objection=partial(rounds_objection, "interleaved"),
    chunks=(2, None),
    live=lambda pp, vpp, m, rank, chunk: live_in_rounds(pp, vpp, m, _units(pp, vpp, m, rank), chunk),
    live_together=_units,
)
