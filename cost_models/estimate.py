"""Estimate of the step time, MFU and memory of one layout whose blocks are placed on stages, with the parts
of each. Also how far to trust it: the probability that a predicted gain is real, and the properties of a
layout that no timed run had.

Two predicted times of one question err together, so the error that matters is that of their ratio. If two
layouts differ on one axis, its median is the profile's `pair_error` e, on n axes e·√n. The median of a normal
error is 0.6745 of its deviation, so a predicted ratio r = exp(g) is above one with probability Φ(0.6745 · g /
(e·√n)). The median error of a profile is that of all its runs; a layout may resemble none of them, which is
then reported.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Literal

from cost_models.axes.layout import AXES, COMPARED, Layout, axes_that_differ, axis_value
from cost_models.axes.words import Number
from cost_models.question import Question
from cost_models.risk import EVEN, confident_share, fits_probability
from cost_models.units import counted, format_bytes

Verdict = Literal["fits", "tight", "does not fit", "does not fit: host", "does not fit: drive"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trust:
    """Reliability of a prediction: the source of the hardware constants and their errors against measured
    runs."""

    tier: str
    """Source of the constants: `datasheet`, `profile` (fitted to published runs) or `measured` (on this
    machine)."""
    profile: str
    """Name of the hardware profile."""
    error: float | None
    """Median relative error of step times predicted with the profile; None if it was never compared with
    runs."""
    runs: int
    """Number of measured runs from which `error` was computed."""
    elsewhere: str = ""
    """How those runs differ from the question, such as another GPU of the same die or another software stack;
    empty: they do not."""

    unseen_error: float | None = None
    """Median relative error of step time on published sources left out of the fit. None if GPU and stack are
    the profile's own, or if it is unknown."""
    borrowed: str = ""
    """Name of the GPU from which the constants are borrowed, if no run on a GPU of this die was timed; else
    empty. `error` and `runs` are then those of dies whose own runs were left out."""
    scaled_by_tests: bool = False
    """Whether borrowed constants were scaled by ratios of published tests of kernels and collectives."""
    memory_error: float = 0.1
    """Relative error of predicted peak memory that nine in ten published runs under the stack do not
    exceed."""

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
    """Data-parallel replicas of the model within one pool (group of equal GPUs) of a mixed cluster, with
    seconds and bytes per step."""

    pool: str
    microbatches: tuple[int, ...]
    """Number of microbatches of each replica."""
    step_seconds: float
    """Seconds of a step of the replica with the most microbatches, without waiting for other pools."""
    rank_memory: tuple[Breakdown, ...]
    """Peak memory of each pipeline rank, bytes by part."""
    memory_limit: float
    """Memory of one device that a plan may use, bytes."""

    @property
    def peak_bytes(self) -> float:
        """Peak memory, bytes, of the fullest pipeline rank of the pool's replicas."""
        return max(rank.total for rank in self.rank_memory)


def fullness(peak: float, limit: float) -> tuple[float, float]:
    """Sort key of a memory peak in bytes: its share of the limit, then the peak itself. A limit of zero or
    less sorts above every share."""
    return (peak / limit, peak) if limit > 0 else (math.inf, peak)


