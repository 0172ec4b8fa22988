"""Types of numpy arrays by element, of any shape; docstrings give the shape."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

MAD_TO_DEVIATION = 1.4826
"""Factor from a median absolute deviation to the standard deviation of a normal distribution."""


def multiplied(*columns: Ints) -> Array:
    """(N,) products in floating point, so that absurd degrees grow large instead of overflowing."""
    return np.asarray(np.prod(np.stack(columns).astype(np.float64), axis=0))
