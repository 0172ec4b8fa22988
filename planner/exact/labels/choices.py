"""What each rank of a plain pipeline may hold in a step that is short enough, and what that costs.

Shape legend: R ranks (each one stage), B numbers of blocks, P recompute policies.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from cost_models.axes.columns import Ints
from planner.bounds.pools import leaf_sizes
from planner.bounds.step import rank_sizes
from planner.placement.leaf import TOLERANCE, Bools, Floats, Leaf, Placement
from planner.placement.recompute_mixes import fastest_mixes
from planner.placement.shared_shape import group_of

SAME_LINE = 1e-12
"""Relative: passes that are off a straight line by less are on it."""


@dataclass(frozen=True, kw_only=True)
class Choices:
    """Numbers of blocks for each rank, each under the fastest mix of recompute policies with which it fits there."""

    leaf: Leaf
    fewest: int
    """The first of the numbers of blocks."""
    blocks: Ints
    """(B, R, P)"""
    backward: Floats
    """(R, B): seconds of one backward pass."""
    useful: Bools
    """(R, B)"""

    @cached_property
    def sizes(self) -> Ints:
        """(B,)"""
        return self.fewest + np.arange(len(self.blocks))

    @cached_property
    def forward(self) -> Floats:
        """(R, B): seconds of one forward pass."""
        return self._affine(self.leaf.fixed_forward, self.leaf.by_stage("layer_forward"))

    @cached_property
    def seconds(self) -> Floats:
        """(R, B): of one pass forward and back."""
        both: Floats = self.forward + self.backward
        return both

    @cached_property
    def sync(self) -> Floats:
        """(R, B): what follows a rank's last action."""
        return self._affine(self.leaf.per_rank("sync", self.leaf.no_blocks), self.leaf.by_rank("layer_sync"))

    @cached_property
    def optimizer(self) -> Floats:
        """(R, B): the optimizer step of a rank."""
        fixed_R = self.leaf.per_rank("optimizer", self.leaf.no_blocks)
        return self._affine(fixed_R, self.leaf.by_rank("layer_optimizer"))

    @cached_property
    def fixed(self) -> Floats:
        """(R,): seconds of one pass without blocks."""
        return self.leaf.fixed_forward + self.leaf.fixed_backward

    @cached_property
    def least_block(self) -> float:
        """Seconds that a block adds to a pass at least."""
        each_RB = (self.seconds - self.fixed[:, None]) / self.sizes
        return float(each_RB[self.useful].min())

    @cached_property
    def on_a_line(self) -> bool:
        """Whether passes depend on nothing but how many blocks a rank holds: all are under the fastest policy."""
        line_RB = self.fixed[:, None] + self.least_block * self.sizes
        off_RB = np.abs(self.seconds - line_RB) > SAME_LINE * line_RB
        return not bool((off_RB & self.useful).any())

    @cached_property
    def least(self) -> Ints:
        """(R,): fewest blocks of each rank."""
        fewest: Ints = self.sizes[self.useful.argmax(axis=1)]
        return fewest

    @cached_property
    def most(self) -> Ints:
        """(R,): most blocks of each rank."""
        greatest: Ints = self.sizes[::-1][self.useful[:, ::-1].argmax(axis=1)]
        return greatest

    def placement(self, layers_R: Ints) -> Placement:
        """So many blocks on each rank, as the leaf prices them."""
        return Placement.of(self.table(layers_R))

    def table(self, layers_KR: Ints) -> Ints:
        """(..., R, P) for (..., R) blocks of each rank."""
        table: Ints = self.blocks[layers_KR - self.fewest, np.arange(self.leaf.pp)]
        return table

    def only(self, wanted_RB: Bools) -> Choices | None:
        """Some of them; None where some rank has no choice left."""
        useful_RB = self.useful & wanted_RB
        if not useful_RB.any(axis=1).all():
            return None
        held = np.flatnonzero(useful_RB.any(axis=0))
        kept = slice(int(held[0]), int(held[-1]) + 1)
        return replace(
            self,
            fewest=self.fewest + kept.start,
            blocks=self.blocks[kept],
            backward=self.backward[:, kept],
            useful=useful_RB[:, kept],
        )

    def _affine(self, fixed_R: Floats, each_R: Floats) -> Floats:
        return fixed_R[:, None] + each_R[:, None] * self.sizes


def choices_of(leaf: Leaf, target: float = math.inf) -> Choices | None:
    """What ranks may hold in a step of at most `target` seconds, by bounds of single ranks; None: no such step."""
    low, high = leaf.sizes.start, leaf.sizes.stop - 1
    least_R, most_R = np.full(leaf.pp, low), np.full(leaf.pp, high)
    if math.isfinite(target):
        least_R, most_R = _useful_sizes(leaf, target * (1 + TOLERANCE))
    sizes = range(max(low, int(least_R.min())), min(high, int(most_R.max())) + 1)
    if not len(sizes):
        return None
    seconds_BR, blocks_BRP = fastest_mixes(leaf, sizes)
    every = Choices(
        leaf=leaf,
        fewest=sizes.start,
        blocks=blocks_BRP,
        backward=leaf.backward(blocks_BRP).T,
        useful=np.isfinite(seconds_BR).T,
    )
    return every.only((every.sizes >= least_R[:, None]) & (every.sizes <= most_R[:, None]))


def _useful_sizes(leaf: Leaf, step_seconds: float) -> tuple[Ints, Ints]:
    """(R,) fewest and most blocks of each rank in a placement that takes no longer."""
    if len(leaf.costs) > 1:
        return leaf_sizes(leaf, step_seconds)
    least_NR, most_NR = rank_sizes(group_of(leaf), np.array([step_seconds]))
    return least_NR[0], most_NR[0]
