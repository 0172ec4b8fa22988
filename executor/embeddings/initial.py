"""Initial rows that follow from seed, table, row and column alone: every sharding starts from the same tables.

Uniform within ±1/√rows, as in the reference implementation of DLRM. Each element is a hash of its place (the finaliser
of SplitMix64, Steele et al. 2014), so a rank makes its own rows without those of others, on any device alike.
"""

from __future__ import annotations

import hashlib
from math import sqrt

import torch
from torch import Tensor

from executor.embeddings.places import Slice

_AT_ONCE = 1 << 22
"""Elements made at a time."""
_MANTISSA = 24


def fill(weights: Tensor, part: Slice, from_row: int, *, name: str, rows: int, width: int, seed: int) -> None:
    """Fill the slice's rows from its `from_row`-th on: (n, part.width), of a table of (`rows`, `width`)."""
    if weights.is_meta:
        return
    key = _key_of(seed, name)
    chunk = max(1, _AT_ONCE // max(1, part.width))
    for begin in range(0, len(weights), chunk):
        end = min(len(weights), begin + chunk)
        mine = torch.arange(from_row + begin, from_row + end, device=weights.device)
        weights[begin:end] = _rows(part.first + part.residue + part.ways * mine, part, key, rows, width)


def rows_of_keys(keys: Tensor, part: Slice, *, name: str, rows: int, width: int, seed: int) -> Tensor:
    """(n, part.width) initial rows of keys as a hashed slice numbers them: those of the rows of these numbers."""
    return _rows(part.residue + part.ways * keys, part, _key_of(seed, name), rows, width)


def _rows(numbers: Tensor, part: Slice, key: int, rows: int, width: int) -> Tensor:
    """The slice's columns of rows of these numbers."""
    columns = torch.arange(part.begin, part.end, device=numbers.device)
    return (2.0 * _uniform(numbers[:, None] * width + columns, key) - 1.0) / sqrt(rows)


def _key_of(seed: int, name: str) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed}/{name}".encode()).digest()[:7], "big")


def _uniform(places: Tensor, key: int) -> Tensor:
    """int64 → fp32 in [0, 1)."""
    mixed = places * -7046029254386353131 + key
    for shift, factor in ((30, -4658895280553007687), (27, -7723592293110705685)):
        mixed = (mixed ^ _shifted(mixed, shift)) * factor
    mixed = mixed ^ _shifted(mixed, 31)
    return _shifted(mixed, 64 - _MANTISSA).float() / (1 << _MANTISSA)


def _shifted(values: Tensor, by: int) -> Tensor:
    """Right shift of unsigned 64-bit integers."""
    return (values >> by) & ((1 << (64 - by)) - 1)
