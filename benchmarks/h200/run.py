"""One command for one GPU: calibrate it, then train Llama-shaped models and compare with the predictions.

    python benchmarks/h200/run.py OUT            an H200, under ten minutes
    python benchmarks/h200/run.py OUT --dry      the same path with tiny models on a CPU

Every case runs in a process of its own, so that one that runs out of memory or time leaves the others alone; its
reason is recorded in its row. A sweep asks the planner for the best microbatch and recomputation of a job, then trains
that and every other choice there is. OUT holds environment.json, profile.yaml, measurements.csv, results.csv,
results.json and sweeps.json, rewritten after every case and sweep, and errors.txt. Where this project is not
installed, PYTHONPATH names its root.
"""

from __future__ import annotations

import argparse
import csv
import gc
import json
import os
import statistics
import subprocess
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

from cost_models.asking import OWN_COMPILED, OWN_STACK
from cost_models.calibration.measured_cluster import measured_cluster
from cost_models.calibration.saving import save_profile
from cost_models.estimate import Estimate
from cost_models.estimating import estimate
from cost_models.question import Question
from cost_models.specs import catalog
from cost_models.specs.cluster import ClusterSpec, Precision
from cost_models.specs.hardware import HardwareProfile
from cost_models.specs.layout import Layout, parse_layout
from cost_models.specs.loading import resolve_cluster
from cost_models.specs.recompute import RECOMPUTE_POLICIES
from cost_models.specs.training import TrainingSpec
from executor.calibrate import fit_measurements, measure
from executor.environment import worker_environment

