"""Report of a run: measurements beside the plan's predictions, one JSON document."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import AfterValidator, Field, model_validator

from cost_models.arrays import Array
from cost_models.base import Spec
from cost_models.operators.flops import model_flops, recomputed_flops, utilisation
from executor.axes.offload.reporting import DriveReport, HostReport
from executor.measure.any_report import AnyReport, Course, seconds_of_steps
from executor.measure.slow_ranks import WORK, SlowRank, others_like, slow_ranks
from planner.plan import LayoutText, Plan, Prediction

NAMED_PARTS = ("weights", "gradients", "optimizer")
"""Parts of a rank's memory that are known by name; everything else is `rest`."""


def predicted_parts(rank_memory: dict[str, float]) -> dict[str, float]:
    """Predicted bytes of one rank by the parts that can be measured; reserve is left out."""
    parts = {part: rank_memory.get(part, 0.0) for part in NAMED_PARTS}
    return parts | {"rest": sum(rank_memory.get(part, 0.0) for part in ("activations", "working", "buffers"))}


def _whole_step(parts: dict[str, float]) -> dict[str, float]:
    if parts and not sum(parts.values()) > 0:
        raise ValueError("the parts of a step take more than no time")
    return parts


class PhaseReport(Spec):
    """One phase of a step on one rank: forward and backward, or the update."""

    wall_seconds: tuple[float, ...]
    """Seconds of each measured step, on a GPU by its own clock. Empty: not told."""
    thread_seconds: tuple[float, ...]
    """CPU time of the training thread in each measured step."""
    waiting_seconds: dict[str, float]
    """Seconds spent on communication that compute does not hide, by axis (`tp`, `cp`, `ep`, `dp`, `pp`), waiting for
    slower ranks included, and on copies to and from host memory (`offload`); medians of a few steps of their own.
    Empty where it was not measured."""
    waiting_thread_seconds: float | None = None
    """CPU time of the training thread in there, which issues and on a CPU copies; None where it was not measured."""


class AllocatorPeak(Spec):
    """Peaks of CUDA's allocator in bytes: totals only, temporaries of kernels included."""

    allocated: int
    """Most bytes allocated at a time; 0 if unknown."""
    reserved: int
    """Most bytes taken from the device, with caches and fragmentation; 0 if unknown."""


class RankReport(Spec):
    """One rank's clock and memory. A list holds one value for each measured step."""

    rank: int
    pipeline_rank: int
    wall_seconds: tuple[float, ...]
    thread_seconds: tuple[float, ...]
    """CPU time of the thread that trains, once it has its batch: what a busy machine does not disturb. It does not pass
    while waiting. Empty where another trainer ran, whose log tells none."""
    process_seconds: tuple[float, ...]
    """CPU time of all threads: communication and, on several threads, the backward pass too."""
    data_seconds: tuple[float, ...] = ()
    """Wall seconds at the start of each measured step until its batch was there; empty in older reports."""
    forward_backward: PhaseReport
    """Every microbatch, with the communication inside."""
    update: PhaseReport
    """Gradients synchronised, their norm, the optimizer, weights gathered."""
    parts: Annotated[dict[str, float], AfterValidator(_whole_step)] = Field(default_factory=dict)
    """Seconds of one step apart, by part as in `executor.measure.parts`; they add up to that step. Empty: not
    measured."""
    passes: tuple[tuple[str, int, int, float, float], ...] = ()
    """Kind (F, B, I, W), stage, microbatch, start and end of each pass of one step, in seconds since it began; empty:
    not told."""
    late_seconds: tuple[float, ...] = ()
    """Seconds that others waited for this rank at collectives, in equal pieces of one step; empty: not told."""
    memory: dict[str, int]
    """Bytes by part at this rank's peak: weights, gradients, optimizer, rest."""
    predicted_memory: dict[str, float]
    """Predicted bytes of the same parts."""
    allocator_peak: AllocatorPeak | None = None
    """On a GPU, over the measured steps; the rest of what was reserved before them may still be."""
    starting_peak: AllocatorPeak | None = None
    """Peak of the GPU's allocator before the measured steps: building, loading, compiling, warm-up."""
    host: HostReport | None = None
    """Report of host memory; None if the layout keeps everything on the device."""
    drive: DriveReport | None = None
    """Report of the drive; None if nothing lies on one."""

    @property
    def peak_bytes(self) -> int:
        """Sum of the parts."""
        return sum(self.memory.values())


class RouterReport(Spec):
    """The load of the experts of one MoE layer over the measured steps, all ranks together."""

    layer: int
    """Block of the model, from 0."""
    mean_load: float
    """Copies of tokens that an expert gets in a step, on average over the experts."""
    largest_load: float
    """Load of the busiest expert, in units of the mean."""
    smallest_load: float
    """Load of the idlest expert, in units of the mean; 0: it never got a token."""
    entropy: float
    """Entropy of the experts' shares relative to an even load: 1 is even, 0 is one expert for all tokens."""


