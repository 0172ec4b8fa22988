"""Emulated ranks against real ones, and what one fake rank of a large plan costs: `run.py OUT.csv`.

Every small plan is trained by its ranks over gloo, and then each compared rank is emulated, in processes of their own.
Compute is CPU time of the training thread in forward and backward, the median over all steps of several starts; of a
real rank without what it spent in collectives, which steps of their own tell.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from statistics import median
from typing import Any

from cost_models.axes.layout import parse_layout
from cost_models.defaults import OWN_STACK, complete_question
from cost_models.files.loading import resolve_cluster, resolve_model
from cost_models.files.whole import write_whole
from cost_models.pipeline.pricing import estimate
from cost_models.specs.training import TrainingSpec
from executor.launch.environment import worker_environment
from executor.launch.launch import run_plan
from executor.run_config import RunConfig
from meshwright.terminal.formats import as_csv
from planner.plan import Plan, make_plan, save_plan

SMALL = {
    "tp2 mbs4": (0,),
    "pp2 mbs2": (0, 1),
    "dp2 mbs4 zero1": (0,),
    "dp2 mbs4 zero3": (0,),
    "cp2 mbs4": (0,),
    "tp2 pp2 mbs2": (0, 3),
}
LARGE = {
    512: ("gpt3-175b", "tp8 pp8 dp8 mbs1 zero1 sp recompute=selective", 256),
    4096: ("gpt3-175b", "tp8 pp16 dp32 mbs1 zero1 sp recompute=selective", 1024),
}
STEPS, REPEATS = 8, 3


def plan_of(model: str, cluster: str, layout: str, training: TrainingSpec) -> Plan:
    """This layout of a model on so much of a cluster, for our executor."""
    parsed = parse_layout(layout)
    place = resolve_cluster(cluster, parsed.num_gpus)
    question = complete_question(resolve_model(model).spec, place, training, stack=OWN_STACK)
    return make_plan(question, estimate(question, parsed))


def emulated(plan: Plan, rank: int, *flags: str) -> tuple[dict[str, Any], float, int]:
    """The report of `meshwright emulate`, its seconds and the largest resident size of a process so far, bytes."""
    with tempfile.TemporaryDirectory() as folder:
        path, out = Path(folder, "plan.yaml"), Path(folder, "out.json")
        save_plan(plan, path)
        command = [
            sys.executable,
            "-m",
            "meshwright",
            "emulate",
            str(path),
            "--rank",
            str(rank),
            "-o",
            str(out),
        ]
        start = time.perf_counter()
        subprocess.run(
            [*command, "--quiet", *flags], check=True, env=worker_environment(), stdout=subprocess.DEVNULL
        )
        seconds = time.perf_counter() - start
        report = json.loads(out.read_text("utf-8"))
    return report, seconds, 1024 * resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss


def compare(layout: str, ranks: tuple[int, ...]) -> list[dict[str, Any]]:
    """A row for each rank: real and emulated in turn, and fake."""
    job = TrainingSpec(global_batch=8, sequence_length=256, precision="fp32")
    plan = plan_of("gpt2-tiny", "local", layout, job)
    rows = {rank: {"layout": layout, "rank": rank} for rank in ranks}
    seconds: dict[tuple[str, int], list[float]] = defaultdict(list)
    for _ in range(REPEATS):
        real = run_plan(plan, RunConfig(steps=STEPS, backend="gloo")).ranks
        for rank, row in rows.items():
            alone, _, _ = emulated(plan, rank, "--steps", str(STEPS))
            phase = real[rank].forward_backward
            issuing = phase.waiting_thread_seconds or 0.0
            seconds["real", rank] += [one - issuing for one in phase.thread_seconds]
            seconds["emulated", rank] += alone["seconds"]["forward_backward"]
            row |= {"real_bytes": real[rank].peak_bytes, "emulated_bytes": sum(alone["memory"].values())}
    for rank, row in rows.items():
        fake, _, _ = emulated(plan, rank, "--fake")
        row["fake_bytes"] = sum(fake["memory"].values())
        for kind in ("real", "emulated"):
            row[f"{kind}_seconds"] = median(seconds[kind, rank])
            row[f"{kind}_quickest_seconds"] = min(seconds[kind, rank])
    return list(rows.values())


def large(gpus: int) -> dict[str, Any]:
    """One fake rank in the middle of a plan; must be measured before larger processes have run."""
    model, layout, batch = LARGE[gpus]
    job = TrainingSpec(global_batch=batch, sequence_length=2048, precision="bf16")
    plan = plan_of(model, "dgx-a100-80gb", layout, job)
    rank = gpus // 2 + 1
    report, seconds, resident = emulated(plan, rank, "--fake")
    return {
        "layout": f"{model} {layout}",
        "rank": rank,
        "fake_bytes": sum(report["memory"].values()),
        "predicted_bytes": round(sum(report["predicted_memory"].values())),
        "seconds": round(seconds, 1),
        "resident_bytes": resident,
    }


def main() -> None:
    """Write all rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", choices=("small", "large"))
    given = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for gpus in LARGE if given.only != "small" else ():
        write_whole(given.out, as_csv(rows := [*rows, large(gpus)]))
    for layout, ranks in SMALL.items() if given.only != "large" else ():
        write_whole(given.out, as_csv(rows := [*rows, *compare(layout, ranks)]))


if __name__ == "__main__":
    main()
