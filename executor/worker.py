"""One rank of a run, as torchrun or a cluster starts it: `python -m executor.worker plan.yaml --out DIR`.

Rank 0 appends a JSON line to `progress.jsonl` for each step and writes `run-report.json`; a rank that fails writes
`failure-RANK.json` with the reason and, where memory ran out, the parts it had allocated.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import traceback
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from cost_models.errors import HostError, InputError
from executor.engine import Options
from executor.exhausted import ExhaustedError
from executor.launch import require_world
from executor.memory import predicted_parts
from executor.mesh import pipeline_rank
from executor.rate import Rate
from executor.report import RunReport, save_report
from executor.train import Progress, Schedule, train
from planner.plan import Plan, load_plan

PROGRESS, REPORT, FAILURE = "progress.jsonl", "run-report.json", "failure-{rank}.json"


def work(plan: Plan, options: Options, schedule: Schedule, out_dir: Path, backend: str) -> RunReport:
    """Join the job that the environment describes, train, leave; rank 0 writes the files."""
    rank = int(os.environ["RANK"])
    device = torch.device("cpu")
    if backend == "nccl":
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    dist.init_process_group(backend)
    try:
        progress = out_dir / PROGRESS

        def write(line: Progress) -> None:
            with progress.open("a", encoding="utf-8") as stream:
                stream.write(json.dumps(asdict(line)) + "\n")

        report = train(plan, device, options, schedule, write)
        if rank == 0:
            save_report(report, out_dir / REPORT)
    except ExhaustedError as error:
        stage = pipeline_rank(plan.layout, rank)
        predicted = predicted_parts(plan.prediction.rank_memory[stage])
        _write_failure(
            out_dir,
            rank,
            {"reason": str(error), "stage": stage, "predicted": predicted, "allocated": error.parts},
        )
        raise
    except BaseException as error:
        _write_failure(out_dir, rank, {"reason": f"{type(error).__name__}: {error}"})
        raise
    dist.destroy_process_group()
    return report


def _write_failure(out_dir: Path, rank: int, what: dict[str, Any]) -> None:
    (out_dir / FAILURE.format(rank=rank)).write_text(json.dumps({"rank": rank, **what}), encoding="utf-8")


def main() -> None:
    """Read the command line; exits 1 after a failure, so that torchrun ends the other ranks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("plan", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--backend", choices=("gloo", "nccl"), required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--warm-up", type=int, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--learning-rate", type=float, required=True)
    parser.add_argument("--rate-warm-up", type=int, default=0)
    parser.add_argument("--rate-decay", type=int)
    parser.add_argument("--clip", type=float)
    parser.add_argument("--tokens", type=Path)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--no-memory", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    rate = Rate(peak=given.learning_rate, warm_up=given.rate_warm_up, decay=given.rate_decay)
    options = Options(seed=given.seed, rate=rate, clip=given.clip, compile=given.compile)
    schedule = Schedule(
        steps=given.steps,
        warm_up=given.warm_up,
        tokens_path=given.tokens,
        measure_memory=not given.no_memory,
    )
    try:
        plan = load_plan(given.plan)
        require_world(plan, given.plan.name)
        work(plan, options, schedule, given.out, given.backend)
    except (HostError, InputError) as error:
        sys.exit(f"error: {error}")
    except Exception:
        traceback.print_exc()
        sys.exit(1)
    sys.stdout.flush()
    sys.stderr.flush()
    # The report is on disk. Taking the interpreter down with gloo's threads still alive aborts one run in ten
    # ("terminate called without an active exception"), so leave without it.
    os._exit(0)


if __name__ == "__main__":
    main()
