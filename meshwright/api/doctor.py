"""The doctor: looks at every device and link before a job starts."""

from __future__ import annotations

import os
from pathlib import Path

from cost_models.errors import InputError
from cost_models.files.catalog import local_cluster
from executor.doctor.examine import examine
from executor.doctor.judging import Assumptions, judge
from executor.requirements import require_torch
from meshwright.answers.examined import Examined
from meshwright.inputs.plans import HasPlan, any_plan_of
from planner.any_plan import AnyPlan
from planner.plan import Plan


def doctor(plan: AnyPlan | HasPlan | str | Path | None = None, *, processes: int | None = None) -> Examined:
    """Measure products, memory, launches and links of every device, and say which is slower than it should be.

    Started by torchrun on every node it examines all of them, and every rank gets the answer; else this machine.

    Args:
        plan: compared with what its prediction counts on; None: devices are compared with one another only.
        processes: that are measured at once; None: those of the job, or of the plan, as far as this machine has
            devices for them.

    Raises:
        InputError: not a plan file, or no process.
        HostError: no torch, too few devices, or another number than the job has.
        RunError: a process failed.
    """
    if processes is not None and processes < 1:
        raise InputError(f"{processes} processes measure nothing")
    loaded = None if plan is None else any_plan_of(plan)
    require_torch("doctor")
    here = local_cluster(processes)
    on_gpu = here.gpu.kind != "cpu"
    wanted = processes or _of_the_job() or _of_the_plan(loaded, here.num_gpus, on_gpu=on_gpu) or here.num_gpus
    assumed, notes = _assumed(loaded, here.gpu.name, on_gpu=on_gpu)
    seen = examine(wanted, device="cuda" if on_gpu else "cpu")
    return Examined(seen=seen, judgement=judge(seen, assumed), assumes=assumed is not None, notes=notes)


def _of_the_job() -> int | None:
    return int(os.environ["WORLD_SIZE"]) if "RANK" in os.environ else None


def _of_the_plan(plan: AnyPlan | None, devices: int, *, on_gpu: bool) -> int | None:
    """The plan's ranks, as far as there are GPUs here; processes of a CPU share it."""
    if plan is None or (plan.gpu.kind != "cpu") != on_gpu:
        return None
    return min(plan.num_ranks, devices) if on_gpu else plan.num_ranks


def _assumed(
    plan: AnyPlan | None, device: str, *, on_gpu: bool
) -> tuple[Assumptions | None, tuple[str, ...]]:
    """What the plan counts on, and what to know of that."""
    if plan is None:
        return None, ()
    if (plan.gpu.kind != "cpu") != on_gpu:
        return None, (f"The plan is for {plan.gpu.name}: what it assumes is not of this {device}",)
    if not isinstance(plan, Plan):
        return None, ("A plan of a recommender says nothing of products and links that could be compared",)
    from executor.doctor.examine import assumptions_of

    found = assumptions_of(plan)
    if found.known:
        return found, ()
    return found, ("The plan counts on a datasheet, not on measurements: being slower than it is no finding",)
