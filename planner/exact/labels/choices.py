"""Choices of each rank of a plain pipeline: block counts that fit in a step short enough, with their seconds, and what
ranks that are not filled yet add to a sum over all ranks, at least and at most.

Of several kinds of blocks a choice is a number of blocks and the class of where they begin (`Kinds.class_at`), numbered
as `Leaf.choice_indices` does; a rank may take it after blocks of that class.

Shape legend: R ranks (each one stage), B choices, in order of blocks, P recompute policies, C sums, L blocks in all.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from cost_models.arrays import Array, Bools, Ints
from cost_models.schedules.timeline import CriticalPath
from planner.bounds.step import rank_sizes
from planner.placement.leaf import TOLERANCE, Leaf, Placement
from planner.placement.rank_costs import RankCosts
from planner.placement.recompute_mixes import fastest_mixes

SAME_LINE = 1e-12
"""Relative distance within which passes count as on one straight line."""


@dataclass(frozen=True, kw_only=True)
class Choices:
    """Block counts open to each rank, each under the fastest mix of recompute policies that fits."""

    leaf: Leaf
    first: int
    """Index of the first choice: the smallest block count for a single kind."""
    blocks: Ints
    """Blocks under each policy, for each block count on each rank, (B, R, P)."""
    backward: Array
    """Seconds of one backward pass, (R, B)."""
    useful: Bools
    """Whether a rank may make the choice, (R, B)."""

    @cached_property
    def sizes(self) -> Ints:
        """Block counts of the choices, (B,)."""
        return (self.first + np.arange(len(self.blocks))) // self.leaf.classes

    @cached_property
    def classes(self) -> Ints:
        """Class of positions where the blocks of a choice begin, (B,)."""
        return (self.first + np.arange(len(self.blocks))) % self.leaf.classes

    @cached_property
    def forward(self) -> Array:
        """Seconds of one forward pass, (R, B)."""
        return self._affine(self.leaf.forward(self.leaf.no_blocks), self.leaf.by_stage("layer_forward"))

    @cached_property
    def seconds(self) -> Array:
        """Seconds of one pass forward and back, (R, B)."""
        return self.forward + self.backward

    @cached_property
    def sync(self) -> Array:
        """Seconds of gradient synchronisation after a rank's last action, (R, B)."""
        return self._affine(
            self.leaf.once_a_step("sync", self.leaf.no_blocks), self.leaf.by_rank("layer_sync")
        )

    @cached_property
    def optimizer(self) -> Array:
        """Seconds of a rank's optimizer step, (R, B)."""
        fixed_R = self.leaf.once_a_step("optimizer", self.leaf.no_blocks)
        return self._affine(fixed_R, self.leaf.by_rank("layer_optimizer"))

    @cached_property
    def fixed(self) -> Array:
        """Seconds of one pass forward and back without blocks, (R,)."""
        nothing = self.leaf.no_blocks
        return self.leaf.forward(nothing) + self.leaf.backward(nothing)

    @cached_property
    def least_block(self) -> float:
        """Minimum seconds that a block adds to a pass."""
        each_RB = (self.seconds - self.fixed[:, None]) / self.sizes
        return float(each_RB[self.useful].min())

    @cached_property
    def on_a_line(self) -> bool:
        """Whether the seconds of a pass depend only on the rank's block count, as under the fastest policy."""
        line_RB = self.fixed[:, None] + self.least_block * self.sizes
        off_RB = np.abs(self.seconds - line_RB) > SAME_LINE * line_RB
        return not bool((off_RB & self.useful).any())

    @cached_property
    def least_blocks(self) -> Ints:
        """Minimum blocks of each rank, (R,)."""
        fewest: Ints = self.sizes[self.useful.argmax(axis=1)]
        return fewest

    @cached_property
    def most_blocks(self) -> Ints:
        """Maximum blocks of each rank, (R,)."""
        greatest: Ints = self.sizes[::-1][self.useful[:, ::-1].argmax(axis=1)]
        return greatest

    def placement(self, layers_R: Ints) -> Placement:
        """Placement with these block counts on the ranks."""
        return Placement.of(self.table(layers_R))

    def table(self, layers_KR: Ints) -> Ints:
        """Blocks under each policy, (..., R, P), for block counts of the ranks, (..., R)."""
        return self.blocks[self.leaf.choice_indices(layers_KR) - self.first, np.arange(self.leaf.pp)]

    @property
    def slowest_step(self) -> float:
        """Upper bound of the step of any placement from these choices, seconds."""
        if self.leaf.classes == 1:
            return float(self.leaf.step_seconds(self.table(self.most_blocks)))
        chosen_BRP = np.where(self.useful.T[..., None], self.blocks, 0)
        return float(self.leaf.step_seconds(chosen_BRP.max(axis=0)))

    def only(self, eligible_RB: Bools) -> Choices | None:
        """Choices within `eligible_RB`; None if some rank has none left."""
        useful_RB = self.useful & eligible_RB
        if not useful_RB.any(axis=1).all():
            return None
        used = np.flatnonzero(useful_RB.any(axis=0))
        span = slice(int(used[0]), int(used[-1]) + 1)
        return replace(
            self,
            first=self.first + span.start,
            blocks=self.blocks[span],
            backward=self.backward[:, span],
            useful=useful_RB[:, span],
        )

    def _affine(self, fixed_R: Array, each_R: Array) -> Array:
        """Fixed value plus a value per block, (R, B); values per block are (R,), or (R, P) by kind and policy."""
        if each_R.ndim > 1:
            added_RB: Array = (self.blocks * each_R).sum(axis=-1).T
            return fixed_R[:, None] + added_RB
        return fixed_R[:, None] + each_R[:, None] * self.sizes


