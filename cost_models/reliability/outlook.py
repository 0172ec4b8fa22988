"""Random draws of the time at which a training job ends, and changes that would end it sooner.

Draws say what failures, and the step that nobody has timed yet, leave to chance; offers are one more
spare, twice the storage, half the restart, rarer failures.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np

from cost_models.arrays import Array, Ints
from cost_models.errors import InfeasibleError
from cost_models.reliability.forecast import Forecast, forecast, with_interval
from cost_models.reliability.segments import truncated
from cost_models.specs.cluster import OperationsSpec
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
        same_interval = with_interval(timed, prediction.interval)
        draws.append(draw_ends(same_interval, max(1, runs // len(steps)), SEED + place))
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
    changes = []
    for name, operations in _changed(current.operations):
        with suppress(InfeasibleError):
            changes.append(Change(name, forecast(current.job, operations, interval)))
    if interval is not None:
        best = forecast(current.job, current.operations)
        oftener = "often" if best.interval < interval else "rarely"
        changes.append(Change(f"saving more {oftener}, every {grouped(best.interval)} steps", best))
    worth = (change for change in changes if change.forecast.seconds < current.seconds * (1 - _WORTH))
    return tuple(sorted(worth, key=lambda change: change.forecast.seconds))


_WORTH = 1e-3


def _changed(now: OperationsSpec) -> Iterator[tuple[str, OperationsSpec]]:
    if now.spares is not None:
        yield "one more spare node", now.model_copy(update={"spares": now.spares + 1})
    if now.spares is not None and now.spares:
        yield "twice the spare nodes", now.model_copy(update={"spares": 2 * now.spares})
    read = now.storage_read or now.storage_write
    faster = {"storage_write": 2 * now.storage_write, "storage_read": 2 * read}
    yield "twice the storage bandwidth", now.model_copy(update=faster)
    sooner = {"detection": now.detection / 2, "restart": now.restart / 2}
    yield "half the time to detect and restart", now.model_copy(update=sooner)
    yield "half as many failures", now.model_copy(update={"mtbf": 2 * now.mtbf})
    if not now.asynchronous:
        yield "writing to storage while training", now.model_copy(update={"asynchronous": True})
    if now.slow_hosts:
        yield "no slow hosts", now.model_copy(update={"slow_hosts": 0.0})
    if now.maintenance is not None:
        yield "no planned stops", now.model_copy(update={"maintenance": None})
