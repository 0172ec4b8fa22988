"""Reports of runs: measurements beside a plan's predictions, and the account of saves, failures and restarts.

Families of models share `AnyReport`; `RunReport` is a transformer's. Each is one JSON document.

**Operations.** What saves and failures took of a run's time is read from its running record, whose lines partition the
time from the first step to the last: a step's line ends a step, a save's line ends what training waited for, a
restart's line ends the time from the last sign of life until training goes on. What was begun after the last line and
before that sign was lost, as were steps that were trained again.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from cost_models.arrays import Array
from cost_models.base import Spec
from cost_models.families import family_of_plan_kind, load
from cost_models.files.whole import write_whole
from cost_models.operators.flops import model_flops, recomputed_flops, utilisation
from executor.axes.offload.reporting import DriveReport, HostReport
from executor.clock import StartReport
from executor.measure.slow_ranks import WORK, SlowRank, others_like, slow_ranks
from executor.run_config import MOST_STEPS
from planner.plan import LayoutText, Plan, Prediction

PARTS = ("training", "saving", "lost_work", "restarting")
"""Parts of a run's time, named as in a forecast."""


class SaveReport(Spec):
    """Seconds and bytes of one saved checkpoint."""

    step: int
    blocked_seconds: float
    """Seconds that training waited: for the copy to host memory, and for the checkpoint before to be written; for its
    own writing where it was the last.
    """
    flush_seconds: float | None = None
    """Seconds from the end of the pause until the checkpoint could be read; None if the ranks were lost before."""
    bytes: int | None = None
    """Bytes of the checkpoint on disk."""


class RestartReport(Spec):
    """Seconds of one restart after ranks were lost."""

    start: int
    """Number of this start; the first restart is start 2."""
    detection_seconds: float
    """Seconds from the last sign of life until the ranks were started again."""
    starting_seconds: float
    """Seconds from the new start until the model was built: interpreter, torch, process group."""
    loading_seconds: float
    """Seconds to find the newest complete checkpoint and read it."""
    resumed_step: int
    """Step after which training goes on."""
    steps_lost: int
    """Number of steps that were done and are done again."""

    @property
    def seconds(self) -> float:
        """Seconds from the last sign of life until training goes on."""
        return self.detection_seconds + self.starting_seconds + self.loading_seconds


class OperationsReport(Spec):
    """Seconds of a run by part, with its saves and restarts one by one."""

    every: int
    """Number of steps from one checkpoint to the next."""
    steps: int
    """Number of steps whose work was kept."""
    parts: dict[str, float]
    """Seconds from the first step to the last: `training` of steps that were kept, `saving` (blocked), `lost_work` of
    steps and beginnings that were done again, `restarting`.
    """
    saves: tuple[SaveReport, ...] = ()
    restarts: tuple[RestartReport, ...] = ()

    @property
    def wall_seconds(self) -> float:
        """Seconds from the first step to the last."""
        return sum(self.parts.values())

    @property
    def failures(self) -> int:
        """Number of times that ranks were lost; a start that fails again has no restart of its own."""
        return self.restarts[-1].start - 1 if self.restarts else 0

    @property
    def goodput(self) -> float:
        """Share of the run's time that trained steps whose work was kept."""
        return self.parts["training"] / self.wall_seconds if self.wall_seconds else 1.0

    @property
    def step_seconds(self) -> float:
        """Mean seconds from one step to the next, over the steps whose work was kept."""
        return self.parts["training"] / self.steps

    @property
    def mean_save(self) -> MeanSave:
        """Mean seconds and bytes of a checkpoint. The seconds leave out the last one, as no training follows it."""
        among = self.saves[:-1] or self.saves
        flushes = [save.flush_seconds for save in among if save.flush_seconds is not None]
        sizes = [save.bytes for save in self.saves if save.bytes is not None]
        blocked = _mean([save.blocked_seconds for save in among])
        return MeanSave(blocked=blocked, flush=_mean(flushes), size=_mean(sizes))

    @property
    def mean_restart(self) -> MeanRestart:
        """Mean seconds of a restart. Detection is averaged only over restarts that succeeded at the first try."""
        starts = [1, *(restart.start for restart in self.restarts)]
        pairs = zip(self.restarts, starts, strict=False)
        full_restarts = [restart for restart, before in pairs if restart.start == before + 1]
        return MeanRestart(
            detection=_mean([restart.detection_seconds for restart in full_restarts]),
            starting=_mean([restart.starting_seconds for restart in self.restarts]),
            loading=_mean([restart.loading_seconds for restart in self.restarts]),
        )


