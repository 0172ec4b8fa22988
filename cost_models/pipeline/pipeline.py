"""One pipeline: a schedule and what its ranks cost, from which every placement of blocks on its stages is priced.

The formulas are those of `stage_costs`, for one placement or a batch of them, on ranks that cost the same or, in
several pools, each something of its own.

Shape legend: `...` any batch of placements, S virtual stages, R ranks, C chunks of a rank, P recompute policies. A
placement is its blocks (S, P): so many of each stage under each policy, or of several kinds (S, K·P): so many of each
sort, a kind under a policy (`cost_models.pipeline.terms`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np

from cost_models.arrays import Array, Ints
from cost_models.pipeline.peak import RankMemory, columns_of
from cost_models.pipeline.stage_costs import StageCosts
from cost_models.schedules.actions import ActionTable
from cost_models.schedules.registry import SPLIT_BACKWARD, rank_of_stage, shortened, stages_of_rank
from cost_models.schedules.timeline import Timeline, backward_halves, compile_timeline
from cost_models.specs.choices import Schedule

Delay = Array | float
Column = Callable[[str], Array]
"""Name of a coefficient → its values on every stage (..., S), or by policy (..., S, P)."""


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """A pipeline before placement; seconds and bytes."""

    costs: StageCosts
    """One row, or one for each pipeline rank."""
    pp: int
    vpp: int
    schedule: Schedule
    microbatches: int
    any_engine: bool = False
    """Whether another engine than PyTorch's runs it: see `build`."""

    @property
    def num_stages(self) -> int:
        """Virtual stages."""
        return self.pp * self.vpp

    @property
    def splits_backward(self) -> bool:
        """Whether weight halves of backward passes run at other times than input halves."""
        return self.schedule in SPLIT_BACKWARD

    @cached_property
    def table(self) -> ActionTable:
        """Actions of every rank, in order; a shortened table where microbatches are many."""
        return shortened(self.schedule, self.pp, self.vpp, self.microbatches, any_engine=self.any_engine)

    @cached_property
    def timeline(self) -> Timeline:
        """The compiled action table."""
        return compile_timeline(self.table)

    @cached_property
    def rank_of_stage(self) -> Ints:
        """(S,): the pipeline rank that holds each virtual stage."""
        return rank_of_stage(self.schedule, self.pp, self.vpp)

    @cached_property
    def stage_of(self) -> Ints:
        """(C, R): the virtual stage that is each chunk of each rank."""
        return stages_of_rank(self.schedule, self.pp, self.vpp).T

    def cost(self, name: str) -> float:
        """One column that is the same for the whole pipeline."""
        return float(getattr(self.costs, name)[0])

    def by_rank(self, name: str) -> Array:
        """(R,) or (R, P): one column on each rank."""
        if name not in self._by_rank:
            column: Array = getattr(self.costs, name)
            self._by_rank[name] = np.broadcast_to(column, (self.pp, *column.shape[1:]))
        return self._by_rank[name]

    def by_stage(self, name: str) -> Array:
        """(S,) or (S, P): one column on each virtual stage."""
        if name not in self._by_stage:
            self._by_stage[name] = self.by_rank(name)[self.rank_of_stage]
        return self._by_stage[name]

    @cached_property
    def _by_rank(self) -> dict[str, Array]:
        """Columns of ranks used so far: every placement reads the same ones."""
        return {}

    @cached_property
    def _by_stage(self) -> dict[str, Array]:
        return {}

    def sum_by_rank(self, value_S: Array) -> Array:
        """(..., S) → (..., R): sum over the chunks of each rank, in their order."""
        if value_S.ndim == 1:
            return np.bincount(self.rank_of_stage, weights=value_S, minlength=self.pp).astype(np.float64)
        return sum((value_S[..., chunk_R] for chunk_R in self.stage_of), start=np.zeros(self.pp))

    def forward(self, blocks_SP: Ints) -> Array:
        """(..., S): seconds of one forward pass."""
        return on_stages(self.by_stage, "forward", blocks_SP, "stage_forward")

    def backward(self, blocks_SP: Ints) -> Array:
        """(..., S): seconds of one whole backward pass with what it recomputes."""
        return on_stages(self.by_stage, "backward", blocks_SP, "stage_backward")

    def halves(self, blocks_SP: Ints) -> tuple[Array, Array]:
        """(..., S) seconds of a backward pass and zero, or of its two halves where the schedule splits it."""
        return self._halves(self.by_stage, self.backward(blocks_SP), blocks_SP)

    def _halves(self, column: Column, backward_S: Array, blocks_SP: Ints) -> tuple[Array, Array]:
        if not self.splits_backward:
            return backward_S, np.zeros(self.num_stages)
        weight_S = on_stages(column, "weight", blocks_SP)
        return backward_halves(backward_S, weight_S, column("stage_backward"), column("stage_weight"))

    def once_a_step(self, kind: Literal["sync", "optimizer"], blocks_SP: Ints) -> Array:
        """(..., R): seconds of what every rank does once a step."""
        rank_R: Array = self.sum_by_rank(on_stages(self.by_stage, kind, blocks_SP))
        return rank_R + self.by_rank(f"rank_{kind}")

    def step_seconds(self, blocks_SP: Ints) -> Array:
        """(...,): seconds of a step."""
        return self._step_seconds(self._seconds_of(blocks_SP), self.cost("p2p"), self.overhead)

    def step_of(self, blocks_SP: Ints) -> tuple[float, float, Array]:
        """One placement: seconds of a step, of one if transfers between ranks took no time, and (R,) seconds of it in
        which each rank is busy."""
        seconds, delays = self._seconds_of(blocks_SP), np.array([self.cost("p2p"), 0.0])
        both = np.broadcast_to(self._step_seconds(seconds, delays, self.overhead), delays.shape)
        return float(both[0]), float(both[1]), self._busy(seconds)

    def _seconds_of(self, blocks_SP: Ints) -> tuple[Array, ...]:
        """(..., S) forward passes and halves of backward passes, (..., R) what every rank does once a step."""
        once_R = (self.once_a_step("sync", blocks_SP), self.once_a_step("optimizer", blocks_SP))
        return (self.forward(blocks_SP), *self.halves(blocks_SP), *once_R)

    def _step_seconds(self, seconds: Sequence[Array], delay: Delay, overhead: Delay) -> Array:
        """(...,): seconds of a step from those of `_seconds_of`, each for itself."""
        forward_S, first_S, second_S, sync_R, optimizer_R = seconds
        if self.pp == 1:  # nobody to wait for
            ends_R = self.microbatches * (forward_S + first_S + second_S).sum(axis=-1, keepdims=True)
        else:
            ends_R = self.timeline.rank_ends(forward_S, first_S, delay, second_S)
        step: Array = (ends_R + sync_R).max(axis=-1) + optimizer_R.max(axis=-1) + overhead
        return step

    def step_seconds_under(self, costs: StageCosts, blocks_SP: Ints) -> Array:
        """(K, ...): seconds of a step at K prices, (K,) rows of costs that are the same on all ranks."""
        batch, count = blocks_SP.ndim - 2, len(costs)

        def each(name: str) -> Array:
            """(K, ..., 1) or (K, ..., 1, P): one column, to go with stages or ranks of any batch of placements."""
            column: Array = getattr(costs, name)
            return column.reshape(count, *[1] * (batch + 1), *column.shape[1:])

        sync_R, optimizer_R = (
            self.sum_by_rank(on_stages(each, kind, blocks_SP)) + each(f"rank_{kind}")
            for kind in ("sync", "optimizer")
        )
        forward_S, backward_S = (
            on_stages(each, kind, blocks_SP) + each(f"stage_{kind}") for kind in ("forward", "backward")
        )
        seconds = forward_S, *self._halves(each, backward_S, blocks_SP), sync_R, optimizer_R
        return self._step_seconds(seconds, each("p2p")[..., 0], each("step_overhead")[..., 0])

    def rank_seconds(self, blocks_SP: Ints) -> Array:
        """(..., R): seconds of a step in which each rank is busy."""
        return self._busy(self._seconds_of(blocks_SP))

    def _busy(self, seconds: Sequence[Array]) -> Array:
        forward_S, first_S, second_S, sync_R, optimizer_R = seconds
        busy_R: Array = self.microbatches * self.sum_by_rank(forward_S + first_S + second_S)
        return busy_R + sync_R + optimizer_R

    @cached_property
    def overhead(self) -> float:
        """Fixed seconds of a step: the slowest rank's."""
        return float(self.costs.step_overhead.max())

    @cached_property
    def memory(self) -> RankMemory:
        """Memory model of the ranks."""
        return RankMemory(columns_of(self.costs), self.table)

    def rank_bytes(self, blocks_SP: Ints) -> Array:
        """(..., R): the peak of each rank, in training or in the optimizer step."""
        return self.memory.peaks(blocks_SP)


def on_stages(column: Column, kind: str, blocks_SP: Ints, stage: str | None = None) -> Array:
    """(..., S): an affine coefficient of every stage with its blocks."""
    layer, last = column(f"layer_{kind}"), column(f"head_{kind}")
    each_SP = layer if layer.ndim > last.ndim else layer[..., None]
    values: Array = (0.0 if stage is None else column(stage)) + (blocks_SP * each_SP).sum(axis=-1)
    if kind != "weight":  # embeddings have none to split off
        values[..., 0] += column(f"embedding_{kind}")[..., 0]
    values[..., -1] += last[..., -1]
    return values
