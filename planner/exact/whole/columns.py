"""Columns of one layout for the integer program: placements of its stages that fit within memory and a target time.

Shape legend: J columns, K ways to split blocks among policies, Q paths, S virtual stages, P recompute policies.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from cost_models.arrays import Array, Bools
from cost_models.axes.recompute import first_in_full
from cost_models.schedules.timeline import CriticalPath
from planner.exact.counts import good_of_numbers
from planner.exact.ilp.program import Columns, path_lengths
from planner.placement.chunks import chunk_patterns
from planner.placement.leaf import TOLERANCE, Leaf, Placement
from planner.placement.recompute_mixes import every_mix

PRECISION = 1e-3
"""Relative precision of the shortest step that has columns."""


@dataclass(frozen=True, slots=True)
class Timed:
    """Columns of a layout, with the seconds that each adds to the paths."""

    leaf: Leaf
    columns: Columns
    fixed: Array
    """Seconds of the paths without blocks, (Q,)."""
    column_seconds: Array
    """Seconds that a column adds to each path, (J, Q)."""
    tail_seconds: Array
    """Minimum seconds after the paths, (J,)."""

    @classmethod
    def of(cls, leaf: Leaf, columns: Columns, paths: Sequence[CriticalPath]) -> Timed:
        """Time the columns of a layout on the paths of its pipeline."""
        fixed_Q = path_lengths(leaf, paths, leaf.no_blocks)
        own_JQ = path_lengths(leaf, paths, columns.blocks) - fixed_Q
        optimizer_J: Array = leaf.once_a_step("optimizer", columns.blocks).max(axis=-1)
        return cls(leaf, columns, fixed_Q, own_JQ, optimizer_J + leaf.overhead)

    def limited_to(self, target: float) -> Timed | None:
        """Columns that a step of `target` seconds may contain; None if no placement is so fast."""
        timed, mask = self, self._in_time(target)
        while mask.any() and not mask.all():
            timed = timed.only(mask)
            mask = timed._in_time(target)
        return timed if mask.any() and timed._hold_the_model() else None

    def only(self, mask: Bools) -> Timed:
        """Columns selected by a mask."""
        return Timed(
            self.leaf, self.columns.only(mask), self.fixed, self.column_seconds[mask], self.tail_seconds[mask]
        )

    def lower_bound(self, low: float, high: float) -> float:
        """Lower bound of the step between `low` and `high`, by bisection: no shorter step has columns for the whole
        model."""
        if self.limited_to(high) is None:
            return high
        while high > low * (1 + PRECISION):
            middle = (low + high) / 2
            if self.limited_to(middle) is None:
                low = middle
            else:
                high = middle
        return low

    def _in_time(self, target: float) -> Bools:
        """Columns whose paths stay within `target` if all other stages are as fast as possible, (J,)."""
        own_JQ, stage_J = self.column_seconds, self.columns.stage
        others_JQ: Array = np.zeros_like(own_JQ)
        if self.leaf.is_plain:
            least_SQ = np.stack(
                [own_JQ[stage_J == s].min(axis=0, initial=np.inf) for s in range(self.leaf.pp)]
            )
            blocks_J1 = self.columns.blocks.sum(axis=(1, 2))[:, None]
            rest_JQ = (self.leaf.num_layers - blocks_J1) * (own_JQ / blocks_J1).min(axis=0)
            others_JQ = np.maximum(least_SQ.sum(axis=0) - least_SQ[stage_J], rest_JQ)
        length_J = (self.fixed + own_JQ + others_JQ).max(axis=1) + self.tail_seconds
        in_time: Bools = length_J <= target * (1 + TOLERANCE)
        return in_time

    def _hold_the_model(self) -> bool:
        """Whether the stages can hold exactly the model's blocks."""
        if not self.leaf.is_plain:
            return True
        blocks_J, stage_J = self.columns.blocks.sum(axis=(1, 2)), self.columns.stage
        sizes = [blocks_J[stage_J == stage].tolist() for stage in range(self.leaf.pp)]
        return all(sizes) and sum(map(min, sizes)) <= self.leaf.num_layers <= sum(map(max, sizes))