@dataclass(frozen=True, slots=True)
class MeanRestart:
    """Mean seconds of a restart."""

    detection: float
    starting: float
    loading: float


@dataclass(frozen=True, slots=True)
class MeanSave:
    """Mean seconds and bytes of a checkpoint."""

    blocked: float
    flush: float
    size: float


def _mean(values: Sequence[float]) -> float:
    """Mean of the values; 0 if there are none."""
    return statistics.fmean(values) if values else 0.0


def operations_of_record(lines: Sequence[Mapping[str, Any]], every: int) -> OperationsReport | None:
    """Account of saves and restarts from a run's record (`executor.steps.Watcher`); None if no step was trained."""
    steps = [line for line in lines if "step" in line]
    if not steps:
        return None
    parts = dict.fromkeys(PARTS, 0.0)
    step_seconds: dict[int, float] = {}
    restarts = []
    until = steps[0]["at"] - steps[0]["seconds"]
    for line in lines:
        if line.get("at", until) < until or "saved" in line or "note" in line:
            continue  # written beside training, or words
        took, until = line["at"] - until, line["at"]
        if "step" in line:
            parts["lost_work"] += step_seconds.pop(line["step"], 0.0)
            step_seconds[line["step"]] = took
        elif "save" in line:
            parts["saving"] += took
        else:
            fields = {name: line[name] for name in RestartReport.model_fields if name in line}
            restarts.append(RestartReport(start=line["restart"], **fields))
            gone = min(took, restarts[-1].seconds)
            parts["restarting"] += gone
            parts["lost_work"] += took - gone
    parts["training"] = sum(step_seconds.values())
    return OperationsReport(
        every=every, steps=len(step_seconds), parts=parts, saves=_saves(lines), restarts=tuple(restarts)
    )


def _saves(lines: Sequence[Mapping[str, Any]]) -> tuple[SaveReport, ...]:
    """Saves of every start in turn; after a restart a step may be saved again."""
    saves: dict[tuple[int, int], dict[str, Any]] = {}
    for start, line in zip(accumulate("restart" in line for line in lines), lines, strict=True):
        for word in {"save", "saved"} & line.keys():
            fields = saves.setdefault((start, line[word]), {"step": line[word]})
            fields |= {name: line[name] for name in SaveReport.model_fields if name in line}
    return tuple(SaveReport(**fields) for fields in saves.values() if "blocked_seconds" in fields)


Watched = Annotated[float, BeforeValidator(lambda value: math.nan if value is None else value)]
"""Number that JSON may lack: `null` stands for NaN, such as the loss of a run that diverged."""


class Environment(Spec):
    """Machine and software of a run."""

    torch: str
    python: str
    device: str
    """`cpu`, or the name of the GPU."""
    backend: str
    world_size: int
    cores: int
    processor: str = ""
    """Name of the CPU; empty if unknown."""
    allocator: str = ""
    """Settings of torch's allocator on a GPU (PYTORCH_ALLOC_CONF)."""


