"""Choices of each rank of a plain pipeline: block counts that fit in a step short enough, with their seconds, and what
ranks that are not filled yet add to a sum over all ranks, at least and at most.

Of several kinds of blocks a choice is a number of blocks and the class of where they begin (`Kinds.class_at`), numbered
as `Leaf.numbered` does; a rank may take it after blocks of that class.

Shape legend: R ranks (each one stage), B choices, in order of blocks, P recompute policies, C sums, L blocks in all.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from cost_models.arrays import Array, Bools, Ints
from cost_models.schedules import CriticalPath
from planner.bounds.pools import leaf_sizes
from planner.bounds.step import rank_sizes
from planner.placement.leaf import TOLERANCE, Leaf, Placement
from planner.placement.recompute_mixes import fastest_mixes
from planner.placement.shared_shape import group_of

SAME_LINE = 1e-12
"""Relative distance within which passes count as on one straight line."""


@dataclass(frozen=True, kw_only=True)
class Choices:
    """Block counts open to each rank, each under the fastest mix of recompute policies that fits there."""

    leaf: Leaf
    first: int
    """The number of the first choice: of one kind the smallest block count."""
    blocks: Ints
    """(B, R, P): blocks under each policy, for each block count on each rank."""
    backward: Array
    """(R, B): seconds of one backward pass."""
    useful: Bools
    """(R, B): whether a rank may hold so many blocks."""

    @cached_property
    def sizes(self) -> Ints:
        """(B,): the block counts."""
        return (self.first + np.arange(len(self.blocks))) // self.leaf.classes

    @cached_property
    def classes(self) -> Ints:
        """(B,): the class of where the blocks of a choice begin."""
        return (self.first + np.arange(len(self.blocks))) % self.leaf.classes

    @cached_property
    def forward(self) -> Array:
        """(R, B): seconds of one forward pass."""
        return self._affine(self.leaf.forward(self.leaf.no_blocks), self.leaf.by_stage("layer_forward"))

    @cached_property
    def seconds(self) -> Array:
        """(R, B): seconds of one pass forward and back."""
        return self.forward + self.backward

    @cached_property
    def sync(self) -> Array:
        """(R, B): seconds of gradient synchronisation after a rank's last action."""
        return self._affine(
            self.leaf.once_a_step("sync", self.leaf.no_blocks), self.leaf.by_rank("layer_sync")
        )

    @cached_property
    def optimizer(self) -> Array:
        """(R, B): seconds of a rank's optimizer step."""
        fixed_R = self.leaf.once_a_step("optimizer", self.leaf.no_blocks)
        return self._affine(fixed_R, self.leaf.by_rank("layer_optimizer"))

    @cached_property
    def fixed(self) -> Array:
        """(R,): seconds of one pass forward and back without blocks."""
        nothing = self.leaf.no_blocks
        return self.leaf.forward(nothing) + self.leaf.backward(nothing)

    @cached_property
    def least_block(self) -> float:
        """The fewest seconds that a block adds to a pass."""
        each_RB = (self.seconds - self.fixed[:, None]) / self.sizes
        return float(each_RB[self.useful].min())

    @cached_property
    def on_a_line(self) -> bool:
        """Whether the seconds of a pass depend only on the rank's block count, as under the fastest policy."""
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
        """The placement with these block counts on the ranks."""
        return Placement.of(self.table(layers_R))

    def table(self, layers_KR: Ints) -> Ints:
        """(..., R, P): blocks under each policy, for (..., R) block counts of the ranks."""
        return self.blocks[self.leaf.numbered(layers_KR) - self.first, np.arange(self.leaf.pp)]

    @property
    def slowest_step(self) -> float:
        """Seconds of a step that none made of these choices exceeds."""
        if self.leaf.classes == 1:
            return float(self.leaf.step_seconds(self.table(self.most)))
        chosen_BRP = np.where(self.useful.T[..., None], self.blocks, 0)
        return float(self.leaf.step_seconds(chosen_BRP.max(axis=0)))

    def only(self, wanted_RB: Bools) -> Choices | None:
        """The choices restricted to `wanted_RB`; None where some rank has none left."""
        useful_RB = self.useful & wanted_RB
        if not useful_RB.any(axis=1).all():
            return None
        held = np.flatnonzero(useful_RB.any(axis=0))
        kept = slice(int(held[0]), int(held[-1]) + 1)
        return replace(
            self,
            first=self.first + kept.start,
            blocks=self.blocks[kept],
            backward=self.backward[:, kept],
            useful=useful_RB[:, kept],
        )

    def _affine(self, fixed_R: Array, each_R: Array) -> Array:
        """(R, B): with so much for each block, or (R, P) for each of a sort."""
        if each_R.ndim > 1:
            added_RB: Array = (self.blocks * each_R).sum(axis=-1).T
            return fixed_R[:, None] + added_RB
        return fixed_R[:, None] + each_R[:, None] * self.sizes


