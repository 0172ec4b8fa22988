"""Forecast of a training job, with the time of its end, the share of time that trains, and how often to save.

    wall · (1 − maintenance) = start + steps/k · (E[k steps] + failures · wait for a spare) + replacing slow hosts

Being slow is a trait of a host (MegaScale, section 6.3): a share s of them is slow, whichever they are. Kept, they slow
every step of a job that has any. Replaced, each costs a restart once, and so does any slow host among those that come
in its place or in that of a failed one: s/(1 − s) · (hosts + failures) restarts in all.

The interval is the number of steps that the expected time is least at, or the requested one; formulas: `segments`.

Random draws of the time at which the job ends say what failures, and the step that nobody has timed yet, leave to
chance; changes that would end it sooner are one more spare, twice the storage, half the restart, rarer failures.
"""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from cost_models.arrays import Array, Ints
from cost_models.errors import InfeasibleError, InputError, Problem
from cost_models.estimate import Breakdown
from cost_models.reliability.job import Job
from cost_models.reliability.segments import Segment, Waiting, best_work, truncated, waiting
from cost_models.specs.cluster import OperationsSpec
from cost_models.units import format_bandwidth, format_bytes, format_seconds, grouped

LEAST_GOODPUT = 1e-3
"""Minimum share of a job's time spent on training; below it the job is taken to never end."""


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """Expected duration and time breakdown of a training job under failures, for one interval between checkpoints."""

    job: Job
    operations: OperationsSpec
    interval: int
    """Number of steps from one checkpoint to the next."""
    evicts: bool
    """Whether slow hosts are replaced rather than kept."""

    @property
    def copy(self) -> float:
        """Seconds in which GPUs wait for their share of a checkpoint to be copied to the host."""
        link = self.operations.host_copy or self.job.host_bandwidth
        copied = 0.0 if link is None else self.job.checkpoint_bytes / self.job.gpus / link
        return self.operations.pause + copied

    @property
    def flush(self) -> float:
        """Seconds in which hosts write a checkpoint to storage."""
        return self.job.checkpoint_bytes / self.operations.storage_write

    @property
    def read(self) -> float:
        """Seconds in which a restart reads a checkpoint."""
        return self.job.reading(self.operations.storage_read or self.operations.storage_write)

    @property
    def slowdown(self) -> float:
        """Factor on the seconds of a step from slow hosts that are kept; 1 without any."""
        any_slow = 1 - (1 - self.operations.slow_hosts) ** self.job.nodes
        return 1.0 if self.evicts else 1 + self.operations.slowness * any_slow

    @cached_property
    def segment(self) -> Segment:
        """The steps between two checkpoints, at the pace of the slowest host."""
        operations, behind = self.operations, self.operations.asynchronous
        started = self.job.restart.total if self.job.restart else 0.0
        restart = operations.detection + max(operations.restart, started) + self.read
        saving, lag = (self.copy, self.flush) if behind else (self.copy + self.flush, 0.0)
        work, mtbf = self.interval * (self.job.step_seconds * self.slowdown), operations.mtbf / self.job.gpus
        return Segment(work=work, saving=saving, restart=restart, mtbf=mtbf, lag=lag)

    @cached_property
    def waiting(self) -> Waiting:
        """Chance and time of waiting for a spare node after a failure."""
        return waiting(self.operations.spares, self.operations.repair, self.segment.mtbf)

    @property
    def maintained(self) -> float:
        """Share of all time taken by planned stops."""
        stop, segment = self.operations.maintenance, self.segment
        if stop is None:
            return 0.0
        return min(0.99, (stop.takes + segment.restart + segment.saving) / stop.every)

    @property
    def resumes(self) -> Breakdown | None:
        """Seconds of a restart of our executor by part, reading of the checkpoint included; None for other
        trainers."""
        restart = self.job.restart
        return None if restart is None else Breakdown(**restart, checkpoint=self.read)

    @property
    def segments(self) -> float:
        """Number of checkpoint intervals in the job, a float."""
        return self.job.steps / self.interval

    @property
    def failures(self) -> float:
        """Expected number of failures during the job."""
        return self.segments * self.segment.failures

    @property
    def replacing(self) -> float:
        """Expected seconds of the restarts that replace slow hosts, over the entire job."""
        if not self.evicts:
            return 0.0
        slow, once = self.operations.slow_hosts, self.segment.restart + self.segment.saving
        return slow / (1 - slow) * (self.job.nodes + self.failures) * once

    @property
    def seconds(self) -> float:
        """Expected seconds from the start of the job until it ends, failures and planned stops included."""
        return self._running / (1 - self.maintained)

    @property
    def deviation(self) -> float:
        """Standard deviation of the job's duration in seconds."""
        return math.sqrt(self.segments * self._variance) / (1 - self.maintained)

    @property
    def goodput(self) -> float:
        """Share of the job's expected duration spent on steps that are not lost, at the pace of healthy hosts."""
        return self.job.seconds / self.seconds

    @property
    def parts(self) -> Breakdown:
        """Breakdown of the expected duration in seconds by cause (training, saving, lost work, ...). The parts
        sum to `seconds`."""
        segment, count = self.segment, self.segments
        start = {} if self.job.start is None else {"starting": self.job.start_seconds}
        slow = (self.slowdown - 1) * self.job.seconds + self.replacing
        parts = {"training": self.job.seconds, "stragglers": slow, "saving": count * segment.saving}
        parts |= {"lost_work": count * segment.lost, "restarting": count * segment.restarting}
        parts |= {"waiting_for_spares": self.failures * self.waiting.mean_seconds}
        return Breakdown(**parts, maintenance=self.seconds * self.maintained, **start)

    @property
    def kilowatt_hours(self) -> float | None:
        """Energy of the job in kWh with all GPUs at their power limit, planned stops excluded; None if the limit
        is unknown."""
        return None if self.job.watts is None else self._running * self.job.gpus * self.job.watts / 3.6e6

    @property
    def gpu_hours(self) -> float:
        """Expected GPU-hours until the job ends."""
        return self.seconds * self.job.gpus / 3600

    @property
    def _running(self) -> float:
        per_segment = self.segment.expected + self.segment.failures * self.waiting.mean_seconds
        return self.job.start_seconds + self.segments * per_segment + self.replacing

    @property
    def _variance(self) -> float:
        """Variance (s²) of the time of a segment between checkpoints, waits for spare nodes included. Failures
        are independent Bernoulli times exponential variables."""
        segment, wait, need = self.segment, self.waiting, self.segment.retry_seconds
        mean_wait, square = wait.mean_seconds, 2 * wait.chance * wait.seconds**2
        p, retries = segment.failure_probability, math.expm1(min(need / segment.mtbf, 300.0))
        count, squares = p * (1 + retries), p * (1 + 3 * retries + 2 * retries**2)
        first, _ = truncated(segment.mtbf, segment.length)
        retried, _ = truncated(segment.mtbf, need)
        # E[time · failures] beyond what a segment without failures adds, which is nothing
        joint_mean = p * ((first + need) * (1 + retries) + retried * (retries + retries + 2 * retries**2))
        covariance = joint_mean - segment.expected * count
        variance = segment.variance + count * (square - mean_wait**2) + (squares - count**2) * mean_wait**2
        return variance + 2 * mean_wait * covariance


