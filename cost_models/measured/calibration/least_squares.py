"""Robust nonlinear least squares with a Gaussian prior: a point θ (C,), logarithms of constants, from R measurements.

    Σ_r w_r · Huber(error_r(θ) / noise_r)  +  (θ − origin)ᵀ prior⁻¹ (θ − origin) / 2

is minimised by Gauss-Newton steps (Levenberg's damping) on iteratively reweighted errors (Huber 1964). `noise` (R,) is
the error from which a measurement pulls linearly: one that is far off must not move a constant far. Errors are
computed at many points together, which is far cheaper than one by one: a step is evaluated with the probes for the
slopes there, which it will need, since nearly all steps succeed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from cost_models.arrays import Array

ErrorsAt = Callable[[Array], Array]
"""Function from points (K, C) to the errors (K, R) of all measurements."""

_PROBE = 0.02
"""Step in each coordinate for numerical derivatives."""
_ROUNDS = 25
"""Maximum number of steps that a fit tries."""
_REWEIGHTINGS = 6
"""Number of times that a step's linear problem is solved again with weights from its own errors."""
_RELATIVE_GAIN = 1e-3
"""Relative gain of a round below which iteration ends."""
_CLEARLY_LESS = 0.75
"""Share of the loss at the origin below which a far point is believed: what is a little less may be other things that
the model leaves out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expansion:
    """Linearisation of a fit around a point (C,) of its constants: the errors of its runs there, (R,), and
    their derivatives, (R, C)."""

    point: Array
    """Point of the expansion, (C,)."""
    errors: Array
    """Errors at the point, (R,)."""
    slopes: Array
    """Derivatives of the errors, (R, C)."""


_Z90 = 1.645
_NAMED_RUNS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """Fitted value of one constant or factor with its 90 % interval, and the runs that influence it most."""

    value: float
    low: float
    high: float
    determined: float
    """Share of the uncertainty that the runs remove; at 0 they say nothing, and the value is unchanged."""
    movers: tuple[str, ...] = ()
    """Names of the runs that influence the value most, strongest first."""


def intervals(
    names: Sequence[str],
    point: Array,
    variances: Array,
    prior_variances: Array,
    influence: Array | None = None,
    runs: Sequence[str] = (),
) -> dict[str, Interval]:
    """Fitted value and 90 % interval of each constant, by name, from the constants' logarithms `point` (C,).
    `variances` and `prior_variances` (C,) are those of the logarithms after and before the fit. Each interval
    names the three `runs` (N,) with the largest `influence` (C, N)."""
    interval_of = {}
    deviations = np.sqrt(np.stack([variances, prior_variances], axis=1))
    for place, (name, (deviation, prior)) in enumerate(zip(names, deviations, strict=True)):
        low, value, high = (float(np.exp(point[place] + side * _Z90 * deviation)) for side in (-1, 0, 1))
        pull = np.zeros(0) if influence is None else np.abs(influence[place])
        movers = tuple(runs[run] for run in np.argsort(-pull, kind="stable")[:_NAMED_RUNS] if pull[run] > 0)
        determined = float(np.clip(1 - deviation / max(prior, 1e-12), 0.0, 1.0))
        interval_of[name] = Interval(value=value, low=low, high=high, determined=determined, movers=movers)
    return interval_of


def expand(errors_at: ErrorsAt, point: Array) -> Expansion:
    """Compute the errors at `point` and their derivatives there, by forward differences."""
    errors = errors_at(np.concatenate([point[None], point + _PROBE * np.eye(len(point))]))
    return Expansion(point=point, errors=errors[0], slopes=(errors[1:] - errors[0]).T / _PROBE)


def shrink(
    errors_at: ErrorsAt,
    origin: Array,
    prior: Array,
    noise: Array | float,
    *,
    weights: Array | float = 1.0,
    floor: Array | float = -np.inf,
    ceiling: Array | float = np.inf,
    around: Expansion | None = None,
    candidates: Array | None = None,
    on_round: Callable[[int, Array], None] | None = None,
) -> tuple[Expansion, Array]:
    """Find the point (C,) between `floor` and `ceiling` that minimises the Huber loss of the errors plus a
    penalty for the distance from `origin`.

    The result is the expansion around the best point, and the covariance (C, C) of the point, the inverse of the
    loss's curvature there.

    `prior` (C, C) is the covariance of the point around `origin` before the measurements: one deviation costs as much
    as one measurement of weight 1 with an error of `noise`. The search starts where the errors are known `around`, by
    default at the origin, or at the best of (K, C) `candidates` if that is clearly better: what a maximum hides has no
    slope, and a fit to runs that wait for a host would never hear of it from where nothing waits. `on_round` is called
    with the number of each step tried and the errors (R,) after it.
    """
    precision = np.linalg.inv(prior)

    def loss(errors: Array, points: Array) -> Array:
        """Loss (...) of errors (..., R) at points (..., C)."""
        size = np.abs(errors) / noise
        huber = np.where(size < 1, size**2 / 2, size - 0.5)
        pull = np.einsum("...c,cd,...d->...", points - origin, precision, points - origin)
        return np.asarray((weights * huber).sum(-1) + pull / 2)

    def curvature_of(errors: Array, slopes: Array) -> tuple[Array, Array]:
        """Curvature of the loss, (C, C), and the weight of each error's square in it, (R,)."""
        inlier = weights / noise / np.maximum(np.abs(errors), noise)
        return slopes.T @ (inlier[:, None] * slopes) + precision, inlier

    def step_from(current: Expansion, damping: float) -> Array:
        """Next point (C,) of the fit, which minimises the linearised and damped problem around `current`."""
        slopes, point = current.slopes, current.point
        for _ in range(_REWEIGHTINGS):
            errors = current.errors + slopes @ (point - current.point)
            curvature, inlier = curvature_of(errors, slopes)
            downhill = slopes.T @ (inlier * errors) + precision @ (point - origin)
            brake = damping * np.diag(np.diag(curvature))
            step = np.linalg.solve(curvature + brake, downhill + brake @ (point - current.point))
            point = np.clip(point - step, floor, ceiling)
        return point

    current = around or expand(errors_at, origin)
    if candidates is not None:
        losses = loss(errors_at(candidates), candidates)
        if losses.min() < _CLEARLY_LESS * loss(current.errors, current.point):
            current = expand(errors_at, candidates[losses.argmin()])
    best, damping = float(loss(current.errors, current.point)), 1e-2
    for round_ in range(1, _ROUNDS + 1):
        point = step_from(current, damping)
        hoped = best - loss(current.errors + current.slopes @ (point - current.point), point)
        if hoped < _RELATIVE_GAIN * max(1.0, best):
            break
        trial = expand(errors_at, point)
        value = float(loss(trial.errors, point))
        gain = best - value
        if gain > 0:
            current, best, damping = trial, value, damping / 3
        else:
            damping *= 4
        if on_round is not None:
            on_round(round_, current.errors)
        if abs(gain) < _RELATIVE_GAIN * max(1.0, best):
            break
    curvature, _ = curvature_of(current.errors, current.slopes)
    return current, np.asarray(np.linalg.inv(curvature), dtype=np.float64)
