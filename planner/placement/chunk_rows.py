"""Arrays from which the quick bound of layouts with several chunks a rank is computed: one schedule, any shapes.

A shape is pp and vpp. There are hundreds of them in a search, most with few layouts, so that going through them one by
one takes longer than all their arithmetic.

Shape legend: N layouts of one schedule, P policies.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from cost_models.arrays import Array, Bools, Ints
from planner.placement.chunks import fewest_before_last, fewest_on_rank
from planner.placement.shared_shape import Group, PricedRows, count_fitting


@dataclass(frozen=True, kw_only=True)
class ChunkRows(PricedRows):
    """Rows of one schedule; properties describe their first and last ranks."""

    pp: Ints
    vpp: Ints

    @classmethod
    def of(cls, group: Group) -> ChunkRows:
        """Rows that have one shape."""
        shape = group.microbatches.shape
        return cls(
            costs=group.costs,
            pp=np.full(shape, group.pp),
            vpp=np.full(shape, group.vpp),
            schedule=group.schedule,
            microbatches=group.microbatches,
            num_layers=group.num_layers,
            allowed=group.allowed,
            kinds=group.kinds,
        )

    @cached_property
    def one_rank_has_both_ends(self) -> Bools:
        """Whether embedding and head are both on the first rank, (N,)."""
        has_both: Bools = (self.pp == 1) | self.is_v_shaped
        return has_both

    @cached_property
    def size(self) -> Ints:
        """Minimum blocks of a stage, (N,)."""
        blocks: Ints = self.num_layers // (self.pp * self.vpp)
        return blocks

    @cached_property
    def smaller(self) -> Ints:
        """Number of stages at the ends with `size` blocks where the others have one more, (N,); 0 where all are
        equal."""
        return -self.num_layers % (self.pp * self.vpp)

    @cached_property
    def missing(self) -> Ints:
        """Maximum blocks that a rank with smaller stages lacks, (N,)."""
        missing: Ints = self.vpp * self.largest - self.blocks
        return missing

    @cached_property
    def largest(self) -> Ints:
        """Maximum blocks of a stage, (N,)."""
        return self.size + (self.smaller > 0)

    @cached_property
    def blocks(self) -> Ints:
        """Minimum blocks of a rank, (N,)."""
        return fewest_on_rank(self.num_layers, self.pp, self.vpp, 1 + self.one_rank_has_both_ends)

    @cached_property
    def before_last(self) -> Ints:
        """Minimum blocks of the stages before the last rank's first stage, (N,)."""
        return fewest_before_last(self.num_layers, self.pp, self.vpp)

    @cached_property
    def live(self) -> tuple[Ints, Ints, Ints]:
        """Live microbatches of the first rank's first chunk, of its last chunk and of all chunks, (N,) each, at the
        moment that `Group.live` takes; the first chunk has most."""
        facts, shape = self.schedule_facts, (self.pp, self.vpp, self.microbatches)
        first, last = (facts.live_of_chunk(*shape, 0, chunk) for chunk in (0, self.vpp - 1))
        return first, last, facts.live_of_rank(*shape, 0)

    @cached_property
    def stage_seconds(self) -> Array:
        """Seconds of one microbatch on any rank without its blocks, embedding and head, (N,)."""
        seconds: Array = self.vpp * (self.costs.stage_forward + self.costs.stage_backward)
        return seconds

    @cached_property
    def fixed_seconds(self) -> tuple[Array, Array]:
        """Seconds of one microbatch on the first rank and on the last without blocks, (N,) each."""
        x, stages = self.costs, self.stage_seconds
        embedding, head = x.embedding_forward + x.embedding_backward, x.head_forward + x.head_backward
        first = np.where(self.one_rank_has_both_ends, stages + embedding + head, stages + embedding)
        last = stages if self.is_v_shaped else stages + head
        return first, np.where(self.pp == 1, first, last)

    @cached_property
    def free_bytes(self) -> Array:
        """Bytes left on the first rank for blocks and their temporary sets during training, (N,)."""
        x, (first, last, _) = self.costs, self.live
        free = x.memory_limit - x.static - (x.embedding_static + first * x.embedding_activation)
        head = x.head_static + last * x.head_activation
        return np.where(self.one_rank_has_both_ends, free - head, free)

    @cached_property
    def working(self) -> Array:
        """Largest temporary set of the first rank under the policy that needs least, bytes (N,)."""
        smallest: Array = self.lightest_costs.working[:, np.flatnonzero(self.allowed)].min(axis=1)
        largest: Array = np.where(
            self.one_rank_has_both_ends, np.maximum(smallest, self.costs.head_moment), smallest
        )
        return largest

    @cached_property
    def updatable(self) -> Array:
        """Number of blocks of the first rank whose optimizer step fits in memory, (N,)."""
        x = self.lightest_costs
        free = x.memory_limit - x.static - x.rank_update - (x.embedding_static + x.embedding_update)
        free = np.where(self.one_rank_has_both_ends, free - (x.head_static + x.head_update), free)
        return count_fitting(free, x.layer_static + x.layer_update)

    @cached_property
    def tail(self) -> Array:
        """Minimum seconds after the last backward pass, (N,): see `Group.tail`."""
        x = self.lightest_costs
        sync = x.rank_sync + self.blocks * x.layer_sync + (0.0 if self.splits_backward else x.embedding_sync)
        optimizer = x.rank_optimizer + self.fullest_rank_value(
            self.pp, lambda kind: kind.costs.layer_optimizer
        )
        is_single = self.pp == 1
        sync = np.where(is_single, sync + x.head_sync, sync)
        optimizer = np.where(is_single, optimizer + x.embedding_optimizer + x.head_optimizer, optimizer)
        seconds: Array = sync + optimizer + x.step_overhead
        return seconds
