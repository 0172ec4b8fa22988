"""Leaves of the search: one layout whose blocks are not yet placed on virtual stages and recompute policies.

`Leaf` is a pipeline (`cost_models.pipeline`), which prices placements, with the choices open to a search. If
the question has a risk, `WeighedLeaf` has bounds at mean costs and prices placements in every scenario.

Shape legend: `...` any batch of placements, S virtual stages, R ranks, P recompute policies, L blocks in all,
K scenarios. A placement is a table (S, P) of blocks of each stage under each policy; with several kinds of
blocks (S, K·P).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, ClassVar, Literal

import numpy as np

from cost_models.arrays import Array, Bools, Ints
from cost_models.axes.layout import Layout
from cost_models.axes.stages import mixes_of
from cost_models.pipeline.pipeline import Pipeline
from cost_models.pipeline.stage_costs import COLUMNS, StageCosts
from cost_models.risk import Risk, weigh, weighed_mask
from cost_models.schedules.registry import PLAIN
from cost_models.schedules.timeline import CriticalPath
from cost_models.specs.choices import RECOMPUTE_POLICIES, Schedule
from cost_models.specs.kinds import Kinds

TOLERANCE = 1e-9
"""Relative difference below which two step times count as equal, as sums of a million durations have rounding
errors."""


def gap_of(seconds: float, bound: float) -> float:
    """Gap between a step time and its lower bound, as a share of the step time; 0 if within rounding
    errors."""
    gap = (seconds - bound) / seconds
    return gap if gap > TOLERANCE else 0.0


def stage_sizes(layers: int, pp: int, vpp: int, schedule: Schedule, rank_minimum: int = 0) -> tuple[int, int]:
    """Minimum and maximum number of blocks of a virtual stage in placements that the search tries, if every
    rank has at least `rank_minimum` blocks."""
    if pp == 1:
        return layers, layers
    if schedule in PLAIN:
        least_blocks = max(1, rank_minimum)
        return least_blocks, layers - (pp - 1) * least_blocks
    return layers // (pp * vpp), -(-layers // (pp * vpp))


@dataclass(frozen=True, slots=True)
class Placement:
    """Assignment of transformer blocks to pipeline stages and recompute policies: the number of blocks for
    each pair."""

    blocks: tuple[tuple[int, ...], ...]
    """Number of blocks on each virtual stage under each recompute policy, (S, P)."""

    @classmethod
    def of(cls, blocks_SP: Ints) -> Placement:
        """Placement from an array (S, P) of the number of blocks on each stage under each policy."""
        return cls(tuple(tuple(stage) for stage in blocks_SP.tolist()))

    @property
    def table(self) -> Ints:
        """Number of blocks on each stage under each policy as an array, (S, P)."""
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
        """Copy of the layout with the numbers of blocks and recompute settings of the placement."""
        placed_layout = layout.model_copy(update={"layers": self.layers, "recompute": self.recompute})
        return Layout(**placed_layout.model_dump())


@dataclass(frozen=True, kw_only=True)
class Leaf(Pipeline):
    """Placement problem of one layout: costs in seconds and bytes, and choices of where blocks go; block
    costs are by kind and policy."""

    has_replicas: ClassVar[bool] = False
    """Whether the layout has complete replicas of the model in different pools of GPUs, each with its own
    number of microbatches."""
    kinds: Kinds
    """Kind of every transformer block, such as dense or mixture-of-experts."""
    allowed: Bools
    """Mask of the recompute policies that blocks may use, (P,)."""
    recompute: tuple[str, ...] | None = None
    """Recompute setting of each virtual stage if the user gave it; None: the search chooses."""
    uses_full_counts: bool = False
    """Whether the recompute setting is one number n for all virtual stages: the first n blocks of each are
    recomputed in full, the others not at all."""
    full_count: int | None = None
    """Number of first blocks of every stage recomputed in full; None: not fixed."""
    least_blocks: int = 0
    """Minimum number of blocks on every rank: as many as the layout offloads."""
    mean_costs: StageCosts | None = None
    """Costs of the mean block and of each kind of block, from which bounds are computed; None if all blocks
    are of one kind."""

    @property
    def num_layers(self) -> int:
        """Number of blocks of the model, L."""
        return len(self.kinds.of_block)

    @cached_property
    def key(self) -> bytes:
        """Bytes of all costs and settings that decide the best placement. Layouts with equal keys differ only
        in name."""
        names = ["schedule", "pp", "vpp", "microbatches", "recompute"]
        names += ["uses_full_counts", "full_count", "least_blocks"]
        shape = repr([getattr(self, name) for name in names]).encode()
        columns = (getattr(self.costs, name) for name in COLUMNS)
        return shape + b"".join(np.ascontiguousarray(column).tobytes() for column in columns)

    @property
    def is_plain(self) -> bool:
        """Whether the search tries every number of blocks on every stage, as with 1F1B and GPipe."""
        return self.schedule in PLAIN and not self.has_replicas

    @cached_property
    def sizes(self) -> range:
        """Range of the numbers of blocks that the search tries on a virtual stage."""
        low, high = stage_sizes(self.num_layers, self.pp, self.vpp, self.schedule, self.least_blocks)
        return range(low, high + 1)

    @property
    def no_blocks(self) -> Ints:
        """Placement without any blocks, (S, P) zeros, for the costs of stages apart from blocks."""
        return np.zeros((self.num_stages, self.kinds.number * len(self.allowed)), dtype=np.int64)

    def choice_indices(self, layers_KR: Ints) -> Ints:
        """Index of each rank's blocks in tables of every block count and class of start positions, (..., R),
        for one stage a rank. The index is blocks times `Kinds.classes` plus the class of positions where they
        begin."""
        return self.choice_index(np.cumsum(layers_KR, axis=-1) - layers_KR, layers_KR)

    def choice_index(self, blocks_before: Ints, blocks: Ints) -> Ints:
        """Index, in tables of every block count and class of start positions, of `blocks` blocks on a rank
        after `blocks_before` blocks on earlier ranks."""
        return blocks * self.kinds.classes + self.kinds.class_at[np.minimum(blocks_before, self.num_layers)]

    def busy_seconds(self, blocks_SP: Ints) -> Array:
        """Lower bound of the step time of placements, seconds (...,), from the work of the busiest rank
        between its first and its last microbatch."""
        forward_S, backward_S = self.forward(blocks_SP), self.backward(blocks_SP)
        stage_S = forward_S + backward_S
        # weight halves of a split backward pass may run while the last microbatch goes up
        passes_S, crossings = (forward_S, 1) if self.splits_backward else (stage_S, 2)
        first_R = passes_S[..., : self.pp] + crossings * self.cost("p2p")
        way_R = np.cumsum(first_R, axis=-1) - first_R
        busy_R = way_R + self.microbatches * self.sum_by_rank(stage_S)
        sync_R = self.once_a_step("sync", blocks_SP)
        last = (busy_R + (sync_R if self.splits_backward else sync_R[..., :1])).max(axis=-1)
        total: Array = last + self.once_a_step("optimizer", blocks_SP).max(axis=-1) + self.overhead
        return total

    def critical_path(self, blocks_SP: Ints) -> CriticalPath:
        """Critical path through the timeline of one placement, with the seconds after the last backward pass
        of the rank where the path ends."""
        first_S, second_S = self.halves(blocks_SP)
        forward_S, sync_R = self.forward(blocks_SP), self.once_a_step("sync", blocks_SP)
        return self.timeline.critical_path(forward_S, first_S, self.cost("p2p"), sync_R, second_S)

    def backward_durations(self, blocks_SP: Ints) -> Array:
        """Seconds of one backward pass on each virtual stage, (..., S), which differ between placements with
        equal stage sizes."""
        return self.backward(blocks_SP)

    @property
    def memory_limit(self) -> Array:
        """Maximum bytes of device memory that each rank may use, (R,)."""
        return self.by_rank("memory_limit")

    def fits(self, blocks_SP: Ints) -> Bools:
        """For each placement, whether every rank stays within its memory limit, (...,)."""
        within_R: Bools = self.rank_bytes(blocks_SP) <= self.memory_limit
        return np.asarray(within_R.all(axis=-1))

    def price(self, placement: Placement) -> float:
        """Step time of one placement of the layout, in seconds."""
        return float(self.step_seconds(placement.table))


def priced(costs: StageCosts, kinds: Kinds) -> dict[str, Any]:
    """Keyword arguments of `Leaf` that hold the given costs: `costs`, `mean_costs` and `kinds`."""
    return {"costs": costs.in_sorts, "mean_costs": costs if costs.kinds else None, "kinds": kinds}


@dataclass(frozen=True, slots=True)
class Task:
    """Layout whose blocks are to be placed, with its best known placement, critical paths and limits on
    effort."""

    leaf: Leaf
    """Placement problem of the layout."""
    incumbent: tuple[Placement, float] | None = None
    """Best placement known, and its step seconds; None if none is known."""
    cut_off: float = math.inf
    """Step seconds below which a placement is of interest."""
    met_paths: Sequence[CriticalPath] = ()
    """Critical paths of other layouts with the same schedule, pp, vpp and microbatches."""
    deadline: float = math.inf
    """Time of `time.monotonic()`, in seconds, at which the work stops."""
    most_rounds: int | None = None
    """Maximum number of rounds of label setting, each with timelines of candidates; None without a deadline:
    until the answer is proven."""


Status = Literal["optimal", "cut off", "infeasible", "stopped"]


@dataclass(frozen=True, slots=True)
class Solution:
    """Best known placement of one layout, with its proof or lower bound.

    `optimal`: `placement` is proven best. `cut off`: proven that nothing beats the cut-off. `infeasible`: proven that
    nothing fits. `stopped`: out of time, `bound` holds all the same.
    """

    status: Status
    placement: Placement | None
    """Best placement known; None if none is."""
    objective: float
    """Exact step seconds of the placement; infinite without a placement."""
    bound: float
    """Lower bound over all placements, seconds."""
    rounds: int
    """Number of label passes, or of solver calls."""
    paths: tuple[CriticalPath, ...] = ()
    """Critical paths of evaluated placements, which are lower bounds for any layout with the same schedule,
    ranks and microbatches."""


def proven(seconds: float, cut_off: float) -> Status:
    """Status of a layout ("optimal", "infeasible" or "cut off") once no placement beats both its best
    placement and the cut-off, both in seconds."""
    if math.isfinite(seconds) and seconds <= cut_off * (1 + TOLERANCE):
        return "optimal"
    return "infeasible" if math.isinf(cut_off) else "cut off"


ScenarioPaths = tuple[tuple[int, CriticalPath, int], ...]
"""Critical paths in several hardware scenarios: index of the scenario, path, and rank with the longest
optimizer step there. The mean of their lengths plus optimizer and overhead is a lower bound of every
risk-weighed step."""


@dataclass(frozen=True, kw_only=True)
class WeighedLeaf(Leaf):
    """Placement problem of one layout with costs in every hardware scenario, combined by the risk preference.
    `costs` (`cost_models.pipeline.pricing`) yield lower bounds for every placement."""

    scenarios: StageCosts
    """Costs in each of K hardware scenarios; only seconds differ."""
    risk: Risk
    """Risk preference by which the step times of scenarios are combined."""

    @classmethod
    def of(cls, leaf: Leaf, scenarios: StageCosts, risk: Risk) -> WeighedLeaf:
        """Weighed leaf from a leaf at mean costs, and the costs in every scenario."""
        return cls(**leaf_fields(leaf), scenarios=scenarios.in_sorts, risk=risk)

    @cached_property
    def scenario_leaves(self) -> tuple[Leaf, ...]:
        """One placement problem (leaf) for each of the K scenarios, with its costs; bytes do not differ
        between scenarios."""
        each = [self.scenarios.rows(slice(at, at + 1)) for at in range(len(self.scenarios))]
        return tuple(Leaf(**leaf_fields(self) | {"costs": costs}) for costs in each)

    @cached_property
    def key(self) -> bytes:
        columns = (getattr(self.scenarios, name) for name in COLUMNS)
        return super().key + b"".join(np.ascontiguousarray(column).tobytes() for column in columns)

    def step_seconds(self, blocks_SP: Ints) -> Array:
        """Step seconds of placements, combined over all scenarios by the risk preference, (...,)."""
        return weigh(self._steps(blocks_SP), self.risk)

    def backward_durations(self, blocks_SP: Ints) -> Array:
        """Seconds of one backward pass on each virtual stage in every scenario, (..., K·S)."""
        return np.concatenate([leaf.backward(blocks_SP) for leaf in self.scenario_leaves], axis=-1)

    def bounding_path(self, blocks_SP: Ints) -> ScenarioPaths:
        """Critical paths of one placement, one for each scenario with weight in the combined step time."""
        decisive = np.flatnonzero(weighed_mask(self._steps(blocks_SP), self.risk)).tolist()
        leaves = [(at, self.scenario_leaves[at]) for at in decisive]
        return tuple(
            (at, leaf.critical_path(blocks_SP), int(leaf.once_a_step("optimizer", blocks_SP).argmax()))
            for at, leaf in leaves
        )

    def _steps(self, blocks_SP: Ints) -> Array:
        """Step seconds of placements in every scenario, (K, ...)."""
        return self.step_seconds_by_scenario(self.scenarios, blocks_SP)


def leaf_fields(leaf: Leaf) -> dict[str, Any]:
    """Fields of a leaf by name, to construct leaves of a subclass."""
    return {field.name: getattr(leaf, field.name) for field in fields(Leaf)}
