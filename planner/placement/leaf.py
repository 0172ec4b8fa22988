"""One layout's open question: how many blocks on each virtual stage, and how many of them under each recompute policy.

`Leaf` is a pipeline (`cost_models.pipeline`), which prices placements, with what a search may choose on it.

Shape legend: `...` any batch of placements, S virtual stages, R ranks, P recompute policies, L blocks in all. A
placement is its blocks (S, P): so many of each stage under each policy, or of several kinds (S, K·P): of each sort.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np

from cost_models import schedules
from cost_models.arrays import Array, Bools, Ints
from cost_models.axes.layout import Layout
from cost_models.axes.recompute import mixes_of
from cost_models.pipeline.pipeline import Pipeline
from cost_models.pipeline.stage_costs import COLUMNS, StageCosts
from cost_models.schedules import CriticalPath
from cost_models.specs.choices import RECOMPUTE_POLICIES, Schedule
from cost_models.specs.model.kinds import Kinds

TOLERANCE = 1e-9
"""Relative: two step times closer than this are the same, as rounding in sums of a million durations allows."""


def gap_of(seconds: float, bound: float) -> float:
    """Share of a step that could still be gained; no larger than rounding it is 0."""
    gap = (seconds - bound) / seconds
    return gap if gap > TOLERANCE else 0.0


def stage_sizes(num_layers: int, pp: int, vpp: int, schedule: Schedule, fewest: int = 0) -> tuple[int, int]:
    """The fewest and the most blocks of one virtual stage that the search covers, where every rank has so many at
    least; `planner.placement.chunks` says which of them go together where a schedule is not plain."""
    if pp == 1:
        return num_layers, num_layers
    if schedule in schedules.PLAIN:
        least = max(1, fewest)
        return least, num_layers - (pp - 1) * least
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
        """The mix of each virtual stage, as layouts write it."""
        return mixes_of(self.table.reshape(len(self.blocks), -1, len(RECOMPUTE_POLICIES)).sum(axis=1))

    def on(self, layout: Layout) -> Layout:
        """A layout with its blocks placed so."""
        placed = layout.model_copy(update={"layers": self.layers, "recompute": self.recompute})
        return Layout(**placed.model_dump())


@dataclass(frozen=True, kw_only=True)
class Leaf(Pipeline):
    """One layout before placement; seconds and bytes, of blocks by sort."""

    num_layers: int
    allowed: Bools
    """(P,): the policies the blocks may use."""
    recompute: tuple[str, ...] | None = None
    """The mix of each virtual stage where it is given, not chosen."""
    counted: bool = False
    """Whether one number says how many first blocks of every virtual stage are recomputed in full; the others are
    not."""
    number: int | None = None
    """That number, where it is given."""
    fewest: int = 0
    """Blocks that every rank has at least: those that its layout offloads by number."""
    kinds: Kinds | None = None
    """Which block is of which kind, where there are several."""
    mean: StageCosts | None = None
    """Where there are several kinds, the costs of the mean block and of each kind, which bounds read."""

    @cached_property
    def key(self) -> bytes:
        """What its placement depends on: equal for leaves that are the same but in name."""
        pipeline = (self.schedule, self.pp, self.vpp, self.microbatches)
        shape = repr((*pipeline, self.recompute, self.counted, self.number, self.fewest)).encode()
        columns = (getattr(self.costs, name) for name in COLUMNS)
        return shape + b"".join(np.ascontiguousarray(column).tobytes() for column in columns)

    @property
    def is_plain(self) -> bool:
        """Whether every number of blocks on every stage is covered."""
        return self.schedule in schedules.PLAIN

    @property
    def steady(self) -> str | None:
        """Which paths run through a plain pipeline: see `PipelineSchedule.steady`."""
        return schedules.schedule_named(self.schedule).steady

    @cached_property
    def sizes(self) -> range:
        """Blocks one virtual stage may hold."""
        low, high = stage_sizes(self.num_layers, self.pp, self.vpp, self.schedule, self.fewest)
        return range(low, high + 1)

    @property
    def no_blocks(self) -> Ints:
        """(S, P) zeros: for what a stage costs without blocks."""
        kinds = self.kinds.number if self.kinds else 1
        return np.zeros((self.num_stages, kinds * len(self.allowed)), dtype=np.int64)

    def in_sorts(self, blocks_SP: Ints, start: Ints | None = None) -> Ints:
        """(..., S, K·P): see `Kinds.in_sorts`."""
        return self.kinds.in_sorts(blocks_SP, start) if self.kinds else blocks_SP

    @property
    def classes(self) -> int:
        """Classes of positions where a stage may begin: see `Kinds.class_at`."""
        return self.kinds.classes if self.kinds else 1

    def numbered(self, layers_KR: Ints) -> Ints:
        """(..., R): the choice of each rank, one stage each: blocks times `classes`, and the class where they begin."""
        return self.number_of(np.cumsum(layers_KR, axis=-1) - layers_KR, layers_KR)

    def number_of(self, before: Ints, blocks: Ints) -> Ints:
        """The choice of so many blocks behind others."""
        if self.kinds is None:
            return blocks
        number: Ints = blocks * self.classes + self.kinds.class_at[np.minimum(before, self.num_layers)]
        return number

    def busy_seconds(self, blocks_SP: Ints) -> Array:
        """(...,): a lower bound: some rank does all its work between its first and its last microbatch's way."""
        forward_S, backward_S = self.forward(blocks_SP), self.backward(blocks_SP)
        stage_S = forward_S + backward_S
        if self.splits_backward:  # weight halves may run while the last microbatch goes up
            first_R = forward_S[..., : self.pp] + self.cost("p2p")
        else:
            first_R = stage_S[..., : self.pp] + 2 * self.cost("p2p")
        way_R = np.cumsum(first_R, axis=-1) - first_R
        busy_R = way_R + self.microbatches * self.sum_by_rank(stage_S)
        sync_R = self.once_a_step("sync", blocks_SP)
        ends_on_first = not self.splits_backward
        last = (busy_R + (sync_R[..., :1] if ends_on_first else sync_R)).max(axis=-1)
        total: Array = last + self.once_a_step("optimizer", blocks_SP).max(axis=-1) + self.overhead
        return total

    def critical_path(self, blocks_SP: Ints) -> schedules.CriticalPath:
        """The path, with the tail of its rank, that decides the step time of one placement."""
        first_S, second_S = self.halves(blocks_SP)
        return self.timeline.critical_path(
            self.forward(blocks_SP),
            first_S,
            self.cost("p2p"),
            self.once_a_step("sync", blocks_SP),
            second_S,
        )

    def backward_of_each(self, blocks_SP: Ints) -> Array:
        """(..., S): seconds of one whole backward pass, by which placements of the same sizes are compared."""
        return self.backward(blocks_SP)

    @property
    def memory_limit(self) -> Array:
        """(R,): bytes a rank may use."""
        return self.by_rank("memory_limit")

    def fits(self, blocks_SP: Ints) -> Bools:
        """(...,): every rank stays within its limit."""
        within_R: Bools = self.rank_bytes(blocks_SP) <= self.memory_limit
        return np.asarray(within_R.all(axis=-1))

    def price(self, placement: Placement) -> float:
        """Step time of one placement, seconds."""
        return float(self.step_seconds(placement.table))


