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
    layers_S = np.full(leaf.num_stages, leaf.sizes.start)
    pattern_TC = _fastest(leaf, _fitting(leaf, chunk_patterns(leaf.allowed[0], leaf.vpp)))
    pattern_TS = np.repeat(pattern_TC, leaf.pp, axis=1)
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


def _fitting(leaf: Leaf, pattern_TC: Ints) -> Ints:
    """The patterns with which every rank stays within its memory."""
    pattern_TS = np.repeat(pattern_TC, leaf.pp, axis=1)
    layers_TS = np.full(pattern_TS.shape, leaf.sizes.start)
    fitting_TC: Ints = pattern_TC[leaf.fits(layers_TS, pattern_TS)]
    return fitting_TC


def _fastest(leaf: Leaf, pattern_TC: Ints) -> Ints:
    """Those that no other one equals or beats on every chunk: a timeline is never shorter for longer actions."""
    backward_TC = leaf.policy_cost("layer_backward")[pattern_TC]
    kept: list[int] = []
    for row in np.argsort(backward_TC.sum(axis=1), kind="stable").tolist():
        if not (backward_TC[kept] <= backward_TC[row]).all(axis=1).any():
            kept.append(row)
    fastest_TC: Ints = pattern_TC[kept]
    return fastest_TC
