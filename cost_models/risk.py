"""Risk that a request accepts, in the required probability of fitting in memory and in the mean over
scenarios by which step times are compared.

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
"""Required probability of fitting at which a predicted peak may equal the memory limit: then it fits with one
half, except for outliers."""
MOST_CONFIDENT = 0.99
"""Highest probability of fitting that may be required: one run in fifty is an outlier, whatever the spare
memory."""
PEAK_QUANTILE = 0.95
"""Share of measured peaks that lie below (1 + the stack's `memory_error`) × predicted."""
FITTING = 0.9
"""Minimum probability of fitting in memory for recommended layouts, and for layouts that a search
completes."""
_NORMAL = NormalDist()


@dataclass(frozen=True, slots=True, kw_only=True)
class PeakErrors:
    """Distribution of the error of predicted memory peaks: of most runs, and of outliers far below and far
    above the prediction."""

    core: float
    """Factor on the standard deviation that the stack's `memory_error` implies, for runs that are no
    outliers."""
    below_share: float
    below_reach: float
    """Standard deviation of ln(measured / predicted) of the outliers below."""
    above_share: float
    above_reach: float
    source: str = ""

    def p_below(self, room: float, error: float) -> float:
        """Probability that a measured peak is below exp(`room`) × the predicted peak, for the stack's
        relative `error`."""
        deviation = max(log1p(error), 1e-9) / _NORMAL.inv_cdf(PEAK_QUANTILE)  # of ln(measured / predicted)
        core = _NORMAL.cdf(room / (self.core * deviation))
        low = min(1.0, 2 * _NORMAL.cdf(room / self.below_reach))
        high = max(0.0, 2 * _NORMAL.cdf(room / self.above_reach) - 1)
        inliers = (1 - self.below_share - self.above_share) * core
        return inliers + self.below_share * low + self.above_share * high


@cache
def peak_errors() -> PeakErrors:
    """Distribution of errors of predicted memory peaks from the package's data; cached."""
    return PeakErrors(**read_data("errors/peaks"))


def fits_probability(peak: float, limit: float, error: float) -> float:
    """Probability that a run fits in memory, given its predicted `peak` and allocatable `limit` in bytes and
    the stack's relative `error`."""
    if peak <= 0:
        return 1.0
    return peak_errors().p_below(log(limit / peak), error) if limit > 0 else 0.0


def least_chance(confidence: float) -> float:
    """Minimum probability at which a layout counts as fitting in memory: `confidence`, or if higher the
    probability for a peak equal to the limit."""
    return max(confidence, peak_errors().p_below(0.0, 1.0))  # without room the error does not matter


@lru_cache(maxsize=1024)
def confident_share(confidence: float, error: float) -> float:
    """Largest share of the memory limit at which a predicted peak fits with probability
    `least_chance(confidence)`, given the stack's relative `error`."""
    low, high = 0.0, _MOST_ROOM
    if confidence <= least_chance(EVEN):
        return 1.0
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        low, high = (low, middle) if peak_errors().p_below(middle, error) >= confidence else (middle, high)
    return exp(-high)


_MOST_ROOM, _BISECTIONS = 12.0, 60


Risk = Literal["none", "neutral", "averse"]
RISKS: tuple[Risk, ...] = get_args(Risk)
SLOWEST_DIVISOR = 4
"""Divisor k under risk `averse`, which counts only the slowest 1/k (a quarter) of the scenarios."""


def num_weighed(scenarios: int, risk: Risk) -> int:
    """Number of scenarios, out of `scenarios`, over which `risk` averages step times."""
    return 0 if risk == "none" else scenarios if risk == "neutral" else -(-scenarios // SLOWEST_DIVISOR)


def weighed_mask(seconds_K: Array, risk: Risk) -> Bools:
    """Mask (K, ...) of the scenarios that `risk` counts (all, or the slowest), for step seconds (K, ...); of
    equally slow scenarios the first count."""
    order = np.argsort(-seconds_K, axis=0, kind="stable")
    mask = np.zeros(seconds_K.shape, dtype=np.bool_)
    np.put_along_axis(mask, order[: num_weighed(len(seconds_K), risk)], True, axis=0)
    return mask


def weigh(seconds_K: Array, risk: Risk) -> Array:
    """Mean step seconds (...) over the K scenarios of `seconds_K` (K, ...) or, under risk `averse`, over the
    slowest scenarios."""
    if risk == "averse":
        seconds_K = np.sort(seconds_K, axis=0)[-num_weighed(len(seconds_K), risk) :]
    return np.asarray(seconds_K.mean(axis=0))


def interquartile_mean(seconds_K: Array) -> float:
    """Mean of the middle half of the step seconds of K scenarios, (K,), which outliers do not affect."""
    cut = len(seconds_K) // 4
    return float(np.sort(seconds_K)[cut : len(seconds_K) - cut].mean())
