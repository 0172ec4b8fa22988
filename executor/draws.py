"""Random numbers that depend on a seed, a name and a position alone: any part of a tensor can be drawn by itself.

The bits of a place are a hash of its number and of a key: the finaliser of SplitMix64 (Steele et al. 2014) on its
sequence, entered anywhere. Integers wrap as 64 bits do on every device, so the bits are the same on all.
"""

from __future__ import annotations

import hashlib

from torch import Tensor

_STEP = -7046029254386353131
_ROUNDS = ((30, -4658895280553007687), (27, -7723592293110705685))
_LAST_SHIFT = 31


def key_of(seed: int, name: str) -> int:
    """Key of a named tensor's random numbers under a seed."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{name}".encode()).digest()[:7], "big")


def bits_of(places: Tensor, key: int) -> Tensor:
    """64 random bits, as int64, for each of the positions `places` (int64) under a key."""
    mixed = (places * _STEP).add_(key)
    for shift, factor in _ROUNDS:
        mixed.bitwise_xor_(shifted(mixed, shift)).mul_(factor)
    return mixed.bitwise_xor_(shifted(mixed, _LAST_SHIFT))


def shifted(values: Tensor, by: int) -> Tensor:
    """Right shift of int64 values taken as unsigned."""
    return (values >> by).bitwise_and_((1 << (64 - by)) - 1)