def priced(costs: StageCosts, kinds: Kinds) -> dict[str, Any]:
    """The fields of a leaf with such costs."""
    if not costs.kinds:
        return {"costs": costs}
    return {"costs": costs.in_sorts, "mean": costs, "kinds": kinds}


Status = Literal["optimal", "cut off", "infeasible", "stopped"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
    """The answer for one layout.

    `optimal`: `placement` is best and proven so. `cut off`: proven that nothing beats the cut-off that was asked for.
    `infeasible`: proven that nothing fits. `stopped`: out of time, `bound` holds all the same.
    """

    status: Status
    placement: Placement | None
    """The best one known; None where none is."""
    objective: float
    """Its exact step time, seconds; infinite without a placement."""
    bound: float
    """No placement takes less, seconds."""
    rounds: int
    """Label passes, or calls of the solver."""
    paths: tuple[CriticalPath, ...] = ()
    """Critical paths met on the way: lower bounds for any layout with the same schedule, ranks and microbatches."""

    @property
    def gap(self) -> float:
        """(objective − bound) / objective; 0 is proof, 1 without a placement."""
        if self.placement is None:
            return 1.0
        return max(0.0, 1.0 - self.bound / self.objective)


def proven(seconds: float, cut_off: float) -> Status:
    """What it says of a layout that nothing beats both its best placement and the cut-off."""
    if math.isfinite(seconds) and seconds <= cut_off * (1 + TOLERANCE):
        return "optimal"
    return "infeasible" if math.isinf(cut_off) else "cut off"
