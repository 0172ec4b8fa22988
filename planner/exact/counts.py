"""Layouts all of whose stages recompute the same number of first blocks in full: one leaf for every number.

With a given number each stage has one mix for its blocks, so any solver of leaves places it. Numbers are
tried best bound first, until no remaining bound is below the best placement.

Shape legend: N numbers, R ranks (each one stage), B counts of blocks, C classes of positions where a stage
may begin.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from cost_models.arrays import Array, Ints
from cost_models.schedules.timeline import CriticalPath
from planner.bounds.steps import bounds_by_ranks
from planner.placement.leaf import TOLERANCE, Leaf, Placement, Solution, Status, Task, proven
from planner.placement.mixes import counted_mixes, good_placement
from planner.placement.rank_costs import RankCosts

MOST_TRIED = 3
"""Numbers for which a good placement is sought: the best number has nearly always one of the lowest bounds."""
PRECISION = 1e-3
"""Relative width of the interval that holds a bound: it only orders the numbers."""


def leaves_by_full_count(leaf: Leaf, cut_off: float = math.inf) -> list[tuple[float, Leaf]]:
    """For each number of blocks recomputed in full in every stage, a lower bound of the step in seconds and the
    leaf (layout to be placed) with that number, lowest bound first; only bounds below `cut_off`, and the leaf
    alone if there is no number to choose.

    Of two numbers with which the same stages fit only the smaller is kept: it dominates if every choice in time is in
    time there too, and as fast.
    """
    if not leaf.uses_full_counts or leaf.full_count is not None:
        return [(0.0, leaf)]
    group = RankCosts.of(leaf).limited_to(cut_off)
    size_B = group.sizes
    number_N = np.arange(int(size_B[-1]) + 1)
    seconds_NBCR = _seconds(leaf, number_N, size_B)
    within_NBCR = np.isfinite(seconds_NBCR) & (leaf.microbatches * seconds_NBCR <= cut_off * (1 + TOLERANCE))
    held_N = np.where(within_NBCR.any(axis=2), size_B[:, None], 0).max(axis=1).sum(axis=1)
    worse_NBCR = ~within_NBCR[1:] | (seconds_NBCR[:-1] <= seconds_NBCR[1:])
    is_dominated_N = np.append(False, worse_NBCR.all(axis=(1, 2, 3)))
    number_N = number_N[(held_N >= leaf.num_layers) & ~is_dominated_N]
    bound_N = np.zeros(len(number_N))
    if number_N.any():
        least_NRB = np.moveaxis(seconds_NBCR[number_N].min(axis=2), 1, 2)
        rows = group.rows(np.zeros(len(number_N), dtype=np.int64))
        bound_N = bounds_by_ranks(rows, cut_off, lambda _: least_NRB, PRECISION)
    in_order = zip(bound_N.tolist(), number_N.tolist(), strict=True)
    return [(bound, replace(leaf, full_count=count)) for bound, count in sorted(in_order) if bound < cut_off]


def good_of_numbers(leaf: Leaf, cut_off: float) -> tuple[tuple[Placement, float] | None, float]:
    """Good placement under one of the most promising numbers of fully recomputed blocks with its step seconds,
    or None where none fits, and a lower bound in seconds. The bound holds under all numbers, and is no higher
    than `cut_off` or these seconds."""
    best: tuple[Placement, float] | None = None
    if leaf.uses_full_counts and math.isinf(cut_off) and (first := least_number(leaf)) is not None:
        best = good_placement(replace(leaf, full_count=first))
    threshold = cut_off if best is None else best[1]
    numbers = leaves_by_full_count(leaf, threshold)
    for bound, numbered_leaf in numbers[:MOST_TRIED]:
        placement = good_placement(numbered_leaf) if best is None or bound < best[1] else None
        if placement and (best is None or placement[1] < best[1]):
            best = placement
    return best, numbers[0][0] if numbers else threshold


def best_of_numbers(task: Task, solve: Callable[[Task], Solution]) -> Solution:
    """Best placement of a layout under any number of fully recomputed blocks; `solve` finds the best for one
    number."""
    best, seconds = task.incumbent or (None, math.inf)
    stopped: list[float] = []
    paths: list[CriticalPath] = []
    rounds = 0
    for bound, numbered_leaf in leaves_by_full_count(task.leaf, min(seconds, task.cut_off)):
        if bound >= min(seconds, task.cut_off):
            break
        cut_off = min(seconds, task.cut_off)
        solution = solve(replace(task, leaf=numbered_leaf, incumbent=None, cut_off=cut_off))
        rounds, paths = rounds + solution.rounds, [*paths, *solution.paths]
        if solution.status == "stopped":
            stopped.append(max(bound, solution.bound))
        if solution.placement is not None and solution.objective < seconds:
            best, seconds = solution.placement, solution.objective
    status: Status = "stopped" if stopped else proven(seconds, task.cut_off)
    return Solution(status, best, seconds, min([*stopped, seconds, task.cut_off]), rounds, tuple(paths))


def least_number(leaf: Leaf) -> int | None:
    """Smallest number of fully recomputed blocks a stage with which stages of equal size fit in memory; None
    where no number fits."""
    smallest, largest = leaf.num_layers // leaf.pp, -(-leaf.num_layers // leaf.pp)
    fits_NBR = np.isfinite(_seconds(leaf, np.arange(largest + 1), np.array([smallest]))).any(axis=2)
    fits_N = fits_NBR.reshape(largest + 1, -1).all(axis=1)
    return int(fits_N.argmax()) if fits_N.any() else None


def _seconds(leaf: Leaf, number_N: Ints, size_B: Ints) -> Array:
    """Seconds of one microbatch on a rank, (N, B, C, R), by number of fully recomputed blocks, block count and
    position; infinite where the blocks do not fit."""
    seconds_NBR, _ = counted_mixes(leaf, number_N, size_B)
    return seconds_NBR.reshape(len(number_N), len(size_B), leaf.kinds.classes, leaf.pp)
