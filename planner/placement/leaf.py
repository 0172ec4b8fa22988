"""One layout's open question: how many blocks on each virtual stage, and how many of them under each recompute policy.

`Leaf` holds the costs of each pipeline rank and prices placements exactly: the sums of `stage_costs`, the
ends from the schedule's own timeline.

Shape legend: `...` any batch of placements, S virtual stages, R ranks, C chunks of a rank, P recompute policies. A
placement is its blocks (S, P): so many of each stage under each policy.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np
import numpy.typing as npt

from cost_models import schedules
from cost_models.axes.columns import Ints
from cost_models.axes.pipeline import Schedule
from cost_models.axes.recompute import mix_of, policies_in
from cost_models.pipeline.stage_costs import StageCosts

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

TOLERANCE = 1e-9
"""Relative: two step times closer than this are the same, as rounding in sums of a million durations allows."""


def stage_sizes(num_layers: int, pp: int, vpp: int, schedule: Schedule) -> tuple[int, int]:
    """The fewest and the most blocks of one virtual stage that the search covers; `planner.placement.chunks` says
    which of them go together where a schedule is not plain."""
    if pp == 1:
        return num_layers, num_layers
    if schedule in schedules.PLAIN:
        return 1, num_layers - pp + 1
    return num_layers // (pp * vpp), -(-num_layers // (pp * vpp))


@dataclass(frozen=True, slots=True)
class Placement:
    """Blocks of each virtual stage under each recompute policy."""

    blocks: tuple[tuple[int, ...], ...]
    """(S, P)"""

    @classmethod
    def of(cls, blocks_SP: Ints) -> Placement:
        """From an array."""
        return cls(tuple(tuple(stage) for stage in blocks_SP.tolist()))

    @property
    def table(self) -> Ints:
        """(S, P), as an array."""
        return np.array(self.blocks, dtype=np.int64)

    @property
    def layers(self) -> tuple[int, ...]:
        """Blocks of each virtual stage."""
        return tuple(sum(stage) for stage in self.blocks)

    @property
    def recompute(self) -> tuple[str, ...]:
        """The mix of each virtual stage, as layouts write it; one without blocks is said to do as its neighbour."""
        mixes = [mix_of(stage) for stage in self.blocks]
        for end, neighbour in ((0, 1), (-1, -2)):
            if not sum(self.blocks[end]):
                mixes[end] = policies_in(mixes[neighbour])[-1]
        return tuple(mixes)


@dataclass(frozen=True, kw_only=True)
class Leaf:
    """One layout before placement; seconds and bytes."""

    costs: StageCosts
    """One row, or one for each pipeline rank."""
    pp: int
    vpp: int
    schedule: Schedule
    microbatches: int
    num_layers: int
    allowed: Bools
    """(P,): the policies the blocks may use."""
    recompute: tuple[str, ...] | None = None
    """The mix of each virtual stage where it is given, not chosen."""

    @cached_property
    def key(self) -> bytes:
        """What its placement depends on: equal for leaves that are the same but in name."""
        shape = repr((self.schedule, self.pp, self.vpp, self.microbatches, self.recompute)).encode()
        columns = (getattr(self.costs, own.name) for own in fields(StageCosts))
        return shape + b"".join(np.ascontiguousarray(column).tobytes() for column in columns)

    @property
    def is_plain(self) -> bool:
        """Whether every number of blocks on every stage is covered."""
        return self.schedule in schedules.PLAIN

    @property
    def steady(self) -> str | None:
        """Which paths run through a plain pipeline: see `PipelineSchedule.steady`."""
        return schedules.schedule_named(self.schedule).steady

    @property
    def splits_backward(self) -> bool:
        """Whether weight halves of backward passes run at other times than input halves."""
        return self.schedule in schedules.SPLIT_BACKWARD

    @property
    def num_stages(self) -> int:
        """Virtual stages."""
        return self.pp * self.vpp

    @cached_property
    def sizes(self) -> range:
        """Blocks one virtual stage may hold."""
        low, high = stage_sizes(self.num_layers, self.pp, self.vpp, self.schedule)
        return range(low, high + 1)

    @cached_property
    def timeline(self) -> schedules.Timeline:
        """The compiled action table."""
        return schedules.compile_timeline(self._table)

    @property
    def _table(self) -> schedules.ActionTable:
        return schedules.build(self.schedule, self.pp, self.vpp, self.microbatches)

    @cached_property
    def live(self) -> tuple[Ints, ...]:
        """For each rank (K, C): live microbatches of its chunks at the moments that can be its peak."""
        return schedules.live_profiles(self._table)

    @cached_property
    def rank_of_stage(self) -> Ints:
        """(S,): the pipeline rank that holds each virtual stage."""
        return schedules.rank_of_stage(self.schedule, self.pp, self.vpp)

    @cached_property
    def stage_of(self) -> Ints:
        """(C, R): the virtual stage that is each chunk of each rank."""
        return schedules.stages_of_rank(self.schedule, self.pp, self.vpp).T

    @cached_property
    def pending(self) -> tuple[Ints, ...]:
        """For each rank (K, C): those of them, at the same moments, between the halves of their backward pass."""
        return schedules.pending_profiles(self._table)

    def cost(self, name: str) -> float:
        """One column that is the same for the whole pipeline."""
        return float(getattr(self.costs, name)[0])

    def by_rank(self, name: str) -> Floats:
        """(R,) or (R, P): one column on each rank."""
        if name not in self._by_rank:
            column: Floats = getattr(self.costs, name)
            self._by_rank[name] = np.broadcast_to(column, (self.pp, *column.shape[1:]))
        return self._by_rank[name]

    @cached_property
    def _by_rank(self) -> dict[str, Floats]:
        """Columns asked for so far: a placement asks for the same ones again and again."""
        return {}

    def by_stage(self, name: str) -> Floats:
        """(S,) or (S, P): one column on each virtual stage."""
        return self.by_rank(name)[self.rank_of_stage]

    def at_ends(self, first: str, last: str) -> Floats:
        """(S,): one cost on the first virtual stage, another on the last, nothing between."""
        extra_S = np.zeros(self.num_stages)
        extra_S[0] += self.by_stage(first)[0]
        extra_S[-1] += self.by_stage(last)[-1]
        return extra_S

    @cached_property
    def fixed_forward(self) -> Floats:
        """(S,): a forward pass without its blocks."""
        return self.by_stage("stage_forward") + self.at_ends("embedding_forward", "head_forward")

    @cached_property
    def fixed_backward(self) -> Floats:
        """(S,): a backward pass without its blocks."""
        return self.by_stage("stage_backward") + self.at_ends("embedding_backward", "head_backward")

    def forward(self, blocks_SP: Ints) -> Floats:
        """(..., S): seconds of one forward pass."""
        seconds_S: Floats = self.fixed_forward + blocks_SP.sum(axis=-1) * self.by_stage("layer_forward")
        return seconds_S

    def backward(self, blocks_SP: Ints) -> Floats:
        """(..., S): seconds of one whole backward pass with what it recomputes."""
        own_S: Floats = (blocks_SP * self.by_stage("layer_backward")).sum(axis=-1)
        return self.fixed_backward + own_S

    def halves(self, blocks_SP: Ints) -> tuple[Floats, Floats]:
        """(..., S) seconds of a backward pass and zero, or of its two halves where the schedule splits it."""
        weight_S = blocks_SP.sum(axis=-1) * self.by_stage("layer_weight")
        weight_S[..., -1] += self.by_stage("head_weight")[-1]
        return schedules.backward_halves(
            self.schedule,
            self.backward(blocks_SP),
            weight_S,
            stage_backward=float(self.by_stage("stage_backward")[0]),
            stage_weight=float(self.by_stage("stage_weight")[0]),
        )

    @property
    def no_blocks(self) -> Ints:
        """(S, P) zeros: for what a stage costs without blocks."""
        return np.zeros((self.num_stages, len(self.allowed)), dtype=np.int64)

    def sum_by_rank(self, value_S: Floats | Ints) -> Floats:
        """(..., S) → (..., R): sum over the chunks of each rank."""
        total_R: Floats = value_S[..., self.stage_of].sum(axis=-2, dtype=np.float64)
        return total_R

    def per_rank(self, name: str, blocks_SP: Ints) -> Floats:
        """(..., R): `sync` or `optimizer` seconds of each rank."""
        ends_R = self.sum_by_rank(self.at_ends(f"embedding_{name}", f"head_{name}"))
        own_R: Floats = self.by_rank(f"layer_{name}") * self.sum_by_rank(blocks_SP.sum(axis=-1))
        return self.by_rank(f"rank_{name}") + ends_R + own_R

    def step_seconds(self, blocks_SP: Ints) -> Floats:
        """(...,): the exact step time."""
        first_S, second_S = self.halves(blocks_SP)
        ends_R = self.timeline.rank_ends(self.forward(blocks_SP), first_S, self.cost("p2p"), second_S)
        last = (ends_R + self.per_rank("sync", blocks_SP)).max(axis=-1)
        step: Floats = last + self.per_rank("optimizer", blocks_SP).max(axis=-1) + self.overhead
        return step

    @cached_property
    def overhead(self) -> float:
        """What a step takes besides: the slowest rank's."""
        return float(self.costs.step_overhead.max())

    def busy_seconds(self, blocks_SP: Ints) -> Floats:
        """(...,): a lower bound: some rank does all its work between its first and its last microbatch's way."""
        forward_S, backward_S = self.forward(blocks_SP), self.backward(blocks_SP)
        stage_S = forward_S + backward_S
        if self.splits_backward:  # weight halves may run while the last microbatch goes up
            first_R = forward_S[..., : self.pp] + self.cost("p2p")
        else:
            first_R = stage_S[..., : self.pp] + 2 * self.cost("p2p")
        way_R = np.cumsum(first_R, axis=-1) - first_R
        busy_R = way_R + self.microbatches * self.sum_by_rank(stage_S)
        sync_R = self.per_rank("sync", blocks_SP)
        ends_on_first = not self.splits_backward
        last = (busy_R + (sync_R[..., :1] if ends_on_first else sync_R)).max(axis=-1)
        total: Floats = last + self.per_rank("optimizer", blocks_SP).max(axis=-1) + self.overhead
        return total

    def critical_path(self, blocks_SP: Ints) -> schedules.CriticalPath:
        """The path, with the tail of its rank, that decides the step time of one placement."""
        first_S, second_S = self.halves(blocks_SP)
        return self.timeline.critical_path(
            self.forward(blocks_SP),
            first_S,
            self.cost("p2p"),
            self.per_rank("sync", blocks_SP),
            second_S,
        )

    def rank_bytes(self, blocks_SP: Ints) -> Floats:
        """(..., R): the peak of each rank, in training or in the optimizer step."""
        kept_S = (blocks_SP * self.by_stage("layer_activation")).sum(axis=-1)
        kept_S = kept_S + self.at_ends("embedding_activation", "head_activation")
        waits_S = blocks_SP.sum(axis=-1) * self.by_stage("layer_pending")
        waits_S[..., 0] = 0.0  # the first stage runs no input half
        waits_S[..., -1] += self.by_stage("head_pending")[-1]
        kept_CR, waits_CR = kept_S[..., self.stage_of], waits_S[..., self.stage_of]
        live_R = np.stack(
            [
                (live_KC @ kept_CR[..., rank, None] + pending_KC @ waits_CR[..., rank, None]).max(
                    axis=(-2, -1)
                )
                for rank, (live_KC, pending_KC) in enumerate(zip(self.live, self.pending, strict=True))
            ],
            axis=-1,
        )
        working_S = np.where(blocks_SP > 0, self.by_stage("working"), 0.0).max(axis=-1)
        working_R = np.maximum(working_S[..., self.stage_of].max(axis=-2), self.head_moment)
        count_R = self.sum_by_rank(blocks_SP.sum(axis=-1))
        held_R = self.rank_static + count_R * self.by_rank("layer_static")
        update_R = self.rank_update + count_R * self.by_rank("layer_update")
        peak: Floats = held_R + np.maximum(live_R + working_R, update_R)
        return peak

    @cached_property
    def rank_static(self) -> Floats:
        """(R,): bytes that are always there, without blocks."""
        return self.by_rank("static") + self.sum_by_rank(self.at_ends("embedding_static", "head_static"))

    @cached_property
    def rank_update(self) -> Floats:
        """(R,): what the optimizer step holds besides, without blocks."""
        return self.sum_by_rank(self.at_ends("embedding_update", "head_update"))

    @cached_property
    def head_moment(self) -> Floats:
        """(R,): held at once while the loss runs, on the rank that has it."""
        head_R = np.zeros(self.pp)
        last = self.rank_of_stage[-1]
        head_R[last] = self.by_rank("head_moment")[last]
        return head_R

    @property
    def memory_limit(self) -> Floats:
        """(R,): bytes a rank may use."""
        return self.by_rank("memory_limit")

    def fits(self, blocks_SP: Ints) -> Bools:
        """(...,): every rank stays within its limit."""
        within_R: Bools = self.rank_bytes(blocks_SP) <= self.memory_limit
        within: Bools = np.asarray(within_R.all(axis=-1))
        return within

    def price(self, placement: Placement) -> float:
        """Step time of one placement, seconds."""
        return float(self.step_seconds(placement.table))
