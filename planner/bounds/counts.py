"""A layout whose stages all recompute as many of their first blocks in full: which such numbers may be the best.

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
"""Relative width of the interval that holds a bound: numbers are only put in order by it."""


def least_number(leaf: Leaf) -> int | None:
    """The least number with which equal stages fit, as far as blocks go; None where none does."""
    least, most = leaf.num_layers // leaf.pp, -(-leaf.num_layers // leaf.pp)
    fits_NBR = np.isfinite(_seconds(leaf, np.arange(most + 1), np.array([least]))).any(axis=2)
    fits_N = fits_NBR.reshape(most + 1, -1).all(axis=1)
    return int(fits_N.argmax()) if fits_N.any() else None


def numbers_in_time(leaf: Leaf, cut_off: float) -> list[tuple[float, int]]:
    """Numbers that may take less than `cut_off` seconds a step, each with a lower bound, the least first; of two with
    which the same stages fit only the less."""
    one = len(leaf.costs) == 1
    group = group_of(leaf).in_time(cut_off) if one else None
    size_B = group.sizes if group else np.array(leaf.sizes)
    number_N = np.arange(int(size_B[-1]) + 1)
    seconds_NBCR = _seconds(leaf, number_N, size_B)
    within_NBCR = np.isfinite(seconds_NBCR) & (leaf.microbatches * seconds_NBCR <= cut_off * (1 + TOLERANCE))
    held_N = np.where(within_NBCR.any(axis=2), size_B[:, None], 0).max(axis=1).sum(axis=1)
    number_N = number_N[(held_N >= leaf.num_layers) & ~_surpassed(seconds_NBCR, within_NBCR)]
    if group is None or not number_N.any():
        return [(0.0, number) for number in number_N.tolist()]
    least_NRB = np.moveaxis(seconds_NBCR[number_N].min(axis=2), 1, 2)
    rows = group.rows(np.zeros(len(number_N), dtype=np.int64))
    bound_N = bounds_by_ranks(rows, cut_off, lambda _: least_NRB, PRECISION)
    order = np.argsort(bound_N, kind="stable").tolist()
    return [(float(bound_N[row]), int(number_N[row])) for row in order if bound_N[row] < cut_off]


def _surpassed(seconds_NBCR: Array, within_NBCR: Bools) -> Bools:
    """(N,): numbers under which nothing is within that is not so, and as fast, under the number before."""
    surpassed = np.zeros(len(seconds_NBCR), dtype=np.bool_)
    worse = ~within_NBCR[1:] | (seconds_NBCR[:-1] <= seconds_NBCR[1:])
    surpassed[1:] = worse.all(axis=(1, 2, 3))
    return surpassed


def _seconds(leaf: Leaf, number_N: Ints, size_B: Ints) -> Array:
    """(N, B, C, R) of one microbatch on a rank; infinite where it does not fit."""
    seconds_NBR, _ = counted_mixes(leaf, number_N, size_B)
    return seconds_NBR.reshape(len(number_N), len(size_B), leaf.classes, leaf.pp)