def fitting_columns(leaf: Leaf, paths: Sequence[CriticalPath], target: float) -> Timed | None:
    """Columns of a layout that fit and that a step of `target` seconds may contain; None if there are none."""
    if leaf.is_plain:
        columns = _stages(leaf, target)
        return Timed.of(leaf, columns, paths).limited_to(target) if columns is not None else None
    patterns = chunk_patterns(leaf)
    timed = Timed.of(leaf, Columns(patterns, np.full(len(patterns), -1)), paths).limited_to(target)
    fits: Bools = leaf.fits(timed.columns.blocks) if timed is not None else np.zeros(0, dtype=np.bool_)
    return timed.only(fits) if timed is not None and fits.any() else None


def balanced(leaf: Leaf, columns: Columns) -> Placement | None:
    """First placement, which balances the slowest stage; a good placement, if any is known, for several kinds of
    blocks, whose stages must join, and for numbers recomputed in full."""
    if leaf.is_plain and (leaf.kinds is not None or leaf.uses_full_counts):
        placement, _ = good_of_numbers(leaf, math.inf)
        return placement[0] if placement else None
    seconds_J = (leaf.forward(columns.blocks) + leaf.backward(columns.blocks)).max(axis=-1)
    if not leaf.is_plain:
        return Placement.of(columns.blocks[seconds_J.argmin()])
    blocks_J = columns.blocks.sum(axis=(1, 2))
    of_stage = [np.flatnonzero(columns.stage == stage).tolist() for stage in range(leaf.pp)]
    picks = [own.pop(0) for own in of_stage]
    while blocks_J[picks].sum() < leaf.num_layers:
        stage = min((s for s in range(leaf.pp) if of_stage[s]), key=lambda s: seconds_J[of_stage[s][0]])
        picks[stage] = of_stage[stage].pop(0)
    return Placement.of(columns.blocks[picks].sum(axis=0))


def _stages(leaf: Leaf, target: float) -> Columns | None:
    """Columns with the fastest mix of recompute policies that fits, for each stage, block count and class of start; or
    a column for every number of blocks recomputed in full."""
    nothing = leaf.no_blocks
    fixed_S = leaf.forward(nothing) + leaf.backward(nothing)
    allowed = np.tile(leaf.allowed, nothing.shape[1] // len(leaf.allowed))
    forward = leaf.by_stage("layer_forward")
    each_SP = (forward if forward.ndim == 2 else forward[:, None]) + leaf.by_stage("layer_backward")
    block_seconds = np.where(allowed, each_SP, np.inf).min()
    blocks, stages, starts, numbers = [], [], [], []
    number_K = np.arange(leaf.sizes.stop)
    for size, start in product(leaf.sizes, range(leaf.classes)):
        if (
            leaf.microbatches * (fixed_S.min() + size * block_seconds) > target
            or start + size > leaf.num_layers
        ):
            continue
        all_K = np.full(len(number_K), size)
        mixes = first_in_full(all_K, number_K) if leaf.uses_full_counts else every_mix(size, leaf.allowed)
        mixes_KP = leaf.in_sorts(mixes[:, None], np.array([start]))[:, 0]
        blocks_KSP = np.repeat(mixes_KP[:, None], leaf.pp, axis=1)
        fits_KS = leaf.rank_bytes(blocks_KSP) <= leaf.memory_limit
        seconds_KS = np.where(fits_KS, leaf.backward(blocks_KSP), np.inf)
        for stage in np.flatnonzero(fits_KS.any(axis=0)).tolist():
            if start and not stage:
                continue
            fastest = [int(seconds_KS[:, stage].argmin())]
            for mix in np.flatnonzero(fits_KS[:, stage]).tolist() if leaf.uses_full_counts else fastest:
                blocks_SP = nothing.copy()
                blocks_SP[stage] = mixes_KP[mix]
                blocks.append(blocks_SP)
                stages.append(stage)
                starts.append(start)
                numbers.append(mix)
    classes = np.array(starts) if leaf.kinds is not None else None
    counts = np.array(numbers) if leaf.uses_full_counts else None
    return Columns(np.stack(blocks), np.array(stages), classes, counts) if blocks else None