_CASE_SECONDS, _LEAST_CASE_SECONDS, _STEPS, _WARM_UP = 100.0, 25.0, 6, 2
_LOSS_CHUNK = 2048
_LONGEST_ERROR = 8_000
_STANDARD_DEVIATION = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One run, of two microbatches of `mbs` sequences a step unless a global batch is given."""

    model: str
    """Catalogue name."""
    sequence: int
    mbs: int
    recompute: str = "none"
    compile: bool = False
    precision: Precision = "bf16"
    optimizer: str = "adamw"
    layers: int | None = None
    """Fewer blocks than the model has, so that the states of its shape fit one GPU."""
    loss_chunk: int | None = _LOSS_CHUNK
    """Tokens whose logits exist at a time; None: all."""
    global_batch: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """A job whose microbatch and recomputation the planner is to choose."""

    job: Case
    """Whose own choice of both does not count; it has a global batch."""

    @property
    def choices(self) -> list[Case]:
        """All there are of one policy for all blocks; the planner may mix them."""
        batch = self.job.global_batch or 1
        sizes = [mbs for mbs in range(1, batch + 1) if batch % mbs == 0]
        return [
            replace(self.job, mbs=mbs, recompute=policy) for mbs in sizes for policy in RECOMPUTE_POLICIES
        ]


CASES: tuple[Case | Sweep, ...] = (
    Case(model="llama3.2-1b", sequence=2048, mbs=4),
    Case(model="llama3.2-1b", sequence=2048, mbs=4, compile=True),
    Case(model="llama3.2-3b", sequence=4096, mbs=1),
    Sweep(job=Case(model="llama3.2-3b", sequence=4096, mbs=1, global_batch=4)),
    Case(model="llama3.2-3b", sequence=4096, mbs=2, loss_chunk=None),
    Case(model="llama3.2-3b", sequence=8192, mbs=2, recompute="selective"),
    Case(model="llama3.2-3b", sequence=8192, mbs=2, recompute="selective", loss_chunk=None),
    Sweep(job=Case(model="llama3.2-1b", sequence=2048, mbs=1, global_batch=8)),
    Case(model="llama3.1-8b", sequence=4096, mbs=1, layers=12),
    Case(model="llama3.2-3b", sequence=4096, mbs=1, recompute="full"),
    Case(model="llama3.2-1b", sequence=8192, mbs=1),
    Case(model="llama3.1-8b", sequence=4096, mbs=1, layers=12, compile=True),
    Case(model="llama3.1-8b", sequence=4096, mbs=1, layers=12, compile=True, precision="fp8"),
    Case(model="llama3.2-3b", sequence=4096, mbs=1, compile=True, precision="fp8"),
    Case(model="llama3.1-8b", sequence=2048, mbs=1, recompute="full", optimizer="sgd"),
    Case(model="llama3.2-1b", sequence=8192, mbs=1, recompute="selective"),
    Case(model="llama3.2-3b", sequence=8192, mbs=1, recompute="selective"),
    Case(model="llama3.2-1b", sequence=2048, mbs=1),
    Sweep(job=Case(model="llama3.1-8b", sequence=8192, mbs=1, layers=12, global_batch=2)),
    Case(model="llama3.1-8b", sequence=8192, mbs=1, recompute="full", optimizer="sgd"),
)
DRY_CASES: tuple[Case | Sweep, ...] = (
    Case(model="llama-nano", sequence=32, mbs=1),
    Sweep(job=Case(model="llama-nano", sequence=32, mbs=1, global_batch=2, loss_chunk=24)),
    Case(model="llama-nano", sequence=32, mbs=2, recompute="full"),
    Case(model="no-such-model", sequence=32, mbs=1),
)


def main() -> None:
    """The parent: calibrate, then one process for each case; `--case` is such a process."""
    parser = argparse.ArgumentParser(description="Calibrate a GPU, train, compare with the predictions.")
    parser.add_argument("out", type=Path)
    parser.add_argument("--dry", action="store_true", help="tiny models on the CPU")
    parser.add_argument("--cluster", default="hgx-h200")
    parser.add_argument("--seconds", type=float, default=540.0, help="stop starting cases after this long")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    parser.add_argument("--sweep", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    if arguments.case:
        one_case(Case(**json.loads(arguments.case)), arguments.out, arguments.cluster, dry=arguments.dry)
    elif arguments.sweep:
        job = Case(**json.loads(arguments.sweep)["job"])
        one_sweep(Sweep(job=job), arguments.out, arguments.cluster, dry=arguments.dry)
    else:
        everything(arguments.out, arguments.cluster, arguments.seconds, dry=arguments.dry)


def everything(out: Path, cluster: str, seconds: float, *, dry: bool) -> None:
    """Calibration, then the cases in order of what they teach, as long as time is left."""
    deadline = time.monotonic() + seconds
    _write_json(out / "environment.json", _environment())
    try:
        _calibrate(out, _cluster(cluster, dry=dry), dry=dry)
    except Exception:
        (out / "calibration-error.txt").write_text(traceback.format_exc(), encoding="utf-8")
    rows: list[dict[str, Any]] = []
    sweeps: list[dict[str, Any]] = []
    for case in DRY_CASES if dry else CASES:
        left = deadline - time.monotonic()
        if left < _LEAST_CASE_SECONDS:
            found: dict[str, Any] = {"failed": f"not started: {left:.0f} s left"}
        else:
            found = _in_its_own_process(case, out, cluster, min(left, _CASE_SECONDS), dry=dry)
        if isinstance(case, Sweep):
            rows += found.pop("rows", [])
            sweeps.append(asdict(case.job) | found)
            _write_json(out / "sweeps.json", sweeps)
        else:
            rows.append(asdict(case) | found)
        _write_results(out, rows)
        print(json.dumps((sweeps if isinstance(case, Sweep) else rows)[-1]), flush=True)


def _in_its_own_process(
    case: Case | Sweep, out: Path, cluster: str, seconds: float, *, dry: bool
) -> dict[str, Any]:
    """What it wrote, of a sweep that ran out of time what it had; or why there is nothing."""
    answer = out / "case.json"
    answer.unlink(missing_ok=True)
    kind = "--sweep" if isinstance(case, Sweep) else "--case"
    command = [sys.executable, __file__, str(out), "--cluster", cluster, kind, json.dumps(asdict(case))]
    try:
        ended = subprocess.run(
            [*command, *["--dry"] * dry],
            timeout=seconds,
            capture_output=True,
            text=True,
            env=worker_environment(),
            check=False,
        )
        told = ended.stderr
        failed = f"exit code {ended.returncode}: {(told.strip().splitlines() or [''])[-1]}"
    except subprocess.TimeoutExpired as late:
        told = late.stderr.decode(errors="replace") if isinstance(late.stderr, bytes) else late.stderr or ""
        failed = f"not done after {seconds:.0f} s"
    row: dict[str, Any] = json.loads(answer.read_text("utf-8")) if answer.exists() else {"failed": failed}
    answer.unlink(missing_ok=True)
    if "failed" in row:
        with (out / "errors.txt").open("a", encoding="utf-8") as stream:
            stream.write(f"{' '.join(command[-2:])}\n{told[-_LONGEST_ERROR:]}\n\n")
    return row


def one_case(case: Case, out: Path, cluster: str, *, dry: bool) -> None:
    """Predict, train, write the row."""
    _write_json(out / "case.json", _row(case, out, cluster, dry=dry))


def one_sweep(sweep: Sweep, out: Path, cluster: str, *, dry: bool) -> None:
    """The planner's choice, then all others, first those predicted to be fast; what there is, after each of them.

    `regret` is how much longer the planner's choice takes than the best: 0 where they are one.
    """
    from planner.search import search

    questions = _questions(sweep.job, _cluster(cluster, dry=dry), out / "profile.yaml", dry=dry)
    question = questions.get("measured", questions["datasheet"])
    planned = search(question, top=1).best.layout
    chosen = replace(sweep.job, mbs=planned.mbs, recompute=planned.stage_recompute[0])
    others = [case for case in sweep.choices if case != chosen]
    others.sort(key=lambda case: estimate(question, _layout(case)).step_seconds)
    rows: list[dict[str, Any]] = []
    for case in (chosen, *others):
        rows.append(asdict(case) | _row(case, out, cluster, dry=dry, follow=False))
        ran = [row for row in rows if "step_seconds" in row]
        found: dict[str, Any] = {"rows": rows, "planned": str(planned), "choices": len(others) + 1}
        found |= {"tried": len(rows), "ran": len(ran)}
        if ran:
            best = min(ran, key=lambda row: float(row["step_seconds"]))
            found |= {name: best[name] for name in ("mbs", "recompute", "step_seconds")}
        if ran and "step_seconds" in rows[0]:
            found["regret"] = rows[0]["step_seconds"] / best["step_seconds"] - 1
        _write_json(out / "case.json", found)


def _layout(case: Case) -> Layout:
    return parse_layout(f"tp1 pp1 dp1 mbs{case.mbs} recompute={case.recompute}")


def _row(case: Case, out: Path, cluster_name: str, *, dry: bool, follow: bool = True) -> dict[str, Any]:
    """Predicted with every profile there is, then trained; a failure keeps what was predicted.

    `follow` has the storages of a step followed too.
    """
    row: dict[str, Any] = {}
    try:
        cluster = _cluster(cluster_name, dry=dry)
        estimates = {
            tier: (question, estimate(question, _layout(case)))
            for tier, question in _questions(case, cluster, out / "profile.yaml", dry=dry).items()
        }
        for tier, (_, estimated) in estimates.items():
            row |= _predicted(tier, estimated)
        row |= _trained(case, *estimates.get("measured", estimates["datasheet"]), dry=dry, follow=follow)
        for tier in estimates:
            row[f"{tier}_error"] = row[f"{tier}_step_seconds"] / row["step_seconds"] - 1
    except Exception as error:
        row["failed"] = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        traceback.print_exc()
    _leave_nothing()
    return row


def _leave_nothing() -> None:
    """What a run that failed left behind, out of the next one's way."""
    import torch
    import torch.distributed as dist

    if dist.is_initialized():
        dist.destroy_process_group()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _questions(case: Case, cluster: ClusterSpec, profile: Path, *, dry: bool) -> dict[str, Question]:
    """Tier → question: datasheet always, measured where calibration came through."""
    model = catalog.load_model(case.model)
    if case.layers is not None:
        model = model.model_copy(update={"num_layers": case.layers})
    stack = catalog.load_stack(OWN_COMPILED if case.compile else OWN_STACK).model_copy(
        update={"loss_chunk": case.loss_chunk}
    )
    profiles: dict[str, HardwareProfile] = {
        "datasheet": catalog.load_profile("datasheet-cpu" if dry else "datasheet-gpu")
    }
    if profile.exists():
        profiles["measured"] = catalog.load_profile(str(profile))
    return {
        tier: Question(
            model=model,
            cluster=measured_cluster(hardware, cluster),
            training=TrainingSpec.model_validate(
                {
                    "global_batch": case.global_batch or 2 * case.mbs,
                    "sequence_length": case.sequence,
                    "precision": "fp32" if dry else case.precision,
                    "optimizer": case.optimizer,
                }
            ),
            stack=stack,
            hardware=hardware,
        )
        for tier, hardware in profiles.items()
    }


