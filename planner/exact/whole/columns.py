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
from cost_models.schedules import CriticalPath
from planner.exact.counts import good_of_numbers
from planner.exact.ilp.program import Columns, path_lengths
from planner.placement.chunks import chunk_patterns
from planner.placement.leaf import TOLERANCE, Leaf, Placement
from planner.placement.recompute_mixes import every_mix

PRECISION = 1e-3
"""Relative width of the interval in which the shortest step that has columns is known."""


@dataclass(frozen=True, slots=True)
class Timed:
    """The columns of a layout, with the seconds that each adds to some paths."""

    leaf: Leaf
    columns: Columns
    fixed: Array
    """(Q,) seconds of the paths without blocks."""
    own: Array
    """(J, Q) seconds that a column adds."""
    follows: Array
    """(J,) least seconds after the paths."""

    @classmethod
    def of(cls, leaf: Leaf, columns: Columns, paths: Sequence[CriticalPath]) -> Timed:
        """Time the columns of a layout on the paths of its pipeline."""
        fixed_Q = path_lengths(leaf, paths, leaf.no_blocks)
        own_JQ = path_lengths(leaf, paths, columns.blocks) - fixed_Q
        optimizer_J: Array = leaf.once_a_step("optimizer", columns.blocks).max(axis=-1)
        return cls(leaf, columns, fixed_Q, own_JQ, optimizer_J + leaf.overhead)

    def within(self, target: float) -> Timed | None:
        """The columns that a step of `target` seconds may contain; None where no placement is so fast."""
        own, chosen = self, self._in_time(target)
        while chosen.any() and not chosen.all():
            own = own.only(chosen)
            chosen = own._in_time(target)
        return own if chosen.any() and own._hold_the_model() else None

    def only(self, chosen: Bools) -> Timed:
        """Some of the columns."""
        return Timed(self.leaf, self.columns.only(chosen), self.fixed, self.own[chosen], self.follows[chosen])

    def least(self, low: float, high: float) -> float:
        """A lower bound between two others, by bisection: no shorter step has columns for the whole model."""
        if self.within(high) is None:
            return high
        while high > low * (1 + PRECISION):
            middle = (low + high) / 2
            if self.within(middle) is None:
                low = middle
            else:
                high = middle
        return low

    def _in_time(self, target: float) -> Bools:
        """(J,): columns whose paths stay within `target` when all other stages are as fast as they can be."""
        own_JQ, stage_J = self.own, self.columns.stage
        others_JQ: Array = np.zeros_like(own_JQ)
        if self.leaf.is_plain:
            least_SQ = np.stack(
                [own_JQ[stage_J == s].min(axis=0, initial=np.inf) for s in range(self.leaf.pp)]
            )
            blocks_J1 = self.columns.blocks.sum(axis=(1, 2))[:, None]
            rest_JQ = (self.leaf.num_layers - blocks_J1) * (own_JQ / blocks_J1).min(axis=0)
            others_JQ = np.maximum(least_SQ.sum(axis=0) - least_SQ[stage_J], rest_JQ)
        length_J = (self.fixed + own_JQ + others_JQ).max(axis=1) + self.follows
        in_time: Bools = length_J <= target * (1 + TOLERANCE)
        return in_time

    def _hold_the_model(self) -> bool:
        """Whether the stages have blocks enough, and none has too many for the others."""
        if not self.leaf.is_plain:
            return True
        blocks_J, stage_J = self.columns.blocks.sum(axis=(1, 2)), self.columns.stage
        own = [blocks_J[stage_J == stage].tolist() for stage in range(self.leaf.pp)]
        return all(own) and sum(map(min, own)) <= self.leaf.num_layers <= sum(map(max, own))


