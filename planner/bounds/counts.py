"""Bounds for the number of first blocks that every stage recomputes in full: the numbers worth trying, best first.

Shape legend: N numbers, R ranks (each one stage), B counts of blocks, C classes of positions where a stage may begin.
"""

from __future__ import annotations

import numpy as np

from cost_models.arrays import Array, Bools, Ints
from planner.bounds.step import bounds_by_ranks
from planner.placement.leaf import TOLERANCE, Leaf
from planner.placement.recompute_mixes import counted_mixes
from planner.placement.shared_shape import group_of

PRECISION = 1e-3
"""Relative width of the interval that holds a bound: it only orders the numbers."""


def least_number(leaf: Leaf) -> int | None:
    """Smallest number of fully recomputed blocks with which equal stages fit; None where no number fits."""
    smallest, largest = leaf.num_layers // leaf.pp, -(-leaf.num_layers // leaf.pp)
    fits_NBR = np.isfinite(_seconds(leaf, np.arange(largest + 1), np.array([smallest]))).any(axis=2)
    fits_N = fits_NBR.reshape(largest + 1, -1).all(axis=1)
    return int(fits_N.argmax()) if fits_N.any() else None


def numbers_in_time(leaf: Leaf, cut_off: float) -> list[tuple[float, int]]:
    """Pairs of lower bound in seconds and number, bounds below `cut_off`, least bound first; of two numbers with which
    the same stages fit only the smaller."""
    is_uniform = len(leaf.costs) == 1
    group = group_of(leaf).limited_to(cut_off) if is_uniform else None
    size_B = group.sizes if group else np.array(leaf.sizes)
    number_N = np.arange(int(size_B[-1]) + 1)
    seconds_NBCR = _seconds(leaf, number_N, size_B)
    within_NBCR = np.isfinite(seconds_NBCR) & (leaf.microbatches * seconds_NBCR <= cut_off * (1 + TOLERANCE))
    held_N = np.where(within_NBCR.any(axis=2), size_B[:, None], 0).max(axis=1).sum(axis=1)
    number_N = number_N[(held_N >= leaf.num_layers) & ~_dominated(seconds_NBCR, within_NBCR)]
    if group is None or not number_N.any():
        return [(0.0, number) for number in number_N.tolist()]
    least_NRB = np.moveaxis(seconds_NBCR[number_N].min(axis=2), 1, 2)
    rows = group.rows(np.zeros(len(number_N), dtype=np.int64))
    bound_N = bounds_by_ranks(rows, cut_off, lambda _: least_NRB, PRECISION)
    order = np.argsort(bound_N, kind="stable").tolist()
    return [(float(bound_N[row]), int(number_N[row])) for row in order if bound_N[row] < cut_off]


def _dominated(seconds_NBCR: Array, within_NBCR: Bools) -> Bools:
    """Numbers that the number before dominates, (N,): every choice in time is in time there too, and as fast."""
    dominated = np.zeros(len(seconds_NBCR), dtype=np.bool_)
    worse = ~within_NBCR[1:] | (seconds_NBCR[:-1] <= seconds_NBCR[1:])
    dominated[1:] = worse.all(axis=(1, 2, 3))
    return dominated


def _seconds(leaf: Leaf, number_N: Ints, size_B: Ints) -> Array:
    """Seconds of one microbatch on a rank, (N, B, C, R); infinite where it does not fit."""
    seconds_NBR, _ = counted_mixes(leaf, number_N, size_B)
    return seconds_NBR.reshape(len(number_N), len(size_B), leaf.classes, leaf.pp)
