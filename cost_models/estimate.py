"""Estimate of one placed layout: step time, MFU and memory, each with its parts; and trust in it: the chance
that a predicted gain is real, and the properties of a layout that no timed run had.

Two predicted times of one question err together, so the error that matters is that of their ratio. If two
layouts differ on one axis, its median is the profile's `pair_error` e, on n axes e·√n. The median of a normal
error is 0.6745 of its deviation, so a predicted ratio r = exp(g) is above one with probability Φ(0.6745 · g /
(e·√n)). The median error of a profile is that of all its runs; a layout may resemble none of them, which is
then reported.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Literal

from cost_models.axes.layout import AXES, COMPARED, Layout, axes_that_differ, axis_value
from cost_models.axes.words import Number
from cost_models.question import Question
from cost_models.risk import EVEN, confident_share, fits_probability
from cost_models.specs.hardware import TimedRuns
from cost_models.units import counted, format_bytes

Verdict = Literal["fits", "tight", "does not fit", "does not fit: host", "does not fit: drive"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trust:
    """Reliability of a prediction, from the origin of the hardware constants and the errors shown in
    comparison with measured runs."""

    tier: str
    """Origin of the constants: `datasheet`, `profile` or `measured`."""
    profile: str
    """Name of the hardware profile."""
    error: float | None
    """Median relative error of step time that the profile has shown; None if it was never compared with
    runs."""
    runs: int
    """Number of runs behind that error."""
    elsewhere: str = ""
    """Difference between those runs and the question: another GPU of the same die, another software stack."""

    unseen_error: float | None = None
    """Median relative error of step time on sources left out of every fit; None if GPU and stack are the
    profile's own, or if it is unknown."""
    borrowed: str = ""
    """GPU from which the constants are borrowed, if no run on a GPU of this die was timed. `error` and `runs`
    are then those of dies whose own runs were left out."""
    scaled_by_tests: bool = False
    """Whether these constants were scaled by ratios of published tests of kernels and collectives."""
    memory_error: float = 0.1
    """Relative error that nine in ten peak memories of published runs under the stack do not exceed."""

    def __str__(self) -> str:
        if self.error is None:
            return f"{self.profile} ({self.tier}, never compared with a run)"
        error, runs, lender = f"{100 * self.error:.0f} %", counted(self.runs, "run"), self.borrowed
        if lender and self.scaled_by_tests:
            words = f"constants of {lender} x ratios of published tests, compared with no run; those of other GPUs"
            words += f" were off by {error} in the median of {runs}"
        elif lender:
            words = f"borrowed from {lender}; median error {error} where {runs} were predicted so"
        else:
            words = f"{self.tier}, median error {error} over {runs}"
            words += f" of {self.elsewhere}" if self.elsewhere else ""
            if self.unseen_error is not None:
                words += f"; {100 * self.unseen_error:.0f} % on held-out sources"
        return f"{self.profile} ({words})"


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolReplicas:
    """Data-parallel replicas of the model that lie within one pool of equal GPUs. Seconds and bytes, per step."""

    pool: str
    microbatches: tuple[int, ...]
    """Microbatches of each replica."""
    step_seconds: float
    """Seconds of a step of the replica with the most microbatches, if it waits for no other pool."""
    rank_memory: tuple[Breakdown, ...]
    """Parts of each pipeline rank's peak."""
    memory_limit: float
    """Bytes of one device that a plan may use."""

    @property
    def peak_bytes(self) -> float:
        """Peak memory of the fullest pipeline rank of the replicas, bytes."""
        return max(rank.total for rank in self.rank_memory)


def fullness(peak: float, limit: float) -> tuple[float, float]:
    """Sort key of memory peaks, the used share of the limit. A limit of zero or less sorts above every share."""
    return (peak / limit, peak) if limit > 0 else (math.inf, peak)


