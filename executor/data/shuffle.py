"""A shuffle without memory: each position is computed apart from the others, so a run resumes anywhere at once.

A Feistel network is a bijection of 2^b numbers whatever its round function is (Luby & Rackoff 1988); numbers beyond the
count are sent through again until they fall inside (cycle walking, Black & Rogaway 2002).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Positions = npt.NDArray[np.uint64]

_ROUNDS = 6
_MULTIPLIERS = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
"""Of the finaliser of SplitMix64 (Steele, Lea & Flood 2014)."""


def shuffled(positions: Positions, count: int, seed: tuple[int, ...]) -> Positions:
    """(N,) positions below `count` → (N,) where a shuffle drawn from `seed` puts them; no two in the same place."""
    half = max(1, -(-(count - 1).bit_length() // 2))
    keys = np.random.SeedSequence(seed).generate_state(_ROUNDS, np.uint64).astype(np.uint64)
    result = _network(positions.astype(np.uint64), np.uint64(half), keys)
    while (outside := result >= count).any():
        result[outside] = _network(result[outside], np.uint64(half), keys)
    return result


def _network(values: Positions, half: np.uint64, keys: Positions) -> Positions:
    """A bijection of 2^(2·half) numbers."""
    mask = (np.uint64(1) << half) - np.uint64(1)
    left, right = values >> half, values & mask
    for key in keys:
        left, right = right, left ^ (_mixed(right + key) & mask)
    return (left << half) | right


def _mixed(values: Positions) -> Positions:
    first, second = _MULTIPLIERS
    values = (values ^ (values >> np.uint64(30))) * first
    values = (values ^ (values >> np.uint64(27))) * second
    return values ^ (values >> np.uint64(31))