class RunReport(AnyReport):
    """A run of a plan of a transformer."""

    layout: LayoutText
    step_spread: float
    """(largest − smallest) / median of the measured steps: the noise of this machine."""
    thread_seconds: float
    """Median CPU time of the busiest rank's training thread; 0: not told."""
    tokens_per_second: float
    mfu: float
    hfu: float
    peak_bytes: int
    """Peak bytes of the fullest rank."""
    ranks: tuple[RankReport, ...]
    routers: tuple[RouterReport, ...] = ()
    """Every mixture of experts, in the order of the model."""
    predicted: Prediction
    plan: Plan | None = None
    """Plan that ran, with everything its prediction needs; None in older reports."""
    stack: str = ""
    """Software stack that ran; the plan may name another."""
    listed_steps: tuple[int, ...] = Field(default=(), exclude_if=lambda steps: not steps)
    """Numbers of the measured steps that ranks list; empty: every measured step."""

    @model_validator(mode="after")
    def _of_one_plan(self) -> RunReport:
        if not self.ranks:
            raise ValueError("no rank has reported")
        steps = {
            len(seconds)
            for rank in self.ranks
            for seconds in (rank.wall_seconds, rank.thread_seconds, rank.process_seconds)
            if not self.is_foreign or seconds is rank.wall_seconds
        }
        if len(steps) > 1 or 0 in steps:
            raise ValueError("not every rank has measured every step")
        stages = len(self.predicted.rank_memory)
        strangers = [rank.rank for rank in self.ranks if not 0 <= rank.pipeline_rank < stages]
        if strangers:
            raise ValueError(f"rank {strangers[0]} has a stage that the prediction, of {stages}, does not")
        return self

    @property
    def all_step_seconds(self) -> tuple[float, ...]:
        """Seconds of each listed step, which ends when its slowest rank does."""
        return seconds_of_steps(self.ranks)

    @property
    def step_numbers(self) -> tuple[int, ...]:
        """Number of each listed step, from 1."""
        steps = len(self.all_step_seconds)
        last = self.first_step + len(self.losses)
        return self.listed_steps or tuple(range(last - steps, last))

    @property
    def is_foreign(self) -> bool:
        """Whether another trainer ran: its log tells steps, and nothing of what each rank's processor did."""
        return not any(
            rank.thread_seconds or rank.process_seconds or rank.update.wall_seconds for rank in self.ranks
        )

    @property
    def step_noise(self) -> float:
        """Interquartile range of the step times as a share of their median."""
        return middle_half(self.all_step_seconds)

    @property
    def first_measured_step(self) -> int:
        """Number of the first measured step, from 1."""
        return self.step_numbers[0]

    @property
    def work_seconds(self) -> dict[str, Array]:
        """Part of a step → (T, R) CPU seconds of each rank's training thread in T steps: ranks in their order."""
        phases = ([rank.forward_backward for rank in self.ranks], [rank.update for rank in self.ranks])
        return {
            part: np.array([one.thread_seconds for one in each]).T
            for part, each in zip(WORK, phases, strict=True)
        }

    @property
    def slow_ranks(self) -> tuple[SlowRank, ...]:
        """Ranks that were slower than their peers; none of a GPU's, whose host only launches."""
        if self.environment.device != "cpu" or self._uneven or self.is_foreign:
            return ()
        first, *_ = numbers = self.step_numbers
        found = slow_ranks(self.work_seconds, [rank.pipeline_rank for rank in self.ranks])
        return tuple(slow._replace(since=numbers[slow.since] - first) for slow in found)

    def peers_of(self, index: int) -> list[int]:
        """Indices of the other ranks that do the same work as one in `ranks`."""
        return [] if self._uneven else others_like(index, [rank.pipeline_rank for rank in self.ranks])

    @property
    def _uneven(self) -> bool:
        """Whether ranks of a stage have different work: experts, or replicas of pools with shares of their own."""
        return bool(self.routers or self.layout.replicas)

    @property
    def thread_noise(self) -> float:
        """Relative noise of the CPU time of the busiest rank's training thread."""
        busiest = max(self.ranks, key=lambda rank: statistics.median(rank.thread_seconds))
        return middle_half(busiest.thread_seconds)


def middle_half(seconds: Sequence[float]) -> float:
    """Interquartile range, as a share of the median; 0 for a single value."""
    if len(seconds) < 2:
        return 0.0
    low, median, high = statistics.quantiles(seconds, n=4, method="inclusive")
    return (high - low) / median if median else 0.0


def make_report(
    plan: Plan,
    ranks: Sequence[RankReport],
    course: Course,
    *,
    stack: str = "",
    routers: tuple[RouterReport, ...] = (),
    step_seconds: Sequence[float] = (),
    listed: Sequence[int] = (),
) -> RunReport:
    """Put the ranks' measurements together; `step_seconds` of every measured step, of which ranks list these."""
    steps = step_seconds or seconds_of_steps(ranks)
    first = course.first_step + len(course.losses) - len(steps)
    median = statistics.median(steps)
    useful = model_flops(plan.model, plan.training, plan.layout.tp)
    spent = useful + recomputed_flops(plan.model, plan.training, plan.layout, plan.stack.drops)
    precision, pools = plan.training.precision, plan.question.pools
    gpus = sum(pool.cluster.num_gpus for pool in pools)
    peak = sum(pool.cluster.num_gpus * pool.cluster.gpu.peak[precision] for pool in pools) / gpus
    return RunReport(
        **course.fields(plan.model.name, steps),
        layout=plan.layout,
        step_spread=(max(steps) - min(steps)) / median,
        thread_seconds=max(statistics.median(rank.thread_seconds or (0.0,)) for rank in ranks),
        tokens_per_second=plan.training.tokens_per_step / median,
        mfu=utilisation(useful, median, plan.layout.num_gpus, peak),
        hfu=utilisation(spent, median, plan.layout.num_gpus, peak),
        peak_bytes=max(rank.peak_bytes for rank in ranks),
        ranks=tuple(ranks),
        routers=routers,
        predicted=plan.prediction,
        plan=plan,
        stack=stack,
        listed_steps=tuple(first + step for step in listed) if len(listed) < len(steps) else (),
    )


def load_report(path: Path) -> RunReport:
    """Read the report of a transformer's run."""
    return RunReport.model_validate_json(path.read_text("utf-8"))