def choices_of(leaf: Leaf, target: float = math.inf) -> Choices | None:
    """Choices for a step of at most `target` seconds, by bounds of single ranks; None where no step is so short."""
    low, high = leaf.sizes.start, leaf.sizes.stop - 1
    least_R, most_R = np.full(leaf.pp, low), np.full(leaf.pp, high)
    if math.isfinite(target):
        least_NR, most_NR = rank_sizes(RankCosts.of(leaf), np.array([target * (1 + TOLERANCE)]))
        least_R, most_R = least_NR[0], most_NR[0]
    sizes = range(max(low, int(least_R.min())), min(high, int(most_R.max())) + 1)
    if not len(sizes):
        return None
    seconds_BR, blocks_BRP = fastest_mixes(leaf, sizes)
    fitting = Choices(
        leaf=leaf,
        first=sizes.start * leaf.classes,
        blocks=blocks_BRP,
        backward=leaf.backward(blocks_BRP).T,
        useful=np.isfinite(seconds_BR).T,
    )
    return fitting.only((fitting.sizes >= least_R[:, None]) & (fitting.sizes <= most_R[:, None]))


def all_ways(choices: Choices) -> Bools:
    """Choices open to each rank, by the blocks before it, (R, L + 1, B); other ranks are not considered."""
    kinds, positions = choices.leaf.kinds, choices.leaf.num_layers + 1
    if kinds is not None:
        begins: Bools = choices.useful[:, None, :] & (kinds.class_at[:, None] == choices.classes)
        return begins
    return np.broadcast_to(choices.useful[:, None, :], (choices.leaf.pp, positions, len(choices.sizes)))


def least_remaining(choices: Choices, ways: Bools, added_CRB: Array) -> Array:
    """Least sum that ranks r and later add, by the blocks before them, (R + 1, C, L + 1); infinite where impossible.

    `ways` (R, L + 1, B) are the remaining `all_ways`.
    """
    layers, pp = choices.leaf.num_layers, choices.leaf.pp
    least_CL = np.full((pp + 1, len(added_CRB), layers + 1), np.inf)
    least_CL[pp, :, layers] = 0.0
    for rank in range(pp - 1, -1, -1):
        for index in np.flatnonzero(choices.useful[rank]).tolist():
            size = int(choices.sizes[index])
            begun = least_CL[rank, :, : layers + 1 - size]
            extended = least_CL[rank + 1, :, size:] + added_CRB[:, rank, index, None]
            np.minimum(begun, extended, out=begun, where=ways[rank, : layers + 1 - size, index])
    return least_CL


def most_remaining(choices: Choices, ways: Bools, added_CRB: Array) -> Array:
    """Greatest sum that ranks r and later add, (R + 1, C, L + 1); minus infinity where impossible."""
    return -least_remaining(choices, ways, -added_CRB)


@dataclass(frozen=True, kw_only=True)
class Cuts:
    """Paths through the timeline, each a sum over ranks that no step undercuts."""

    added: Array
    """Seconds that each choice of a rank adds to each path, (C, R, B)."""
    fixed: Array
    """Seconds of the path's transfers, (C,)."""
    least_rest: Array
    """`least_remaining`, (R + 1, C, L + 1)."""
    most_rest: Array
    """`most_remaining`, (R + 1, C, L + 1)."""
    is_full_step: bool
    """Whether the paths include the optimizer step and the overhead."""

    def __len__(self) -> int:
        return len(self.fixed)


def cuts_of(choices: Choices, ways: Bools, paths: Sequence[CriticalPath]) -> Cuts:
    """Cuts of paths, each with the synchronisation of its last rank."""
    shape = (len(paths), choices.leaf.pp, 1)
    forward = np.array([path.forward_counts for path in paths], dtype=np.float64).reshape(shape)
    backward = np.array([path.backward_counts for path in paths], dtype=np.float64).reshape(shape)
    ends = np.array([path.rank for path in paths], dtype=np.int64)
    added = forward * choices.forward + backward * choices.backward
    added[np.arange(len(paths)), ends] += choices.sync[ends]
    fixed = np.array([path.p2p_count for path in paths]) * choices.leaf.cost("p2p")
    return cuts_that_add(choices, ways, added, fixed, is_full_step=False)


def cuts_that_add(choices: Choices, ways: Bools, added: Array, fixed: Array, *, is_full_step: bool) -> Cuts:
    """Cuts that add `added` (C, R, B) seconds on the ranks and `fixed` (C,) seconds."""
    return Cuts(
        added=added,
        fixed=fixed,
        least_rest=least_remaining(choices, ways, added),
        most_rest=most_remaining(choices, ways, added),
        is_full_step=is_full_step,
    )
