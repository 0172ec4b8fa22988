"""Risk that a request accepts: the probability with which a step must fit, and what steps are weighed by.

Memory: measured = predicted · exp(σ z) with z standard normal, so with a limit L on the peak

    P(fits)  = Φ(ln(L / predicted) / σ)
    P ≥ c   ⇔  predicted ≤ L · exp(−σ Φ⁻¹(c))

`error` is a stack's `memory_error`: nine in ten measured peaks were within a factor 1 + error of the predicted ones.
Leaves out a bias: a stack whose peaks are all missed to one side has a wrong fact, not a wide error.

Time: where a profile leaves several sets of constants possible, `neutral` weighs the mean over all scenarios, `averse`
the mean of the slowest quarter of them (the conditional value at risk of Rockafellar and Uryasev 2000). Both are means
over some of K scenarios, and never less than the mean over any other set of as many: so they rise with every scenario's
seconds, and bounds of each scenario, weighed, bound what is weighed.
"""

from __future__ import annotations

from math import exp, log, log1p
from statistics import NormalDist
from typing import Literal, get_args

import numpy as np

from cost_models.arrays import Array, Bools

EVEN = 0.5
"""Confidence that takes predictions as they are: a peak just within the limit is as likely above it as below."""
MOST_CONFIDENT = 0.9999
"""The highest confidence that may be requested: no number of runs supports more."""
SURE = 0.95
"""Probability from which a step is said to fit; below 1 − SURE it does not; between the two it is tight."""
FITTING = 0.9
"""Least probability with which a recommended layout fits, and one whose open axes were searched."""
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


Risk = Literal["none", "neutral", "averse"]
RISKS: tuple[Risk, ...] = get_args(Risk)
SLOWEST = 4
"""One in so many scenarios is slow."""


def weighed_of(scenarios: int, risk: Risk) -> int:
    """Number of scenarios in the weighed mean, out of `scenarios`."""
    return 0 if risk == "none" else scenarios if risk == "neutral" else -(-scenarios // SLOWEST)


def slowest(seconds_K: Array, risk: Risk) -> Bools:
    """(K, ...) mask of the scenarios in the weighed mean, from their seconds (K, ...); of equal ones the first."""
    order = np.argsort(-seconds_K, axis=0, kind="stable")
    chosen = np.zeros(seconds_K.shape, dtype=np.bool_)
    np.put_along_axis(chosen, order[: weighed_of(len(seconds_K), risk)], True, axis=0)
    return chosen


def weigh(seconds_K: Array, risk: Risk) -> Array:
    """(K, ...) seconds in each scenario → (...): their mean, or that of the slowest."""
    if risk == "averse":
        seconds_K = np.sort(seconds_K, axis=0)[-weighed_of(len(seconds_K), risk) :]
    return np.asarray(seconds_K.mean(axis=0))