def _predicted(tier: str, estimated: Estimate) -> dict[str, Any]:
    parts = {f"{tier}_{part}_seconds": seconds for part, seconds in estimated.time}
    memory = {f"predicted_{part}_bytes": size for part, size in estimated.rank_memory[0]}
    return {f"{tier}_step_seconds": estimated.step_seconds, f"{tier}_mfu": estimated.mfu, **parts, **memory}


def _trained(
    case: Case, question: Question, estimated: Estimate, *, dry: bool, follow: bool
) -> dict[str, Any]:
    """Step seconds, MFU and peak memory of a few real steps on random tokens."""
    import torch
    import torch.distributed as dist

    from cost_models.workload.flops import model_flops, utilisation
    from executor.engine import Engine, Options
    from executor.fp8_here import require_torchao
    from executor.memory import measure_memory
    from planner.plan import make_plan

    plan = make_plan(question, estimated)
    require_torchao(plan, "the case")
    device = torch.device("cpu" if dry else "cuda:0")
    dist.init_process_group(
        "gloo" if dry else "nccl",
        store=dist.HashStore(),  # type: ignore[attr-defined]
        rank=0,
        world_size=1,
    )
    options = Options(compile=case.compile, sgd=case.optimizer == "sgd")
    with mock.patch("executor.engine.initialise", _initialise_on_device):
        engine = Engine(plan, device, options)
    shape = (question.training.global_batch, case.sequence)
    tokens, targets = (torch.randint(question.model.vocab_size, shape) for _ in range(2))
    seconds, losses = [], []
    for _ in range(_WARM_UP + _STEPS):
        if not dry:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
        start = time.perf_counter()
        value, _ = engine.step(tokens, targets)
        if not dry:
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
        losses.append(value)
    timed = seconds[_WARM_UP:]
    useful = model_flops(question.model, question.training, 1)
    peak = question.cluster.gpu.peak[question.training.precision]
    row = {
        "step_seconds": statistics.median(timed),
        "fastest_seconds": min(timed),
        "slowest_seconds": max(timed),
        "first_seconds": seconds[0],
        "mfu": utilisation(useful, statistics.median(timed), 1, peak),
        "tokens_per_second": question.training.tokens_per_step / statistics.median(timed),
        "first_loss": losses[0],
        "last_loss": losses[-1],
    }
    if not dry:
        row["peak_bytes"] = torch.cuda.max_memory_allocated()
        row["peak_reserved_bytes"] = torch.cuda.max_memory_reserved()
    parts = measure_memory(engine, tokens, targets) if follow and not case.compile else {}
    return row | {f"measured_{part}_bytes": size for part, size in parts.items()}


