"""Placement problem of the search: one layout (`Leaf`) whose blocks are not yet placed on virtual stages and
recompute policies.

`Leaf` is a pipeline (`cost_models.pipeline`), which prices placements, with the choices open to a search. If
the question has a risk, its costs are means that bound every placement, and it prices placements in every scenario.

Shape legend: `...` any batch of placements, S virtual stages, R ranks, P recompute policies, L blocks in all,
K scenarios. A placement is a table (S, P) of blocks of each stage under each policy; with several kinds of
blocks (S, K·P).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Literal

import numpy as np

from cost_models.arrays import Array, Bools, Ints
from cost_models.axes.layout import Layout
from cost_models.axes.stages import mixes_of
from cost_models.pipeline.pipeline import Pipeline
from cost_models.pipeline.stage_costs import COLUMNS, StageCosts
from cost_models.risk import Risk, weigh
from cost_models.schedules.registry import PLAIN
from cost_models.schedules.timeline import CriticalPath
from cost_models.specs.choices import RECOMPUTE_POLICIES, Schedule
from cost_models.specs.kinds import Kinds

TOLERANCE = 1e-9
"""Relative difference below which two step times count as equal, as rounding in sums of a million durations
allows."""


def gap_of(seconds: float, bound: float) -> float:
    """Relative gap between a step time and its lower bound, as a share of the step time; 0 if within
    rounding."""
    gap = (seconds - bound) / seconds
    return gap if gap > TOLERANCE else 0.0


def stage_sizes(layers: int, pp: int, vpp: int, schedule: Schedule, rank_minimum: int = 0) -> tuple[int, int]:
    """Smallest and largest number of blocks that the search gives a virtual stage, if every rank has at least
    `rank_minimum` blocks. `planner.placement.patterns` says which sizes go together where a schedule is not
    plain."""
    if pp == 1:
        return layers, layers
    if schedule in PLAIN:
        least_blocks = max(1, rank_minimum)
        return least_blocks, layers - (pp - 1) * least_blocks
    return layers // (pp * vpp), -(-layers // (pp * vpp))


@dataclass(frozen=True, slots=True)
class Placement:
    """Number of transformer blocks on each virtual stage under each recompute policy."""

    blocks: tuple[tuple[int, ...], ...]
    """Number of blocks of each virtual stage under each recompute policy, (S, P)."""

    @classmethod
    def of(cls, blocks_SP: Ints) -> Placement:
        """Create a placement from the number of blocks of each virtual stage under each recompute policy,
        (S, P)."""
        return cls(tuple(tuple(stage) for stage in blocks_SP.tolist()))

    @property
    def table(self) -> Ints:
        """Number of blocks of each virtual stage under each recompute policy as an array, (S, P)."""
        return np.array(self.blocks, dtype=np.int64)

    @property
    def layers(self) -> tuple[int, ...]:
        """Number of blocks on each virtual stage."""
        return tuple(sum(stage) for stage in self.blocks)

    @property
    def recompute(self) -> tuple[str, ...]:
        """Recompute setting of each virtual stage in layout notation, such as `full:2`."""
        return mixes_of(self.table.reshape(len(self.blocks), -1, len(RECOMPUTE_POLICIES)).sum(axis=1))

    def on(self, layout: Layout) -> Layout:
        """Copy of the layout with the blocks and recompute settings of the placement."""
        return Layout(**layout.model_dump() | {"layers": self.layers, "recompute": self.recompute})


@dataclass(frozen=True, kw_only=True)
class Leaf(Pipeline):
    """Placement problem of one layout: the pipeline with its costs by kind of block and recompute policy, and
    the choices of the search."""

    has_replicas: ClassVar[bool] = False
    """Whether whole replicas lie in several pools, each with a share of the microbatches of its own."""
    kinds: Kinds
    """Kind of every block."""
    allowed: Bools
    """Whether the blocks may use each recompute policy, (P,)."""
    recompute: tuple[str, ...] | None = None
    """Mix of recompute policies of each virtual stage, if given; None if the search chooses."""
    uses_full_counts: bool = False
    """Whether every virtual stage recomputes the same number of its first blocks in full, and the others not
    at all."""
    full_count: int | None = None
    """Number of first blocks recomputed in full, if fixed."""
    least_blocks: int = 0
    """Minimum number of blocks of every rank, as the layout offloads this number."""
    mean_costs: StageCosts | None = None
    """Costs of the mean block and of each kind, which bounds read; None for a single kind."""
    scenarios: StageCosts | None = None
    """Costs in each of K scenarios (sets of hardware constants), which differ in seconds only; None without
    scenarios. Then `costs` (`cost_models.pipeline.pricing`) bound every placement."""
    risk: Risk = "none"
    """Risk preference that weighs the step times of the scenarios."""

    @property
    def num_layers(self) -> int:
        """Number of blocks of the model, L."""
        return len(self.kinds.of_block)

    @cached_property
    def key(self) -> bytes:
        """Cache key of everything that decides the best placement, as bytes. Leaves with equal keys differ
        only in name."""
        sizes = (self.schedule, self.pp, self.vpp, self.microbatches, self.least_blocks)
        shape = repr((*sizes, self.recompute, self.uses_full_counts, self.full_count)).encode()
        tables = [costs for costs in (self.costs, self.scenarios) if costs is not None]
        return shape + b"".join(getattr(costs, name).tobytes() for costs in tables for name in COLUMNS)

    @cached_property
    def scenario_leaves(self) -> tuple[Leaf, ...]:
        """Copy of the placement problem for each of K scenarios, with the scenario's costs; the problem
        itself without scenarios."""
        if self.scenarios is None:
            return (self,)
        by_scenario = [self.scenarios.rows(slice(at, at + 1)) for at in range(len(self.scenarios))]
        return tuple(replace(self, costs=costs, scenarios=None) for costs in by_scenario)

    @property
    def is_plain(self) -> bool:
        """Whether the search covers every number of blocks on every stage, as with 1F1B and GPipe."""
        return self.schedule in PLAIN and not self.has_replicas

    @cached_property
    def sizes(self) -> range:
        """Range of the numbers of blocks that a virtual stage may hold."""
        low, high = stage_sizes(self.num_layers, self.pp, self.vpp, self.schedule, self.least_blocks)
        return range(low, high + 1)

    @property
    def no_blocks(self) -> Ints:
        """Placement without any blocks, (S, P) zeros, to price what a stage costs without them."""
        return np.zeros((self.num_stages, self.kinds.number * len(self.allowed)), dtype=np.int64)

    def choice_indices(self, layers_KR: Ints) -> Ints:
        """Row index of each rank's blocks, (..., R), in tables with a row for every pair of block count and
        start position. The index is blocks times `Kinds.classes` plus the class of positions where they
        begin."""
        return self.choice_index(np.cumsum(layers_KR, axis=-1) - layers_KR, layers_KR)

    def choice_index(self, blocks_before: Ints, blocks: Ints) -> Ints:
        """Row index of `blocks` blocks that follow `blocks_before` others, in tables with a row for every
        pair of block count and start position."""
        return blocks * self.kinds.classes + self.kinds.class_at[np.minimum(blocks_before, self.num_layers)]

    def busy_seconds(self, blocks_SP: Ints) -> Array:
        """Lower bound of the step time of placements, seconds (...,), from the busiest rank. Some rank does
        all its work between its first and its last microbatch."""
        forward_S, backward_S = self.forward(blocks_SP), self.backward(blocks_SP)
        stage_S = forward_S + backward_S
        # weight halves of a split backward pass may run while the last microbatch goes up
        passes_S, crossings = (forward_S, 1) if self.splits_backward else (stage_S, 2)
        first_R = passes_S[..., : self.pp] + crossings * self.cost("p2p")
        way_R = np.cumsum(first_R, axis=-1) - first_R
        busy_R = way_R + self.microbatches * self.sum_by_rank(stage_S)
        sync_R = self.once_a_step("sync", blocks_SP)
        last = (busy_R + (sync_R if self.splits_backward else sync_R[..., :1])).max(axis=-1)
        return np.asarray(last + self.once_a_step("optimizer", blocks_SP).max(axis=-1) + self.overhead)

    def critical_path(self, blocks_SP: Ints) -> CriticalPath:
        """Critical path through the timeline of one placement, including gradient synchronisation of the rank
        where the path ends."""
        first_S, second_S = self.halves(blocks_SP)
        forward_S, sync_R = self.forward(blocks_SP), self.once_a_step("sync", blocks_SP)
        return self.timeline.critical_path(forward_S, first_S, self.cost("p2p"), sync_R, second_S)

    def step_seconds(self, blocks_SP: Ints) -> Array:
        """Step seconds of placements, (...,); with scenarios, the mean over those that the risk preference
        counts (all, or the slowest)."""
        if self.scenarios is None:
            return super().step_seconds(blocks_SP)
        return weigh(self.step_seconds_by_scenario(self.scenarios, blocks_SP), self.risk)

    @property
    def memory_limit(self) -> Array:
        """Device memory that each rank may use, bytes (R,)."""
        return self.by_rank("memory_limit")

    def fits(self, blocks_SP: Ints) -> Bools:
        """Whether every rank stays within its memory limit in each placement, (...,)."""
        return np.asarray((self.rank_bytes(blocks_SP) <= self.memory_limit).all(axis=-1))

    def price(self, placement: Placement) -> float:
        """Step time of one placement of the layout, seconds."""
        return float(self.step_seconds(placement.table))


def leaf_arguments(costs: StageCosts, kinds: Kinds) -> dict[str, Any]:
    """Keyword arguments `costs`, `mean_costs` and `kinds` of `Leaf`, from stage costs."""
    return {"costs": costs.in_sorts, "mean_costs": costs if costs.kinds else None, "kinds": kinds}


@dataclass(frozen=True, slots=True)
class Task:
    """Task of placing one layout: the problem, its best known placement, a cut-off and a time limit."""

    leaf: Leaf
    incumbent: tuple[Placement, float] | None = None
    """Best placement so far with its step seconds; None if there is none."""
    cut_off: float = math.inf
    """Step seconds that a placement must beat to be of interest."""
    met_paths: Sequence[CriticalPath] = ()
    """Critical paths of other layouts with the same pipeline."""
    deadline: float = math.inf
    """Time of the monotonic clock at which the work stops, seconds."""
    most_rounds: int | None = None
    """Maximum number of rounds of label setting; None for no limit, so that without a deadline the answer is
    always proven."""


Status = Literal["optimal", "cut off", "infeasible", "stopped"]


@dataclass(frozen=True, slots=True)
class Solution:
    """Best known placement of one layout, with its proof or lower bound.

    `optimal`: `placement` is proven best. `cut off`: proven that nothing beats the cut-off. `infeasible`: proven that
    nothing fits. `stopped`: out of time, `bound` holds all the same.
    """

    status: Status
    placement: Placement | None
    """Best known placement; None without one."""
    objective: float
    """Exact step seconds of the placement; infinite without a placement."""
    bound: float
    """Lower bound over all placements, seconds."""
    rounds: int
    """Number of label passes, or calls of the solver."""
    paths: tuple[CriticalPath, ...] = ()
    """Critical paths of the placements that were tried, lower bounds for any layout with the same schedule,
    ranks and microbatches."""


def final_status(seconds: float, cut_off: float) -> Status:
    """Status of a completed search for a layout's best placement, which found a step of `seconds`: "optimal",
    "infeasible" or "cut off"."""
    if math.isfinite(seconds) and seconds <= cut_off * (1 + TOLERANCE):
        return "optimal"
    return "infeasible" if math.isinf(cut_off) else "cut off"