class AnyReport(Spec):
    """Report of a run beside its plan's predictions, one JSON document; model families add fields, such as `plan`."""

    operations: OperationsReport | None = None
    """Account of saves and failures; None if nothing was saved."""
    start: StartReport | None = None
    """Seconds of the last start by part; None in older reports."""
    schema_version: int = 1
    model: str
    environment: Environment
    seed: int
    warm_up_steps: int
    """Number of steps after the start, or the last restart, that were not measured."""
    first_step: int = 1
    """Step of the first loss; above 1 where the run went on from a checkpoint."""
    losses: tuple[Watched, ...]
    """Mean loss of the global batch at every step, warm-up included."""
    gradient_norms: tuple[Watched, ...]
    """Global gradient norm of each step; for a recommender, of its dense network."""
    step_seconds: float = Field(gt=0)
    """Median seconds of the measured steps; a step ends when its slowest rank does."""
    quickest_step_seconds: float = Field(gt=0)
    """Seconds of the fastest measured step, the least disturbed."""
    notes: tuple[str, ...] = ()
    """Events of the run: where it resumed, why ranks were started again."""


_SLOWEST_SHARE = 8
"""Of this many listed steps, one is among the slowest."""


def listed_steps(seconds: Sequence[float], limit: int = MOST_STEPS) -> list[int]:
    """Indices of at most `limit` measured steps to list in a report: the slowest, and others evenly spread.

    `seconds` are those of all measured steps; the first of them is always listed.
    """
    count, slowest = len(seconds), max(1, limit // _SLOWEST_SHARE)
    if count <= limit:
        return list(range(count))
    spread = (place * count // (limit - slowest) for place in range(limit - slowest))
    return sorted({*spread, *sorted(range(count), key=seconds.__getitem__)[-slowest:]})


def seconds_of_steps(seconds: Iterable[tuple[float, ...]]) -> tuple[float, ...]:
    """Seconds of each measured step on its slowest rank, given the seconds of every rank."""
    return tuple(map(max, zip(*seconds, strict=True)))


def save_report(report: Spec, path: Path) -> None:
    """Write a report as JSON; the file appears complete or not at all."""
    write_whole(path, report.model_dump_json(indent=1) + "\n")


def parse_report(text: str) -> AnyReport:
    """Parse the JSON of a report; the kind of its plan decides the model family."""
    plan = json.loads(text).get("plan") or {}
    report_type: type[AnyReport] = load(family_of_plan_kind(plan.get("kind")).report)
    return report_type.model_validate_json(text)


def load_any_report(path: Path) -> AnyReport:
    """Read a report, of any model family, that `save_report` wrote."""
    return parse_report(path.read_text("utf-8"))


NAMED_PARTS = ("weights", "gradients", "optimizer")
"""Parts of a rank's memory that are known by name; the remainder is `rest`."""


def predicted_parts(rank_memory: dict[str, float]) -> dict[str, float]:
    """Predicted bytes of one rank by the parts in which memory is measured; the reserve is left out."""
    parts = {part: rank_memory.get(part, 0.0) for part in NAMED_PARTS}
    return parts | {"rest": sum(rank_memory.get(part, 0.0) for part in ("activations", "working", "buffers"))}


def _whole_step(parts: dict[str, float]) -> dict[str, float]:
    """Validate that the parts of a step take some time."""
    if parts and not sum(parts.values()) > 0:
        raise ValueError("the parts of a step take more than no time")
    return parts


class PhaseReport(Spec):
    """One phase of a step on one rank: forward and backward, or the update."""

    wall_seconds: tuple[float, ...]
    """Wall seconds of the phase in each measured step, on a GPU by its own clock; empty if unknown."""
    thread_seconds: tuple[float, ...]
    """CPU seconds of the training thread in each measured step."""
    waiting_seconds: dict[str, float]
    """Seconds spent on communication that compute does not hide, by axis (`tp`, `cp`, `ep`, `dp`, `pp`), waiting for
    slower ranks included, and on copies to and from host memory (`offload`). They are medians of a few steps recorded
    for this; empty if not measured.
    """
    waiting_thread_seconds: float | None = None
    """CPU seconds of the training thread during these waits; None if not measured."""


class AllocatorPeak(Spec):
    """Peaks of CUDA's allocator in bytes: totals only, temporaries of kernels included."""

    allocated: int
    """Largest number of bytes allocated at a time; 0 if unknown."""
    reserved: int
    """Largest number of bytes taken from the device, with caches and fragmentation; 0 if unknown."""


class RankReport(Spec):
    """Measured time and memory of one rank; a list has one value for each measured step."""

    rank: int
    pipeline_rank: int
    wall_seconds: tuple[float, ...]
    thread_seconds: tuple[float, ...]
    """CPU seconds of the thread that trains, from when it has its batch; they do not pass while it waits, and a busy
    machine does not disturb them. Empty for a run of another trainer.
    """
    process_seconds: tuple[float, ...]
    """CPU seconds of all threads, which also communicate and may run part of the backward pass."""
    data_seconds: tuple[float, ...] = ()
    """Wall seconds that each measured step waited for its batch at its start; empty in older reports."""
    forward_backward: PhaseReport
    """Phase of all forward and backward passes of a step, with the communication inside."""
    update: PhaseReport
    """Phase of the update: gradients synchronised, their norm, the optimizer, weights gathered."""
    parts: Annotated[dict[str, float], AfterValidator(_whole_step)] = Field(default_factory=dict)
    """Seconds of one recorded step by part, as in `executor.measure.parts`; they add up to that step. Empty if not
    measured.
    """
    passes: tuple[tuple[str, int, int, float, float], ...] = ()
    """Passes of one recorded step: kind (F, B, I, W), stage, microbatch, start and end in seconds since it began; empty
    if unknown.
    """
    late_seconds: tuple[float, ...] = ()
    """Seconds that other ranks waited for this rank at collectives, in equal pieces of one step; empty if unknown."""
    memory: dict[str, int]
    """Measured bytes by part at this rank's peak: weights, gradients, optimizer, rest."""
    predicted_memory: dict[str, float]
    """Predicted bytes of the same parts."""
    allocator_peak: AllocatorPeak | None = None
    """Peak of the GPU's allocator over the measured steps; memory reserved before may still be included."""
    starting_peak: AllocatorPeak | None = None
    """Peak of the GPU's allocator before the measured steps: building, loading, compiling, warm-up."""
    host: HostReport | None = None
    """Report of host memory; None if the layout keeps everything on the device."""
    drive: DriveReport | None = None
    """Report of the drive; None if nothing is on a drive."""

    @property
    def peak_bytes(self) -> int:
        """Sum of the measured memory of all parts, in bytes."""
        return sum(self.memory.values())


class RouterReport(Spec):
    """Load of the experts of one MoE layer over the measured steps, all ranks together."""

    layer: int
    """Number of the model's block, from 0."""
    mean_load: float
    """Mean over experts of the token copies that an expert gets in a step."""
    largest_load: float
    """Load of the busiest expert, in units of the mean."""
    smallest_load: float
    """Load of the least loaded expert, in units of the mean; 0 if it never got a token."""
    entropy: float
    """Entropy of the experts' shares relative to an even load: 1 is even, 0 is one expert for all tokens."""


class RunReport(AnyReport):
    """Report of a run of a transformer's plan: measurements beside predictions."""

    layout: LayoutText
    step_spread: float
    """Relative spread of the measured steps, (largest − smallest) / median: the noise of this machine."""
    thread_seconds: float
    """Median CPU seconds of the busiest rank's training thread; 0 if unknown."""
    tokens_per_second: float
    mfu: float
    hfu: float
    peak_bytes: int
    """Measured peak bytes of the fullest rank."""
    ranks: tuple[RankReport, ...]
    routers: tuple[RouterReport, ...] = ()
    """Loads of the experts of every MoE layer, in the order of the model."""
    predicted: Prediction
    plan: Plan | None = None
    """Plan that ran, with everything its prediction needs; None in older reports."""
    stack: str = ""
    """Software stack that ran; the plan may name another."""
    listed_steps: tuple[int, ...] = Field(default=(), exclude_if=lambda steps: not steps)
    """Numbers of the measured steps that ranks list; empty: every measured step."""

    @model_validator(mode="after")
    def _of_one_plan(self) -> RunReport:
        """Validate that all ranks measured the same steps, and are in stages of the prediction."""
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
        return seconds_of_steps(rank.wall_seconds for rank in self.ranks)

    @property
    def step_numbers(self) -> tuple[int, ...]:
        """Number of each listed step, counted from 1."""
        steps = len(self.all_step_seconds)
        last = self.first_step + len(self.losses)
        return self.listed_steps or tuple(range(last - steps, last))

    @property
    def is_foreign(self) -> bool:
        """Whether another trainer ran, so that the report has steps, and no CPU times of ranks."""
        clocks = [(one.thread_seconds, one.process_seconds, one.update.wall_seconds) for one in self.ranks]
        return not any(map(any, clocks))

    @property
    def step_noise(self) -> float:
        """Interquartile range of the step times as a share of their median."""
        return middle_half(self.all_step_seconds)

    @property
    def first_measured_step(self) -> int:
        """Number of the first measured step, counted from 1."""
        return self.step_numbers[0]

    @property
    def work_seconds(self) -> dict[str, Array]:
        """CPU seconds of each rank's training thread in T steps, (T, R), by part of a step."""
        phases = ([rank.forward_backward for rank in self.ranks], [rank.update for rank in self.ranks])
        times = [np.array([one.thread_seconds for one in phase]).T for phase in phases]
        return dict(zip(WORK, times, strict=True))

    @property
    def slow_ranks(self) -> tuple[SlowRank, ...]:
        """Ranks that were slower than their peers; none in a run on GPUs, whose hosts only launch work."""
        if self.environment.device != "cpu" or self._uneven or self.is_foreign:
            return ()
        first, *_ = numbers = self.step_numbers
        found = slow_ranks(self.work_seconds, [rank.pipeline_rank for rank in self.ranks])
        return tuple(slow._replace(since=numbers[slow.since] - first) for slow in found)

    def peers_of(self, index: int) -> list[int]:
        """Indices of the other ranks in `ranks` that do the same work as the rank at `index`."""
        return [] if self._uneven else others_like(index, [rank.pipeline_rank for rank in self.ranks])

    @property
    def _uneven(self) -> bool:
        """Whether ranks of a pipeline stage have different work: experts, or replicas with uneven shares."""
        return bool(self.routers or self.layout.replicas)

    @property
    def thread_noise(self) -> float:
        """Relative noise of the CPU time of the busiest rank's training thread."""
        busiest = max(self.ranks, key=lambda rank: statistics.median(rank.thread_seconds))
        return middle_half(busiest.thread_seconds)


def middle_half(seconds: Sequence[float]) -> float:
    """Interquartile range as a share of the median; 0 for a single value."""
    if len(seconds) < 2:
        return 0.0
    low, median, high = statistics.quantiles(seconds, n=4, method="inclusive")
    return (high - low) / median if median else 0.0


def make_report(
    plan: Plan,
    ranks: Sequence[RankReport],
    course: Mapping[str, Any],
    *,
    stack: str = "",
    routers: tuple[RouterReport, ...] = (),
    step_seconds: Sequence[float] = (),
    listed: Sequence[int] = (),
) -> RunReport:
    """Report of a transformer's run, from its ranks' measurements. `course` has the fields of `AnyReport` that do not
    depend on ranks, `step_seconds` every measured step, `listed` the indices of the steps that ranks list.
    """
    steps = step_seconds or seconds_of_steps(rank.wall_seconds for rank in ranks)
    first = course["first_step"] + len(course["losses"]) - len(steps)
    median = statistics.median(steps)
    useful = model_flops(plan.model, plan.training, plan.layout.tp)
    spent = useful + recomputed_flops(plan.model, plan.training, plan.layout, plan.stack.drops)
    precision, pools = plan.training.precision, plan.question.pools
    gpus = sum(pool.cluster.num_gpus for pool in pools)
    peak = sum(pool.cluster.num_gpus * pool.cluster.gpu.peak[precision] for pool in pools) / gpus
    return RunReport(
        **course,
        model=plan.model.name,
        step_seconds=median,
        quickest_step_seconds=min(steps),
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
