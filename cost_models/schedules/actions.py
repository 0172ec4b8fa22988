"""The action table: what every pipeline rank does, in which order.

A schedule is a function that returns such a table; the timeline, the memory model, the Gantt chart and the
executor all read it, so what is costed is what runs. Virtual stage k lives on rank k mod pp as its chunk k
div pp.

Shape legend: R pipeline ranks, V chunks of one rank, U units of one rank (vpp · microbatches; a unit is one
microbatch on one chunk), A actions of one rank (2 · U).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from cost_models.specs.layout import Schedule

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

CACHED_TABLES = 1024
"""Tables, and what is compiled from them, that stay in memory: a search returns to the same few shapes."""


class Action(NamedTuple):
    """One forward or backward of one microbatch through one virtual stage."""

    kind: Literal["F", "B"]
    stage: int
    microbatch: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ActionTable:
    """Every rank's actions in execution order; equal only to itself, which serves because `build` caches."""

    schedule: Schedule
    pp: int
    vpp: int
    microbatches: int
    is_backward: Bools
    """(R, A)"""
    stage: Ints
    """(R, A): virtual stage."""
    microbatch: Ints
    """(R, A)"""

    @property
    def num_stages(self) -> int:
        """Virtual stages."""
        return self.pp * self.vpp

    @property
    def chunk(self) -> Ints:
        """(R, A): chunk of the rank that the action runs on."""
        return self.stage // self.pp

    def actions(self, rank: int) -> tuple[Action, ...]:
        """What one rank does, in order."""
        columns = (self.is_backward[rank], self.stage[rank], self.microbatch[rank])
        return tuple(
            Action("B" if backward else "F", stage, microbatch)
            for backward, stage, microbatch in zip(*(column.tolist() for column in columns), strict=True)
        )


def table_of_units(
    schedule: Schedule,
    *,
    pp: int,
    vpp: int,
    microbatches: int,
    warm_up_R: Ints,
    forward_chunk_U: Ints,
    forward_microbatch_U: Ints,
    backward_chunk_U: Ints,
    backward_microbatch_U: Ints,
) -> ActionTable:
    """Each rank runs `warm_up` forwards, then one forward and one backward in turn, then the backwards left.

    GPipe, 1F1B and interleaved 1F1B differ in the warm-up and in the order of the units only. Forward i is
    therefore the rank's action max(i, 2i − warm_up), and backward i its action min(warm_up + 2i + 1, U + i).
    """
    units = microbatches * vpp
    i_U = np.arange(units)
    warm_up_R1 = warm_up_R[:, None]
    forward_RU = np.maximum(i_U, 2 * i_U - warm_up_R1)
    backward_RU = np.minimum(warm_up_R1 + 2 * i_U + 1, units + i_U)

    def interleave(forward_U: Ints, backward_U: Ints) -> Ints:
        column_RA = np.empty((pp, 2 * units), dtype=np.int64)
        np.put_along_axis(column_RA, forward_RU, np.broadcast_to(forward_U, (pp, units)), axis=1)
        np.put_along_axis(column_RA, backward_RU, np.broadcast_to(backward_U, (pp, units)), axis=1)
        column_RA.flags.writeable = False
        return column_RA

    rank_R1 = np.arange(pp)[:, None]
    stage_RA = interleave(forward_chunk_U * pp, backward_chunk_U * pp) + rank_R1
    stage_RA.flags.writeable = False
    is_backward_RA = interleave(np.zeros_like(i_U), np.ones_like(i_U)).astype(np.bool_)
    is_backward_RA.flags.writeable = False
    return ActionTable(
        schedule=schedule,
        pp=pp,
        vpp=vpp,
        microbatches=microbatches,
        is_backward=is_backward_RA,
        stage=stage_RA,
        microbatch=interleave(forward_microbatch_U, backward_microbatch_U),
    )


@lru_cache(maxsize=CACHED_TABLES)
def live_profiles(table: ActionTable) -> tuple[Ints, ...]:
    """How many microbatches each chunk keeps for its backward pass, at the moments that can be a rank's peak.

    Returns for each rank an array (K, V): the distinct Pareto-maximal vectors of
    forwarded-but-not-yet-backwarded microbatches per chunk, over the rank's own order. Memory rises with
    every component, so one of them is the peak.
    """
    chunk_V = np.arange(table.vpp)
    change_RAV = np.where(table.is_backward, -1, 1)[..., None] * (table.chunk[..., None] == chunk_V)
    live_RAV = np.cumsum(change_RAV, axis=1)
    # Before another forward nothing is released, so only a forward that a backward follows can be maximal.
    last_forward_RA = ~table.is_backward & np.roll(table.is_backward, -1, axis=1)
    return tuple(
        _pareto_maximal(np.unique(live_AV[last_A], axis=0))
        for live_AV, last_A in zip(live_RAV, last_forward_RA, strict=True)
    )


def _pareto_maximal(vectors_KV: Ints) -> Ints:
    """The rows that no other row exceeds or equals in every component; rows must be distinct."""
    total_K = vectors_KV.sum(axis=1)
    kept = [
        row
        for row, (vector_V, total) in enumerate(zip(vectors_KV, total_K, strict=True))
        if not (vectors_KV[total_K > total] >= vector_V).all(axis=1).any()  # only a larger total can dominate
    ]
    maximal_KV = vectors_KV[kept]
    maximal_KV.flags.writeable = False
    return maximal_KV
