"""Layouts of one schedule with several chunks a rank, whatever their shapes: what their quick bound is computed from.

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
from planner.placement.shared_shape import Group, PricedRows, how_many


@dataclass(frozen=True, kw_only=True)
class ChunkRows(PricedRows):
    """The rows of one schedule; of their ranks the first and the last."""

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
        """(N,): whether embedding and head are on the first rank."""
        both: Bools = (self.pp == 1) | self.is_v_shaped
        return both

    @cached_property
    def size(self) -> Ints:
        """(N,): blocks of every stage, at least."""
        least: Ints = self.num_layers // (self.pp * self.vpp)
        return least

    @cached_property
    def smaller(self) -> Ints:
        """(N,): stages at the ends that have `size` blocks where the others have one more; 0 where all are equal."""
        return -self.num_layers % (self.pp * self.vpp)

    @cached_property
    def missing(self) -> Ints:
        """(N,): blocks that a rank with smaller stages lacks, at most."""
        missing: Ints = self.vpp * self.largest - self.blocks
        return missing

    @cached_property
    def largest(self) -> Ints:
        """(N,): blocks of every stage that is not smaller."""
        return self.size + (self.smaller > 0)

    @cached_property
    def blocks(self) -> Ints:
        """(N,): blocks of every rank, at least."""
        return fewest_on_rank(self.num_layers, self.pp, self.vpp, 1 + self.one_rank_has_both_ends)

    @cached_property
    def before_last(self) -> Ints:
        """(N,): blocks of the stages that lead to the last rank's first one, at least."""
        return fewest_before_last(self.num_layers, self.pp, self.vpp)

    @cached_property
    def live(self) -> tuple[Ints, Ints, Ints]:
        """(N,) each: live microbatches of the first rank's first chunk, of its last, and of all its chunks, at the
        moment that `Group.live` takes; the first chunk has most."""
        known, shape = self.known, (self.pp, self.vpp, self.microbatches)
        first, last = (known.live_of_chunk(*shape, 0, chunk) for chunk in (0, self.vpp - 1))
        return first, last, known.live_of_rank(*shape, 0)

    @cached_property
    def stage_seconds(self) -> Array:
        """(N,): one microbatch on any rank without its blocks, embedding and head."""
        seconds: Array = self.vpp * (self.costs.stage_forward + self.costs.stage_backward)
        return seconds

    @cached_property
    def fixed_seconds(self) -> tuple[Array, Array]:
        """(N,) each: one microbatch on the first rank and on the last without its blocks."""
        x, stages = self.costs, self.stage_seconds
        embedding, head = x.embedding_forward + x.embedding_backward, x.head_forward + x.head_backward
        first = np.where(self.one_rank_has_both_ends, stages + embedding + head, stages + embedding)
        last = stages if self.is_v_shaped else stages + head
        return first, np.where(self.pp == 1, first, last)

    @cached_property
    def free_bytes(self) -> Array:
        """(N,): left on the first rank for blocks and what they work with during training."""
        x, (first, last, _) = self.costs, self.live
        free = x.memory_limit - x.static - (x.embedding_static + first * x.embedding_activation)
        head = x.head_static + last * x.head_activation
        return np.where(self.one_rank_has_both_ends, free - head, free)

    @cached_property
    def working(self) -> Array:
        """(N,): the largest temporary set of the first rank, under the policy that has least of it."""
        least: Array = self.light.working[:, np.flatnonzero(self.allowed)].min(axis=1)
        largest: Array = np.where(
            self.one_rank_has_both_ends, np.maximum(least, self.costs.head_moment), least
        )
        return largest

    @cached_property
    def updatable(self) -> Array:
        """(N,): blocks of the first rank whose optimizer step fits in memory."""
        x = self.light
        free = x.memory_limit - x.static - x.rank_update - (x.embedding_static + x.embedding_update)
        free = np.where(self.one_rank_has_both_ends, free - (x.head_static + x.head_update), free)
        return how_many(free, x.layer_static + x.layer_update)

    @cached_property
    def tail(self) -> Array:
        """(N,): what follows the last backward in any case, as `Group.tail` has it."""
        x = self.light
        sync = x.rank_sync + self.blocks * x.layer_sync + (0.0 if self.splits_backward else x.embedding_sync)
        optimizer = x.rank_optimizer + self.of_fullest(self.pp, lambda one: one.costs.layer_optimizer)
        alone = self.pp == 1
        sync = np.where(alone, sync + x.head_sync, sync)
        optimizer = np.where(alone, optimizer + x.embedding_optimizer + x.head_optimizer, optimizer)
        follows: Array = sync + optimizer + x.step_overhead
        return follows