def forecast(job: Job, operations: OperationsSpec, interval: int | None = None) -> Forecast:
    """Forecast the duration of a job that saves every `interval` steps, or at the best interval where None.

    Slow hosts are kept, or replaced as they turn up: whichever ends the job sooner.

    Raises:
        InfeasibleError: it fails sooner than it restarts, or hardly trains at all.
        InputError: an interval that is none, or in which storage cannot take a checkpoint.
    """
    choices = (False, True) if 0 < operations.slow_hosts < 1 else (False,)
    forecasts = [_forecast(job, operations, interval, evicts=evicts) for evicts in choices]
    result = min(forecasts, key=lambda one: one.seconds)
    if result.goodput < LEAST_GOODPUT:
        leave = f"{format_seconds(result.segment.mtbf)} from failure to failure leave {result.goodput:.1%}"
        hint = "a longer --mtbf, a quicker restart, faster storage or more spares"
        raise InfeasibleError(f"the job never ends: {leave} of the time to train", hint=hint)
    return result


def _forecast(job: Job, operations: OperationsSpec, interval: int | None, *, evicts: bool) -> Forecast:
    every_step = Forecast(job=job, operations=operations, interval=1, evicts=evicts)
    step = every_step.segment
    if step.mtbf <= step.restart:
        fails = f"with {job.gpus:,} GPUs something fails every {format_seconds(step.mtbf)}"
        message = f"the job never ends: {fails}, and a restart takes {format_seconds(step.restart)}"
        raise InfeasibleError(message, hint="fewer GPUs, a longer --mtbf, or a quicker restart")
    if interval is None:
        return replace(every_step, interval=min(best_steps(step), job.steps))
    if not 1 <= interval <= job.steps:
        raise InputError(f"a job of {job.steps:,} steps cannot save every {interval:,} of them")
    if interval < (fewest := least_steps(step)):
        rate, hint = format_bandwidth(operations.storage_write), f"--every {fewest} or more"
        size = format_bytes(job.checkpoint_bytes)
        message = f"storage takes {size} at {rate}: longer than {interval:,} steps"
        problems = [Problem("--every", message)]
        raise InputError("checkpoints come faster than storage takes them", problems=problems, hint=hint)
    return replace(every_step, interval=interval)


def least_steps(step: Segment) -> int:
    """Minimum number of steps between checkpoints at which storage finishes one checkpoint before the next; `step` is
    a segment of one step."""
    return max(1, math.ceil((step.lag - step.saving) / step.work))


def best_steps(step: Segment) -> int:
    """Number of steps between checkpoints with the least expected time; `step` is a segment of one step."""
    fewest, work = least_steps(step), best_work(step.saving, step.mtbf) / step.work

    def cost(steps: int) -> float:
        candidate = replace(step, work=steps * step.work)
        return candidate.expected / candidate.work

    return min(sorted({max(fewest, math.floor(work)), max(fewest, math.ceil(work)), fewest}), key=cost)


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


def changes_of(current: Forecast, interval: int | None = None) -> dict[str, Forecast]:
    """Improvements of the cluster's operations, such as one more spare node, that shorten the job by at least a
    thousandth, best first, each with the forecast that it leads to.

    Each keeps the interval between checkpoints that the user fixed, and the best one is a change of its own;
    where nobody fixed it each has its own best.
    """
    now, changes = current.operations, dict[str, Forecast]()
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
                changes[name] = forecast(current.job, now.model_copy(update=update), interval)
    if interval is not None:
        best = forecast(current.job, current.operations)
        oftener = "often" if best.interval < interval else "rarely"
        changes[f"saving more {oftener}, every {grouped(best.interval)} steps"] = best
    worth = {name: after for name, after in changes.items() if after.seconds < current.seconds * (1 - _WORTH)}
    return dict(sorted(worth.items(), key=lambda change: change[1].seconds))


_WORTH = 1e-3
