"""Rows that are never better than another: as many shards, and no less of anything."""

from __future__ import annotations

import numpy as np

from cost_models.recommender.priced import Array, Ints


def undominated(shards: Ints, on_nodes: Ints, shard: Array, everywhere: Array) -> Ints:
    """Rows that no other row replaces; of equal ones the first. `shard` and `everywhere` are (R, resources)."""
    less_everywhere = (everywhere[:, None] <= everywhere).all(axis=2)  # [a, b]: a needs no more than b
    less_a_shard = (shard[:, None] <= shard).all(axis=2)
    alike = (shards[:, None] == shards) & (on_nodes[:, None] == on_nodes)
    replaces = less_everywhere & ((alike & less_a_shard) | (shards == 0)[:, None])
    first = np.arange(len(shards))[:, None] < np.arange(len(shards))
    kept: Ints = np.flatnonzero(~(replaces & (~replaces.T | first)).any(axis=0))
    return kept
