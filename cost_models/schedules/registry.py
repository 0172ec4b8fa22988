"""Registry of pipeline schedules with their action tables, rules on sizes, and properties that need no table.

    gpipe        all forwards, then all backwards, in the order of the microbatches (Huang et al. 2019)
    1f1b         after a short warm-up each rank alternates one forward and one backward (Narayanan et al. 2021)
    interleaved  1F1B with v chunks a rank, a bubble v times shorter (Narayanan et al. 2021, section 2.2)
    zero-bubble  ZB-H1, also called ZB1P: 1F1B whose weight halves fill the bubble (Qi et al. 2023, arXiv 2401.10241,
                 section 3); with several chunks a rank its interleaved form, one schedule in PyTorch
    zbv          ZB-V: two chunks a rank in a V, no bubble if F, I and W take equally long (ibid., section 6)
    dualpipev    DualPipeV: two chunks a rank in a V, forward and backward passes in pairs (DeepSeek-AI 2025, DualPipe)

Tables are those that the class of `torch.distributed.pipelining` named by `engine` executes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Literal

import numpy as np

from cost_models.arrays import Ints
from cost_models.errors import InputError, UnknownNameError
from cost_models.schedules.actions import (
    BACKWARD,
    CACHED_TABLES,
    FORWARD,
    INPUT,
    KIND,
    OVERLAPPED,
    WEIGHT,
    ActionTable,
    Count,
    actions_in_rounds,
    actions_of_phases,
    overlap,
    repeat,
    round_sizes,
)

Objection = Callable[[str, int, int, int], str | None]
"""Function from (name, pp, vpp, microbatches), all at least one, to a sentence that says why the schedule cannot
run, or None."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineSchedule:
    """One pipeline schedule, defined by `warm_up` if the virtual stages go round the ranks in a ring, or by
    `phases` if they go down the ranks and up again (a V)."""

    name: str
    """Name of the schedule in the notation of layouts."""
    engine: str
    """Name of the class in `torch.distributed.pipelining` that runs the schedule."""
    warm_up: Callable[[Count, Count, Count, Count], Count] | None = None
    """Elementwise function from (pp, vpp, microbatches, rank) to the number of a rank's forward passes before
    forward and backward passes alternate."""
    round_sizes: Callable[[Count, Count], Count] = field(default=round_sizes)
    """Elementwise function from (pp, microbatches) to the number of microbatches that pass through a rank's chunk
    before its next chunk begins."""
    phases: Callable[[int, int, int], list[Ints]] | None = None
    """Function from (pp, rank, microbatches) to the rows of the rank's actions, one array for each phase."""
    objection: Objection | None = None
    """Rule on sizes that no engine can break, in addition to the range of `chunks`."""
    engine_objection: Objection | None = None
    """Additional rule on sizes of PyTorch's implementation only."""
    chunks: tuple[int, int | None] = (1, 1)
    """Minimum and maximum number of model chunks per rank; None: no maximum."""
    splits: Literal["never", "sometimes", "always"] = "never"
    """How often backward passes run as two actions, for input and for weight gradients."""
    keeps_all_logits: bool = False
    """Whether other passes run between the head's forward and backward pass of a microbatch, so that logits
    of several are live."""
    steady: Literal["queue", "pairs"] | None = None
    """Pattern of the steady state with one chunk per rank and unsplit backward passes, for the planner's
    lower bounds.

    `queue`: all forwards, then all backwards. `pairs`: backward j runs just before forward j + pp − r on rank
    r. None: bounds only assume that a rank does one thing at a time.
    """

    @property
    def v_shaped(self) -> bool:
        """Whether virtual stages go down the ranks and up again, two chunks per rank, instead of round the
        ranks in a ring."""
        return self.phases is not None

    @property
    def goes_round(self) -> bool:
        """Whether each rank has several chunks, stages go round the ranks in a ring, and backward passes are
        never split."""
        return self.chunks[1] != 1 and not self.v_shaped and self.splits == "never"

    def runs_chunks(self, vpp: int) -> bool:
        """Whether the schedule can run `vpp` model chunks per rank."""
        fewest, max_chunks = self.chunks
        return fewest <= vpp and (max_chunks is None or vpp <= max_chunks)

    def rank_of_stage(self, pp: int, vpp: int) -> Ints:
        """Pipeline rank of each virtual stage, (S,): stages go round the ranks in a ring or, in a V, down the
        ranks and up again."""
        chunk_S, place_S = np.divmod(np.arange(pp * vpp), pp)
        return np.where(self.v_shaped & (chunk_S % 2 == 1), pp - 1 - place_S, place_S)

    def stages_of_rank(self, pp: int, vpp: int) -> Ints:
        """Virtual stages of each pipeline rank, in model order, (R, V)."""
        return np.argsort(self.rank_of_stage(pp, vpp), kind="stable").reshape(pp, vpp)

    def refusal(self, pp: int, vpp: int, microbatches: int, *, any_engine: bool = True) -> str | None:
        """Reason, as a sentence, why PyTorch's pipeline engine cannot run the schedule with these sizes; None
        if it can. With `any_engine`, reasons of this engine alone do not count."""
        if min(pp, vpp, microbatches) < 1:
            return f"pp, vpp and microbatches start at one: pp{pp} vpp{vpp}, {microbatches} microbatches"
        if not self.runs_chunks(vpp):
            fewest, max_chunks = self.chunks
            number = ("one chunk", "two chunks")[fewest - 1]
            if max_chunks is None:
                return f"{self.name} needs at least {number} per pipeline rank: vpp{fewest} or more"
            return f"{self.name} runs {number} per pipeline rank, not vpp{vpp}"
        rules = [self.objection, None if any_engine else self.engine_objection]
        return next(filter(None, (rule(self.name, pp, vpp, microbatches) for rule in rules if rule)), None)

    def table(self, pp: int, vpp: int, microbatches: int) -> ActionTable:
        """Build the table of every rank's actions in execution order."""
        if self.phases is not None:
            phases = [self.phases(pp, rank, microbatches) for rank in range(pp)]
            columns = actions_of_phases(self.stages_of_rank(pp, vpp), microbatches, phases)
        else:
            assert self.warm_up is not None
            warm_up_R = np.broadcast_to(self.warm_up(pp, vpp, microbatches, np.arange(pp)), pp)
            size, splits = int(self.round_sizes(pp, microbatches)), self.splits == "always"
            columns = actions_in_rounds(pp, vpp, microbatches, warm_up_R, size, splits=splits)
        columns.flags.writeable = False
        kind, stage, microbatch, overlapped = columns
        return ActionTable(self, pp, vpp, microbatches, kind, stage, microbatch, overlapped == 1)

    def live_of_chunk(self, pp: Count, vpp: Count, microbatches: Count, rank: Count, chunk: Count) -> Ints:
        """Number of live microbatches of one chunk at the moment whose memory is taken as the lower bound of
        a rank's peak.

        A rank's peak is at least its memory at that moment, and equal to it with one chunk a rank, so bounds
        need no table. Any shapes that broadcast. In rounds it is when the rank has run `live_of_rank`
        forwards and released nothing: microbatches of complete rounds live on every chunk, those of the last
        round on the first chunks. In a V it is before the first backward pass: forwards of the first chunk
        until the first microbatch has gone down to the turn and come up again, and one of the second chunk
        for each rank that it passed on the way up.
        """
        if self.v_shaped:
            forwards = np.where(np.equal(chunk, 0), 2 * pp - 1 - rank, 1 + rank)
            return np.asarray(np.minimum(microbatches, forwards))
        size = self.round_sizes(pp, microbatches)
        rounds, remainder = np.divmod(self.live_of_rank(pp, vpp, microbatches, rank), size * vpp)
        return np.asarray(rounds * size + np.clip(remainder - chunk * size, 0, size))

    def live_of_rank(self, pp: Count, vpp: Count, microbatches: Count, rank: Count) -> Ints:
        """Number of live microbatches of a rank, over all its chunks, at the moment whose memory is taken as
        the lower bound of its peak (see `live_of_chunk`).

        In rounds the warm-up and one more; if backward is split rank r runs r more until its first weight
        half.
        """
        ranks, vpps, m, at = np.broadcast_arrays(pp, vpp, microbatches, rank)
        if self.warm_up is None:
            return self.live_of_chunk(ranks, vpps, m, at, 0) + self.live_of_chunk(ranks, vpps, m, at, 1)
        later = at if self.splits == "always" else 0
        return np.asarray(np.minimum(self.warm_up(ranks, vpps, m, at) + 1 + later, m * vpps))


