"""Risk that a request accepts: the required probability of fitting in memory, and the mean of scenarios by
which steps are compared.

Memory: ln(measured / predicted) is a mixture of a core and two kinds of outliers, which no normal error
explains: runs far below their prediction (they recomputed or offloaded more than reported) and runs far above
it.

    P(fits) = (1 − b − a) · Φ(x / kσ) + b · min(1, 2Φ(x / β)) + a · max(0, 2Φ(x / α) − 1)       x = ln(limit/predicted)

σ follows from a stack's `memory_error`: nine in ten of its measured peaks were within a factor 1 + error of
the predicted ones. Shares b and a, reaches β and α, and k are those of `data/errors/peaks.yaml`, fitted to
the peaks of shipped runs and to which of them ran out of memory. The share of the limit that a peak may
reach, to fit with a given probability, is found by bisection. A layout fits if P(fits) reaches
`least_chance`: the requested probability, but at least that of a peak equal to the limit. Bias is left out: a
stack whose peaks all err to one side has a wrong constant, not a wide error.

Time: where a profile has several scenarios (plausible sets of constants), `neutral` takes the mean over all
scenarios, `averse` the mean over the slowest quarter of them (the conditional value at risk of Rockafellar
and Uryasev 2000). Both are the largest mean over any set of that many scenarios. They therefore rise with
every scenario's seconds, and the same mean of lower bounds per scenario is a lower bound.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, lru_cache
from math import exp, log, log1p
from statistics import NormalDist
from typing import Literal, get_args

import numpy as np

from cost_models.arrays import Array, Bools
from cost_models.files import read_data

EVEN = 0.5
"""Confidence at which predictions are used as they are: a peak may equal the limit, and fits with probability
one half except for outliers."""
MOST_CONFIDENT = 0.99
"""Highest confidence that may be requested: one run in fifty is an outlier, whatever the spare memory."""
WITHIN = 0.95
"""Share of measured peaks below (1 + the stack's error) × predicted."""
FITTING = 0.9
"""Minimum probability of fitting for a recommended layout, and for one whose open axes were searched."""
_NORMAL = NormalDist()


@dataclass(frozen=True, slots=True, kw_only=True)
class PeakErrors:
    """Distribution of errors of predicted memory peaks, with shares and deviations of outliers below and above
    their predictions."""

    core: float
    """Deviation of all other errors, relative to the one from a stack's `memory_error`."""
    below_share: float
    below_reach: float
    """Deviation of the logarithm of measured / predicted for these outliers."""
    above_share: float
    above_reach: float
    source: str = ""

    def below(self, room: float, error: float) -> float:
        """Probability that a measured peak stays below the predicted peak times exp(`room`)."""
        deviation = max(log1p(error), 1e-9) / _NORMAL.inv_cdf(WITHIN)  # of ln(measured / predicted)
        core = _NORMAL.cdf(room / (self.core * deviation))
        low = min(1.0, 2 * _NORMAL.cdf(room / self.below_reach))
        high = max(0.0, 2 * _NORMAL.cdf(room / self.above_reach) - 1)
        inliers = (1 - self.below_share - self.above_share) * core
        return inliers + self.below_share * low + self.above_share * high


@cache
def peak_errors() -> PeakErrors:
    """Distribution of errors of predicted memory peaks shipped with the package."""
    return PeakErrors(**read_data("errors/peaks"))


def fits_probability(peak: float, limit: float, error: float) -> float:
    """Probability that a run fits in memory, given its predicted `peak` and allocatable `limit`, both bytes."""
    if peak <= 0:
        return 1.0
    return peak_errors().below(log(limit / peak), error) if limit > 0 else 0.0


def least_chance(confidence: float) -> float:
    """Minimum probability of fitting at which a layout counts as fitting, for a requested `confidence`."""
    return max(confidence, peak_errors().below(0.0, 1.0))  # where no room is left, the error does not matter


@lru_cache(maxsize=1024)
def confident_share(confidence: float, error: float) -> float:
    """Share of the memory limit that a predicted peak may reach to fit with probability
    `least_chance(confidence)`."""
    low, high = 0.0, _MOST_ROOM
    if confidence <= least_chance(EVEN):
        return 1.0
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        low, high = (low, middle) if peak_errors().below(middle, error) >= confidence else (middle, high)
    return exp(-high)


_MOST_ROOM, _BISECTIONS = 12.0, 60


Risk = Literal["none", "neutral", "averse"]
RISKS: tuple[Risk, ...] = get_args(Risk)
SLOWEST = 4
"""One scenario in this many counts as slow."""


def weighed_of(scenarios: int, risk: Risk) -> int:
    """Number of scenarios, out of `scenarios`, whose mean step time compares layouts under a `risk`."""
    return 0 if risk == "none" else scenarios if risk == "neutral" else -(-scenarios // SLOWEST)


def slowest(seconds_K: Array, risk: Risk) -> Bools:
    """Mask of the scenarios that `risk` counts, which are all or the slowest, from their step seconds, both
    (K, ...); among equal ones the first."""
    order = np.argsort(-seconds_K, axis=0, kind="stable")
    chosen = np.zeros(seconds_K.shape, dtype=np.bool_)
    np.put_along_axis(chosen, order[: weighed_of(len(seconds_K), risk)], True, axis=0)
    return chosen


def weigh(seconds_K: Array, risk: Risk) -> Array:
    """Mean of step seconds over all scenarios, or under risk `averse` over the slowest ones, (K, ...) → (...)."""
    if risk == "averse":
        seconds_K = np.sort(seconds_K, axis=0)[-weighed_of(len(seconds_K), risk) :]
    return np.asarray(seconds_K.mean(axis=0))


def middle(seconds_K: Array) -> float:
    """Mean of the middle half of the scenarios' seconds (interquartile mean), from (K,); outliers do not move
    it."""
    cut = len(seconds_K) // 4
    return float(np.sort(seconds_K)[cut : len(seconds_K) - cut].mean())
