"""Quantities that calibration fits, from reports of runs; and reports of runs of other trainers.

A run's report gives the measured quantities that calibration fits, and the machine they are from. The log and the
traces of another trainer's run give the report that `run` writes of its own.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from cost_models.defaults import OWN_STACK
from cost_models.errors import InputError, Problem
from cost_models.files.catalog import load_stack
from cost_models.measured.calibration.refinement import STEP, MeasuredQuantity, ObservedRun
from executor.measure.report import (
    AllocatorPeak,
    Environment,
    PhaseReport,
    RankReport,
    RunReport,
    make_report,
    middle_half,
    predicted_parts,
)
from planner.plan import Plan

if TYPE_CHECKING:
    from cost_models.measured.logs import Log, TypicalSteps
    from cost_models.measured.traces.job import Job

_WAITS = ("tp_comm", "cp_comm", "ep_comm", "dp_comm")
_PARTS = ("compute", "host", "optimizer", "other", *_WAITS)
"""Parts of a recorded step that are used here; see `executor.measure.parts`."""
_WATCHED_NOISE = 0.1
"""Relative noise of a quantity from the few recorded steps, beyond the variation of steps."""


def machine_of(report: RunReport) -> str:
    """Machine and software of a report, which must hold its plan, in words. Reports must agree on them for one profile
    to fit them.
    """
    assert report.plan is not None
    environment = report.environment
    processor = environment.processor if environment.device == "cpu" else ""
    device = f"{environment.device} ({processor})" if processor else environment.device
    precision, stack = report.plan.training.precision, report.stack or OWN_STACK
    return f"{device}, {environment.cores} cores, torch {environment.torch}, {precision}, stack {stack}"


def observed_run(report: RunReport, name: str) -> ObservedRun:
    """Measured quantities of a report to which constants are fitted.

    On a CPU compute is the training thread's own time: what a busy machine does not disturb. On a GPU it is the time
    of its kernels.

    Raises:
        InputError: the report does not hold its plan, or is not whole, or its plan is for several pools of GPUs or for
            another kind of device.
    """
    if report.plan is None:
        raise InputError(
            f"`{name}` does not say what it was predicted from: it was written by an older version",
            hint="run the plan again",
        )
    _require_whole(report, report.plan, name)
    question = report.plan.question
    if question.has_pools:
        raise InputError(f"`{name}` is a run over several pools of GPUs, of which each has its own profile")
    on_cpu = report.environment.device == "cpu"
    if on_cpu != (question.cluster.gpu.kind == "cpu"):
        raise InputError(
            f"`{name}` ran on {report.environment.device}; its plan is for {question.cluster.gpu.name}",
            hint="plan for `local` and run that",
        )
    stack = report.stack or OWN_STACK
    if question.stack.name != stack:
        question = replace(question, stack=load_stack(stack))
    by_thread = on_cpu and not report.is_foreign
    watched = all(rank.parts for rank in report.ranks) and by_thread == on_cpu
    disturbed = math.log(_stretch(_busiest_parts(report))) / 2 if watched else 0.0
    step_seconds, noise = report.step_seconds, report.step_noise
    seen = {STEP: MeasuredQuantity(seconds=step_seconds, noise=noise, disturbance=disturbed)}
    seen |= _watched(report) if watched else {}
    if by_thread:
        seen |= _by_thread(report)
    return ObservedRun(name=name, question=question, layout=report.plan.layout, seen=seen)


def _require_whole(report: RunReport, plan: Plan, name: str) -> None:
    """Raise InputError, with all problems, if a report lacks ranks, or clocks or parts of a rank's steps."""
    problems = plan.problems()
    if not report.is_foreign and len(report.ranks) != plan.layout.num_gpus:
        problems.append(Problem("ranks", f"{len(report.ranks)} of {plan.layout.num_gpus}"))
    for rank in report.ranks:
        place = f"rank {rank.rank}"
        clocks = (rank.wall_seconds, rank.thread_seconds, rank.update.thread_seconds)
        if not report.is_foreign and (not all(clocks) or len({len(clock) for clock in clocks}) > 1):
            problems.append(Problem(place, "has no clock of every step"))
        if rank.parts and (missing := [part for part in _PARTS if part not in rank.parts]):
            problems.append(Problem(place, f"has no {', '.join(missing)}"))
        elif rank.parts and rank.parts["compute"] <= 0:
            problems.append(Problem(place, "has computed nothing"))
    if problems:
        raise InputError(f"`{name}` is not whole", problems=problems, hint="run the plan again")


def tells_of_its_device(report: RunReport) -> bool:
    """Whether a report was measured on the device of its plan, so that constants can be fitted to it."""
    try:
        observed_run(report, "")
    except InputError:
        return False
    return True


