"""Layouts that share the shape of their pipeline, as regular arrays: what the lower bounds are computed from.

Shape legend: N layouts of one (pp, vpp, schedule), R ranks, C chunks of a rank, P policies.

Layouts of one schedule that a bound takes together: their costs, and what is the same for all of them.

Shape legend: N layouts, R ranks, P recompute policies.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import numpy as np

from cost_models.arrays import Array, Bools, Ints
from cost_models.pipeline.stage_costs import StageCosts
from cost_models.schedules import PLAIN, SPLIT_BACKWARD, V_SHAPED, PipelineSchedule, schedule_named
from cost_models.specs.choices import Schedule
from cost_models.specs.model.kinds import Kinds
from planner.placement.leaf import TOLERANCE, Leaf, stage_sizes


@dataclass(frozen=True, kw_only=True)
class PricedRows:
    """What `Group`, `ChunkRows` and `RankGroup` have in common; their shapes differ."""

    costs: StageCosts
    """N rows, or N · R, a layout's ranks together."""
    schedule: Schedule
    microbatches: Ints
    """(N,)"""
    num_layers: int
    allowed: Bools
    """(P,)"""
    kinds: Kinds | None = None
    """Which block is of which kind, where there are several."""

    def __len__(self) -> int:
        return len(self.microbatches)

    @property
    def known(self) -> PipelineSchedule:
        """What is known of the schedule."""
        return schedule_named(self.schedule)

    @property
    def is_plain(self) -> bool:
        """Whether every number of blocks on every stage is covered."""
        return self.schedule in PLAIN

    @property
    def splits_backward(self) -> bool:
        """Weight halves of backward passes run at other times than input halves."""
        return self.schedule in SPLIT_BACKWARD

    @property
    def is_v_shaped(self) -> bool:
        """The first rank has the last stage too."""
        return self.schedule in V_SHAPED

    @cached_property
    def light(self) -> StageCosts:
        """The costs as if every block had the least of any kind: what holds for each block alone."""
        return self.costs.lightest

    @cached_property
    def of_kinds(self) -> tuple[Self, ...]:
        """The rows as if the model had only its blocks of one kind, for each kind."""
        if self.kinds is None:
            return (self,)
        each = zip(self.costs.each_kind, self.kinds.counts, strict=True)
        return tuple(replace(self, costs=own, num_layers=count, kinds=None) for own, count in each)

    def of_fullest(self, pp: Ints | int, value_of: Callable[[Self], Array]) -> Array:
        """(N,): what the blocks of some rank have at least: of one kind its share, of several that of any kind, or a
        rank's share of all."""
        each = [(one.num_layers, value_of(one)) for one in self.of_kinds]
        shares = [-(-blocks // pp) * value for blocks, value in each]
        if len(each) > 1:
            shares.append(np.sum([blocks / pp * value for blocks, value in each], axis=0))
        most: Array = np.max(shares, axis=0)
        return most

    @cached_property
    def block_seconds(self) -> Array:
        """(N, P), or (N · R, P): forward plus backward of one block; infinite under a policy that may not be used."""
        seconds = self.light.layer_forward[:, None] + self.light.layer_backward
        return np.where(self.allowed, seconds, np.inf)

    @cached_property
    def least_block_seconds(self) -> Array:
        """(N,), or (N · R,): under the fastest policy."""
        least: Array = self.block_seconds.min(axis=1)
        return least


@dataclass(frozen=True, kw_only=True)
class Group(PricedRows):
    """The rows of one pipeline shape."""

    pp: int
    vpp: int
    most_blocks: int | None = None
    """Of one virtual stage, where that is less than the search covers."""
    counted: bool = False
    """See `Leaf.counted`."""

    def rows(self, index: Ints | slice) -> Group:
        """Some of the layouts."""
        return replace(self, costs=self.costs.rows(index), microbatches=self.microbatches[index])

    def in_time(self, seconds: float) -> Group:
        """Only numbers of blocks that some rank passes m times in so many seconds (one chunk a rank)."""
        if np.isinf(seconds):
            return self
        held_N = seconds / (self.microbatches * self.least_block_seconds)
        return replace(self, most_blocks=max(int(self.sizes[0]), int(held_N.max()) + 1))

    @property
    def last_rank(self) -> int:
        """The rank of the last stage: in a V the first."""
        return 0 if self.is_v_shaped else self.pp - 1

    @cached_property
    def sizes(self) -> Ints:
        """(B,): blocks one virtual stage may hold."""
        low, high = stage_sizes(self.num_layers, self.pp, self.vpp, self.schedule)
        return np.arange(low, high + 1 if self.most_blocks is None else min(high, self.most_blocks) + 1)

    @cached_property
    def fixed_seconds(self) -> Array:
        """(N, R): forward plus backward of one microbatch on each rank without its blocks, at least."""
        x = self.costs
        fixed_NR = np.repeat(self.vpp * (x.stage_forward + x.stage_backward)[:, None], self.pp, axis=1)
        fixed_NR[:, 0] += x.embedding_forward + x.embedding_backward
        fixed_NR[:, self.last_rank] += x.head_forward + x.head_backward
        return fixed_NR

    @cached_property
    def cycle_delay(self) -> Array:
        """(N,): transfers of one microbatch down the virtual stages and up again."""
        return 2 * (self.pp * self.vpp - 1) * self.costs.p2p * (self.pp > 1)

    def tail(self, blocks_N: Array | int) -> Array:
        """(N,): what follows the last backward in any case, if rank 0 holds so many blocks at least.

        The synchronisation of rank 0, where all paths end, or of any where they do not, and the optimizer step of the
        fullest rank.
        """
        x = self.light
        sync = x.rank_sync + blocks_N * x.layer_sync + (0.0 if self.splits_backward else x.embedding_sync)
        optimizer = x.rank_optimizer + self.of_fullest(self.pp, lambda one: one.costs.layer_optimizer)
        if self.pp == 1:
            sync, optimizer = sync + x.head_sync, optimizer + x.embedding_optimizer + x.head_optimizer
        return sync + optimizer + x.step_overhead

    @cached_property
    def least_tail(self) -> Array:
        """(N,): the tail with as few blocks on rank 0 as the search covers."""
        return self.tail(int(self.sizes[0]) * self.vpp)

    @cached_property
    def live(self) -> Array:
        """(N, R, C): live microbatches of each chunk at one moment of the schedule; with one chunk it is the peak."""
        m_N11, rank_R1 = self.microbatches[:, None, None], np.arange(self.pp)[:, None]
        live_NRC = self.known.live_of_chunk(self.pp, self.vpp, m_N11, rank_R1, np.arange(self.vpp))
        return live_NRC.astype(np.float64)

    @cached_property
    def free_bytes(self) -> Array:
        """(N, R): left for blocks and what they work with during training."""
        x = self.costs
        free_NR = np.repeat((x.memory_limit - x.static)[:, None], self.pp, axis=1)
        free_NR[:, 0] -= x.embedding_static + self.live[:, 0, 0] * x.embedding_activation
        last = self.last_rank
        free_NR[:, last] -= x.head_static + self.live[:, last, -1] * x.head_activation
        return free_NR

    @cached_property
    def working(self) -> Array:
        """(N, R, P): the largest temporary set of a rank whose chunks follow one policy, the loss on the last rank."""
        x = self.light
        working_NRP = np.repeat(x.working[:, None, :], self.pp, axis=1)
        last = self.last_rank
        working_NRP[:, last] = np.maximum(working_NRP[:, last], x.head_moment[:, None])
        return working_NRP

    @cached_property
    def update_bytes(self) -> Array:
        """(N, R): left for blocks during the optimizer step."""
        x = self.costs
        free_NR = np.repeat((x.memory_limit - x.static - x.rank_update)[:, None], self.pp, axis=1)
        free_NR[:, 0] -= x.embedding_static + x.embedding_update
        free_NR[:, self.last_rank] -= x.head_static + x.head_update
        return free_NR

    @cached_property
    def updatable(self) -> Array:
        """(N, R): blocks whose optimizer step fits in memory."""
        return how_many(self.update_bytes, (self.light.layer_static + self.light.layer_update)[:, None])


def group_of(leaf: Leaf) -> Group:
    """A leaf with one row of costs as a group of one."""
    return Group(
        costs=leaf.mean or leaf.costs,
        kinds=leaf.kinds,
        pp=leaf.pp,
        vpp=leaf.vpp,
        schedule=leaf.schedule,
        microbatches=np.array([leaf.microbatches]),
        num_layers=leaf.num_layers,
        allowed=leaf.allowed,
        counted=leaf.counted,
    )


def how_many(space: Array, each: Array) -> Array:
    """How many times `each` goes into `space`, never too few for rounding."""
    with np.errstate(divide="ignore", invalid="ignore"):
        count = np.floor(space / each * (1 + np.copysign(TOLERANCE, space)))
    return np.where(each > 0, count, np.where(space >= 0, np.inf, -1.0))
