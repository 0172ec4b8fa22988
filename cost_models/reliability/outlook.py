"""Random draws of the time at which a training job ends, and changes that would end it sooner.

Draws say what failures, and the step that nobody has timed yet, leave to chance; offers are one more
spare, twice the storage, half the restart, rarer failures.
"""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np

from cost_models.arrays import Array, Ints
from cost_models.errors import InfeasibleError
from cost_models.reliability.forecast import Forecast, forecast
from cost_models.reliability.segments import truncated
from cost_models.units import grouped

RUNS = 10_000
SEED = 2024
_MOST_DRAWS = 20_000_000
"""Maximum number of failures drawn one by one; the sum over more is drawn from a normal distribution."""


def draw_ends(prediction: Forecast, runs: int = RUNS, seed: int = SEED) -> Array:
    """Simulate the job's duration under random failures, (runs,) seconds sorted; reproducible by `seed`.

    A segment fails with a chance, or not; one that failed is tried until a restart and a segment pass without failure.
    """
    rng = np.random.default_rng(seed)
    segment, count = prediction.segment, max(1, round(prediction.segments))
    fails = rng.binomial(count, segment.failure_probability, runs)
    passes = math.exp(-segment.retry_seconds / segment.mtbf)
    retries = np.where(fails > 0, rng.negative_binomial(np.maximum(fails, 1), passes), 0)
    seconds = (count - fails) * segment.length + fails * segment.retry_seconds
    seconds = seconds + _sum_of(rng, fails, segment.mtbf, segment.length)
    seconds += _sum_of(rng, retries, segment.mtbf, segment.retry_seconds)
    if prediction.waiting.chance:
        waits = rng.binomial(fails + retries, prediction.waiting.chance)
        seconds += np.where(waits > 0, rng.gamma(np.maximum(waits, 1), prediction.waiting.seconds), 0.0)
    seconds = prediction.job.start_seconds + seconds * prediction.segments / count + prediction.replacing
    ends: Array = np.sort(seconds / (1 - prediction.maintained))
    return ends


def draw_ends_of(prediction: Forecast, steps: Array, runs: int = RUNS) -> Array:
    """Simulate the job's duration, (runs,) seconds sorted, with an uncertain step time, which is any of `steps` (K,)
    seconds with equal probability."""
    draws = []
    for place, step in enumerate(steps):
        timed = forecast(replace(prediction.job, step_seconds=float(step)), prediction.operations)
        timed = replace(timed, interval=prediction.interval)
        draws.append(draw_ends(timed, max(1, runs // len(steps)), SEED + place))
    return np.sort(np.concatenate(draws))


def _sum_of(rng: np.random.Generator, counts: Ints, mean: float, threshold: float) -> Array:
    """Draw (N,) sums of `counts` exponential times each, all conditioned to be shorter than `threshold`."""
    if counts.sum() > _MOST_DRAWS:
        first, square = truncated(mean, threshold)
        total: Array = rng.normal(counts * first, np.sqrt(counts * max(0.0, square - first**2)))
        return total
    share = -math.expm1(-threshold / mean)
    times = -mean * np.log1p(-share * rng.random(int(counts.sum())))
    edges = np.concatenate(([0], np.cumsum(counts)))
    running = np.concatenate(([0.0], np.cumsum(times)))
    sums: Array = running[edges[1:]] - running[edges[:-1]]
    return sums


@dataclass(frozen=True, slots=True)
class Change:
    """A possible improvement of the cluster's operations, such as one more spare node, and the forecast with the
    improvement."""

    name: str
    forecast: Forecast


def changes_of(current: Forecast, interval: int | None = None) -> tuple[Change, ...]:
    """Improvements of the cluster's operations that shorten the job by at least a thousandth, best first.

    Each keeps the interval between checkpoints that the user fixed, and the best one is a change of its own;
    where nobody fixed it each has its own best.
    """
    now, changes = current.operations, []
    spares, read = now.spares, now.storage_read or now.storage_write
    updates: dict[str, dict[str, object]] = {
        "one more spare node": {} if spares is None else {"spares": spares + 1},
        "twice the spare nodes": {"spares": 2 * spares} if spares else {},
        "twice the storage bandwidth": {"storage_write": 2 * now.storage_write, "storage_read": 2 * read},
        "half the time to detect and restart": {"detection": now.detection / 2, "restart": now.restart / 2},
        "half as many failures": {"mtbf": 2 * now.mtbf},
        "writing to storage while training": {} if now.asynchronous else {"asynchronous": True},
        "no slow hosts": {"slow_hosts": 0.0} if now.slow_hosts else {},
        "no planned stops": {} if now.maintenance is None else {"maintenance": None},
    }
    for name, update in updates.items():
        with suppress(InfeasibleError):
            if update:
                changes.append(Change(name, forecast(current.job, now.model_copy(update=update), interval)))
    if interval is not None:
        best = forecast(current.job, current.operations)
        oftener = "often" if best.interval < interval else "rarely"
        changes.append(Change(f"saving more {oftener}, every {grouped(best.interval)} steps", best))
    worth = (change for change in changes if change.forecast.seconds < current.seconds * (1 - _WORTH))
    return tuple(sorted(worth, key=lambda change: change.forecast.seconds))


_WORTH = 1e-3
