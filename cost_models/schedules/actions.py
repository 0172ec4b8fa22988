"""Action tables of pipeline schedules: the passes of every pipeline rank in execution order, and the number
of microbatches whose activations are live.

A schedule (`registry`) makes such a table; the timeline, the memory model, the Gantt chart and the executor
all read it, so the priced actions are the executed ones. Kinds: F forward; B backward; I and W are the halves
of a split backward pass, I for input gradients (the stage before waits for it) and W for weight gradients
(nothing waits for it). A rank with fewer actions than others idles at the end of its row.

Tables are built in one of two ways. If stages go round the ranks, microbatches pass through the chunks in
rounds and the warm-up of each rank, one number, determines the order (`actions_in_rounds`). If stages form a V,
every rank has a list of phases (`actions_of_phases`), of rows (kind, chunk, microbatch, overlapped with its
neighbour).

Shape legend: R pipeline ranks, V chunks of one rank, S virtual stages, U units of one rank (vpp ·
microbatches; a unit is one microbatch on one chunk), A actions of the longest rank, K moments that can be a
rank's peak.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

import numpy as np

from cost_models.arrays import Bools, Ints

if TYPE_CHECKING:
    from cost_models.schedules.registry import PipelineSchedule

Count = Ints | int


def round_sizes(pp: Count, microbatches: Count) -> Ints:
    """Number of microbatches (about pp) in a round, the group that passes through a rank's first chunk before
    the next chunk begins. Elementwise."""
    return np.asarray(microbatches // np.maximum(1, microbatches // pp))


CACHED_TABLES = 1024
"""Maximum number of cached action tables and timelines, as a search prices few distinct schedules."""


Kind = Literal["F", "B", "I", "W"]
KINDS: tuple[Kind, ...] = get_args(Kind)
FORWARD, BACKWARD, INPUT, WEIGHT = range(len(KINDS))
"""Index of each kind of action in `KINDS`, as tables store it."""
IDLE = len(KINDS)
"""Kind of the entries after a rank's last action, which fill the rank's row of the table."""


class Action(NamedTuple):
    """One pass of one microbatch through one virtual stage: forward, backward, or half of a split
    backward."""

    kind: Kind
    stage: int
    microbatch: int


@dataclass(frozen=True, slots=True, eq=False)
class ActionTable:
    """Actions of every pipeline rank in execution order. A table equals only itself, which suffices because
    `build` caches."""

    schedule: PipelineSchedule
    pp: int
    vpp: int
    microbatches: int
    kind: Ints
    """Kind of each action, as an index into `KINDS`, or `IDLE`, (R, A)."""
    stage: Ints
    """Virtual stage of each action, (R, A); 0 for an idle entry."""
    microbatch: Ints
    """Microbatch number of each action, (R, A); 0 for an idle entry."""
    overlapped: Bools
    """Whether this forward and the backward after it are one step of the engine, which sends both results at
    its end, (R, A)."""
    left_out: int = 0
    """Number of microbatches omitted from the steady middle of the table, which take as long as the rounds
    around them."""

    @property
    def num_stages(self) -> int:
        """Number of virtual stages, pp × vpp."""
        return self.pp * self.vpp

    @property
    def step_microbatches(self) -> int:
        """Number of microbatches of the step, including those that the table omits."""
        return self.microbatches + self.left_out

    @property
    def round_size(self) -> int:
        """Number of microbatches after which the steady state of the schedule repeats."""
        if self.vpp == 1 or self.schedule.v_shaped:
            return 1
        return int(round_sizes(self.pp, self.step_microbatches))

    @property
    def chunk(self) -> Ints:
        """Index of the rank's model chunk (virtual stage on the rank) of each action, (R, A)."""
        return self.stage // self.pp

    @property
    def rank_of_stage(self) -> Ints:
        """Pipeline rank of each virtual stage, (S,)."""
        return self.schedule.rank_of_stage(self.pp, self.vpp)

    def actions(self, rank: int) -> tuple[Action, ...]:
        """Actions of one pipeline rank in execution order."""
        columns = (self.kind[rank].tolist(), self.stage[rank].tolist(), self.microbatch[rank].tolist())
        rows = zip(*columns, strict=True)
        return tuple(Action(KINDS[kind], stage, number) for kind, stage, number in rows if kind != IDLE)


def actions_in_rounds(pp: int, vpp: int, m: int, warm_up_R: Ints, round_size: int, *, splits: bool) -> Ints:
    """Build the table of actions of a step whose `m` microbatches pass the chunks in rounds: kind, stage,
    microbatch and overlap mark of each action, (4, R, A). Rounds of `round_size` microbatches pass chunk
    after chunk; backward passes visit the chunks in reverse.

    Each rank runs `warm_up` forwards, at most all of its U, then one forward and one backward in turn, then
    the remaining backwards: backward j follows min(warm_up + j + 1, U) forwards. If backward `splits`, rank r
    follows each input half from the r-th on by the oldest weight half, so that weight half k follows input
    half k + r, or all other actions if there is none.
    """
    units = m * vpp
    unit_U, rank_R1 = np.arange(units), np.arange(pp)[:, None]
    chunk_U = unit_U // round_size % vpp
    microbatch_U = unit_U // (round_size * vpp) * round_size + unit_U % round_size
    warm_up_R1 = np.minimum(warm_up_R, units)[:, None]

    def with_weight_halves(backward_RU: Ints) -> Ints:
        """Number of actions that `backward_RU` consecutive backward passes take in a rank's order, with
        the weight halves between them if backward passes are split."""
        return backward_RU + np.maximum(0, backward_RU - rank_R1) if splits else backward_RU

    def place_of_backward(unit_RU: Ints) -> Ints:
        """Place of each backward pass in its rank's order of actions, (R, U)."""
        return np.asarray(np.minimum(warm_up_R1 + unit_RU + 1, units) + with_weight_halves(unit_RU))

    places = [unit_U + with_weight_halves(np.maximum(0, unit_U - warm_up_R1)), place_of_backward(unit_U)]
    kinds, chunks = [FORWARD, BACKWARD], [chunk_U, vpp - 1 - chunk_U]
    if splits:
        later_RU = unit_U + rank_R1
        places.append(np.where(later_RU < units, place_of_backward(later_RU) + 1, 2 * units + unit_U))
        kinds, chunks = [FORWARD, INPUT, WEIGHT], [*chunks, chunks[1]]
    columns = np.empty((4, pp, len(kinds) * units), dtype=np.int64)
    for place_RU, kind, own_U in zip(places, kinds, chunks, strict=True):
        values = np.broadcast_arrays(kind, own_U * pp + rank_R1, microbatch_U, 0)
        for column_RA, value_RU in zip(columns, values, strict=True):
            np.put_along_axis(column_RA, place_RU, value_RU, axis=1)
    return columns


