"""Arrays for bounds on several pools: layouts that share the pipeline shape and the pool of every rank.

Shape legend: N layouts of one (pp, schedule, order of pools), R ranks, each one stage, B counts of blocks on a rank,
P recompute policies.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import permutations

import numpy as np

from cost_models.arrays import Array, Ints
from planner.placement.leaf import TOLERANCE, stage_sizes
from planner.placement.shared_shape import PricedRows, count_fitting

PRICES = 16
"""Number of prices of a block that are tried."""


@dataclass(frozen=True, kw_only=True)
class RankGroup(PricedRows):
    """Rows of one pipeline shape with costs of every rank."""

    pp: int

    def rows(self, index: Ints | slice) -> RankGroup:
        """Selected layouts."""
        rows = np.arange(len(self))[index]
        rank_rows = (rows[:, None] * self.pp + np.arange(self.pp)).reshape(-1)
        return replace(self, costs=self.costs.rows(rank_rows), microbatches=self.microbatches[rows])

    def of_ranks(self, name: str) -> Array:
        """One column of the costs, (N, R) or (N, R, P)."""
        column: Array = getattr(self.costs, name)
        return column.reshape(len(self), self.pp, *column.shape[1:])

    def with_ends(self, name: str, base: Array | float = 0.0) -> Array:
        """`base` plus what embedding and head add on the first and the last rank, (N, R)."""
        value_NR = np.zeros((len(self), self.pp)) + base
        value_NR[:, 0] += self.of_ranks(f"embedding_{name}")[:, 0]
        value_NR[:, -1] += self.of_ranks(f"head_{name}")[:, -1]
        return value_NR

    @cached_property
    def sizes(self) -> Ints:
        """Numbers of blocks that a rank may hold, (B,)."""
        low, high = stage_sizes(self.num_layers, self.pp, 1, self.schedule)
        return np.arange(low, high + 1)

    @cached_property
    def fixed_seconds(self) -> Array:
        """Seconds of forward plus backward of one microbatch without blocks, (N, R)."""
        forward = self.with_ends("forward", self.of_ranks("stage_forward"))
        return forward + self.with_ends("backward", self.of_ranks("stage_backward"))

    @cached_property
    def delay(self) -> Array:
        """Seconds of a transfer between neighbours, (N,)."""
        return self.of_ranks("p2p")[:, 0]

    @cached_property
    def live(self) -> Array:
        """Maximum live microbatches of each rank, (N, R)."""
        live_NR = self.schedule_facts.live_of_chunk(
            self.pp, 1, self.microbatches[:, None], np.arange(self.pp), 0
        )
        return live_NR.astype(np.float64)

    @cached_property
    def of_blocks(self) -> Array:
        """`block_seconds` of each rank, (N, R, P)."""
        return self.block_seconds.reshape(len(self), self.pp, self.block_seconds.shape[1])

    @cached_property
    def least_of_blocks(self) -> Array:
        """Seconds of a block under the fastest policy, (N, R)."""
        fastest: Array = self.of_blocks.min(axis=2)
        return fastest

    @cached_property
    def free_bytes(self) -> Array:
        """Bytes left for blocks, (N, R)."""
        return self.of_ranks("memory_limit") - self.with_ends("static", self.of_ranks("static"))

    @cached_property
    def room_bytes(self) -> Array:
        """Bytes left for blocks in training if the rank's temporary sets are as small as any policy's, (N, R)."""
        working = np.where(self.allowed, self.of_ranks("working"), np.inf).min(axis=2)
        working[:, -1] = np.maximum(working[:, -1], self.of_ranks("head_moment")[:, -1])
        left_NR = self.free_bytes - self.live * self.with_ends("activation") - working
        room_NR: Array = left_NR + TOLERANCE * self.of_ranks("memory_limit")
        return room_NR

    @cached_property
    def most_blocks(self) -> Array:
        """Maximum blocks that fit if each keeps as little as any policy does, (N, R)."""
        kept_NR = np.where(self.allowed, self.of_ranks("layer_activation"), np.inf).min(axis=2)
        held_NR = self.of_ranks("layer_static")
        trained_NR = count_fitting(self.room_bytes, held_NR + self.live * kept_NR)
        updated_NR = count_fitting(
            self.free_bytes - self.with_ends("update"), held_NR + self.of_ranks("layer_update")
        )
        most_NR: Array = np.minimum(np.minimum(trained_NR, updated_NR), self.sizes[-1])
        return most_NR

    @cached_property
    def seconds(self) -> Array:
        """Minimum seconds of a microbatch on a rank with B blocks, (N, R, B); infinite where they do not fit.

        A lower bound where blocks of a stage may follow several policies: what is free is shared by all live blocks,
        and policies mix in any proportion.
        """
        held_NRB = self.of_ranks("layer_static")[..., None] * self.sizes
        room_NRB = (self.room_bytes[..., None] - held_NRB) / (self.live[..., None] * self.sizes)
        each_NRB = _mixed(room_NRB, self.of_ranks("layer_activation"), self.of_blocks)
        fits_NRB = self.sizes <= self.most_blocks[..., None]
        return np.where(fits_NRB, self.sizes * each_NRB, np.inf) + self.fixed_seconds[..., None]

    @cached_property
    def least_work(self) -> Array:
        """Minimum seconds of one microbatch over all ranks, each within its memory, (N,).

        Blocks are paid for at a price on each; the ranks then take as many as suits them, which bounds the sum for any
        price (Lagrange). The best price is where they take all blocks.
        """
        seconds_NRB = np.where(np.isfinite(self.seconds), self.seconds, np.finfo(np.float64).max / 1e6)
        low_N, high_N = (
            np.zeros(len(self)),
            2 * np.nanmax(np.where(np.isfinite(self.of_blocks), self.of_blocks, np.nan), axis=(1, 2)),
        )
        best_N = np.full(len(self), -np.inf)
        for _ in range(PRICES):
            price_N = (low_N + high_N) / 2
            left_NRB = seconds_NRB - price_N[:, None, None] * self.sizes
            taken_N = self.sizes[left_NRB.argmin(axis=2)].sum(axis=1)
            best_N = np.maximum(best_N, left_NRB.min(axis=2).sum(axis=1) + price_N * self.num_layers)
            enough_N = taken_N >= self.num_layers
            low_N, high_N = np.where(enough_N, low_N, price_N), np.where(enough_N, price_N, high_N)
        return best_N

    def tail(self, least_NR: Ints) -> Array:
        """Minimum seconds after the last backward pass, (N,), if the ranks hold at least `least_NR` blocks.

        The synchronisation of rank 0, where all paths end, and the longest optimizer step.
        """
        sync_NR = self.with_ends("sync", self.of_ranks("rank_sync")) + self.of_ranks("layer_sync") * least_NR
        each_NR = self.of_ranks("layer_optimizer")
        fixed_NR = self.with_ends("optimizer", self.of_ranks("rank_optimizer"))
        longest_N = (fixed_NR + each_NR * least_NR).max(axis=1)
        with np.errstate(divide="ignore", invalid="ignore"):  # all ranks ready at once, in parts of blocks
            together_N = (self.num_layers + (fixed_NR / each_NR).sum(axis=1)) / (1 / each_NR).sum(axis=1)
        longest_N = np.maximum(longest_N, np.where((each_NR > 0).all(axis=1), together_N, 0.0))
        tail_N: Array = sync_NR[:, 0] + longest_N + self.of_ranks("step_overhead")[:, 0]
        return tail_N


def _mixed(room_NRB: Array, activation_NRP: Array, seconds_NRP: Array) -> Array:
    """Minimum seconds of a block that may keep `room_NRB` bytes, policies mixed in any proportion, (N, R, B)."""
    best = np.full(room_NRB.shape, np.inf)
    for policy in range(seconds_NRP.shape[2]):
        activation, seconds = activation_NRP[..., policy, None], seconds_NRP[..., policy, None]
        np.minimum(best, np.where(activation <= room_NRB, seconds, np.inf), out=best)
    for first, second in permutations(range(seconds_NRP.shape[2]), 2):
        little, much = activation_NRP[..., first, None], activation_NRP[..., second, None]
        slow, quick = seconds_NRP[..., first, None], seconds_NRP[..., second, None]
        with np.errstate(divide="ignore", invalid="ignore"):
            mixed = slow + (quick - slow) * (room_NRB - little) / (much - little)
        useful = (little <= room_NRB) & (room_NRB < much) & np.isfinite(slow) & np.isfinite(quick)
        np.minimum(best, np.where(useful, mixed, np.inf), out=best)
    return best