def fullest_pool(pools: Sequence[PoolReplicas]) -> PoolReplicas:
    """Pool of GPUs whose devices use the largest share of their memory limit."""
    return max(pools, key=lambda pool: fullness(pool.peak_bytes, pool.memory_limit))


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Predicted step time, memory and utilisation of one layout with its blocks placed on pipeline stages.
    Times in seconds and memory in bytes, per step."""

    layout: Layout
    microbatches: int
    """Microbatches of each pipeline; of replicas in several pools the most."""
    step_seconds: float
    time: Breakdown
    """Parts of the busiest rank's time: compute, recompute, tp_comm, cp_comm, ep_comm, pp_comm, dp_comm,
    optimizer, host, jitter, bubble. Communication is the exposed part only; all sum to `step_seconds`."""
    hidden_comm: Breakdown
    """Communication hidden by compute, which is not part of the step: tp_comm, cp_comm, ep_comm, dp_comm."""
    rank_memory: tuple[Breakdown, ...]
    """Parts of each pipeline rank's peak: weights, gradients, optimizer, activations, working, buffers, reserved."""
    rank_limits: tuple[float, ...]
    """Bytes that a device of each pipeline rank may fill; they differ between pools alone."""
    mfu: float
    """Model FLOPs of the step / (step time × peak × GPUs); recompute does not count."""
    hfu: float
    """Hardware FLOPs utilisation: as MFU, with recomputed FLOPs counted."""
    tokens_per_second: float
    """Tokens per second over all GPUs."""
    bound_by: str
    """Largest part of the step other than compute, if it is large enough; else `compute`."""
    trust: Trust
    causal_mfu: float = 0.0
    """MFU that counts only the scores a causal mask or a window leaves."""
    answers_per_second: float | None = None
    """Tokens per second that enter the loss, if not all do."""
    replicas: tuple[PoolReplicas, ...] = ()
    """Replicas by pool, if each lies within one of several pools; `rank_memory` is then that of the fullest
    pool."""
    confidence: float = EVEN
    """Minimum probability of fitting for which `memory_limit` leaves spare memory; at one half it leaves
    none."""

    weighed_seconds: float | None = None
    """Seconds of the step as the question's risk weighs scenarios; None: the step on paper."""
    host_bytes: float = 0.0
    """Bytes of offloaded blocks in the memory of each host; 0 without offload. With several pools, the
    fullest host."""
    host_limit: float | None = None
    """Bytes of that host's memory available to offloaded blocks; None if unknown."""
    drive_bytes: float = 0.0
    """Bytes of optimizer states on the drive of each host; 0 without any. With several pools, the fullest
    drive."""
    drive_limit: float | None = None
    """Bytes of that drive available to them; None if unknown."""

    @property
    def compared_seconds(self) -> float:
        """Step seconds by which layouts are compared, weighed over scenarios if the question has a risk."""
        return self.step_seconds if self.weighed_seconds is None else self.weighed_seconds

    @property
    def peak_bytes(self) -> float:
        """Peak memory of the fullest pipeline rank, bytes."""
        return self.rank_memory[self.fullest_rank].total

    @property
    def fullest_rank(self) -> int:
        """Pipeline rank with the highest peak relative to its device's limit."""
        shares = list(map(fullness, (rank.total for rank in self.rank_memory), self.rank_limits))
        return shares.index(max(shares))

    @property
    def memory_limit(self) -> float:
        """Bytes of device memory that the fullest pipeline rank may use."""
        return self.rank_limits[self.fullest_rank]

    def within(self, limit: float | None) -> Estimate:
        """The estimate with a memory limit of at most `limit` bytes on every device, unchanged for
        `limit=None`."""
        if limit is None:
            return self
        limits = tuple(min(own, limit) for own in self.rank_limits)
        if not self.replicas:
            return replace(self, rank_limits=limits)
        pools = tuple(replace(own, memory_limit=min(own.memory_limit, limit)) for own in self.replicas)
        pool = fullest_pool(pools)
        limits = (pool.memory_limit,) * len(limits)
        return replace(self, replicas=pools, rank_memory=pool.rank_memory, rank_limits=limits)

    @property
    def warnings(self) -> tuple[str, ...]:
        """Sentences on why the estimate cannot be trusted, such as an impossible utilisation; usually empty."""
        name, share = ("MFU", self.mfu) if self.mfu > 1 else ("HFU", self.hfu)
        warning = (
            f"{name} {100 * share:.1f} % is more than the hardware can do: profile `{self.trust.profile}` has products"
            " or attention faster than the peak; calibrate again while nothing else runs"
        )
        return (warning,) if share > 1 else ()

    @property
    def fits_probability(self) -> float:
        """Probability that the step fits in device memory, from the errors of predicted peaks under the
        question's stack."""
        return fits_probability(self.peak_bytes, self.allocatable_bytes, self.trust.memory_error)

    @property
    def allocatable_bytes(self) -> float:
        """Bytes of device memory that can be allocated; `memory_limit` is the part left by the requested
        confidence of fitting."""
        return self.memory_limit / confident_share(self.confidence, self.trust.memory_error)

    @property
    def limit_words(self) -> str:
        """Text of the device memory limit, such as "77.5 GiB". If a confidence of fitting leaves less, "77.5
        GiB (73.1 GiB to fit with 95 %)"."""
        part = format_bytes(self.memory_limit)
        if self.memory_limit == self.allocatable_bytes:
            return part
        return f"{format_bytes(self.allocatable_bytes)} ({part} to fit with {100 * self.confidence:.4g} %)"

    @property
    def verdict(self) -> Verdict:
        """Word for whether the layout fits in memory, "fits", "tight" (within the error of predicted peaks or
        of host memory) or "does not fit"."""
        if not self.device_holds:
            return "does not fit"
        if not self.fits:
            return "does not fit: drive" if self.host_holds else "does not fit: host"
        return "tight" if self.device_is_tight or self.host_is_tight else "fits"

    @property
    def device_is_tight(self) -> bool:
        """Whether the predicted peak is so close to the device memory limit that the prediction error could
        exceed the limit. The error is a factor of 1 + the stack's memory error."""
        factor = 1 + self.trust.memory_error
        return self.allocatable_bytes / factor < self.peak_bytes < self.allocatable_bytes * factor

    @property
    def host_is_tight(self) -> bool:
        """Whether host memory holds the offloaded data, but with less room to spare than the error of
        predicted peaks."""
        limit = self.host_limit or 0.0
        return limit / (1 + self.trust.memory_error) < self.host_bytes <= limit

    @property
    def fits(self) -> bool:
        """Whether every rank stays within device memory, and hosts and drives can hold the offloaded data, as
        far as their capacity is known."""
        drives_hold = self.drive_limit is None or self.drive_bytes <= self.drive_limit
        return self.device_holds and self.host_holds and drives_hold

    @property
    def device_holds(self) -> bool:
        """Whether every rank's peak is within its device's memory limit, so that the step fits with
        probability `least_chance(confidence)`."""
        return self.peak_bytes <= self.memory_limit

    @property
    def host_holds(self) -> bool:
        """Whether hosts have enough memory for the offloaded data; True if the size of host memory is unknown."""
        return self.host_limit is None or self.host_bytes <= self.host_limit


