"""Forecast of a training job under failures: its time and end, the share of time that trains, and the best
interval between checkpoints.

A segment (the steps from one checkpoint to the next) is repeated after a failure.

Times between failures are random (exponential, mean M). A segment trains for τ seconds and saves for δ, while training
waits; a restart takes R, in which failures may happen too; a checkpoint is readable f after it was saved, so a failure
wastes f seconds of work in addition to the work since then. From one readable checkpoint to the next

    E[segment] = M · e^{(R + f)/M} · (e^{(τ + δ)/M} − 1)              goodput = τ / E

(Daly 2006, equation 13, with f = 0; the same argument holds for any f ≤ τ + δ, as after a failure R + f + τ + δ must
pass without another). First order: τ = √(2δM) (Young 1974), √(2δM) − δ (Daly 2006).

Spare nodes: nodes fail one at a time and return after a repair, so that ρ = repair / M of them are absent on average.
With S spares the job waits while S + 1 nodes are absent; no node fails while it waits. This is a system of S + 1
servers that loses calls while all are busy (Erlang 1917): the share of time with n nodes absent is ρⁿ/n! of the sum
over 0 ≤ n ≤ S + 1.

Start-up seconds of the executor by the parts that `run` reports, from constants (`data/errors/start.yaml`):

    processes   CPU seconds of torchrun's process and then of a rank's, until it can join: Python, torch
    groups      request · ranks · (Σ over a rank's groups of n ranks (1 + 2 ⌈log2 n⌉) + 2 (⌈log2 ranks⌉ − 1))
    weights     seconds to build a rank's blocks and, unless weights are loaded, to draw the weights that it updates
    first_step  additional host seconds of the first step: torch determines how operators on shards are split

Random draws on a GPU move `draw_bytes` of its memory per element; on a CPU their pieces stay in a cache.

One process serves the rendezvous store of all ranks, so that their requests are served one after another. A rank
requests the addresses of the ranks with which it communicates: log2 n of a group for a reduction or gather, and as many
of all ranks, except its neighbour, for a barrier. By default each rank requests the addresses of all others in each of
its groups, 1 + 2 n requests, which grows as the square of the ranks (Jiang et al. 2024, "MegaScale", section 3.5,
counts such barriers too: 1,047 s on 2,048 GPUs, below 5 s without).

Not included: the network time of requests, which overlap; the handshakes of torch and NCCL; loading and allocations in
a GPU's first step.

Seconds of the executor to read a checkpoint: files are verified and read, and sent if several ranks need the same.

Every file is first read by one of n ranks, which computes its digest. Then each rank reads the pieces it needs; or,
if links are faster than a rank's share of the storage, one of the ranks that need a piece reads it and sends it to the
others (Jiang et al. 2024, "MegaScale", section 4.4). For B bytes, from storage that all ranks together read at S:

    verifying = B / S + digest · B / n
    reading   = min(Σ copies · B / S,  B / S + broadcast of what a rank holds)

The sums are over routed experts and everything else. Not included: files that remain in the hosts' page caches.

The forecast is

    wall · (1 − maintenance) = start + steps/k · (E[k steps] + failures · wait for a spare) + replacing slow hosts

A share s of the hosts is slow, always the same hosts (MegaScale, section 6.3). If they are kept, every step of a job
with a slow host is slower. If they are replaced, each slow host costs a restart once, and so does each slow host among
the replacements of slow and failed hosts: s/(1 − s) · (hosts + failures) restarts in all.

The interval between checkpoints is the number of steps with the least expected time, or the requested number.

Random draws of the job's end show the uncertainty from failures and from step times that nobody has measured. Changes
that may end the job sooner are one more spare node, twice the storage bandwidth, half the restart time, fewer failures.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil, log2
from typing import NamedTuple

import numpy as np

from cost_models.arrays import Array, Ints
from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import Layout
from cost_models.communication.collectives import broadcast_seconds
from cost_models.communication.topology import Groups, axis_groups
from cost_models.defaults import OWN_STACKS
from cost_models.errors import InfeasibleError, InputError, Problem
from cost_models.estimate import Breakdown
from cost_models.files import read_data
from cost_models.memory.device import is_own_host
from cost_models.memory.states import moment_bytes
from cost_models.operators.parameters import (
    parameters,
    total_parameters,
    trained_parameters,
    unfrozen_parameters,
)
from cost_models.question import Question
from cost_models.specs.cluster import OperationsSpec
from cost_models.specs.training import STATE_BYTES
from cost_models.units import format_bandwidth, format_bytes, format_seconds, grouped


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """Training from one checkpoint to the next, with its seconds of work, saving and restart and the mean
    time between failures."""

    work: float
    """Seconds of training from one checkpoint to the next, τ."""
    saving: float
    """Seconds for which training waits at each checkpoint, δ."""
    restart: float
    """Seconds from a failure until training continues, R."""
    mtbf: float
    """Mean seconds between failures of the entire job, M."""
    lag: float = 0.0
    """Seconds from saving a checkpoint until it can be read, f."""

    @property
    def length(self) -> float:
        """Seconds from one checkpoint to the next without failures, L = τ + δ."""
        return self.work + self.saving

    @property
    def expected(self) -> float:
        """Expected seconds from one checkpoint to the next, failures and restarts included."""
        m = self.mtbf
        return m * _exp((self.restart + self.lag) / m) * math.expm1(min(self.length / m, _MAX_EXPONENT))

    @property
    def goodput(self) -> float:
        """Share of the expected time between checkpoints spent on training steps that are not lost."""
        return self.work / self.expected

    @property
    def failures(self) -> float:
        """Expected number of failures between one checkpoint and the next, those during restarts included."""
        return self.expected / self.mtbf

    @property
    def restarting(self) -> float:
        """Expected seconds of restarts between one checkpoint and the next."""
        return self.failures * self.mtbf * -math.expm1(-self.restart / self.mtbf)

    @property
    def lost(self) -> float:
        """Expected seconds of training and saving between two checkpoints that failures waste and that must
        be repeated."""
        return max(0.0, self.expected - self.length - self.restarting)

    @property
    def failure_probability(self) -> float:
        """Probability that a failure occurs before the work and the saving of one checkpoint interval are done."""
        return -math.expm1(-self.length / self.mtbf)

    @property
    def retry_seconds(self) -> float:
        """Seconds that must pass without a failure to complete a segment after a failure: restart, time until
        the last checkpoint is readable, and the segment."""
        return self.restart + self.lag + self.length

    @property
    def variance(self) -> float:
        """Variance (s²) of the time from one checkpoint to the next.

        Without a failure it takes L; else the time to the first, T < L, and then trials that need W = R + f + L without
        one: mean m(e^{W/m} − 1), variance m²e^{2W/m} − 2mWe^{W/m} − m².
        """
        m, p = self.mtbf, self.failure_probability
        length, need = self.length, self.retry_seconds
        grown = _exp(need / m)
        trials = m * (grown - 1)
        spread = max(0.0, m * m * (grown * grown - 1) - 2 * m * need * grown)
        first, square = truncated_moments(m, length)
        of_square = (1 - p) * length**2 + p * (square + 2 * first * trials + spread + trials**2)
        return max(0.0, of_square - self.expected**2)


_MAX_EXPONENT = 350.0
"""Maximum exponent of `exp`, beyond which a time is practically infinite; the square of the result is still
finite."""


def _exp(value: float) -> float:
    """Exponential function, with the exponent limited to `_MAX_EXPONENT`."""
    return math.exp(min(value, _MAX_EXPONENT))


def truncated_moments(mean: float, threshold: float) -> tuple[float, float]:
    """Mean and mean square of an exponentially distributed time of mean `mean`, given that it is shorter than
    `threshold`."""
    x = threshold / mean
    if x < 1e-4:  # uniform: what follows loses all its digits
        return threshold / 2, threshold**2 / 3
    survival, share = math.exp(-x), -math.expm1(-x)
    first = mean - threshold * survival / share
    return first, 2 * mean * first - threshold**2 * survival / share


def young(saving: float, mtbf: float) -> float:
    """Best seconds of work between checkpoints by Young's first-order formula √(2δM) (Young 1974)."""
    return math.sqrt(2 * saving * mtbf)