def fitting_columns(leaf: Leaf, paths: Sequence[CriticalPath], target: float) -> Timed | None:
    """The columns of a layout that fit and that a step of `target` seconds may contain; None where there are none."""
    if leaf.is_plain:
        columns = _stages(leaf, target)
        return Timed.of(leaf, columns, paths).within(target) if columns is not None else None
    patterns = chunk_patterns(leaf)
    timed = Timed.of(leaf, Columns(patterns, np.full(len(patterns), -1)), paths).within(target)
    fits: Bools = leaf.fits(timed.columns.blocks) if timed is not None else np.zeros(0, dtype=np.bool_)
    return timed.only(fits) if timed is not None and fits.any() else None


def balanced(leaf: Leaf, columns: Columns) -> Placement | None:
    """A first placement: the least time of the slowest rank, or of patterns the one with the fastest slowest stage; of
    several kinds of blocks, whose stages must join, and of numbers in full, a good one, where one is known."""
    if leaf.is_plain and (leaf.kinds is not None or leaf.counted):
        found, _ = good_of_numbers(leaf, math.inf)
        return found[0] if found else None
    seconds_J = (leaf.forward(columns.blocks) + leaf.backward(columns.blocks)).max(axis=-1)
    if not leaf.is_plain:
        return Placement.of(columns.blocks[seconds_J.argmin()])
    blocks_J = columns.blocks.sum(axis=(1, 2))
    of_stage = [np.flatnonzero(columns.stage == stage).tolist() for stage in range(leaf.pp)]
    chosen = [own.pop(0) for own in of_stage]
    while blocks_J[chosen].sum() < leaf.num_layers:
        stage = min((s for s in range(leaf.pp) if of_stage[s]), key=lambda s: seconds_J[of_stage[s][0]])
        chosen[stage] = of_stage[stage].pop(0)
    return Placement.of(columns.blocks[chosen].sum(axis=0))


def _stages(leaf: Leaf, target: float) -> Columns | None:
    """For each stage, block count and class of where it begins the fastest mix of recompute policies that fits; tries
    every mix, or has one for every number of blocks in full."""
    nothing = leaf.no_blocks
    fixed_S = leaf.forward(nothing) + leaf.backward(nothing)
    allowed = np.tile(leaf.allowed, nothing.shape[1] // len(leaf.allowed))
    forward = leaf.by_stage("layer_forward")
    each_SP = (forward if forward.ndim == 2 else forward[:, None]) + leaf.by_stage("layer_backward")
    least = np.where(allowed, each_SP, np.inf).min()
    blocks, stages, starts, numbers = [], [], [], []
    number_K = np.arange(leaf.sizes.stop)
    for size, start in product(leaf.sizes, range(leaf.classes)):
        if leaf.microbatches * (fixed_S.min() + size * least) > target or start + size > leaf.num_layers:
            continue
        all_K = np.full(len(number_K), size)
        mixes = first_in_full(all_K, number_K) if leaf.counted else every_mix(size, leaf.allowed)
        mixes_KP = leaf.in_sorts(mixes[:, None], np.array([start]))[:, 0]
        blocks_KSP = np.repeat(mixes_KP[:, None], leaf.pp, axis=1)
        fits_KS = leaf.rank_bytes(blocks_KSP) <= leaf.memory_limit
        seconds_KS = np.where(fits_KS, leaf.backward(blocks_KSP), np.inf)
        for stage in np.flatnonzero(fits_KS.any(axis=0)).tolist():
            if start and not stage:
                continue
            fastest = [int(seconds_KS[:, stage].argmin())]
            for mix in np.flatnonzero(fits_KS[:, stage]).tolist() if leaf.counted else fastest:
                own = nothing.copy()
                own[stage] = mixes_KP[mix]
                blocks.append(own)
                stages.append(stage)
                starts.append(start)
                numbers.append(mix)
    known = np.array(starts) if leaf.kinds is not None else None
    counts = np.array(numbers) if leaf.counted else None
    return Columns(np.stack(blocks), np.array(stages), known, counts) if blocks else None
