"""Whether a step fits, as a probability: how far predicted peaks have been from measured ones, against the room left.

measured = predicted · exp(σ z) with z standard normal, so with a limit L on the peak

    P(fits)  = Φ(ln(L / predicted) / σ)
    P ≥ c   ⇔  predicted ≤ L · exp(−σ Φ⁻¹(c))

`error` is a stack's `memory_error`: nine in ten measured peaks were within a factor 1 + error of the predicted ones.
Leaves out a bias: a stack whose peaks are all missed to one side has a wrong fact, not a wide error.
"""

from __future__ import annotations

from math import exp, log, log1p
from statistics import NormalDist

EVEN = 0.5
"""Confidence that takes predictions as they are: a peak just within the limit is as likely above it as below."""
MOST_CONFIDENT = 0.9999
"""The highest confidence that may be requested: no number of runs supports more."""
SURE = 0.95
"""Probability from which a step is said to fit; below 1 − SURE it does not; between the two it is tight."""
_NORMAL = NormalDist()


def fits_probability(peak: float, limit: float, error: float) -> float:
    """P(fits) of a predicted peak of so many bytes where `limit` bytes can be allocated."""
    if peak <= 0:
        return 1.0
    return _NORMAL.cdf(log(limit / peak) / _sigma(error)) if limit > 0 else 0.0


def confident_share(confidence: float, error: float) -> float:
    """Share of the limit that a predicted peak may reach if it is to fit with probability `confidence`."""
    return exp(-_sigma(error) * _NORMAL.inv_cdf(confidence))


def _sigma(error: float) -> float:
    """Standard deviation of ln(measured / predicted)."""
    return log1p(error) / _NORMAL.inv_cdf(SURE)