def daly(saving: float, mtbf: float) -> float:
    """Best seconds of work between checkpoints by Daly's formula √(2δM) − δ (Daly 2006), or M if saving takes
    too long for the formula."""
    return young(saving, mtbf) - saving if saving < mtbf / 2 else mtbf


def best_work(saving: float, mtbf: float) -> float:
    """Best seconds of work between checkpoints, with the least expected time per second of work, E/τ. It is
    the zero of e^{−(τ+δ)/M} − 1 + τ/M."""
    low, high = 0.0, mtbf  # at M the slope is e^{−(M+δ)/M} > 0
    for _ in range(200):
        middle = (low + high) / 2
        slope = math.exp(-(middle + saving) / mtbf) - 1 + middle / mtbf
        low, high = (middle, high) if slope < 0 else (low, middle)
    return (low + high) / 2


def first_order_ratio(segment: Segment) -> float:
    """Share of time spent training, to first order in the failure rate: (1 − (R + τ/2)/M) / (1 + δ/τ)
    (Kokolis et al. 2024, ETTR)."""
    wasted = (segment.restart + segment.lag + segment.work / 2) / segment.mtbf
    return max(0.0, 1 - wasted) / (1 + segment.saving / segment.work)


class Waiting(NamedTuple):
    """Probability that no spare node is free after a failure, and mean seconds of waiting for one."""

    chance: float
    """Probability that no spare node is free at a failure."""
    seconds: float
    """Mean seconds of waiting for a spare node if none is free, exponentially distributed."""

    @property
    def mean_seconds(self) -> float:
        """Mean seconds of waiting for a spare node per failure, failures without a wait included."""
        return self.chance * self.seconds