Entry = tuple[int, int, int]
"""Action in the first round of a repeated phase, as (kind, chunk, microbatch)."""
KIND, CHUNK, MICROBATCH, OVERLAPPED = range(4)


def repeat(rounds: int, *entries: Entry) -> Ints:
    """Repeat the actions `entries` for `rounds` rounds, with the microbatch number one higher in each round.
    Returns rows of kind, chunk, microbatch and overlap mark, (rounds · entries, 4)."""
    once_E4 = np.array([(*entry, 0) for entry in entries])
    rows = np.tile(once_E4, (rounds, 1))
    rows[:, MICROBATCH] += np.arange(rounds).repeat(len(entries))
    return rows


def overlap(rows_A4: Ints, places: Sequence[int], period: int) -> Ints:
    """Mark actions as overlapped with the next action: in every `period` rows, those at the indices `places`.
    The rows are changed in place and returned."""
    rows_A4[np.isin(np.arange(len(rows_A4)) % period, places), OVERLAPPED] = 1
    return rows_A4


def actions_of_phases(stages_RC: Ints, microbatches: int, ranks: Sequence[Sequence[Ints]]) -> Ints:
    """Build the table of actions of a V-shaped schedule from each rank's phases: kind, stage, microbatch and
    overlap mark of each action, (4, R, A). A rank's chunks lie on the stages `stages_RC`.

    Entries of microbatches beyond the last are dropped; shorter rows are filled with idle entries.
    """
    rows = [np.concatenate(phases) for phases in ranks]
    rows = [row_A4[row_A4[:, MICROBATCH] < microbatches] for row_A4 in rows]
    columns = np.zeros((4, len(rows), max(map(len, rows))), dtype=np.int64)
    columns[KIND] = IDLE
    for rank, row_A4 in enumerate(rows):
        columns[:, rank, : len(row_A4)] = row_A4.T
        columns[CHUNK, rank, : len(row_A4)] = stages_RC[rank, row_A4[:, CHUNK]]
    return columns


_CHANGES = np.array([(1, 0), (-1, 0), (0, 1), (-1, -1), (0, 0)])
"""Change, by each kind of action, in the number of live microbatches (forward pass done, backward pass not yet) and
in the number between the two halves of their backward pass. The last row is for an idle entry."""


@lru_cache(maxsize=CACHED_TABLES)
def peak_moments(table: ActionTable) -> tuple[tuple[Ints, ...], tuple[Ints, ...]]:
    """Numbers of live microbatches of each chunk, and of those between the two halves of their backward pass,
    at each moment at which a rank's memory can peak.

    Returns for each rank an array (K, V) of live microbatches: the distinct Pareto-maximal vectors of forwarded
    microbatches per chunk whose backward pass has not ended, over the rank's own order. Memory rises with every
    component, so one of them is the peak. If backward is split a microbatch lives until its weight half, as PyTorch
    keeps the entire graph for it; those between the halves, (K, V) at the same moments, also hold the gradients for
    their weight products, and moments are maximal in both together.
    """
    change_RA2V = _CHANGES[table.kind][..., None] * (table.chunk[..., None, None] == np.arange(table.vpp))
    count_RA2V = np.cumsum(change_RA2V, axis=1)
    omitted = table.left_out if table.schedule.steady == "queue" else 0  # all wait for their backward pass
    count_RA2V[:, :, 0] += omitted
    # counts can be most only before the first release of several in a row
    release_RA = np.isin(table.kind, (BACKWARD, WEIGHT))
    first_RA = release_RA[:, 1:] & ~release_RA[:, :-1]
    counts = [count_A2V[first_A] for count_A2V, first_A in zip(count_RA2V[:, :-1], first_RA, strict=True)]
    maximal = [_pareto_maximal(count_K2V.reshape(-1, 2 * table.vpp)) for count_K2V in counts]
    live, pending = zip(*(np.hsplit(count_KW, 2) for count_KW in maximal), strict=True)
    return live, pending


def _pareto_maximal(vectors_AV: Ints) -> Ints:
    """Distinct Pareto-maximal vectors in sorted order, (K, V): those that no other vector matches or exceeds
    in every component."""
    # much faster than `np.unique` over rows
    vectors_KV = np.array(sorted(set(map(tuple, vectors_AV.tolist()))))
    total_K = vectors_KV.sum(axis=1)
    # only a larger total can dominate
    larger = (vectors_KV[total_K > total] for total in total_K)
    is_maximal = [not (more >= own).all(axis=1).any() for more, own in zip(larger, vectors_KV, strict=True)]
    most_KV: Ints = vectors_KV[is_maximal]
    most_KV.flags.writeable = False
    return most_KV
