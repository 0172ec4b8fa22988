"""What a few timed runs of a cluster say of its others: a factor on its steps and factors of its profile's constants.

    log measured = log predicted(constants · e^δ) + γ + noise

γ is what the cluster or its software has of its own and no constant has; δ are pulled as in any fit. How wide γ and the
noise are was seen where whole sources were left out of every fit. Some rows lie far from their neighbours, so the noise
has heavy tails (Student's t): one odd run moves little. Those of γ are lighter: runs that agree are believed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

_OFFSET, _OFFSET_FREEDOM = 0.05, 8.0
"""Deviation between sources that constants do not explain, and how heavy its tails are: degrees of freedom of t."""
_NOISE, _NOISE_FREEDOM = 0.05, 3.0
"""Deviation between rows of one source, likewise."""
_ROUNDS = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Offset:
    """What runs say of their cluster, as logarithms."""

    step: float
    """Added to every step time."""
    constants: Array
    """(C,) added to constants."""


def offset_of(errors: Array, slopes: Array, pulls: Array, *, known_runs: int = 0) -> Offset:
    """The most likely offset, from (K,) logarithms of predicted / measured and their slopes (K, C) in the constants.

    Of several explanations (which runs are odd, or is the cluster?) the likeliest counts. `known_runs` of the same
    cluster are in the constants already, which leaves less to say for these. Without errors the offset is zero.
    """
    terms = np.hstack([np.ones((len(errors), 1)), slopes])
    offset = float(_left(np.array([_OFFSET]), known_runs)[0])
    found = [
        _most_likely(errors, terms, offset, _left(pulls, known_runs), start)
        for start in (0.0, *(-errors).tolist())
    ]
    point = min(found, key=lambda one: one[0])[1]
    return Offset(step=float(point[0]), constants=point[1:])


def _left(deviations: Array, known_runs: int) -> Array:
    """What is left of deviations once so many runs have said theirs of them."""
    left: Array = deviations / np.sqrt(1.0 + known_runs * (deviations / _NOISE) ** 2)
    return left


def _most_likely(
    errors: Array, terms: Array, offset: float, deviations: Array, start: float
) -> tuple[float, Array]:
    """The nearest least of −log probability, and where it is, by reweighting (Lange et al. 1989)."""
    point = np.concatenate([[start], np.zeros(len(deviations))])
    for _ in range(_ROUNDS):
        weights = _weight((errors + terms @ point) / _NOISE, _NOISE_FREEDOM) / _NOISE**2
        held = np.append(_weight(point[:1] / offset, _OFFSET_FREEDOM) / offset**2, deviations**-2.0)
        curvature = terms.T @ (weights[:, None] * terms) + np.diag(held)
        point = -np.linalg.solve(curvature, terms.T @ (weights * errors))
    unlikely = (
        _unlikely((errors + terms @ point) / _NOISE, _NOISE_FREEDOM).sum()
        + _unlikely(point[:1] / offset, _OFFSET_FREEDOM).sum()
        + 0.5 * ((point[1:] / deviations) ** 2).sum()
    )
    return float(unlikely), point


def _weight(value: Array, freedom: float) -> Array:
    """Weight of a value in deviations, relative to that of a normal one."""
    weight: Array = (freedom + 1) / (freedom + value**2)
    return weight


def _unlikely(value: Array, freedom: float) -> Array:
    """−log density, but for what is the same for all."""
    unlikely: Array = (freedom + 1) / 2 * np.log1p(value**2 / freedom)
    return unlikely