def waiting(spares: int | None, repair: float, mtbf: float) -> Waiting:
    """Probability and mean seconds of waiting for one of `spares` spare nodes after a failure; no waits if
    `spares` is None. Some node fails every `mtbf` seconds of running."""
    if spares is None:
        return Waiting(chance=0.0, seconds=0.0)
    return Waiting(chance=blocking_probability(spares, repair / mtbf), seconds=repair / (spares + 1))


def blocking_probability(servers: int, load: float) -> float:
    """Probability that all servers are busy at an offered load, by Erlang's B formula."""
    blocking = 1.0
    for busy in range(1, servers + 1):
        blocking = load * blocking / (busy + load * blocking)
    return blocking


def group_sizes(layout: Layout) -> tuple[int, ...]:
    """Sizes of the process groups that each rank of a layout joins at start-up: all ranks (twice, for
    checkpoints), and one group along each axis of its parameters."""
    shard = layout.shard_group
    return (layout.num_gpus, layout.num_gpus, layout.pp, layout.data_ranks // shard, shard, layout.tp)


def requests(sizes: Sequence[int]) -> int:
    """Number of requests of one rank to the rendezvous store for process groups of `sizes` ranks; the first
    group has all ranks."""
    return sum(1 + 2 * ceil(log2(size)) for size in sizes) + 2 * max(0, ceil(log2(sizes[0])) - 1)


def store_seconds(ranks: int, requests_of_rank: int) -> float:
    """Seconds that the rendezvous store takes to serve the requests of all ranks one after another."""
    return ranks * requests_of_rank * float(read_data("errors/start")["request"])


def start_up(question: Question, layout: Layout, *, draws: bool = True) -> Breakdown:
    """Start-up seconds of this project's executor by part; weights are drawn at random with `draws`, else
    loaded."""
    seconds = read_data("errors/start")
    blocks, split = question.model.num_layers / layout.pp, layout.zero >= 2 or layout.tp > 1
    weights = blocks * float(seconds["split_block" if split else "block"])
    if draws:
        elements = total_parameters(question.model) * copies(question, layout) / layout.num_gpus
        on_gpu = float(seconds["draw_bytes"]) / question.cluster.gpu.memory_bandwidth
        weights += elements * (float(seconds["draw"]) if is_own_host(question.cluster) else on_gpu)
    groups = store_seconds(layout.num_gpus, requests(group_sizes(layout)))
    processes = float(seconds["processes"])
    first_step = blocks * float(seconds["first_split_block"]) if split else 0.0
    return Breakdown(processes=processes, groups=groups, weights=weights, first_step=first_step)


class Resume(NamedTuple):
    """Bytes and seconds of reading a checkpoint on all ranks of a layout after a restart."""

    checkpoint_bytes: float
    """Bytes of the checkpoint."""
    held_bytes: float
    """Bytes of state that all ranks hold together, more than the checkpoint if several ranks hold the same
    state."""
    ranks: int
    sending: float
    """Seconds to send each part of the checkpoint from the rank that read it to the other ranks that hold
    it."""

    def reads_once(self, storage: float) -> bool:
        """Whether it is faster to read each part once and send it to the other ranks than to read it on every
        rank. `storage` is bytes/s for all readers together."""
        return (self.held_bytes - self.checkpoint_bytes) / storage > self.sending

    def seconds(self, storage: float) -> float:
        """Seconds until every rank has its state of the checkpoint, which storage reads at `storage`
        bytes/s."""
        once = self.reads_once(storage)
        reading = self.checkpoint_bytes / storage + self.sending if once else self.held_bytes / storage
        digest = float(read_data("errors/start")["digest"]) * self.checkpoint_bytes / self.ranks
        return self.checkpoint_bytes / storage + digest + reading


def resume_of(question: Question, layout: Layout, checkpoint_size: float) -> Resume:
    """Bytes and seconds of loading a checkpoint of `checkpoint_size` bytes on all ranks of a layout."""
    ranks, sending = layout.num_gpus, 0.0
    for share, holders in _parts(question, layout):
        message = np.array([checkpoint_size * share * float(holders.size[0]) / ranks])
        sending += float(broadcast_seconds(message, holders, question.hardware)[0])
    held_bytes = checkpoint_size * copies(question, layout)
    return Resume(checkpoint_bytes=checkpoint_size, held_bytes=held_bytes, ranks=ranks, sending=sending)


def copies(question: Question, layout: Layout) -> float:
    """Mean number of ranks that have the same parameter and update it."""
    return sum(share * float(holders.size[0]) for share, holders in _parts(question, layout))


def _parts(question: Question, layout: Layout) -> Iterator[tuple[float, Groups]]:
    """Yield (share of the model's parameters, groups of ranks with equal copies) for everything but routed
    experts, then for routed experts."""
    model, groups = question.model, axis_groups(question.cluster, LayoutColumns.of([layout]))
    routed = model.num_layers * float(parameters(model, np.array([1])).experts[0]) / total_parameters(model)
    for share, holders in ((1 - routed, groups.data), (routed, groups.experts)):
        yield share, holders.replicas if layout.zero == 0 else holders.copies


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A training job as input of a reliability forecast: steps, step time and checkpoint size."""

    steps: int
    step_seconds: float
    checkpoint_bytes: float
    """Bytes of a checkpoint, with weights and states of the entire model once."""
    gpus: int
    nodes: int
    host_bandwidth: float | None
    """Bytes/s of a GPU's share of the link to its host; None if unknown."""
    watts: float | None = None
    """Power limit of a GPU in watts."""
    start: Breakdown | None = None
    """Seconds of the first start by part. None: unknown."""
    restart: Breakdown | None = None
    """Seconds of a restart by part; no start is faster, as it draws no weights. None: unknown."""
    resume: Resume | None = None
    """Bytes and seconds with which a restart reads a checkpoint; None: each byte is read once."""

    @property
    def start_seconds(self) -> float:
        """Seconds of the job's first start; 0 if unknown."""
        return 0.0 if self.start is None else self.start.total

    def reading(self, storage: float) -> float:
        """Seconds to read a checkpoint at `storage` bytes/s in a restart."""
        return self.checkpoint_bytes / storage if self.resume is None else self.resume.seconds(storage)

    @property
    def seconds(self) -> float:
        """Seconds of all training steps without failures, saving or start."""
        return self.steps * self.step_seconds


def job_of(question: Question, step_seconds: float, layout: Layout | None = None) -> Job:
    """Build the job to forecast from a question and the seconds of a step; with a `layout` that this
    project's executor runs, also its start-up, restart and reading of checkpoints.

    Every rank saves an even share of the checkpoint, as the executor divides what several ranks hold.
    """
    training, cluster = question.training, question.cluster
    assert training.tokens is not None
    link = min((one.cluster.gpu.host_bandwidth or math.inf) for one in question.pools)
    job = Job(
        steps=math.ceil(training.tokens / training.tokens_per_step),
        step_seconds=step_seconds,
        checkpoint_bytes=checkpoint_bytes(question),
        gpus=cluster.num_gpus,
        nodes=cluster.nodes,
        host_bandwidth=None if math.isinf(link) else link / cluster.gpus_per_host_link,
        watts=cluster.gpu_watts or cluster.gpu.tdp_watts,
    )
    if layout is None or question.stack.name not in OWN_STACKS:
        return job
    start, restart = (start_up(question, layout, draws=drawn) for drawn in (True, False))
    resume = resume_of(question, layout, job.checkpoint_bytes)
    return replace(job, start=start, restart=restart, resume=resume)


def checkpoint_bytes(question: Question) -> float:
    """Size of a checkpoint in bytes: weights, master weights and optimizer moments of trained parameters, and
    frozen weights unless only adapters are trained. With Adam in 16 bits over fp32 it is 14 bytes per
    parameter."""
    training = question.training
    master = STATE_BYTES[training.state_dtype] if training.element_bytes < 4 else 0.0
    state_per_parameter = training.element_bytes + master + moment_bytes(question)
    if training.tuning is not None:
        return trained_parameters(question.model, training.tuning) * state_per_parameter
    elements = total_parameters(question.model)
    if training.freeze:
        states = state_per_parameter - training.element_bytes
        return elements * training.element_bytes + unfrozen_parameters(question.model, training) * states
    return elements * state_per_parameter


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
        """Seconds for which GPUs wait while their share of a checkpoint is copied to the host."""
        link = self.operations.host_copy or self.job.host_bandwidth
        copied = 0.0 if link is None else self.job.checkpoint_bytes / self.job.gpus / link
        return self.operations.pause + copied

    @property
    def flush(self) -> float:
        """Seconds in which hosts write a checkpoint to storage."""
        return self.job.checkpoint_bytes / self.operations.storage_write

    @property
    def read(self) -> float:
        """Seconds of reading a checkpoint in a restart."""
        return self.job.reading(self.operations.storage_read or self.operations.storage_write)

    @property
    def slowdown(self) -> float:
        """Factor on the seconds of a step due to slow hosts that are not replaced; 1 without any."""
        any_slow = 1 - (1 - self.operations.slow_hosts) ** self.job.nodes
        return 1.0 if self.evicts else 1 + self.operations.slowness * any_slow

    @cached_property
    def segment(self) -> Segment:
        """Training from one checkpoint to the next, at the pace of the slowest host."""
        operations, behind = self.operations, self.operations.asynchronous
        started = self.job.restart.total if self.job.restart else 0.0
        restart = operations.detection + max(operations.restart, started) + self.read
        saving, lag = (self.copy, self.flush) if behind else (self.copy + self.flush, 0.0)
        work, mtbf = self.interval * (self.job.step_seconds * self.slowdown), operations.mtbf / self.job.gpus
        return Segment(work=work, saving=saving, restart=restart, mtbf=mtbf, lag=lag)

    @cached_property
    def waiting(self) -> Waiting:
        """Probability and mean seconds of waiting for a spare node after a failure."""
        return waiting(self.operations.spares, self.operations.repair, self.segment.mtbf)

    @property
    def maintained(self) -> float:
        """Share of all time that planned stops for maintenance take."""
        stop, segment = self.operations.maintenance, self.segment
        if stop is None:
            return 0.0
        return min(0.99, (stop.takes + segment.restart + segment.saving) / stop.every)

    @property
    def resumes(self) -> Breakdown | None:
        """Seconds of a restart of this project's executor by part, reading of the checkpoint included; None
        for other trainers."""
        restart = self.job.restart
        return None if restart is None else Breakdown(**restart, checkpoint=self.read)

    @property
    def segments(self) -> float:
        """Number of checkpoint intervals in the job, as a float."""
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
        """Expected seconds from the start to the end of the job, failures and planned stops included."""
        return self._running / (1 - self.maintained)

    @property
    def deviation(self) -> float:
        """Standard deviation of the job's duration in seconds."""
        return math.sqrt(self.segments * self._variance) / (1 - self.maintained)

    @property
    def goodput(self) -> float:
        """Share of the job's expected duration spent on steps that are not lost, at the pace of healthy
        hosts."""
        return self.job.seconds / self.seconds

    @property
    def parts(self) -> Breakdown:
        """Parts of the expected duration in seconds by cause (training, saving, lost work, ...), which sum to
        `seconds`."""
        segment, count = self.segment, self.segments
        start = {} if self.job.start is None else {"starting": self.job.start_seconds}
        slow = (self.slowdown - 1) * self.job.seconds + self.replacing
        parts = {"training": self.job.seconds, "stragglers": slow, "saving": count * segment.saving}
        parts |= {"lost_work": count * segment.lost, "restarting": count * segment.restarting}
        parts |= {"waiting_for_spares": self.failures * self.waiting.mean_seconds}
        return Breakdown(**parts, maintenance=self.seconds * self.maintained, **start)

    @property
    def kilowatt_hours(self) -> float | None:
        """Energy of the job in kWh if all GPUs run at their power limit, planned stops excluded; None if the
        limit is unknown."""
        return None if self.job.watts is None else self._running * self.job.gpus * self.job.watts / 3.6e6

    @property
    def gpu_hours(self) -> float:
        """Expected GPU-hours until the job ends."""
        return self.seconds * self.job.gpus / 3600

    @property
    def _running(self) -> float:
        """Expected seconds of the job without planned stops."""
        per_segment = self.segment.expected + self.segment.failures * self.waiting.mean_seconds
        return self.job.start_seconds + self.segments * per_segment + self.replacing

    @property
    def _variance(self) -> float:
        """Variance (s²) of the time from one checkpoint to the next, waits for spare nodes included. Each
        failure has a wait with some probability, of exponentially distributed length."""
        segment, wait, need = self.segment, self.waiting, self.segment.retry_seconds
        mean_wait, square = wait.mean_seconds, 2 * wait.chance * wait.seconds**2
        p, retries = segment.failure_probability, math.expm1(min(need / segment.mtbf, 300.0))
        count, squares = p * (1 + retries), p * (1 + 3 * retries + 2 * retries**2)
        first, _ = truncated_moments(segment.mtbf, segment.length)
        retried, _ = truncated_moments(segment.mtbf, need)
        # E[time · failures] beyond what a segment without failures adds, which is nothing
        joint_mean = p * ((first + need) * (1 + retries) + retried * (retries + retries + 2 * retries**2))
        covariance = joint_mean - segment.expected * count
        variance = segment.variance + count * (square - mean_wait**2) + (squares - count**2) * mean_wait**2
        return variance + 2 * mean_wait * covariance


def forecast(job: Job, operations: OperationsSpec, interval: int | None = None) -> Forecast:
    """Forecast the duration of a job that saves every `interval` steps, by default at the best interval.

    Slow hosts are either kept or replaced when they appear, whichever ends the job sooner.

    Raises:
        InfeasibleError: it fails sooner than it restarts, or hardly trains at all.
        InputError: an interval that is none, or in which storage cannot take a checkpoint.
    """
    choices = (False, True) if 0 < operations.slow_hosts < 1 else (False,)
    forecasts = [_forecast(job, operations, interval, evicts=evicts) for evicts in choices]
    result = min(forecasts, key=lambda candidate: candidate.seconds)
    if result.goodput < LEAST_GOODPUT:
        leave = f"{format_seconds(result.segment.mtbf)} from failure to failure leave {result.goodput:.1%}"
        hint = "a longer --mtbf, a quicker restart, faster storage or more spares"
        raise InfeasibleError(f"the job never ends: {leave} of the time to train", hint=hint)
    return result


def _forecast(job: Job, operations: OperationsSpec, interval: int | None, *, evicts: bool) -> Forecast:
    """Forecast for one treatment of slow hosts: replaced if `evicts`, else kept."""
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
    """Minimum number of steps between checkpoints at which storage finishes a checkpoint before the next
    begins; `step` is a segment of one step."""
    return max(1, math.ceil((step.lag - step.saving) / step.work))


def best_steps(step: Segment) -> int:
    """Number of steps between checkpoints with the least expected time; `step` is a segment of one step."""
    fewest, work = least_steps(step), best_work(step.saving, step.mtbf) / step.work

    def cost(steps: int) -> float:
        """Expected seconds per second of work for the given number of steps between checkpoints."""
        candidate = replace(step, work=steps * step.work)
        return candidate.expected / candidate.work

    return min(sorted({max(fewest, math.floor(work)), max(fewest, math.ceil(work)), fewest}), key=cost)


RUNS = 10_000
SEED = 2024
_MOST_DRAWS = 20_000_000
"""Maximum number of failures drawn one by one; the sum over more is drawn from a normal distribution."""


def draw_ends(prediction: Forecast, runs: int = RUNS, seed: int = SEED) -> Array:
    """Simulate the job's duration under random failures: sorted seconds of all simulated jobs, (runs,);
    reproducible by `seed`.

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
    return np.asarray(np.sort(seconds / (1 - prediction.maintained)))


def draw_ends_of(prediction: Forecast, steps: Array, runs: int = RUNS) -> Array:
    """Simulate the job's duration for uncertain step seconds, each of `steps` (K,) with equal probability:
    sorted seconds of all simulated jobs, (runs,)."""
    draws = []
    for place, step in enumerate(steps):
        timed = forecast(replace(prediction.job, step_seconds=float(step)), prediction.operations)
        timed = replace(timed, interval=prediction.interval)
        draws.append(draw_ends(timed, max(1, runs // len(steps)), SEED + place))
    return np.sort(np.concatenate(draws))


def ends_of(prediction: Forecast, steps: Array | None = None) -> tuple[float, float, float]:
    """Seconds until the job ends: 5th percentile, expected value and 95th percentile. The percentiles are
    over random failures and, if given, over equally probable step seconds `steps` (K,)."""
    samples = draw_ends(prediction) if steps is None else draw_ends_of(prediction, steps)
    early, late = np.quantile(samples, (0.05, 0.95)).tolist()
    return early, prediction.seconds, late


def _sum_of(rng: np.random.Generator, counts: Ints, mean: float, threshold: float) -> Array:
    """Draw sums, (N,), of `counts` exponentially distributed times of mean `mean`, each conditioned to be
    shorter than `threshold`."""
    if counts.sum() > _MOST_DRAWS:
        first, square = truncated_moments(mean, threshold)
        return np.asarray(rng.normal(counts * first, np.sqrt(counts * max(0.0, square - first**2))))
    share = -math.expm1(-threshold / mean)
    times = -mean * np.log1p(-share * rng.random(int(counts.sum())))
    edges = np.concatenate(([0], np.cumsum(counts)))
    running = np.concatenate(([0.0], np.cumsum(times)))
    return np.asarray(running[edges[1:]] - running[edges[:-1]])


def changes_of(current: Forecast, interval: int | None = None) -> dict[str, Forecast]:
    """Forecasts under improvements of the cluster's operations (such as one more spare node), by improvement,
    best first. Only those that shorten the job by at least a thousandth are included.

    If the user fixed the interval between checkpoints, every forecast has it, and the best interval is an improvement
    of its own; otherwise each forecast has its best interval.
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
