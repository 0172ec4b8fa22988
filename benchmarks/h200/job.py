"""One job in a process of its own: `python job.py OUT NAME`. It tells what it has after every run (`results.tell`).

The process ends with the first run that fails of anything but memory: what CUDA fails of once it may fail of forever,
and the runs that come after would be blamed for it.
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import sys
import time
import traceback
from dataclasses import asdict, replace
from pathlib import Path
from typing import NoReturn

import recommender
import torch
from cases import PATIENCE, Calibration, Case, Sweep, Tables, jobs
from fusions import timed
from measuring import environment, leave_nothing, trained
from prices import BEST_TIER, OTHER_TIER, cluster_of, kernels, layout_of, planned, priced, questions
from results import PROFILE, Results, Row, keep_kernels, tell, write_csv, write_json

from cost_models.files.catalog import save_spec
from cost_models.pipeline.pricing import estimate
from cost_models.specs.cluster import ClusterSpec
from executor.microbenchmarks.calibrate import fit_measurements, measure
from executor.microbenchmarks.stopwatch import Stopwatch

_BUDGET_SECONDS = 0.1


def main() -> None:
    """Raises where there is nothing to tell; a run that fails is told."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("name")
    parser.add_argument("--cluster", required=True)
    parser.add_argument("--dry", action="store_true")
    asked = parser.parse_args()
    write_json(asked.out / "environment.json", environment() | {"python": sys.version})
    job, cluster = jobs(dry=asked.dry)[asked.name], cluster_of(asked.cluster, dry=asked.dry)
    if isinstance(job, Calibration):
        calibrate(asked.out, cluster, quick=asked.dry)
    elif isinstance(job, Sweep):
        sweep(job, asked.out, cluster)
    elif isinstance(job, Tables):
        tell(asked.out, {job.name: recommender.row(asked.out, asked.cluster, dry=asked.dry)}, {})
    else:
        row, spoiled = run(job, asked.out, cluster, follow=True)
        tell(asked.out, {job.name: row}, {})
        if spoiled:
            end()


def calibrate(out: Path, cluster: ClusterSpec, *, quick: bool) -> None:
    """Writes measurements.csv, fusions.csv and, last, the profile."""
    on_cpu = cluster.gpu.kind == "cpu"
    precision = "fp32" if on_cpu else "bf16"
    rows = measure(1, device="cpu" if on_cpu else "cuda", precision=precision, quick=quick, on_progress=print)
    write_csv(out / "measurements.csv", [asdict(row) for row in rows])
    watch = Stopwatch(device=torch.device("cpu" if on_cpu else "cuda:0"), budget_seconds=_BUDGET_SECONDS)
    write_csv(out / "fusions.csv", timed(watch, torch.float32 if on_cpu else torch.bfloat16))
    save_spec(fit_measurements(rows, cluster, precision), out / PROFILE)


def sweep(job: Sweep, out: Path, cluster: ClusterSpec) -> None:
    """The planner's choice, then all others, first those predicted to be fast, but those that are done."""
    known = Results(out)
    asked = questions(job.job, cluster, out / PROFILE)
    tier = BEST_TIER if BEST_TIER in asked else OTHER_TIER
    question = asked[tier]
    if known.chose(job):  # it was cut short
        found = known.sweeps[job.name]
        chosen = replace(job.job, mbs=found["mbs"], recompute=found["recompute"])
    else:
        chosen, by = planned(job, question)
        found = {
            "chosen": chosen.name,
            "by": by,
            "mbs": chosen.mbs,
            "recompute": chosen.recompute,
            "tier": tier,
        }
    others = [case for case in job.choices if case != chosen]
    others.sort(key=lambda case: estimate(question, layout_of(case)).step_seconds)
    order = [chosen, *others]
    found |= {"runs": [case.name for case in order], "complete": False}
    runs: dict[str, Row] = {}
    tell(out, runs, {job.name: found})
    parent = os.getppid()
    for case in order:
        if os.getppid() != parent:  # nobody waits for this any more, and the next command may be at work
            return
        spoiled = False
        if not known.done(case.name):
            tell(out, runs, {job.name: found}, began=case.name)
            if cluster.gpu.kind != "cpu":
                faulthandler.dump_traceback_later(PATIENCE * case.seconds(), exit=True)
            runs[case.name], spoiled = run(case, out, cluster, follow=False)
            faulthandler.cancel_dump_traceback_later()
        found["complete"] = case is order[-1]
        tell(out, runs, {job.name: found})
        if spoiled:
            end()


def end() -> NoReturn:
    """At once: what is left of a device that failed may wait forever for it."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)


def run(case: Case, out: Path, cluster: ClusterSpec, *, follow: bool) -> tuple[Row, bool]:
    """Predicted, then trained, and whether the process is spoiled by it; a failure keeps what was predicted."""
    row: Row = asdict(case)
    spoiled = False
    began = time.monotonic()
    try:
        estimates = {
            tier: (question, estimate(question, layout_of(case)))
            for tier, question in questions(case, cluster, out / PROFILE).items()
        }
        for tier, (question, estimated) in estimates.items():
            row |= priced(tier, estimated) | kernels(tier, question, estimated.layout)
        row |= trained(case, *estimates.get(BEST_TIER, estimates[OTHER_TIER]), follow=follow)
        if kernels_run := row.pop("kernels", []):
            keep_kernels(out, case.name, kernels_run)
        for tier in estimates:
            row[f"{tier}_error"] = row[f"{tier}_step_seconds"] / row["step_seconds"] - 1
    except Exception as error:
        row["failed"] = f"{type(error).__name__}: {error}".splitlines()[0]
        spoiled = not isinstance(error, torch.OutOfMemoryError)
        traceback.print_exc()
    if not spoiled:
        leave_nothing()
    return row | {"took_seconds": time.monotonic() - began}, spoiled


if __name__ == "__main__":
    main()
