"""A layout whose stages all recompute as many of their first blocks in full: what every such number takes at least.

Shape legend: N numbers, R ranks (each one stage), B counts of blocks, C classes of positions where a stage may begin.
"""

from __future__ import annotations

import math

import numpy as np

from cost_models.arrays import Array, Ints
from planner.bounds.step import bounds_by_ranks
from planner.placement.leaf import Leaf
from planner.placement.recompute_mixes import counted_mixes
from planner.placement.shared_shape import group_of

_AT_ONCE = 250_000
"""Mixes that are weighed together."""


def bounds_of_numbers(leaf: Leaf, cut_off: float = math.inf) -> Array:
    """(N,) seconds of a step with the first 0, 1, ... blocks of every stage in full; infinite where none fits.

    Where none takes less than `cut_off` seconds, no less than that. Numbers beyond the last are as that.
    """
    one = len(leaf.costs) == 1
    most = int(group_of(leaf).in_time(cut_off).sizes[-1]) if one else leaf.sizes[-1]
    number_N = np.arange(most + 1)
    if one:
        group = group_of(leaf).rows(np.zeros(len(number_N), dtype=np.int64))
        return bounds_by_ranks(group, cut_off, lambda own: _seconds(leaf, number_N, own.sizes))
    fit_NRB = np.isfinite(_seconds(leaf, number_N, np.array(leaf.sizes)))
    held_N = np.where(fit_NRB, np.array(leaf.sizes), 0).max(axis=-1).sum(axis=-1)
    return np.where(fit_NRB.any(axis=-1).all(axis=-1) & (held_N >= leaf.num_layers), 0.0, np.inf)


def _seconds(leaf: Leaf, number_N: Ints, size_B: Ints) -> Array:
    """(N, R, B) of one microbatch on a rank, beginning where that takes least; infinite where it does not fit."""
    parts = -(-len(number_N) * len(size_B) * leaf.classes * leaf.pp // _AT_ONCE)
    every = [counted_mixes(leaf, some, size_B)[0] for some in np.array_split(number_N, parts)]
    seconds_NBCR = np.concatenate(every).reshape(len(number_N), len(size_B), leaf.classes, leaf.pp)
    return np.moveaxis(seconds_NBCR.min(axis=2), 1, 2)
