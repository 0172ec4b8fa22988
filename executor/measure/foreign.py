"""The report of a run that another trainer made, from its log and its traces: what `run` writes of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cost_models.axes.order import place_along
from cost_models.measured.logs.reading import Log
from cost_models.measured.logs.steps import Usual
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


def foreign_report(
    plan: Plan,
    seconds: Sequence[float],
    *,
    log: Log | None = None,
    steps: Usual | None = None,
    parts: Mapping[int, Mapping[str, float]] | None = None,
    notes: Sequence[str] = (),
) -> RunReport:
    """The report of usual steps of so many `seconds`.

    Args:
        plan: what ran.
        seconds: of each usual step.
        log: where its memory stands; None: only traces were read.
        steps: the log's usual steps with their losses.
        parts: rank → seconds of one step by part, of ranks that were traced.
        notes: what was read, and what was left out.
    """
    allocated: Mapping[int, float] = {} if log is None else log.allocated
    reserved: Mapping[int, float] = {} if log is None else log.reserved
    known = range(plan.layout.num_gpus)
    ranks = sorted(parts or {rank for rank in {*allocated, *reserved} if rank in known}) or [0]
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
    return make_report(
        plan,
        [
            _rank(plan, rank, seconds, (parts or {}).get(rank, {}), _peak(rank, allocated, reserved))
            for rank in ranks
        ],
        course,
        stack=plan.stack.name,
    )


def _peak(rank: int, allocated: Mapping[int, float], reserved: Mapping[int, float]) -> AllocatorPeak | None:
    if rank not in allocated and rank not in reserved:
        return None
    return AllocatorPeak(allocated=round(allocated.get(rank, 0)), reserved=round(reserved.get(rank, 0)))


def _rank(
    plan: Plan, rank: int, seconds: Sequence[float], parts: Mapping[str, float], peak: AllocatorPeak | None
) -> RankReport:
    stage = place_along("pp", plan.layout, rank)
    unseen = PhaseReport(wall_seconds=(), thread_seconds=(), waiting_seconds={})
    return RankReport(
        rank=rank,
        pipeline_rank=stage,
        wall_seconds=tuple(seconds),
        thread_seconds=(),
        process_seconds=(),
        forward_backward=unseen,
        update=unseen,
        parts=dict(parts),
        memory={},
        predicted_memory=predicted_parts(plan.prediction.rank_memory[stage]),
        allocator_peak=peak,
    )


def _environment(plan: Plan) -> Environment:
    """What is known of the machine: what the plan says."""
    gpu = plan.question.cluster.gpu
    on_cpu = gpu.kind == "cpu"
    return Environment(
        torch="",
        python="",
        device="cpu" if on_cpu else gpu.name,
        backend="gloo" if on_cpu else "nccl",
        world_size=plan.layout.num_gpus,
        cores=0,
    )
