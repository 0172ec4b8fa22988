"""Run a plan here: check the host, start torchrun, follow its progress, read its report."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Literal

from cost_models.defaults import OWN_COMPILED
from cost_models.errors import HostError, InputError
from cost_models.files.catalog import load_stack
from cost_models.files.leftovers import temporary_folder
from cost_models.schedules import SPLIT_BACKWARD
from cost_models.units import counted
from executor.checkpoints.saving import Saving
from executor.data.tokens import RANDOM, TEXT, open_tokens, require_a_sequence, require_whole
from executor.fp8_here import require_fp8_products, require_torchao
from executor.launch.nodes import ONE_NODE, Nodes, require_nodes
from executor.launch.torchrun import OnNote, OnStep, run_ranks, stopped
from executor.measure.report import RunReport, load_report
from executor.rate import CONSTANT_RATE, Rate, require_descent
from executor.run_options import REPORT, TIMEOUT_SECONDS, Asked
from planner.plan import Plan
from planner.plan_files import load_plan, save_plan
from planner.rules.stack import require_runnable

Backend = Literal["gloo", "nccl"]

_PROCESSES_PER_CORE = 4
_BYTE_VOCABULARY = 256
RESTARTS = 3


def run_plan(
    plan: str | Path | Plan,
    *,
    steps: int = 10,
    warm_up: int = 2,
    out_dir: str | Path | None = None,
    backend: Backend | None = None,
    seed: int = 0,
    rate: Rate = CONSTANT_RATE,
    clip: float | None = None,
    data: str | Path = "text",
    compile: bool = False,
    saving: Saving | None = None,
    restarts: int = RESTARTS,
    timeout: float = TIMEOUT_SECONDS,
    nodes: Nodes = ONE_NODE,
    trace: str | Path | None = None,
    on_step: OnStep | None = None,
    on_note: OnNote | None = None,
    name: str | None = None,
) -> RunReport:
    """Train `steps` measured steps after `warm_up` and return what was measured.

    Starts one process for each rank with torchrun: a plan for GPUs runs on CUDA devices over NCCL where there are
    any, else it and a plan for the CPU run on CPU processes over gloo. `out_dir` (default: nowhere) keeps
    `run-report.json` and `progress.jsonl`. Already inside torchrun or a SLURM job that sets RANK, this process is
    that rank and trains itself. Gradients whose norm over the whole model is above `clip` are scaled down to it.
    `trace` is a file for the Chrome trace of a step of its own.

    `data` is `text`, `random`, or a token folder. With `saving` the state is saved every so often, a run resumes where
    the last one ended, and ranks that are lost are started again, at most `restarts` times, from the last checkpoint.
    A rank that stands still for `timeout` seconds is taken to hang.

    Of several `nodes` each calls it alike, with an `out_dir` and a checkpoint folder that all of them see. They wait at
    most `timeout` seconds for one another, at the start and, with restarts, for another in the place of a lost one.

    Errors call the plan by `name`, or by its file's.

    Raises:
        InputError: the plan cannot be trained: its precision, its layout, its vocabulary, its data; or the checkpoint
            belongs to another run.
        HostError: too few devices, or none that multiply as the plan says, or another number of processes than the
            plan has ranks.
        RunError: a rank failed, hung or ran out of memory, a node was lost, the loss is no number, a checkpoint could
            not be written; the problems say where.
        StoppedError: Ctrl-C or SIGTERM; the step was finished, and saved where there is somewhere to.
    """
    loaded = plan if isinstance(plan, Plan) else load_plan(plan)
    name = name or ("plan" if isinstance(plan, Plan) else Path(plan).name)
    asked = Asked(
        steps=steps,
        warm_up=warm_up,
        seed=seed,
        rate=rate,
        clip=clip,
        data=str(data),
        compile=compile or loaded.stack.compiled,
        saving=saving,
        timeout=timeout,
        trace=None if trace is None else Path(trace),
    )
    require_trainable(loaded, byte_text=asked.data == TEXT)
    if os.environ.get("RANK", "0") == "0":
        require_data(loaded, asked.data, on_note)
    require_descent(rate, clip)
    if asked.compile:
        _require_compilable(loaded)
    inside = "RANK" in os.environ
    require_nodes(nodes, loaded.layout.num_gpus, kept=out_dir is not None, inside=inside)
    chosen = backend or _best_backend(loaded)
    if inside:
        require_world(loaded, name)
    else:
        require_host(loaded, name, chosen, nodes.count)
    require_torchao(loaded, name)
    require_fp8_products(loaded, name, on_gpu=chosen == "nccl")
    with temporary_folder("meshwright-run-") as temporary:
        folder = Path(out_dir) if out_dir is not None else Path(temporary, "out")
        folder.mkdir(parents=True, exist_ok=True)
        if inside:
            return _as_rank(loaded, asked, folder, chosen)
        save_plan(loaded, Path(temporary, "plan.yaml"))
        run_ranks(
            loaded.layout.num_gpus,
            folder,
            Path(temporary, "logs"),
            [
                str(Path(temporary, "plan.yaml")),
                "--out",
                str(folder),
                "--backend",
                chosen,
                *asked.arguments(),
            ],
            nodes=nodes,
            restarts=restarts if saving is not None else 0,
            timeout=timeout,
            saved=None if saving is None else saving.folder,
            on_step=on_step or (lambda step: None),
            on_note=on_note or (lambda note: None),
        )
        return load_report(folder / REPORT)


def require_trainable(plan: Plan, *, byte_text: bool) -> None:
    """Nothing for a plan the executor can train. Raises InputError."""
    require_runnable(plan.question, plan.layout)
    if byte_text and plan.model.vocab_size < _BYTE_VOCABULARY:
        raise InputError(
            f"text of bytes needs a vocabulary of {_BYTE_VOCABULARY}; model `{plan.model.name}` has"
            f" {plan.model.vocab_size}",
            hint="--data random, or a folder that meshwright tokens made",
        )


def require_data(plan: Plan, data: str, on_note: OnNote | None = None) -> None:
    """Nothing where there are whole tokens that go with the plan. Raises InputError."""
    if data not in (TEXT, RANDOM):
        require_whole(Path(data), on_note or (lambda note: None))
        header, _ = open_tokens(Path(data), plan.model.vocab_size)
        require_a_sequence(header.tokens, plan.training.sequence_length, data)


def _require_compilable(plan: Plan) -> None:
    """Nothing for a plan whose blocks may be compiled, whatever stack it was made for. Raises InputError."""
    schedule = plan.layout.schedule
    if schedule in SPLIT_BACKWARD:
        raise InputError(
            f"a compiled block has one backward pass, which `schedule={schedule}` splits",
            hint="leave out `compile`, or use another schedule",
        )
    require_runnable(replace(plan.question, stack=load_stack(OWN_COMPILED)), plan.layout)


def require_host(plan: Plan, name: str, backend: Backend, nodes: int = 1) -> None:
    """Nothing where this host has a device for every rank, or for its share of so many nodes. Raises HostError."""
    ranks = plan.layout.num_gpus // nodes
    hint = "--nodes N and --rendezvous HOST:PORT run it on several hosts"
    name = name if nodes == 1 else f"each of {nodes} nodes of {name}"
    if backend == "nccl":
        devices = _cuda_devices()
        if devices < ranks:
            raise HostError(f"{name} needs {counted(ranks, 'GPU')}; this host has {devices}", hint=hint)
        return
    if plan.question.cluster.gpu.kind != "cpu" and ranks > (os.cpu_count() or 1):
        raise HostError(f"{name} needs {counted(ranks, 'GPU')}; this host has {_cuda_devices()}", hint=hint)
    most = _PROCESSES_PER_CORE * (os.cpu_count() or 1)
    if ranks > most:
        raise HostError(f"{name} needs {counted(ranks, 'process')}; this host runs {most} at most", hint=hint)


def require_world(plan: Plan, name: str) -> None:
    """Nothing where whoever started this rank started one for each of the plan's. Raises HostError."""
    ranks, started = plan.layout.num_gpus, int(os.environ.get("WORLD_SIZE", "1"))
    if started != ranks:
        raise HostError(
            f"{name} needs {counted(ranks, 'process')}; {started} {'was' if started == 1 else 'were'} started",
            hint=f"torchrun --nproc-per-node {ranks} on one host, or as many on each that their product is {ranks}",
        )


def _cuda_devices() -> int:
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def _best_backend(plan: Plan) -> Backend:
    """A plan for CPU processes runs on them; one for GPUs takes them where there are any."""
    return "nccl" if plan.question.cluster.gpu.kind != "cpu" and _cuda_devices() else "gloo"


def _as_rank(plan: Plan, asked: Asked, folder: Path, backend: Backend) -> RunReport:
    from executor.launch.worker import work
    from executor.steps import Stopped

    result = work(plan, asked, folder, backend)
    if isinstance(result, Stopped):
        raise stopped(result.step, result.saved)
    return result
