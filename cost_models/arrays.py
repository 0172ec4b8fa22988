"""Type aliases of numpy arrays by element type (`Array` for floats, `Ints`, `Bools`), reductions over such
arrays, and grouping of items. Shapes are given in docstrings."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

T = TypeVar("T")
K = TypeVar("K")

MAD_TO_DEVIATION = 1.4826
"""Ratio of standard deviation to median absolute deviation for normally distributed values."""


def group_by(items: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """Dictionary from each key that the function `key` gives to the list of items with that key, in order of
    first appearance."""
    groups: dict[K, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def least_allowed(values: Array, allowed: Bools) -> Array:
    """Minimum of `values` (..., P) along the last axis, over the recompute policies that the mask `allowed`
    (P,) selects; infinite if it selects none.

    Policies are selected before they are compared, as numpy's reduction along a short last axis takes twenty times as
    long.
    """
    return np.asarray(np.moveaxis(values, -1, 0)[allowed].min(axis=0, initial=np.inf))


def product_of(*columns: Ints) -> Array:
    """Elementwise product (N,) of integer columns (N,), as floats, so that absurdly large parallel degrees do
    not overflow."""
    return np.asarray(np.prod(np.stack(columns).astype(np.float64), axis=0))


def indivisible(total: float | Array, *degrees: Ints) -> Bools:
    """Whether `total` is not a multiple of the product of the parallel degrees `degrees`, (N,)."""
    return np.asarray(np.fmod(total, product_of(*degrees)) != 0)
