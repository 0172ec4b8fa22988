"""Dominance: which of several labels are not surpassed in every respect by another of their kind."""

from __future__ import annotations

import numpy as np

from cost_models.axes.columns import Ints
from planner.placement.leaf import Bools, Floats

PIVOTS = 32
"""Labels compared with all others in one batch: enough for numpy, few enough to bound memory."""


def undominated(kind: Ints, merits: Floats) -> Bools:
    """(K,): whether no other of its kind (K,) has all merits (K, D) at least as high; the first of equals stays."""
    order = np.lexsort((-merits.sum(axis=1), kind))
    starts = np.flatnonzero(np.diff(kind[order], prepend=kind[order[0]] - 1))
    kept = np.zeros(len(kind), dtype=np.bool_)
    for rows in np.split(order, starts[1:]):
        kept[_front(rows, merits)] = True
    return kept


def _front(rows: Ints, merits: Floats) -> Ints:
    """Rows undominated among themselves, in order of falling sums, so that no row dominates one before it."""
    front: list[Ints] = []
    while len(rows):
        pivots = rows[:PIVOTS]
        surpassed: Bools = np.all(merits[pivots][:, None, :] >= merits[rows][None, :, :], axis=2)
        surpassed &= np.arange(len(pivots))[:, None] < np.arange(len(rows))
        rest: Bools = np.logical_not(np.any(surpassed, axis=0))
        front.append(pivots[rest[: len(pivots)]])
        rows = rows[len(pivots) :][rest[len(pivots) :]]
    return np.concatenate(front)
