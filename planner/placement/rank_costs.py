"""Costs of each pipeline rank of layouts of one schedule, as arrays from which lower bounds are computed.

Ranks of a uniform cluster have equal costs except for embedding and head; those in several pools differ.
Bounds treat both alike: a value of a rank has shape (N, R), or (N, 1) if it is equal on all ranks, and is
never copied for that.

Shape legend: N layouts, R ranks, C chunks of a rank, P policies, B numbers of blocks on a virtual stage.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Self, TypeVar

import numpy as np

from cost_models.arrays import Array, Bools, Ints, least_allowed
from cost_models.axes.columns import LayoutColumns, first_of_each
from cost_models.pipeline.stage_costs import StageCosts
from cost_models.question import Question
from cost_models.schedules.registry import SPLIT_BACKWARD, V_SHAPED, schedule_named
from cost_models.specs.choices import SCHEDULES, Schedule
from cost_models.specs.kinds import Kinds
from planner.placement.leaf import TOLERANCE, Leaf, leaf_arguments, stage_sizes

Column = TypeVar("Column", Array, Bools)
_OF_LEAF = ("pp", "vpp", "schedule", "kinds", "allowed", "uses_full_counts")
"""Names of the fields that `RankCosts` shares with `Leaf`."""


@dataclass(frozen=True, kw_only=True)
class RankCosts:
    """Costs of each pipeline rank of N layouts of one schedule, from which lower bounds are computed.

    Layouts of one shape (pp, vpp) have values of all their ranks. There are hundreds of shapes in a search, most with
    few layouts, so layouts of several shapes are handled together where their first and last ranks suffice: then R = 2.
    """

    costs: StageCosts
    """Stage costs in N rows or, where ranks differ, in N · R rows, the ranks of a layout side by side."""
    pp: Ints | int
    """Number of pipeline ranks, one for all layouts or (N,)."""
    vpp: Ints | int
    schedule: Schedule
    microbatches: Ints
    """Number of microbatches of each layout, (N,)."""
    kinds: Kinds
    """Kind of every block."""
    allowed: Bools
    """Whether the blocks may use each recompute policy, (P,)."""
    uses_full_counts: bool = False
    """Whether every virtual stage recomputes the same number of its first blocks in full, and the others not
    at all."""
    most_blocks: int | None = None
    """Maximum blocks of one virtual stage, if fewer than the search covers."""

    @classmethod
    def of(cls, leaf: Leaf) -> RankCosts:
        """Create the costs by rank of a single placement problem."""
        shared = {name: getattr(leaf, name) for name in _OF_LEAF}
        return cls(costs=leaf.mean_costs or leaf.costs, microbatches=np.array([leaf.microbatches]), **shared)

    @classmethod
    def of_rows(cls, question: Question, columns: LayoutColumns, costs: StageCosts, allowed: Bools) -> Self:
        """Create the costs by rank of layouts of one schedule, from their columns and stage costs. The
        layouts have one pipeline shape unless they are for their quick bound in chunks."""
        degrees = (columns.pp, columns.vpp)
        pp, vpp = (int(degree[0]) if (degree == degree[0]).all() else degree for degree in degrees)
        schedule, m_N = SCHEDULES[columns.schedule[0]], columns.microbatches(question.training.global_batch)
        return cls(
            costs=costs,
            pp=pp,
            vpp=vpp,
            schedule=schedule,
            microbatches=m_N,
            kinds=question.kinds,
            allowed=allowed,
        )

    @property
    def leaf(self) -> Leaf:
        """Placement problem with the costs of a single layout."""
        shared = {name: getattr(self, name) for name in _OF_LEAF}
        return Leaf(microbatches=int(self.microbatches[0]), **shared | leaf_arguments(self.costs, self.kinds))

    @property
    def num_layers(self) -> int:
        """Number of blocks of the model."""
        return len(self.kinds.of_block)

    def __len__(self) -> int:
        return len(self.microbatches)

    def rows(self, index: Ints | slice) -> RankCosts:
        """Select the layouts, all of one pipeline shape, at the given indices."""
        rows = np.arange(len(self))[index]
        rank_rows = (rows[:, None] * self._width + np.arange(self._width)).reshape(-1)
        return replace(self, costs=self.costs.rows(rank_rows), microbatches=self.microbatches[rows])

    def limited_to(self, seconds: float) -> RankCosts:
        """Copy of the costs that leaves out numbers of blocks so large that every rank of every layout, with one
        chunk each, would take more than `seconds` seconds."""
        if np.isinf(seconds):
            return self
        num_blocks = seconds / (self.microbatches[:, None] * self.by_rank(self.least_block_seconds))
        limited = copy(self)  # with all that is cached but the sizes
        vars(limited).pop("sizes", None)
        vars(limited)["most_blocks"] = max(int(self.sizes[0]), int(num_blocks.max()) + 1)
        return limited

    @property
    def shape(self) -> tuple[int, int]:
        """Degrees pp and vpp that all the layouts share."""
        return int(self.pp), int(self.vpp)

    @property
    def splits_backward(self) -> bool:
        """Whether the schedule runs weight halves of backward passes at other times than input halves."""
        return self.schedule in SPLIT_BACKWARD

    @property
    def ranks_differ(self) -> bool:
        """Whether pipeline ranks have different costs, as they lie in several pools of GPUs."""
        return self._width > 1

    @cached_property
    def _width(self) -> int:
        """Number of rows in `costs` for each layout."""
        return len(self.costs) // max(1, len(self)) or 1

    def by_rank(self, column: Column) -> Column:
        """Column of the costs reshaped by layout and rank, (N, R or 1, ...)."""
        return column.reshape(len(self), self._width, *column.shape[1:])

    def of_first_rank(self, column: Array) -> Array:
        """Values of a column of the costs on the first rank of each layout, (N, ...)."""
        return column[:: self._width]

    @cached_property
    def ranks(self) -> Ints:
        """Indices of all ranks, (1, R), if the layouts share one pipeline shape; else of the first and last
        rank of each, (N, 2)."""
        if isinstance(self.pp, int):
            return np.arange(self.pp)[None]
        return np.stack([np.zeros_like(self.pp), self.pp - 1], axis=1)

    def with_ends(self, base: Array, embedding: Array, head: Array) -> Array:
        """Add the values of embedding and head to a base value, on the ranks where these lie, (N, R). All
        arguments are (N, R or 1)."""
        last = 0 if self.schedule in V_SHAPED else self.ranks[:, -1:]
        return base + np.where(self.ranks == 0, embedding, 0.0) + np.where(self.ranks == last, head, 0.0)

    @cached_property
    def of_kinds(self) -> tuple[RankCosts, ...]:
        """Costs as if all blocks were of one kind, a `RankCosts` for each kind."""
        if self.kinds.number == 1:
            return (self,)
        costs_and_counts = zip(self.costs.each_kind, self.kinds.counts, strict=True)
        kinds = tuple(replace(self, costs=own, kinds=Kinds((0,) * count)) for own, count in costs_and_counts)
        for kind in kinds:  # which share all but their blocks
            vars(kind).update(live=self.live, free_bytes=self.free_bytes)
        return kinds

    def fullest_rank_value(self, value_of: Callable[[RankCosts], Array]) -> Array:
        """Lower bound of the sum of a cost over the blocks of the rank with most blocks, (N,) or, by rank, (N
        · R,). The function `value_of` gives the cost of one block. That rank has an even share of the blocks
        of any kind, or of all blocks."""
        value_of_kinds = [(kind.num_layers, value_of(kind)) for kind in self.of_kinds]
        shares = [-(-blocks // self.pp) * value for blocks, value in value_of_kinds]
        if len(value_of_kinds) > 1:
            shares.append(np.sum([blocks / self.pp * value for blocks, value in value_of_kinds], axis=0))
        return np.asarray(np.max(shares, axis=0))

    def balanced(self, fixed_NR: Array, each_NR: Array) -> Array:
        """Smallest possible maximum over the ranks of a value that starts at `fixed_NR` and grows by
        `each_NR` with each block, (N,). Blocks may be divided."""
        with np.errstate(divide="ignore", invalid="ignore"):
            together_N = (self.num_layers + (fixed_NR / each_NR).sum(axis=1)) / (1.0 / each_NR).sum(axis=1)
        # the largest of the others where blocks add nothing somewhere
        together_N = np.where((each_NR > 0).all(axis=1), together_N, fixed_NR.max(axis=1))
        return np.asarray(np.maximum((fixed_NR + int(self.sizes[0]) * each_NR).max(axis=1), together_N))

    @cached_property
    def block_seconds(self) -> Array:
        """Seconds of forward plus backward of one block for one microbatch, (N, P) or (N · R, P); infinite
        under policies that are not allowed."""
        seconds = self.costs.lightest.layer_forward[:, None] + self.costs.lightest.layer_backward
        return np.where(self.allowed, seconds, np.inf)

    @cached_property
    def least_block_seconds(self) -> Array:
        """Seconds of one block for one microbatch under the fastest recompute policy, (N,) or (N · R,)."""
        return least_allowed(self.block_seconds, self.allowed)

    @cached_property
    def sizes(self) -> Ints:
        """Numbers of blocks that a virtual stage may hold, (B,)."""
        low, high = stage_sizes(self.num_layers, *self.shape, self.schedule)
        return np.arange(low, high + 1 if self.most_blocks is None else min(high, self.most_blocks) + 1)

    @cached_property
    def fixed_seconds(self) -> Array:
        """Minimum seconds of forward plus backward of one microbatch on each rank apart from the blocks, (N, R)."""
        x = self.costs
        stages = self.vpp * (x.stage_forward + x.stage_backward)
        embedding, head = x.embedding_forward + x.embedding_backward, x.head_forward + x.head_backward
        return self.with_ends(*map(self.by_rank, (stages, embedding, head)))

    @cached_property
    def cycle_delay(self) -> Array:
        """Seconds of the transfers of one microbatch down all virtual stages and up again, (N,)."""
        pp, vpp = self.shape
        return 2 * (pp * vpp - 1) * self.of_first_rank(self.costs.p2p) * (pp > 1)

    @cached_property
    def optimizer_seconds(self) -> Array:
        """Minimum seconds of the optimizer step of the slowest rank, (N,)."""
        x = self.costs.lightest
        fullest = self.fullest_rank_value(lambda kind: kind.costs.layer_optimizer)
        longest: Array = self.by_rank(x.rank_optimizer + fullest).min(axis=1)
        embedding, head = self.of_first_rank(x.embedding_optimizer), self.of_first_rank(x.head_optimizer)
        longest = np.where(self.pp == 1, longest + embedding + head, longest)
        if self.ranks_differ:
            columns = x.rank_optimizer, x.embedding_optimizer, x.head_optimizer
            fixed_NR = self.with_ends(*map(self.by_rank, columns))
            longest = np.maximum(longest, self.balanced(fixed_NR, self.by_rank(x.layer_optimizer)))
        return longest

    def tail(self, first_blocks: Array | Ints | int) -> Array:
        """Minimum seconds after the last backward pass if rank 0 holds at least `first_blocks` blocks, (N,).

        The synchronisation of rank 0, where all paths end, or of any where they do not, and the optimizer step.
        """
        x, first = self.costs.lightest, self.of_first_rank
        sync = first(x.rank_sync) + first_blocks * first(x.layer_sync)
        sync = sync + (0.0 if self.splits_backward else first(x.embedding_sync))
        sync = np.where(self.pp == 1, sync + first(x.head_sync), sync)
        return np.asarray(sync + self.optimizer_seconds + first(x.step_overhead))

    @cached_property
    def least_tail(self) -> Array:
        """Minimum seconds after the last backward pass if rank 0 holds as few blocks as the search covers,
        (N,)."""
        return self.tail(int(self.sizes[0]) * self.vpp)

    @cached_property
    def live(self) -> Array:
        """Number of live microbatches (forward pass done, backward pass not yet) of each chunk at one moment
        of the schedule, (N, R, C). For layouts of several shapes, of the first chunk and the last, C = 2."""
        pp, vpp = (np.reshape(degree, (-1, 1, 1)) for degree in (self.pp, self.vpp))
        ends = np.concatenate([0 * vpp, vpp - 1], axis=2)
        chunk = np.arange(self.vpp) if isinstance(self.vpp, int) else ends
        m_N11, rank = self.microbatches[:, None, None], self.ranks[..., None]
        return schedule_named(self.schedule).live_of_chunk(pp, vpp, m_N11, rank, chunk).astype(np.float64)

    @cached_property
    def free_bytes(self) -> Array:
        """Bytes left on each rank for blocks and their temporary tensors during training, (N, R)."""
        x, by_rank = self.costs, self.by_rank
        embedding = by_rank(x.embedding_static) + self.live[..., 0] * by_rank(x.embedding_activation)
        head = by_rank(x.head_static) + self.live[..., -1] * by_rank(x.head_activation)
        return self.with_ends(by_rank(x.memory_limit - x.static), -embedding, -head)

    @cached_property
    def working(self) -> Array:
        """Peak bytes of temporary tensors on a rank whose blocks all follow one policy, (N, R, P); includes
        the loss on the last rank."""
        x = self.costs.lightest
        head_moment = self.with_ends(np.zeros((1, 1)), np.zeros((1, 1)), self.by_rank(x.head_moment))
        return np.maximum(self.by_rank(x.working), head_moment[..., None])

    @cached_property
    def least_working(self) -> Array:
        """Peak bytes of temporary tensors on a rank under the policy that needs least, (N, R)."""
        return least_allowed(self.working, self.allowed)

    @cached_property
    def update_bytes(self) -> Array:
        """Bytes left on each rank for blocks during the optimizer step, (N, R)."""
        x = self.costs
        free, embedding = x.memory_limit - x.static - x.rank_update, x.embedding_static + x.embedding_update
        return self.with_ends(*map(self.by_rank, (free, -embedding, -(x.head_static + x.head_update))))

    @cached_property
    def updatable(self) -> Array:
        """Number of blocks on each rank whose optimizer step fits in memory, (N, R)."""
        x = self.costs.lightest
        return count_fitting(self.update_bytes, self.by_rank(x.layer_static + x.layer_update))

    @cached_property
    def blocks_that_fit(self) -> Array:
        """Maximum number of blocks that fit on a rank with one chunk under each policy, (N, R, P); −1 under
        policies not allowed."""
        x, by_rank = self.costs.lightest, self.by_rank
        block_NRP = by_rank(x.layer_static)[..., None] + self.live * by_rank(x.layer_activation)
        fit_NRP = count_fitting(self.free_bytes[..., None] - self.working, block_NRP)
        return np.where(self.allowed, np.minimum(fit_NRP, self.updatable[..., None]), -1.0)

    @cached_property
    def least_work(self) -> Array:
        """Lower bound of the seconds that all ranks together take for one microbatch, with one chunk per
        rank, (N,). Each kind of block is placed as if it were alone in memory."""
        work_of_kinds = [kind.least_seconds_of_blocks for kind in self.of_kinds]
        return np.asarray(sum(work_of_kinds[1:], start=work_of_kinds[0]) + self.fixed_seconds.sum(axis=1))

    @cached_property
    def least_seconds_of_blocks(self) -> Array:
        """Minimum seconds of one microbatch in all blocks of one kind, within the memory of the ranks, (N,).

        No more blocks take at most some time than fit on all ranks under policies that take no longer.
        """
        block_seconds = self.by_rank(self.block_seconds)
        order = np.argsort(block_seconds, axis=2, kind="stable")
        fit_PNR = np.moveaxis(np.clip(self.blocks_that_fit, 0, self.num_layers), 2, 0)
        held_PNR = np.take_along_axis(fit_PNR, np.moveaxis(order, 2, 0), axis=0)
        for faster, slower in pairwise(held_PNR):  # `maximum.accumulate` takes ten times as long
            np.maximum(faster, slower, out=slower)
        added = np.moveaxis(np.diff(held_PNR, axis=0, prepend=0.0), 0, 2)
        if not self.ranks_differ:
            added = added.sum(axis=1, keepdims=True)
        seconds_NE = np.take_along_axis(block_seconds, order, axis=2).reshape(len(self), -1)
        return cheapest_seconds(np.array(self.num_layers), seconds_NE, added.reshape(len(self), -1))


def groups_of(columns: LayoutColumns, rows: Ints | None = None) -> list[Ints]:
    """Group the indices of layouts by equal pp, vpp and schedule; of all layouts, or only of the indices
    `rows`."""
    rows = np.arange(len(columns)) if rows is None else rows
    _, kind = first_of_each([column[rows] for column in (columns.schedule, columns.pp, columns.vpp)])
    order = np.argsort(kind, kind="stable")
    groups = np.split(rows[order], np.flatnonzero(np.diff(kind[order])) + 1)
    return groups if len(rows) else []


def cheapest_seconds(blocks_N: Array | Ints, seconds_NE: Array, room_NE: Array | Ints) -> Array:
    """Minimum total seconds of `blocks_N` blocks, (N,), if each block takes one of the E durations
    `seconds_NE`, and at most `room_NE` blocks may take each. The cheapest come first, and any number may take
    the slowest."""
    order_NE = np.argsort(seconds_NE, axis=1, kind="stable")
    seconds_NE = np.take_along_axis(seconds_NE, order_NE, axis=1)
    filled_NE = np.cumsum(np.take_along_axis(room_NE, order_NE, axis=1), axis=1)
    filled_NE = np.minimum(filled_NE, blocks_N[..., None])
    filled_NE[:, -1] = blocks_N
    added_NE = np.diff(filled_NE, axis=1, prepend=0.0)
    return np.asarray((added_NE * np.where(np.isinf(seconds_NE), 0.0, seconds_NE)).sum(axis=1))


def count_fitting(available: Array, size: Array) -> Array:
    """Number of times that `size` bytes fit into `available` bytes; a count just below an integer by rounding
    errors is rounded up."""
    with np.errstate(divide="ignore", invalid="ignore"):
        count = np.floor(available / size * (1 + np.copysign(TOLERANCE, available)))
    return np.where(size > 0, count, np.where(available >= 0, np.inf, -1.0))
