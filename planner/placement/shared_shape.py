"""Arrays from which lower bounds are computed: layouts that share the shape of their pipeline.

Shape legend: N layouts of one (pp, vpp, schedule), R ranks, C chunks of a rank, P policies.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import numpy as np

from cost_models.arrays import Array, Bools, Ints
from cost_models.pipeline.stage_costs import StageCosts
from cost_models.schedules.registry import PLAIN, SPLIT_BACKWARD, V_SHAPED, schedule_named
from cost_models.schedules.schedule import PipelineSchedule
from cost_models.specs.choices import Schedule
from cost_models.specs.model.kinds import Kinds
from planner.placement.leaf import TOLERANCE, Leaf, stage_sizes


@dataclass(frozen=True, kw_only=True)
class PricedRows:
    """Costs of layouts of one schedule: base of `Group`, `ChunkRows` and `RankGroup`, which differ in shape."""

    costs: StageCosts
    """N rows, or N · R with the ranks of a layout side by side."""
    schedule: Schedule
    microbatches: Ints
    """(N,)"""
    num_layers: int
    allowed: Bools
    """(P,)"""
    kinds: Kinds | None = None
    """Kinds of blocks; None for a single kind."""

    def __len__(self) -> int:
        return len(self.microbatches)

    @property
    def schedule_facts(self) -> PipelineSchedule:
        """Properties of the schedule."""
        return schedule_named(self.schedule)

    @property
    def is_plain(self) -> bool:
        """Whether every number of blocks on every stage is covered."""
        return self.schedule in PLAIN

    @property
    def splits_backward(self) -> bool:
        """Whether weight halves of backward passes run at other times than input halves."""
        return self.schedule in SPLIT_BACKWARD

    @property
    def is_v_shaped(self) -> bool:
        """Whether the first rank has the last stage too."""
        return self.schedule in V_SHAPED

    @cached_property
    def lightest_costs(self) -> StageCosts:
        """Costs if every block cost the least of any kind, which bounds each single block."""
        return self.costs.lightest

    @cached_property
    def of_kinds(self) -> tuple[Self, ...]:
        """Rows with only the blocks of one kind, for each kind."""
        if self.kinds is None:
            return (self,)
        costs_and_counts = zip(self.costs.each_kind, self.kinds.counts, strict=True)
        return tuple(
            replace(self, costs=costs, num_layers=count, kinds=None) for costs, count in costs_and_counts
        )

    def fullest_rank_value(self, pp: Ints | int, value_of: Callable[[Self], Array]) -> Array:
        """Minimum total of `value_of` over the blocks of the fullest rank, (N,): an even share of the blocks of any
        kind, or of all blocks."""
        value_of_kinds = [(kind.num_layers, value_of(kind)) for kind in self.of_kinds]
        shares = [-(-blocks // pp) * value for blocks, value in value_of_kinds]
        if len(value_of_kinds) > 1:
            shares.append(np.sum([blocks / pp * value for blocks, value in value_of_kinds], axis=0))
        largest: Array = np.max(shares, axis=0)
        return largest

    @cached_property
    def block_seconds(self) -> Array:
        """Seconds of forward plus backward of one block, (N, P) or (N · R, P); infinite under policies that are not
        allowed."""
        seconds = self.lightest_costs.layer_forward[:, None] + self.lightest_costs.layer_backward
        return np.where(self.allowed, seconds, np.inf)

    @cached_property
    def least_block_seconds(self) -> Array:
        """Seconds of one block under the fastest policy, (N,) or (N · R,)."""
        fastest: Array = self.block_seconds.min(axis=1)
        return fastest


@dataclass(frozen=True, kw_only=True)
class Group(PricedRows):
    """Rows of one pipeline shape."""

    pp: int
    vpp: int
    most_blocks: int | None = None
    """Maximum blocks of one virtual stage, if fewer than the search covers."""
    uses_full_counts: bool = False
    """See `Leaf.uses_full_counts`."""

    def rows(self, index: Ints | slice) -> Group:
        """Selected layouts."""
        return replace(self, costs=self.costs.rows(index), microbatches=self.microbatches[index])

    def limited_to(self, seconds: float) -> Group:
        """Group with only those numbers of blocks that a rank can pass m times in `seconds` (one chunk a rank)."""
        if np.isinf(seconds):
            return self
        held_N = seconds / (self.microbatches * self.least_block_seconds)
        return replace(self, most_blocks=max(int(self.sizes[0]), int(held_N.max()) + 1))

    @property
    def last_rank(self) -> int:
        """Rank of the last stage: in a V the first."""
        return 0 if self.is_v_shaped else self.pp - 1

    @cached_property
    def sizes(self) -> Ints:
        """Numbers of blocks that a virtual stage may hold, (B,)."""
        low, high = stage_sizes(self.num_layers, self.pp, self.vpp, self.schedule)
        return np.arange(low, high + 1 if self.most_blocks is None else min(high, self.most_blocks) + 1)

    @cached_property
    def fixed_seconds(self) -> Array:
        """Minimum seconds of forward plus backward of one microbatch on each rank without blocks, (N, R)."""
        x = self.costs
        fixed_NR = np.repeat(self.vpp * (x.stage_forward + x.stage_backward)[:, None], self.pp, axis=1)
        fixed_NR[:, 0] += x.embedding_forward + x.embedding_backward
        fixed_NR[:, self.last_rank] += x.head_forward + x.head_backward
        return fixed_NR

    @cached_property
    def cycle_delay(self) -> Array:
        """Seconds of one microbatch's transfers down the virtual stages and up again, (N,)."""
        return 2 * (self.pp * self.vpp - 1) * self.costs.p2p * (self.pp > 1)

    def tail(self, blocks_N: Array | int) -> Array:
        """Minimum seconds after the last backward pass, (N,), if rank 0 holds at least `blocks_N` blocks.

        The synchronisation of rank 0, where all paths end, or of any where they do not, and the optimizer step of the
        fullest rank.
        """
        x = self.lightest_costs
        sync = x.rank_sync + blocks_N * x.layer_sync + (0.0 if self.splits_backward else x.embedding_sync)
        optimizer = x.rank_optimizer + self.fullest_rank_value(
            self.pp, lambda kind: kind.costs.layer_optimizer
        )
        if self.pp == 1:
            sync, optimizer = sync + x.head_sync, optimizer + x.embedding_optimizer + x.head_optimizer
        return sync + optimizer + x.step_overhead

    @cached_property
    def least_tail(self) -> Array:
        """`tail` with as few blocks on rank 0 as the search covers, seconds (N,)."""
        return self.tail(int(self.sizes[0]) * self.vpp)

    @cached_property
    def live(self) -> Array:
        """Live microbatches of each chunk at one moment of the schedule, (N, R, C); the peak where a rank has one
        chunk."""
        m_N11, rank_R1 = self.microbatches[:, None, None], np.arange(self.pp)[:, None]
        live_NRC = self.schedule_facts.live_of_chunk(self.pp, self.vpp, m_N11, rank_R1, np.arange(self.vpp))
        return live_NRC.astype(np.float64)

    @cached_property
    def free_bytes(self) -> Array:
        """Bytes left for blocks and their temporary sets during training, (N, R)."""
        x = self.costs
        free_NR = np.repeat((x.memory_limit - x.static)[:, None], self.pp, axis=1)
        free_NR[:, 0] -= x.embedding_static + self.live[:, 0, 0] * x.embedding_activation
        last = self.last_rank
        free_NR[:, last] -= x.head_static + self.live[:, last, -1] * x.head_activation
        return free_NR

    @cached_property
    def working(self) -> Array:
        """Largest temporary set of a rank whose chunks follow one policy, bytes (N, R, P); with the loss on the last
        rank."""
        x = self.lightest_costs
        working_NRP = np.repeat(x.working[:, None, :], self.pp, axis=1)
        last = self.last_rank
        working_NRP[:, last] = np.maximum(working_NRP[:, last], x.head_moment[:, None])
        return working_NRP

    @cached_property
    def update_bytes(self) -> Array:
        """Bytes left for blocks during the optimizer step, (N, R)."""
        x = self.costs
        free_NR = np.repeat((x.memory_limit - x.static - x.rank_update)[:, None], self.pp, axis=1)
        free_NR[:, 0] -= x.embedding_static + x.embedding_update
        free_NR[:, self.last_rank] -= x.head_static + x.head_update
        return free_NR

    @cached_property
    def updatable(self) -> Array:
        """Number of blocks whose optimizer step fits in memory, (N, R)."""
        return count_fitting(
            self.update_bytes, (self.lightest_costs.layer_static + self.lightest_costs.layer_update)[:, None]
        )


def group_of(leaf: Leaf) -> Group:
    """Group of a single leaf with one row of costs."""
    return Group(
        costs=leaf.mean_costs or leaf.costs,
        kinds=leaf.kinds,
        pp=leaf.pp,
        vpp=leaf.vpp,
        schedule=leaf.schedule,
        microbatches=np.array([leaf.microbatches]),
        num_layers=leaf.num_layers,
        allowed=leaf.allowed,
        uses_full_counts=leaf.uses_full_counts,
    )


def count_fitting(available: Array, size: Array) -> Array:
    """Number of times that `size` goes into `available`, rounded up where rounding errors could hide one."""
    with np.errstate(divide="ignore", invalid="ignore"):
        count = np.floor(available / size * (1 + np.copysign(TOLERANCE, available)))
    return np.where(size > 0, count, np.where(available >= 0, np.inf, -1.0))
