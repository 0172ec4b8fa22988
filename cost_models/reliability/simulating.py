"""The end of a job drawn many times: what its failures leave to chance."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cost_models.reliability.forecast import Forecast
from cost_models.reliability.segments import truncated

Array = npt.NDArray[np.float64]

RUNS = 10_000
SEED = 2024
_MOST_DRAWS = 20_000_000
"""Beyond so many failures each is no longer drawn: sums of so many are normal."""


@dataclass(frozen=True, slots=True)
class Ends:
    """Seconds until the end, drawn; sorted."""

    seconds: Array

    def at(self, share: float) -> float:
        """Seconds within which this share of the draws ends."""
        return float(np.quantile(self.seconds, share))


def draw_ends(found: Forecast, runs: int = RUNS, seed: int = SEED) -> Ends:
    """The job `runs` times, with the same seed the same.

    A segment fails with a chance, or not; one that failed is tried until a restart and a segment pass without failure.
    """
    rng = np.random.default_rng(seed)
    one, count = found.segment, max(1, round(found.segments))
    fails = rng.binomial(count, one.first_fails, runs)
    passes = math.exp(-one.again / one.between)
    retries = np.where(fails > 0, rng.negative_binomial(np.maximum(fails, 1), passes), 0)
    seconds = (count - fails) * one.length + fails * one.again
    seconds = seconds + _sum_of(rng, fails, one.between, one.length)
    seconds += _sum_of(rng, retries, one.between, one.again)
    if found.waiting.chance:
        waits = rng.binomial(fails + retries, found.waiting.chance)
        seconds += np.where(waits > 0, rng.gamma(np.maximum(waits, 1), found.waiting.seconds), 0.0)
    seconds *= found.segments / count / (1 - found.maintained)
    return Ends(np.sort(seconds))


def _sum_of(rng: np.random.Generator, counts: npt.NDArray[np.int64], mean: float, below: float) -> Array:
    """(N,) sums of so many exponential times each, all known to be shorter than `below`."""
    if counts.sum() > _MOST_DRAWS:
        first, square = truncated(mean, below)
        drawn: Array = rng.normal(counts * first, np.sqrt(counts * max(0.0, square - first**2)))
        return drawn
    share = -math.expm1(-below / mean)
    times = -mean * np.log1p(-share * rng.random(int(counts.sum())))
    edges = np.concatenate(([0], np.cumsum(counts)))
    running = np.concatenate(([0.0], np.cumsum(times)))
    sums: Array = running[edges[1:]] - running[edges[:-1]]
    return sums
