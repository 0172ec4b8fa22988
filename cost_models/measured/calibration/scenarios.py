"""Scenarios: sets of constants that the runs leave possible on an untimed cluster.

On another cluster the constants of a profile are off by δ = p + s, in logarithms: p is what the runs leave open (the
inverse of the loss's curvature at the fit), s is how much one cluster and release differ from another. With S the
slopes of the errors r of a source's runs, r = −S·s + ε; the variances τ² of s come from all sources together
(expectation maximisation, each source's s being normal), beginning from the pulls of the fit as if these were one
source more. What stays of r is `unexplained`, each layout's own.

δ has the covariance Σ = Cov(p) + diag(τ²). The scenarios are ± the columns of a root of Σ under a fixed rotation, so
that their mean is zero and their covariance Σ itself, not a sample of it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from statistics import NormalDist

import numpy as np

from cost_models.arrays import MAD_TO_DEVIATION, Array
from cost_models.specs.hardware import Scenarios

COUNT = 16
"""Scenarios of a profile; a power of two above the number of constants."""
_SEED = 14
_ROUNDS = 30
_MOST = 3.0
"""Pulls beyond which no source's constants are believed to be off: more looks like a wrong fact of its stack."""
_HELD = 0.9
"""Share of the runs that `unexplained`, taken for the deviation of a normal error, has to hold; tails are heavy."""


def scenarios_of(
    constants: Sequence[str],
    covariance: Array,
    slopes: Array,
    errors: Array,
    sources: Sequence[str],
    pulls: Array,
) -> Scenarios:
    """Scenarios of fitted constants (C,) from their covariance (C, C), and the errors (R,) of the runs of `sources`
    (R,) with their slopes (R, C), all in logarithms."""
    spread, rest = _between(slopes, errors, sources, pulls)
    factors = with_covariance(constants, covariance + np.diag(spread))
    return Scenarios(factors=factors, unexplained=round(rest, 4))


def with_covariance(constants: Sequence[str], covariance: Array) -> dict[str, str]:
    """Constant → its factor in each scenario, of a mean of zero and a covariance (C, C), in logarithms."""
    assert len(constants) < COUNT
    rotation = np.linalg.qr(np.random.default_rng(_SEED).normal(size=(len(constants),) * 2))[0]
    factors = np.exp(np.linalg.cholesky(covariance) @ rotation @ _design(len(constants)))
    words = [" ".join(f"{factor:.4g}" for factor in row) for row in factors.tolist()]
    return dict(zip(constants, words, strict=True))


def _between(slopes: Array, errors: Array, sources: Sequence[str], pulls: Array) -> tuple[Array, float]:
    """(C,) variances of the constants between sources, and the standard deviation of the remaining error."""
    rows: dict[str, list[int]] = defaultdict(list)
    for row, source in enumerate(sources):
        rows[source].append(row)
    variances, rest = pulls**2, float(np.std(errors)) or 1e-3
    for _ in range(_ROUNDS):
        second, left = pulls**2, np.empty_like(errors)
        for own in rows.values():
            size = np.maximum(np.abs(errors[own]) / rest, 1e-12)
            # rows of a sweep are alike: n count for √n
            weight = np.minimum(1, 2 / size) * len(own) ** -0.5 / rest**2
            own_slopes = slopes[own]
            weighted = weight[:, None] * own_slopes
            spread = np.linalg.inv(weighted.T @ own_slopes + np.diag(1 / variances))
            mean = np.clip(-spread @ (weighted.T @ errors[own]), -_MOST * pulls, _MOST * pulls)
            second = second + mean**2 + np.diag(spread)
            left[own] = errors[own] + own_slopes @ mean
        variances = second / (len(rows) + 1)
        rest = max(1e-3, MAD_TO_DEVIATION * float(np.median(np.abs(left))))
    tails = float(np.quantile(np.abs(left), _HELD)) / NormalDist().inv_cdf((1 + _HELD) / 2)
    return variances, max(rest, tails)


def _design(rows: int) -> Array:
    """(rows, COUNT) of ±1: rows of a Hadamard matrix, orthogonal to one another and of mean zero."""
    matrix = np.ones((1, 1))
    while len(matrix) < COUNT:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return matrix[1 : rows + 1]