@dataclass(frozen=True, slots=True)
class Breakdown:
    """Named parts of one quantity (seconds or bytes), in order of importance; `total` is their sum."""

    parts: tuple[tuple[str, float], ...]

    @classmethod
    def of(cls, **parts: float) -> Breakdown:
        """Create a breakdown from keywords in order, as in `Breakdown.of(compute=1.0, bubble=0.2)`."""
        return cls(tuple((name, float(value)) for name, value in parts.items()))

    @property
    def total(self) -> float:
        """Sum of all parts of the quantity."""
        return sum(value for _, value in self.parts)

    def __getitem__(self, name: str) -> float:
        return dict(self.parts)[name]

    def __iter__(self) -> Iterator[tuple[str, float]]:
        return iter(self.parts)

    def as_dict(self) -> dict[str, float]:
        """Dictionary from part name to value, in order of importance."""
        return dict(self.parts)


CLEAR = 2 / 3
"""Probability from which a predicted gain decides between a simpler and a faster layout."""
USUAL_PAIR_ERROR = 0.06
"""Default error of pairs, for profiles without one: that of 668 runs of seven sources on A100."""
_NORMAL = NormalDist()
_MEDIAN = _NORMAL.inv_cdf(0.75)
"""Median of the absolute value of a standard normal."""


