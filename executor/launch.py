"""Run a plan here: check the host, start torchrun, follow its progress, read its report."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from cost_models.errors import HostError, InputError, Problem, RunError
from cost_models.schedules import SPLIT_BACKWARD
from cost_models.units import format_bytes
from executor.environment import worker_environment
from executor.rate import CONSTANT_RATE, Rate, require_descent
from executor.report import RunReport, load_report
from planner.plan import Plan, load_plan, save_plan
from planner.stack_rules import require_runnable

Backend = Literal["gloo", "nccl"]
OnStep = Callable[[dict[str, Any]], None]
"""Called with step, loss, seconds and measured (False in the warm-up)."""

_PROGRESS, _REPORT = "progress.jsonl", "run-report.json"
_PROCESSES_PER_CORE = 4
_POLL_SECONDS = 0.05
_LAST_LINES = 5
_BYTE_VOCABULARY = 256


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
    tokens: str | Path | None = None,
    compile: bool = False,
    on_step: OnStep | None = None,
) -> RunReport:
    """Train `steps` measured steps after `warm_up` and return what was measured.

    Starts one process for each rank with torchrun: a plan for GPUs runs on CUDA devices over NCCL where there are
    any, else it and a plan for the CPU run on CPU processes over gloo. `out_dir` (default: nowhere) keeps
    `run-report.json` and `progress.jsonl`. Already inside torchrun or a SLURM job that sets RANK, this process is
    that rank and trains itself. Gradients whose norm over the whole model is above `clip` are scaled down to it.

    Raises:
        InputError: the plan cannot be trained: its precision, its layout, its vocabulary, its text; or not so.
        HostError: too few devices, or another number of processes than the plan has ranks.
        RunError: a rank failed or ran out of memory; the problems say where and its last lines.
    """
    loaded = plan if isinstance(plan, Plan) else load_plan(plan)
    name = "plan" if isinstance(plan, Plan) else Path(plan).name
    require_trainable(loaded, byte_text=tokens is None)
    require_descent(rate, clip)
    if compile:
        _require_whole_backward(loaded)
    inside = "RANK" in os.environ
    chosen = backend or _best_backend(loaded)
    if inside:
        require_world(loaded, name)
    else:
        require_host(loaded, name, chosen)
    with tempfile.TemporaryDirectory(prefix="meshwright-run-") as temporary:
        folder = Path(out_dir) if out_dir is not None else Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        if inside:
            return _as_rank(loaded, folder, chosen, steps, warm_up, seed, rate, clip, tokens, compile)
        for old in (*folder.glob("failure-*.json"), folder / _PROGRESS, folder / _REPORT):
            old.unlink(missing_ok=True)
        save_plan(loaded, Path(temporary) / "plan.yaml")
        arguments = [str(Path(temporary) / "plan.yaml"), "--out", str(folder), "--backend", chosen]
        arguments += ["--steps", str(steps), "--warm-up", str(warm_up), "--seed", str(seed)]
        arguments += ["--learning-rate", str(rate.peak), "--rate-warm-up", str(rate.warm_up)]
        arguments += ["--rate-decay", str(rate.decay)] * (rate.decay is not None)
        arguments += ["--clip", str(clip)] * (clip is not None)
        arguments += ["--tokens", str(tokens)] * (tokens is not None)
        arguments += ["--compile"] * compile
        _torchrun(loaded, folder, Path(temporary) / "logs", arguments, on_step or (lambda step: None))
        return load_report(folder / _REPORT)


def require_trainable(plan: Plan, *, byte_text: bool) -> None:
    """Nothing for a plan the executor can train. Raises InputError."""
    require_runnable(plan.question, plan.layout)
    if byte_text and plan.model.vocab_size < _BYTE_VOCABULARY:
        raise InputError(
            f"text of bytes needs a vocabulary of {_BYTE_VOCABULARY}; model `{plan.model.name}` has"
            f" {plan.model.vocab_size}",
            hint="give a token file",
        )


def _require_whole_backward(plan: Plan) -> None:
    """Nothing for a plan whose blocks may be compiled. Raises InputError."""
    schedule = plan.layout.schedule
    if schedule in SPLIT_BACKWARD:
        raise InputError(
            f"a compiled block has one backward pass, which `schedule={schedule}` splits",
            hint="leave out `compile`, or use another schedule",
        )


def require_host(plan: Plan, name: str, backend: Backend) -> None:
    """Nothing where this host has a device for every rank. Raises HostError."""
    ranks = plan.layout.num_gpus
    hint = "run it under torchrun or SLURM on as many hosts as it needs"
    if backend == "nccl":
        devices = _cuda_devices()
        if devices < ranks:
            raise HostError(f"{name} needs {ranks} GPUs; this host has {devices}", hint=hint)
        return
    if plan.question.cluster.gpu.kind != "cpu" and ranks > (os.cpu_count() or 1):
        raise HostError(f"{name} needs {ranks} GPUs; this host has {_cuda_devices()}", hint=hint)
    most = _PROCESSES_PER_CORE * (os.cpu_count() or 1)
    if ranks > most:
        raise HostError(f"{name} needs {ranks} processes; this host runs {most} at most", hint=hint)


def require_world(plan: Plan, name: str) -> None:
    """Nothing where whoever started this rank started one for each of the plan's. Raises HostError."""
    ranks, started = plan.layout.num_gpus, int(os.environ.get("WORLD_SIZE", "1"))
    if started != ranks:
        raise HostError(
            f"{name} needs {ranks} processes; {started} {'was' if started == 1 else 'were'} started",
            hint=f"torchrun --nproc-per-node {ranks} on one host, or as many on each that their product is {ranks}",
        )