def fullest_pool(pools: Sequence[PoolReplicas]) -> PoolReplicas:
    """Pool of GPUs in which the replicas' peak memory is the largest share of the device's memory limit."""
    return max(pools, key=lambda pool: fullness(pool.peak_bytes, pool.memory_limit))


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """Predicted step time, memory and utilisation of one layout whose blocks are placed on pipeline stages;
    seconds and bytes per step."""

    layout: Layout
    microbatches: int
    """Number of microbatches that each pipeline runs per step; with replicas in several pools, the largest
    number."""
    step_seconds: float
    time: Breakdown
    """Seconds of the busiest rank by part: compute, recompute, tp_comm, cp_comm, ep_comm, pp_comm, dp_comm,
    optimizer, host, jitter, bubble. Communication is the exposed part only; all sum to `step_seconds`."""
    hidden_comm: Breakdown
    """Seconds of communication hidden by compute, which is not part of the step: tp_comm, cp_comm, ep_comm,
    dp_comm."""
    rank_memory: tuple[Breakdown, ...]
    """Peak memory of each pipeline rank, bytes by part: weights, gradients, optimizer, activations, working,
    buffers, reserved."""
    rank_limits: tuple[float, ...]
    """Memory that a device of each pipeline rank may use, bytes; equal for all ranks unless the cluster has
    several pools."""
    mfu: float
    """Model FLOPs utilisation: model FLOPs of the step / (step time × peak × GPUs); recomputed FLOPs do not
    count."""
    hfu: float
    """Hardware FLOPs utilisation: as `mfu`, with recomputed FLOPs counted."""
    tokens_per_second: float
    """Tokens trained per second over all GPUs."""
    bound_by: str
    """Name of the largest part of the step other than compute, if it is large enough; else `compute`."""
    trust: Trust
    causal_mfu: float = 0.0
    """MFU in which attention FLOPs are counted only for the scores that a causal mask or a window leaves."""
    answers_per_second: float | None = None
    """Tokens per second that count in the loss; None if all tokens do."""
    replicas: tuple[PoolReplicas, ...] = ()
    """Replicas of the model in each pool, if each replica lies within one of several pools; else empty.
    `rank_memory` is then that of the fullest pool."""
    confidence: float = EVEN
    """Minimum probability of fitting that `memory_limit` guarantees by leaving memory spare; at one half none
    is spare."""

    weighed_seconds: float | None = None
    """Mean step seconds over scenarios (plausible sets of constants) as the question's `risk` weighs them.
    None: layouts are compared by `step_seconds`."""
    host_bytes: float = 0.0
    """Bytes of data offloaded to the memory of each host (node); 0 without offload. With several pools, those
    of the fullest host."""
    host_limit: float | None = None
    """Memory of the host in `host_bytes` that offloaded data may use, bytes; None if unknown."""
    drive_bytes: float = 0.0
    """Bytes of optimizer states on the drive of each host (node); 0 without any. With several pools, those of
    the fullest drive."""
    drive_limit: float | None = None
    """Bytes that optimizer states may use on the drive in `drive_bytes`; None if unknown."""

    @property
    def compared_seconds(self) -> float:
        """Step seconds by which layouts are compared: the mean over scenarios if the question has a risk,
        else the predicted seconds."""
        return self.step_seconds if self.weighed_seconds is None else self.weighed_seconds

    @property
    def peak_bytes(self) -> float:
        """Peak memory in bytes of the pipeline rank that is fullest relative to its limit."""
        return self.rank_memory[self.fullest_rank].total

    @property
    def fullest_rank(self) -> int:
        """Index of the pipeline rank whose peak memory is the largest share of its device's limit."""
        shares = list(map(fullness, (rank.total for rank in self.rank_memory), self.rank_limits))
        return shares.index(max(shares))

    @property
    def memory_limit(self) -> float:
        """Memory of a device that the fullest pipeline rank may use, bytes."""
        return self.rank_limits[self.fullest_rank]

    def within(self, limit: float | None) -> Estimate:
        """Copy of the estimate with every device's memory limit reduced to at most `limit` bytes; unchanged
        if `limit` is None."""
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
        """Sentences that say why the estimate is unreliable, such as a utilisation above 100 %; usually
        empty."""
        name, share = ("MFU", self.mfu) if self.mfu > 1 else ("HFU", self.hfu)
        warning = (
            f"{name} {100 * share:.1f} % is more than the hardware can do: profile `{self.trust.profile}` has products"
            " or attention faster than the peak; calibrate again while nothing else runs"
        )
        return (warning,) if share > 1 else ()

    @property
    def fits_probability(self) -> float:
        """Probability that the step fits in device memory, given the errors of predicted peaks under the
        question's stack."""
        return fits_probability(self.peak_bytes, self.allocatable_bytes, self.trust.memory_error)

    @property
    def allocatable_bytes(self) -> float:
        """Bytes of device memory that can be allocated. `memory_limit` is smaller if a required probability
        of fitting needs spare memory."""
        return self.memory_limit / confident_share(self.confidence, self.trust.memory_error)

    @property
    def limit_words(self) -> str:
        """Device memory limit as text, such as "77.5 GiB". If a required probability of fitting reduces it,
        the text is such as "77.5 GiB (73.1 GiB to fit with 95 %)"."""
        part = format_bytes(self.memory_limit)
        if self.memory_limit == self.allocatable_bytes:
            return part
        return f"{format_bytes(self.allocatable_bytes)} ({part} to fit with {100 * self.confidence:.4g} %)"

    @property
    def verdict(self) -> Verdict:
        """Verdict on memory: "fits", "tight" (fits by less than the prediction error), or "does not fit". If
        host memory or the drive is too small, the verdict names it."""
        if not self.device_holds:
            return "does not fit"
        if not self.fits:
            return "does not fit: drive" if self.host_holds else "does not fit: host"
        return "tight" if self.device_is_tight or self.host_is_tight else "fits"

    @property
    def device_is_tight(self) -> bool:
        """Whether the predicted peak is so close to the memory limit that the prediction error can decide.
        The error is a factor of 1 + the stack's memory error, up or down."""
        factor = 1 + self.trust.memory_error
        return self.allocatable_bytes / factor < self.peak_bytes < self.allocatable_bytes * factor

    @property
    def host_is_tight(self) -> bool:
        """Whether offloaded data fits in host memory by less than the error of predicted peaks."""
        limit = self.host_limit or 0.0
        return limit / (1 + self.trust.memory_error) < self.host_bytes <= limit

    @property
    def fits(self) -> bool:
        """Whether every rank fits in device memory, and offloaded data in host memory and drives. Host memory
        and drives of unknown size are assumed to suffice."""
        drives_hold = self.drive_limit is None or self.drive_bytes <= self.drive_limit
        return self.device_holds and self.host_holds and drives_hold

    @property
    def device_holds(self) -> bool:
        """Whether every rank's peak is within its device's memory limit, so that the step fits with
        probability `least_chance(confidence)`."""
        return self.peak_bytes <= self.memory_limit

    @property
    def host_holds(self) -> bool:
        """Whether offloaded data fits in host memory; True if its size is unknown."""
        return self.host_limit is None or self.host_bytes <= self.host_limit