def pair_error_of(question: Question) -> float:
    """Median relative error of the predicted ratio of two step times, per axis on which the two layouts differ."""
    return question.hardware.pair_error or USUAL_PAIR_ERROR


def deviation(one: Layout, other: Layout, pair_error: float) -> float:
    """Standard deviation of the logarithm of the predicted ratio of two layouts' step times."""
    return deviation_on(max(1, len(axes_that_differ(one, other))), pair_error)


def deviation_on(axes: int, pair_error: float) -> float:
    """Standard deviation of the logarithm of the predicted ratio of two step times, for layouts that differ on
    `axes` axes."""
    return pair_error / _MEDIAN * math.sqrt(axes)


def error_between(one: Layout, other: Layout, question: Question) -> float:
    """Median relative error of the predicted ratio of two layouts' step times; a smaller predicted difference
    is not significant."""
    return pair_error_of(question) * math.sqrt(max(1, len(axes_that_differ(one, other))))


def chance_of_gain(log_ratio: float, one: Layout, other: Layout, pair_error: float) -> float:
    """Probability that the true ratio of two layouts' step times is above one, if exp(`log_ratio`) is
    predicted."""
    return _NORMAL.cdf(log_ratio / deviation(one, other, pair_error))


def half_width(share: float) -> float:
    """Half width, in standard deviations, of the central interval that holds a `share` of a normal
    distribution, such as 1.645 for 0.9."""
    return _NORMAL.inv_cdf((1 + share) / 2)


_PLAINEST = Layout()


def timed_under(question: Question) -> tuple[TimedRuns, ...]:
    """Timed runs of the hardware profile made with the question's stack; all of the profile's timed runs if
    there are none."""
    timed = question.hardware.timed
    return tuple(runs for runs in timed if runs.stack == question.stack.name) or timed


def uncovered_facts(question: Question, layout: Layout) -> int:
    """Number of properties of a question and layout (axis values, GPU, stack) that no timed run of the
    hardware profile has; 0 if the profile lists no runs."""
    timed = question.hardware.timed
    other_gpu = question.cluster.gpu.name not in {runs.gpu for runs in timed}
    other_stack = question.stack.name not in {runs.stack for runs in timed}
    return len(words_beyond_runs(question, layout)) + other_gpu + other_stack if timed else 0


def words_beyond_runs(question: Question, layout: Layout) -> tuple[str, ...]:
    """Words of a layout that no timed run of the hardware profile covers, such as "cp8" or "12,288 GPUs".
    These are degrees above those of all runs and names that no run has; empty if the profile lists no runs."""
    words, timed = list[str](), question.hardware.timed
    if not timed:
        return ()
    for axis in COMPARED:
        value = axis_value(axis, layout)
        timed_values = {used for runs in timed for used in runs.used(axis)}
        if value == axis_value(axis, _PLAINEST) or value in timed_values:
            continue
        if isinstance(AXES[axis], Number) and value.isdecimal():
            if int(value) > max((int(used) for used in timed_values if used.isdecimal()), default=1):
                words.append(f"{axis}{value}")
        else:
            words.append(axis if value == "True" else f"{axis}={value}")
    if layout.num_gpus > max(runs.most_gpus for runs in timed):
        words.append(f"{layout.num_gpus:,} GPUs")
    return tuple(words)
