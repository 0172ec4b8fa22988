"""Interleaved schedules: recompute chosen chunk by chunk, the same on every rank.

All stages are equal there, so what is open is the policy of each chunk. Earlier chunks keep more microbatches, so
recomputing there spares most: the search covers the patterns in which no chunk recomputes less than the next one. Ranks
share the pattern because the slowest of them sets the pace. These are few enough to price every one by the timeline.
"""

from __future__ import annotations

import math
from itertools import combinations_with_replacement

import numpy as np

from cost_models.specs.columns import Ints
from planner.placement import TOLERANCE, Bools, Leaf, Placement


def chunk_patterns(allowed_P: Bools, vpp: int) -> Ints:
    """(T, C): every covered pattern; policies are in order of rising recompute."""
    most_first = np.flatnonzero(allowed_P)[::-1].tolist()
    return np.array(list(combinations_with_replacement(most_first, vpp)), dtype=np.int64)


def best_pattern(leaf: Leaf, cut_off: float = math.inf) -> tuple[Placement, float] | None:
    """The best of all covered placements of an interleaved leaf, with its step time.

    None where none fits, or none takes less than `cut_off` seconds. Patterns are tried in the order of their work. A
    rank is never idle less than the way to and from it, so once work and way alone take longer than the best, so do all
    patterns that follow.
    """
    pattern_TS = np.repeat(chunk_patterns(leaf.allowed[0], leaf.vpp), leaf.pp, axis=1)
    layers_S = np.full(leaf.num_stages, leaf.sizes.start)
    pattern_TS = pattern_TS[leaf.fits(np.broadcast_to(layers_S, pattern_TS.shape), pattern_TS)]
    busy_T = leaf.busy_seconds(np.broadcast_to(layers_S, pattern_TS.shape), pattern_TS)
    order_T = np.argsort(busy_T, kind="stable")
    best: tuple[Placement, float] | None = None
    for policies_S, busy in zip(pattern_TS[order_T], busy_T[order_T].tolist(), strict=True):
        if busy >= min(cut_off, best[1] if best else math.inf) * (1 - TOLERANCE):
            break
        seconds = float(leaf.step_seconds(layers_S, policies_S))
        if best is None or seconds < best[1]:
            best = Placement(tuple(layers_S.tolist()), tuple(policies_S.tolist())), seconds
    return best
