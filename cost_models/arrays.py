"""Types of numpy arrays by element, of any shape; docstrings give the shape."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

MAD_TO_DEVIATION = 1.4826
"""Factor from a median absolute deviation to the standard deviation of a normal distribution."""


def least_allowed(values: Array, allowed: Bools) -> Array:
    """Minimum over the policies P that mask (P,) allows, from values (..., P), as (...); infinite if none is
    allowed.

    Policies are selected before they are compared, as numpy's reduction along a short last axis takes twenty times as
    long.
    """
    least: Array = np.moveaxis(values, -1, 0)[allowed].min(axis=0, initial=np.inf)
    return least


def multiplied(*columns: Ints) -> Array:
    """Product of integer arrays as floats, (N,), so that absurdly large degrees do not overflow."""
    return np.asarray(np.prod(np.stack(columns).astype(np.float64), axis=0))


def indivisible(total: float | Array, *degrees: Ints) -> Bools:
    """Whether the product of some degrees does not divide a total, (N,)."""
    return np.asarray(np.fmod(total, multiplied(*degrees)) != 0)