def _equal_rounds(schedule: str, pp: int, vpp: int, microbatches: int) -> str | None:
    """Sentence on the reason why microbatches do not divide into equal rounds of about pp; None if they do.

    This is the rule of `torch.distributed.pipelining` 2.13; Megatron-LM is stricter and requires a multiple
    of pp.
    """
    number = max(1, microbatches // pp)
    if microbatches % number:
        return f"{microbatches} microbatches do not make {number} equal rounds of {schedule} on pp{pp}"
    return None


def _microbatch_for_each_stage(schedule: str, pp: int, vpp: int, microbatches: int) -> str | None:
    """Sentence that there are fewer microbatches than stages; None if there are enough."""
    if microbatches < pp * vpp:
        stages, minimum = ("pipeline ranks", f"pp{pp}") if vpp == 1 else ("stages", f"{pp * vpp}")
        return f"{schedule} needs at least as many microbatches as {stages}: {microbatches} < {minimum}"
    return None


def _zbv_phases(pp: int, r: int, m: int) -> list[Ints]:
    """Actions of rank `r` of `pp` under the ZB-V schedule with `m` microbatches, an array for each phase: two
    warm-ups, the first backward passes of the second chunk, the steady rounds, and the cool-down.

    Laid out for at least 2 · pp − 1 microbatches; with fewer the others are left out of the table.
    """
    n = max(2 * pp - 1, m)
    stable = n - pp
    down = ((FORWARD, 0, 2 * pp - 1 - r), (INPUT, 0, 0), (WEIGHT, 0, 0))
    up = ((FORWARD, 1, pp), (INPUT, 1, pp - r), (WEIGHT, 1, pp - r))
    return [
        repeat(2 * (pp - r) - 1, (FORWARD, 0, 0)),
        repeat(r, (FORWARD, 1, 0), (FORWARD, 0, 2 * (pp - r) - 1)),
        repeat(pp - r, (FORWARD, 1, r), (INPUT, 1, 0), (WEIGHT, 1, 0)),
        repeat(stable, *down, *up),
        repeat(r, (INPUT, 0, stable), (INPUT, 1, n - r)),
        repeat(pp - r, (INPUT, 0, stable + r), (WEIGHT, 0, stable)),
        repeat(r, (WEIGHT, 1, n - r)),
        repeat(r, (WEIGHT, 0, n - r)),
    ]


def _dualpipev_phases(pp: int, r: int, m: int) -> list[Ints]:
    """Actions of rank `r` of `pp` under the DualPipeV schedule with `m` microbatches, an array for each
    phase: warm-up, pairs, then the remaining backward passes. `later` ranks are below it in the V.

    PyTorch's engine runs the two actions of a pair one after the other, so nothing of them overlaps on the
    device; it sends both results when both are done. The second half of the remaining backward passes is
    split; their weight halves wait in a queue and fill the last gaps.
    """
    later, pairs = pp - 1 - r, m - 2 * pp + r + 1
    forwards = [
        repeat(2 * later, (FORWARD, 0, 0)),
        repeat(r + 1, (FORWARD, 0, 2 * later), (FORWARD, 1, 0)),
        repeat(later, (INPUT, 1, 0), (WEIGHT, 1, 0), (FORWARD, 1, r + 1)),
    ]
    down, up = ((FORWARD, 0, pp + later), (BACKWARD, 1, later)), ((FORWARD, 1, pp), (BACKWARD, 0, 0))
    steady = overlap(repeat(pairs, *down, *up), (0,), 1)
    if r == pp - 1:  # the turn of the V takes its first pair apart
        steady[:2, OVERLAPPED] = 0
    late_pairs = repeat(later, (BACKWARD, 1, later + pairs), (FORWARD, 1, pp + pairs), (BACKWARD, 0, pairs))
    alternating = repeat(r + 1, (BACKWARD, 1, 2 * later + pairs), (BACKWARD, 0, later + pairs))
    alternating[r + 1 :, KIND] = INPUT
    last_inputs = repeat(later, (INPUT, 0, pp + pairs))
    weights = np.concatenate([alternating[r + 1 :], last_inputs])
    weights[:, KIND] = WEIGHT
    in_turn = np.stack([weights[:later], last_inputs], axis=1).reshape(-1, 4)
    late_pairs = overlap(late_pairs, (1, 2), 3)
    return [*forwards, steady, late_pairs, alternating, in_turn, weights[later:]]


_SCHEDULES = (
    PipelineSchedule(
        name="gpipe",
        engine="ScheduleGPipe",
        warm_up=lambda pp, vpp, m, rank: m,
        keeps_all_logits=True,
        steady="queue",
    ),
    PipelineSchedule(
        name="1f1b",
        engine="Schedule1F1B",
        warm_up=lambda pp, vpp, m, rank: pp - 1 - rank,
        # others run fewer microbatches than ranks
        engine_objection=_microbatch_for_each_stage,
        steady="pairs",
    ),
    PipelineSchedule(
        name="interleaved",
        engine="ScheduleInterleaved1F1B",
        warm_up=lambda pp, vpp, m, rank: (vpp - 1) * round_sizes(pp, m) + 2 * (pp - 1 - rank),
        objection=_equal_rounds,
        chunks=(2, None),
    ),
    PipelineSchedule(
        name="zero-bubble",
        engine="ScheduleInterleavedZeroBubble",
        warm_up=lambda pp, vpp, m, rank: (vpp - 1) * round_sizes(pp, m) + pp - 1 - rank,
        objection=_equal_rounds,
        chunks=(1, None),
        splits="always",
    ),
    PipelineSchedule(
        name="zbv", engine="ScheduleZBVZeroBubble", phases=_zbv_phases, chunks=(2, 2), splits="always"
    ),
    PipelineSchedule(
        name="dualpipev",
        engine="ScheduleDualPipeV",
        phases=_dualpipev_phases,
        objection=_microbatch_for_each_stage,
        chunks=(2, 2),
        splits="sometimes",
        keeps_all_logits=True,
    ),
)

REGISTRY: dict[str, PipelineSchedule] = {schedule.name: schedule for schedule in _SCHEDULES}
"""Pipeline schedules by name. Layout columns store a schedule as its index in this order; add a record to
`_SCHEDULES` to register one."""


def schedule_named(name: str) -> PipelineSchedule:
    """Pipeline schedule with the given name. Raises UnknownNameError: no such schedule."""
    if name not in REGISTRY:
        raise UnknownNameError("schedule", name, REGISTRY)
    return REGISTRY[name]


def engine_refusal(schedule: str, pp: int, vpp: int, microbatches: int) -> str | None:
    """Reason, as a sentence, why PyTorch's pipeline engine cannot run the schedule with these sizes; None if
    it can.

    Raises:
        UnknownNameError: no such schedule.
    """
    return schedule_named(schedule).refusal(pp, vpp, microbatches, any_engine=False)


@lru_cache(maxsize=CACHED_TABLES)
def build(schedule: str, pp: int, vpp: int, microbatches: int, *, any_engine: bool = False) -> ActionTable:
    """Build the table of every pipeline rank's actions, in the order that `torch.distributed.pipelining`
    executes.

    `any_engine` also makes tables that this engine refuses and others run: 1F1B with fewer microbatches than
    ranks.

    Raises:
        InputError: the schedule cannot run with these numbers, or is unknown.
    """
    definition = schedule_named(schedule)
    if refusal := definition.refusal(pp, vpp, microbatches, any_engine=any_engine):
        raise InputError(refusal)
    return definition.table(pp, vpp, microbatches)


LEAST_STEADY, LEAST_STEADY_ROUNDS = 128, 16
"""Minimum number of microbatches and of rounds in a shortened table: twice the warm-up and cool-down of any
schedule, so that its middle half is steady."""


@lru_cache(maxsize=CACHED_TABLES)
def shortened_table(
    schedule: str, pp: int, vpp: int, microbatches: int, *, any_engine: bool = False, minimum: int = 0
) -> ActionTable:
    """Build the action table of a step, with fewer rounds of the steady state if there are many microbatches.
    A shortened table has `minimum` microbatches or more, and counts the omitted ones in
    `ActionTable.left_out`. Raises as `build` does."""
    shortest = max(minimum, LEAST_STEADY, LEAST_STEADY_ROUNDS * pp)
    if microbatches < 4 * shortest:
        return build(schedule, pp, vpp, microbatches, any_engine=any_engine)
    if refusal := engine_refusal(schedule, pp, vpp, microbatches):
        raise InputError(refusal)
    size = schedule_named(schedule).round_sizes(pp, microbatches)
    fewer = shortest + (microbatches - shortest) % int(size)
    return replace(build(schedule, pp, vpp, fewer), left_out=microbatches - fewer)


def _names_with(trait: Callable[[PipelineSchedule], bool]) -> frozenset[str]:
    """Names of the schedules for which `trait` is true."""
    return frozenset(name for name, schedule in REGISTRY.items() if trait(schedule))


PLAIN = _names_with(lambda schedule: schedule.chunks == (1, 1) and schedule.splits == "never")
"""Names of schedules with one chunk per rank and unsplit backward passes."""

V_SHAPED = _names_with(lambda schedule: schedule.v_shaped)
"""Names of schedules whose stages go down the ranks and up again, two chunks per rank: rank 0 holds the first
and the last stage."""

SPLIT_BACKWARD = _names_with(lambda schedule: schedule.splits != "never")
"""Names of schedules that may run the two halves of a backward pass (for input and for weight gradients) at
different times."""

ALWAYS_SPLIT = _names_with(lambda schedule: schedule.splits == "always")
"""Names of schedules that split every backward pass into halves; DualPipeV does so in warm-up and cool-down
only."""

QUEUES = _names_with(lambda schedule: schedule.steady == "queue")
"""Names of schedules that run all forward passes before all backward passes, with any number of
microbatches."""

KEEPS_ALL_LOGITS = _names_with(lambda schedule: schedule.keeps_all_logits)
"""Names of schedules that run other passes between the head's forward and backward pass of a microbatch."""
