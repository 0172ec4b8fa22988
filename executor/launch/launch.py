"""Run a plan here: check plan and host, start torchrun, follow its progress, read its report."""

from __future__ import annotations

import os
from pathlib import Path
from typing import get_args

from cost_models.errors import UnknownNameError
from cost_models.files.whole import temporary_folder
from executor.families import training_of
from executor.launch.follower import OnNote, OnStep
from executor.launch.nodes import Nodes, alone_in, require_nodes
from executor.launch.torchrun import run_ranks, stopped
from executor.measure.any_report import AnyReport, load_any_report
from executor.requirements import cuda_devices, require_host, require_torch, require_world
from executor.run_config import REPORT, Backend, RunConfig, require_descent, require_places
from planner.plan import AnyPlan, load_any_plan, save_plan


def run_plan(
    plan: str | Path | AnyPlan,
    config: RunConfig,
    *,
    on_step: OnStep | None = None,
    on_note: OnNote | None = None,
    name: str | None = None,
) -> AnyReport:
    """Train as `config` says and return what was measured.

    Starts one process for each rank with torchrun: a plan for GPUs runs on CUDA devices over NCCL where there are
    any, else it and a plan for the CPU run on CPU processes over gloo. Already inside torchrun or a SLURM job that sets
    RANK, this process is that rank and trains itself.

    Of several nodes each calls it alike, with an output folder and a checkpoint folder that all of them see.

    Errors call the plan by `name`, or by its file's.

    Raises:
        InputError: the plan cannot be trained: its precision, its layout, its vocabulary, its data; or the checkpoint
            belongs to another run.
        HostError: no torch, too few devices, or none that multiply as the plan says, or another number of processes
            than the plan has ranks.
        RunError: a rank failed, hung or ran out of memory, a node was lost, the loss is no number, a checkpoint could
            not be written; the problems say where.
        StoppedError: Ctrl-C or SIGTERM; the step was finished, and saved where there is somewhere to.
    """
    require_places(config)
    loaded = plan if isinstance(plan, AnyPlan) else load_any_plan(plan)
    name = name or ("plan" if isinstance(plan, AnyPlan) else Path(plan).name)
    on_note = on_note or (lambda note: None)
    inside = "RANK" in os.environ
    config = _checked(loaded, name, config, on_note, inside=inside)
    with temporary_folder("meshwright-run-") as temporary:
        folder = config.out or temporary / "out"
        config = config.model_copy(update={"out": folder})
        first = os.environ.get("RANK", "0") == "0"
        folder.mkdir(parents=True, exist_ok=True)
        with alone_in((folder, config.checkpoint) if first else (), config.rendezvous or "") as locks:
            if inside:
                return _as_rank(loaded, config)
            save_plan(loaded, temporary / "plan.yaml")
            (temporary / "run.json").write_text(config.model_dump_json(), "utf-8")
            run_ranks(
                loaded.num_ranks,
                config,
                temporary / "logs",
                [str(temporary / "plan.yaml"), str(temporary / "run.json")],
                on_step=on_step or (lambda step: None),
                on_note=on_note,
                locks=locks,
            )
            return load_any_report(folder / REPORT)


def _checked(plan: AnyPlan, name: str, config: RunConfig, on_note: OnNote, *, inside: bool) -> RunConfig:
    """The flags to run with, once plan, flags and this host are found compatible."""
    require_torch("run")
    training = training_of(plan)
    config = training.require_trainable(plan, config, on_note)
    require_descent(config.rate, config.clip)
    nodes = Nodes(count=config.nodes, rendezvous=config.rendezvous)
    require_nodes(nodes, plan.num_ranks, kept=config.out is not None, inside=inside)
    backend = _backend(config.backend, plan)
    if inside:
        require_world(plan, name)
    else:
        require_host(plan, name, backend, nodes.count)
    training.require_devices(plan, name, on_gpu=backend == "nccl")
    return config.model_copy(update={"backend": backend})


def _backend(name: str | None, plan: AnyPlan) -> Backend:
    """The backend of that name; without one, NCCL where the plan is for GPUs and there are any, else gloo."""
    for known in get_args(Backend):
        if name == known:
            return known  # type: ignore[no-any-return]  # get_args forgets that they are literals
    if name is not None:
        raise UnknownNameError("backend", name, get_args(Backend), hint="nccl for GPUs, gloo for CPUs")
    return "nccl" if plan.gpu.kind != "cpu" and cuda_devices() else "gloo"


def _as_rank(plan: AnyPlan, config: RunConfig) -> AnyReport:
    from executor.launch.rank import work
    from executor.steps import Stopped

    result = work(plan, config)
    if isinstance(result, Stopped):
        raise stopped(result.step, result.saved)
    return result