def _cuda_devices() -> int:
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def _best_backend(plan: Plan) -> Backend:
    """A plan for CPU processes runs on them; one for GPUs takes them where there are any."""
    return "nccl" if plan.question.cluster.gpu.kind != "cpu" and _cuda_devices() else "gloo"


def _as_rank(
    plan: Plan,
    folder: Path,
    backend: Backend,
    steps: int,
    warm_up: int,
    seed: int,
    rate: Rate,
    clip: float | None,
    tokens: str | Path | None,
    compile: bool,
) -> RunReport:
    from executor.engine import Options
    from executor.train import Schedule
    from executor.worker import work

    options = Options(seed=seed, rate=rate, clip=clip, compile=compile)
    path = None if tokens is None else Path(tokens)
    return work(plan, options, Schedule(steps=steps, warm_up=warm_up, tokens_path=path), folder, backend)


def _torchrun(plan: Plan, folder: Path, logs: Path, arguments: list[str], on_step: OnStep) -> None:
    """Start the ranks and wait for them; their output goes to files of their own."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", str(plan.layout.num_gpus), "--redirects", "3", "--log-dir", str(logs)]
    command += ["-m", "executor.worker", *arguments]
    logs.mkdir(parents=True)
    with (logs / "torchrun.log").open("wb") as stream:
        process = subprocess.Popen(
            command,
            stdout=stream,
            stderr=subprocess.STDOUT,
            env=worker_environment(),
            start_new_session=True,
        )
    try:
        reported = 0
        while True:
            code = process.poll()
            reported = _report_steps(folder / _PROGRESS, reported, on_step)
            if code is not None:
                break
            time.sleep(_POLL_SECONDS)
    finally:
        if process.poll() is None:  # interrupted: end torchrun, which ends its ranks
            os.killpg(process.pid, signal.SIGTERM)
            process.wait()
    if code != 0 or not (folder / _REPORT).exists():
        raise _failure(folder, logs)


def _report_steps(progress: Path, reported: int, on_step: OnStep) -> int:
    """Hand on the complete lines that are new; returns how many there are."""
    if not progress.exists():
        return reported
    lines = progress.read_text("utf-8").split("\n")[:-1]
    for line in lines[reported:]:
        on_step(json.loads(line))
    return len(lines)


def _failure(folder: Path, logs: Path) -> RunError:
    """What went wrong, from the rank that says it ran out of memory, or the first that failed, or torchrun's log."""
    found = [json.loads(path.read_text("utf-8")) for path in sorted(folder.glob("failure-*.json"))]
    exhausted = [failure for failure in found if "allocated" in failure]
    if exhausted:
        return _memory_failure(exhausted[0])
    if found:
        rank = found[0]["rank"]
        problems = [Problem("", line) for line in _last_lines(logs.rglob(f"{rank}/stderr.log"))]
        return RunError(f"rank {rank} failed: {found[0]['reason']}", problems=problems)
    said = _last_lines([*logs.rglob("stderr.log"), logs / "torchrun.log"])
    return RunError(
        "a rank was ended from outside, perhaps because the host ran out of memory",
        problems=[Problem("", line) for line in said],
    )


def _memory_failure(failure: dict[str, Any]) -> RunError:
    """Predicted beside allocated, part by part."""
    predicted, allocated = failure["predicted"], failure["allocated"]
    widest = max(map(len, predicted))
    problems = [
        Problem(
            part,
            f"{'':{widest - len(part)}}predicted {format_bytes(size):>9}, allocated"
            f" {format_bytes(allocated[part]) if part in allocated else '-':>9}",
        )
        for part, size in predicted.items()
    ]
    return RunError(
        f"rank {failure['rank']} (stage {failure['stage']}) ran out of memory at"
        f" {format_bytes(sum(allocated.values()))}; predicted {format_bytes(sum(predicted.values()))}",
        problems=problems,
        hint="plan again with a smaller --max-memory",
    )


def _last_lines(paths: Any) -> list[str]:
    lines = [
        line
        for path in paths
        if path.exists()
        for line in path.read_text("utf-8", errors="replace").splitlines()
    ]
    return [line.strip() for line in lines if line.strip()][-_LAST_LINES:]
