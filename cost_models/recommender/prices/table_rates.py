"""Bytes/s of lookups and updates where a profile has them measured, and the bytes that such rates are of.

lookup    ids · (row + 8) + vectors written
sums      ids · (gradient + 8) + gradients of rows met, written in fp32
change    rows met · 2 · (weight and states)

rate      memory bandwidth · efficiency(row bytes, pooling), between measured points a straight line of logarithms
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from cost_models.specs.recommender.constants import TablePoint

Array = npt.NDArray[np.float64]

_ID_BYTES, _FP32 = 8.0, 4.0


def lookup_bytes(ids: npt.ArrayLike, row_bytes: npt.ArrayLike, written: npt.ArrayLike) -> Array:
    """Of reading a row for each id, the ids, and writing vectors."""
    return np.asarray(np.asarray(ids) * (np.asarray(row_bytes) + _ID_BYTES) + np.asarray(written))


def sum_bytes(
    ids: npt.ArrayLike, gradient_bytes: npt.ArrayLike, distinct: npt.ArrayLike, width: npt.ArrayLike
) -> Array:
    """Of a gradient for each id, the ids, and the sums of the rows met."""
    read = np.asarray(ids) * (np.asarray(gradient_bytes) + _ID_BYTES)
    return np.asarray(read + np.asarray(distinct) * np.asarray(width) * _FP32)


def change_bytes(distinct: npt.ArrayLike, kept_bytes: npt.ArrayLike) -> Array:
    """Of reading and writing rows with their states."""
    return np.asarray(2 * np.asarray(distinct) * np.asarray(kept_bytes))


def efficiency(points: Sequence[TablePoint], row_bytes: Array, pooling: npt.ArrayLike = 1.0) -> Array:
    """Of rows of so many bytes; beyond the measured sizes that of the nearest."""
    rows = np.array(sorted({one.row_bytes for one in points}))
    poolings = np.array(sorted({one.pooling for one in points}))
    known = {(one.row_bytes, one.pooling): one.efficiency for one in points}
    logs = np.log([[known[row, pool] for pool in poolings] for row in rows])
    at, low, share = _between(np.log(rows), row_bytes)
    to, low_pool, share_pool = _between(np.log(poolings), np.broadcast_to(pooling, np.shape(row_bytes)))
    near = logs[low, low_pool] * (1 - share_pool) + logs[low, to] * share_pool
    far = logs[at, low_pool] * (1 - share_pool) + logs[at, to] * share_pool
    return np.asarray(np.exp(near * (1 - share) + far * share))


def _between(
    logs: Array, values: npt.ArrayLike
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], Array]:
    """(upper point, lower point, share of the way) of each value on a measured axis."""
    found = np.clip(np.log(np.maximum(np.asarray(values, dtype=np.float64), 1e-12)), logs[0], logs[-1])
    upper = np.clip(np.searchsorted(logs, found), 0, len(logs) - 1)
    lower = np.maximum(upper - 1, 0)
    gap = np.where(upper > lower, logs[upper] - logs[lower], 1.0)
    return upper, lower, np.asarray((found - logs[lower]) / gap * (upper > lower))
