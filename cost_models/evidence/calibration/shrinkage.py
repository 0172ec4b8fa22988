"""Shrinkage: robust least squares in which every constant is pulled towards where it was.

Minimises, over a point θ (logarithms of constants, as a rule),

    Σ_r w_r · Huber(error_r(θ))  +  Σ_c ((θ_c − origin_c) / pull_c)² / 2

by Gauss-Newton steps (Levenberg's damping) on iteratively reweighted errors (Huber 1964). An error of 1 is where a
measurement begins to pull linearly: one that is far off must not move a constant far.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

_PROBE = 0.02
"""Step in a coordinate for numerical derivatives."""
_ROUNDS = 25
_TRIALS = 8
_DONE = 1e-3
"""Relative gain of a round below which iteration ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shrinkage:
    """The best point, and the linearised problem around it."""

    point: Array
    """(C,)"""
    slopes: Array
    """(R, C) derivatives of the errors."""
    curvature: Array
    """(C, C) curvature of the loss; its inverse is the covariance of the point."""


def shrink(
    errors_at: Callable[[Array], Array],
    origin: Array,
    pulls: Array,
    weights: Array,
    *,
    floor: Array | float = -np.inf,
    ceiling: Array | float = np.inf,
    on_round: Callable[[int, Array], None] | None = None,
) -> Shrinkage:
    """The point (C,) between `floor` and `ceiling` with the least loss; `errors_at(point)` gives (R,) errors.

    `pulls` (C,) are distances from `origin` that cost as much as one measurement of weight 1 with an error of 1.
    `on_round` hears of every step and its errors.
    """

    def loss(errors: Array, point: Array) -> float:
        size = np.abs(errors)
        huber = np.where(size < 1, size**2 / 2, size - 0.5)
        return float((weights * huber).sum() + 0.5 * (((point - origin) / pulls) ** 2).sum())

    point = origin.copy()
    errors = errors_at(point)
    best, damping = loss(errors, point), 1e-2
    slopes = np.zeros((len(weights), len(origin)))
    curvature = np.diag(pulls**-2.0)
    for round_ in range(_ROUNDS):
        for index in range(len(origin)):
            probe = point.copy()
            probe[index] += _PROBE
            slopes[:, index] = (errors_at(probe) - errors) / _PROBE
        inlier = weights * np.minimum(1.0, 1.0 / np.maximum(np.abs(errors), 1e-12))
        curvature = slopes.T @ (inlier[:, None] * slopes) + np.diag(pulls**-2.0)
        gradient = slopes.T @ (inlier * errors) + (point - origin) / pulls**2
        before = best
        for _ in range(_TRIALS):
            damped = curvature + damping * np.diag(np.diag(curvature))
            trial = np.clip(point - np.linalg.solve(damped, gradient), floor, ceiling)
            trial_errors = errors_at(trial)
            if (value := loss(trial_errors, trial)) < best:
                point, errors, best, damping = trial, trial_errors, value, damping / 3
                break
            damping *= 4
        if on_round is not None:
            on_round(round_ + 1, errors)
        if before - best < _DONE * max(1.0, best):
            break
    return Shrinkage(point=point, slopes=slopes, curvature=curvature)
