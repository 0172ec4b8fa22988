"""Robust linear least squares for timings: relative errors count, outliers do not."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

_ROUNDS = 30
_HUBER = 1.345
"""Residuals beyond this many deviations count linearly: 95 % efficient on clean data (Huber 1964)."""
_MAD_TO_DEVIATION = 1.4826
"""Median absolute deviation → standard deviation of a normal distribution."""


def relative_least_squares(terms: Array, seconds: Array, least: Array | float = 0.0) -> Array:
    """Coefficients c (T,), none below `least`, with `terms` (N, T) · c ≈ `seconds` (N,), rows weighted by 1 /
    seconds.

    Iteratively reweighted with Huber's weights, so that a disturbed point does not move the rest. Coefficients that
    come out below `least` have no meaning and are fixed at it, the lowest first.
    """
    least = np.broadcast_to(np.asarray(least, dtype=np.float64), terms.shape[1:])
    free = np.ones(terms.shape[1], dtype=bool)
    values = 1.0 - terms @ least / seconds
    while free.any():
        scaled = terms[:, free] / seconds[:, None]
        solution = _huber(scaled, values)
        if (solution >= 0).all():
            coefficients = least.copy()
            coefficients[free] += solution
            return coefficients
        free[np.flatnonzero(free)[np.argmin(solution)]] = False
    return least.copy()


def relative_errors(terms: Array, coefficients: Array, seconds: Array) -> Array:
    """(N,) signed relative error of each row of a fit."""
    return np.asarray(terms @ coefficients / seconds - 1.0)


def _huber(terms: Array, values: Array) -> Array:
    """Iteratively reweighted least squares from the plain solution."""
    solution = _solve(terms, values)
    for _ in range(_ROUNDS):
        residual = np.abs(terms @ solution - values)
        deviation = max(_MAD_TO_DEVIATION * float(np.median(residual)), np.finfo(np.float64).eps)
        weights = np.minimum(1.0, _HUBER * deviation / np.maximum(residual, np.finfo(np.float64).tiny))
        root = np.sqrt(weights)
        solution = _solve(terms * root[:, None], values * root)
    return solution


def _solve(terms: Array, values: Array) -> Array:
    return np.asarray(np.linalg.lstsq(terms, values, rcond=None)[0], dtype=np.float64)