class Breakdown(dict[str, float]):
    """Parts of a total (seconds or bytes) by name, in order of importance."""

    @property
    def total(self) -> float:
        """Sum of all parts."""
        return sum(self.values())


CLEAR = 2 / 3
"""Minimum probability that a predicted gain is real at which the faster of two layouts is preferred to the
simpler."""
USUAL_PAIR_ERROR = 0.06
"""Default of a profile's `pair_error`, the median relative error of a predicted ratio of step times: that of
668 runs of seven sources on A100."""
_NORMAL = NormalDist()
_MEDIAN = _NORMAL.inv_cdf(0.75)
"""Median of the absolute value of a standard normal variable, 0.6745."""


def pair_error_of(question: Question) -> float:
    """Median relative error of the predicted ratio of two step times, for layouts that differ on one axis."""
    return question.hardware.pair_error or USUAL_PAIR_ERROR


def deviation(first: Layout, second: Layout, pair_error: float) -> float:
    """Standard deviation of the logarithm of the predicted ratio of two layouts' step times, for a profile's
    `pair_error`."""
    return deviation_on(max(1, len(axes_that_differ(first, second))), pair_error)


def deviation_on(axes: int, pair_error: float) -> float:
    """Standard deviation of the logarithm of the predicted ratio of two step times, for layouts that differ
    on `axes` axes."""
    return pair_error / _MEDIAN * math.sqrt(axes)


def error_between(first: Layout, second: Layout, question: Question) -> float:
    """Median relative error of the predicted ratio of two layouts' step times, below which predicted
    differences are not significant."""
    return pair_error_of(question) * math.sqrt(max(1, len(axes_that_differ(first, second))))


def chance_of_gain(log_ratio: float, first: Layout, second: Layout, pair_error: float) -> float:
    """Probability that the true ratio of two layouts' step times is above one, given the logarithm of the
    predicted ratio."""
    return _NORMAL.cdf(log_ratio / deviation(first, second, pair_error))


def half_width(share: float) -> float:
    """Number of standard deviations from the mean of a normal distribution within which the probability is
    `share`: 1.645 for 0.9."""
    return _NORMAL.inv_cdf((1 + share) / 2)


_PLAINEST = Layout()


def uncovered_facts(question: Question, layout: Layout) -> int:
    """Number of properties of a question and layout (axis values, GPU, stack) that no timed run of the
    profile had; 0 if it lists no runs."""
    timed = question.hardware.timed
    other_gpu = question.cluster.gpu.name not in {runs.gpu for runs in timed}
    other_stack = question.stack.name not in {runs.stack for runs in timed}
    return len(words_beyond_runs(question, layout)) + other_gpu + other_stack if timed else 0


def words_beyond_runs(question: Question, layout: Layout) -> tuple[str, ...]:
    """Properties of a layout that no timed run of the hardware profile had, in words such as "cp8" or "12,288
    GPUs". They are degrees above those of all runs, and other values that no run had. Empty if the profile
    lists no runs."""
    words, timed = list[str](), question.hardware.timed
    if not timed:
        return ()
    for axis in COMPARED:
        value = axis_value(axis, layout)
        timed_values = {used for runs in timed for used in runs.values_of(axis)}
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