def _by_thread(report: RunReport) -> dict[str, MeasuredQuantity]:
    """Median CPU seconds of the busiest rank's training thread in a whole step (`thread`) and in its update
    (`update`).
    """
    busiest = max(report.ranks, key=lambda rank: statistics.median(rank.thread_seconds))
    clocks = {"thread": busiest.thread_seconds, "update": busiest.update.thread_seconds}
    return {
        name: MeasuredQuantity(seconds=statistics.median(seconds), noise=middle_half(seconds))
        for name, seconds in clocks.items()
    }


def _busiest_parts(report: RunReport) -> dict[str, float]:
    """Seconds by part of the rank that computes most."""
    return max((rank.parts for rank in report.ranks), key=lambda parts: parts["compute"] + parts["host"])


def _driving(parts: Mapping[str, float]) -> float:
    """Seconds in which a rank's own thread works: compute, host and optimizer."""
    return parts["compute"] + parts["host"] + parts["optimizer"]


def _stretch(parts: Mapping[str, float]) -> float:
    """Factor by which a rank's work took longer because other processes had its core."""
    driving = _driving(parts)
    return 1.0 + parts["other"] / driving if driving > 0 else 1.0


def _watched(report: RunReport) -> dict[str, MeasuredQuantity]:
    """Quantities of the median recorded step, from the rank that computes most.

    Others on the cores of a CPU stretch its communication too: as much is taken off as they stretch its work, and the
    more that is, the less what is left can be trusted.
    """
    parts = _busiest_parts(report)
    unit, stretch = report.step_seconds / sum(parts.values()), _stretch(parts)
    noise = math.hypot(report.step_noise, _WATCHED_NOISE)
    seen = {
        part: MeasuredQuantity(
            seconds=unit * parts[part] / stretch, noise=noise, disturbance=math.log(stretch)
        )
        for part in _WAITS
    }
    if report.environment.device == "cpu":
        unit = _by_thread(report)["thread"].seconds / _driving(parts)
    else:
        for name, part in (("compute", "compute"), ("update", "optimizer")):
            seen[name] = MeasuredQuantity(seconds=unit * parts[part], noise=report.step_noise)
    return seen | {"host": MeasuredQuantity(seconds=unit * parts["host"], noise=_WATCHED_NOISE)}


Peaks = tuple[Mapping[int, float], Mapping[int, float]]
"""Peak bytes of each rank: allocated by rank, and reserved by rank."""


def foreign_report(
    plan: Plan,
    seconds: Sequence[float],
    *,
    log: Log | None = None,
    steps: TypicalSteps | None = None,
    job: Job | None = None,
    notes: Sequence[str] = (),
) -> RunReport:
    """Report of another trainer's run. Its `steps` take `seconds` each; memory comes from the `log`, parts of a step
    from traces of a `job`; `notes` say what was read.
    """
    peaks: Peaks = ({}, {}) if log is None else (log.allocated, log.reserved)
    traced = set() if job is None else {report.rank for report in job.traced}
    ranks = sorted(traced or {rank for rank in {*peaks[0], *peaks[1]} if rank < plan.layout.num_gpus}) or [0]
    lines = () if steps is None else steps.lines
    course = {
        "environment": _environment(plan),
        "seed": 0,
        "warm_up_steps": 0,
        "first_step": lines[0].step if lines else 1,
        "losses": tuple(line.loss for line in lines),
        "gradient_norms": tuple(line.gradient_norm for line in lines),
        "notes": tuple(notes),
    }
    rank_reports = [_rank(plan, rank, seconds, peaks, job) for rank in ranks]
    return make_report(plan, rank_reports, course, stack=plan.stack.name)


def _rank(plan: Plan, rank: int, seconds: Sequence[float], peaks: Peaks, job: Job | None) -> RankReport:
    """Report of one rank of another trainer's run."""
    stage = plan.layout.place_along("pp", rank)
    allocated, reserved = (round(of_ranks.get(rank, 0)) for of_ranks in peaks)
    peak = AllocatorPeak(allocated=allocated, reserved=reserved) if allocated or reserved else None
    unseen = PhaseReport(wall_seconds=(), thread_seconds=(), waiting_seconds={})
    traced: dict[str, Any] = {}
    if job is not None:
        traced["parts"] = next(one.parts for one in job.traced if one.rank == rank)
        traced |= {"passes": job.passes.get(rank, ()), "late_seconds": job.late_seconds.get(rank, ())}
    return RankReport(
        rank=rank,
        pipeline_rank=stage,
        wall_seconds=tuple(seconds),
        thread_seconds=(),
        process_seconds=(),
        forward_backward=unseen,
        update=unseen,
        memory={},
        predicted_memory=predicted_parts(plan.prediction.rank_memory[stage]),
        allocator_peak=peak,
        **traced,
    )


def _environment(plan: Plan) -> Environment:
    """Machine that the plan assumes, as no other is known."""
    gpu, gpus = plan.question.cluster.gpu, plan.layout.num_gpus
    device, backend = ("cpu", "gloo") if gpu.kind == "cpu" else (gpu.name, "nccl")
    return Environment(torch="", python="", device=device, backend=backend, world_size=gpus, cores=0)