def _initialise_on_device(module: Any, seed: int, **_: object) -> None:
    """Normal weights drawn on the device: the executor's own start, equal on every layout, takes a minute for 8B."""
    import torch

    torch.manual_seed(seed)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=_STANDARD_DEVIATION)
            else:
                parameter.fill_(float(name.endswith("norm.weight")))


def _calibrate(out: Path, cluster: ClusterSpec, *, dry: bool) -> None:
    """Write measurements.csv and profile.yaml."""
    precision: Precision = "fp32" if dry else "bf16"
    rows = measure(
        1,
        device="cpu" if dry else "cuda",
        precision=precision,
        quick=dry,
        on_progress=lambda family: print(f"measuring {family}", file=sys.stderr, flush=True),
    )
    _write_csv(out / "measurements.csv", [row.as_dict() for row in rows])
    save_profile(fit_measurements(rows, cluster, precision).profile, out / "profile.yaml")


def _cluster(name: str, *, dry: bool) -> ClusterSpec:
    return catalog.local_cluster(1) if dry else resolve_cluster(name, 1)


def _environment() -> dict[str, Any]:
    import torch

    found: dict[str, Any] = {"torch": torch.__version__, "cuda": torch.version.cuda, "python": sys.version}
    if torch.cuda.is_available():
        device = torch.cuda.get_device_properties(0)
        found |= {
            "gpu": device.name,
            "memory_bytes": device.total_memory,
            "sms": device.multi_processor_count,
        }
    return found


def _write_results(out: Path, rows: Sequence[dict[str, Any]]) -> None:
    _write_json(out / "results.json", list(rows))
    _write_csv(out / "results.csv", rows)


def _write_csv(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    names = list(dict.fromkeys(name for row in rows for name in row))
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, fieldnames=names)
        writer.writeheader()
        writer.writerows(rows)


def _write_json(path: Path, value: Any) -> None:
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(value, indent=1), encoding="utf-8")
    os.replace(partial, path)


if __name__ == "__main__":
    main()
