"""Blocks in proportion to the speed of the ranks: where nothing fits, what is told; where all fits, a fair start."""

from __future__ import annotations

import numpy as np

from planner.placement import Leaf


def proportional(leaf: Leaf) -> tuple[int, ...]:
    """Whole blocks, one at least, each next one to the rank that would finish it first."""
    quickest = np.flatnonzero(leaf.allowed)[0]
    each_R = leaf.by_rank("layer_forward") + leaf.by_rank("layer_backward")[:, quickest]
    layers_R = np.ones(leaf.pp, dtype=np.int64)
    busy_R = leaf.fixed_forward + leaf.fixed_backward + each_R
    for _ in range(leaf.num_layers - leaf.pp):
        rank = int(np.argmin(busy_R + each_R))
        layers_R[rank] += 1
        busy_R[rank] += each_R[rank]
    return tuple(layers_R.tolist())
