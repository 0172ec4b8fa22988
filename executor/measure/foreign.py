"""The report of a run that another trainer made, from its log and its traces: what `run` writes of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cost_models.measured.logs import Log, TypicalSteps
from cost_models.measured.traces.job import Job
from executor.measure.any_report import Course, Environment
from executor.measure.report import (
    AllocatorPeak,
    PhaseReport,
    RankReport,
    RunReport,
    make_report,
    predicted_parts,
)
from planner.plan import Plan

Peaks = tuple[Mapping[int, float], Mapping[int, float]]
"""Rank → bytes allocated, and reserved, at its peak."""


def foreign_report(
    plan: Plan,
    seconds: Sequence[float],
    *,
    log: Log | None = None,
    steps: TypicalSteps | None = None,
    job: Job | None = None,
    notes: Sequence[str] = (),
) -> RunReport:
    """The report of usual `steps` of so many `seconds`, with the memory that the `log` tells and what the traces of a
    `job` do; `notes` say what was read."""
    told: Peaks = ({}, {}) if log is None else (log.allocated, log.reserved)
    traced = {} if job is None else {one.rank: one for one in job.traced}
    ranks = sorted(traced or {rank for rank in {*told[0], *told[1]} if rank < plan.layout.num_gpus}) or [0]
    lines = () if steps is None else steps.lines
    course = Course(
        environment=_environment(plan),
        seed=0,
        warm_up=0,
        first_step=lines[0].step if lines else 1,
        losses=[line.loss for line in lines],
        gradient_norms=[line.gradient_norm for line in lines],
        notes=notes,
    )
    found = [_rank(plan, rank, seconds, told) for rank in ranks]
    if job is not None:
        found = [
            one.model_copy(
                update={
                    "parts": traced[one.rank].parts,
                    "passes": job.passes.get(one.rank, ()),
                    "late_seconds": job.late_seconds.get(one.rank, ()),
                }
            )
            for one in found
        ]
    return make_report(plan, found, course, stack=plan.stack.name)


def _rank(plan: Plan, rank: int, seconds: Sequence[float], told: Peaks) -> RankReport:
    stage = plan.layout.place_along("pp", rank)
    allocated, reserved = (round(peaks.get(rank, 0)) for peaks in told)
    unseen = PhaseReport(wall_seconds=(), thread_seconds=(), waiting_seconds={})
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
        allocator_peak=AllocatorPeak(allocated=allocated, reserved=reserved)
        if allocated or reserved
        else None,
    )


def _environment(plan: Plan) -> Environment:
    """What is known of the machine: what the plan says."""
    gpu, gpus = plan.question.cluster.gpu, plan.layout.num_gpus
    device, backend = ("cpu", "gloo") if gpu.kind == "cpu" else (gpu.name, "nccl")
    return Environment(torch="", python="", device=device, backend=backend, world_size=gpus, cores=0)