def choices_of(leaf: Leaf, target: float = math.inf) -> Choices | None:
    """Choices for a step of at most `target` seconds, by bounds of single ranks; None where no step is so short."""
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
        first=sizes.start * leaf.classes,
        blocks=blocks_BRP,
        backward=leaf.backward(blocks_BRP).T,
        useful=np.isfinite(seconds_BR).T,
    )
    return every.only((every.sizes >= least_R[:, None]) & (every.sizes <= most_R[:, None]))


def _useful_sizes(leaf: Leaf, step_seconds: float) -> tuple[Ints, Ints]:
    """(R,) each: fewest and most blocks of a rank in a placement that takes at most `step_seconds`."""
    if len(leaf.costs) > 1:
        return leaf_sizes(leaf, step_seconds)
    least_NR, most_NR = rank_sizes(group_of(leaf), np.array([step_seconds]))
    return least_NR[0], most_NR[0]


def all_ways(choices: Choices) -> Bools:
    """(R, L + 1, B): block counts each rank may hold, by the blocks before it; from its own choices alone."""
    kinds, positions = choices.leaf.kinds, choices.leaf.num_layers + 1
    if kinds is not None:
        begins: Bools = choices.useful[:, None, :] & (kinds.class_at[:, None] == choices.classes)
        return begins
    return np.broadcast_to(choices.useful[:, None, :], (choices.leaf.pp, positions, len(choices.sizes)))


def least_remaining(choices: Choices, ways: Bools, added_CRB: Array) -> Array:
    """(R + 1, C, L + 1): least that ranks r and later add where so many blocks lie before them; infinite where
    impossible.

    `ways` (R, L + 1, B) are those that are left of `all_ways`.
    """
    layers, pp = choices.leaf.num_layers, choices.leaf.pp
    least = np.full((pp + 1, len(added_CRB), layers + 1), np.inf)
    least[pp, :, layers] = 0.0
    for rank in range(pp - 1, -1, -1):
        for index in np.flatnonzero(choices.useful[rank]).tolist():
            size = int(choices.sizes[index])
            begun = least[rank, :, : layers + 1 - size]
            after = least[rank + 1, :, size:] + added_CRB[:, rank, index, None]
            np.minimum(begun, after, out=begun, where=ways[rank, : layers + 1 - size, index])
    return least


def most_remaining(choices: Choices, ways: Bools, added_CRB: Array) -> Array:
    """(R + 1, C, L + 1): most that ranks r and later add; minus infinity where impossible."""
    return -least_remaining(choices, ways, -added_CRB)


@dataclass(frozen=True, kw_only=True)
class Cuts:
    """Paths through the timeline, each a sum over ranks that no step undercuts."""

    added: Array
    """(C, R, B): seconds that a rank with so many blocks adds to each path."""
    fixed: Array
    """(C,): seconds of the path's transfers."""
    least: Array
    """(R + 1, C, L + 1): `least_remaining`."""
    most: Array
    """(R + 1, C, L + 1): `most_remaining`."""
    whole: bool
    """Whether they are of a whole step; else optimizer and overhead are left out."""

    def __len__(self) -> int:
        return len(self.fixed)


def cuts_of(choices: Choices, ways: Bools, paths: Sequence[CriticalPath]) -> Cuts:
    """The cuts of some paths, each with the synchronisation of the rank it ends on."""
    shape = (len(paths), choices.leaf.pp, 1)
    forward = np.array([path.forward_counts for path in paths], dtype=np.float64).reshape(shape)
    backward = np.array([path.backward_counts for path in paths], dtype=np.float64).reshape(shape)
    ends = np.array([path.rank for path in paths], dtype=np.int64)
    added = forward * choices.forward + backward * choices.backward
    added[np.arange(len(paths)), ends] += choices.sync[ends]
    fixed = np.array([path.p2p_count for path in paths]) * choices.leaf.cost("p2p")
    return cuts_that_add(choices, ways, added, fixed, whole=False)


def cuts_that_add(choices: Choices, ways: Bools, added: Array, fixed: Array, *, whole: bool) -> Cuts:
    """The cuts that add (C, R, B) seconds on the ranks and (C,) besides."""
    return Cuts(
        added=added,
        fixed=fixed,
        least=least_remaining(choices, ways, added),
        most=most_remaining(choices, ways, added),
        whole=whole,
    )
