"""A recommender on one GPU: efficiency of rows by width and pooling, then MLPerf's 26 tables in bf16, step and peak.

    python benchmarks/h200/recommender.py OUT.csv [--cluster hgx-h200] [--profile FILE]
    python benchmarks/h200/recommender.py OUT.csv --dry        the same path with the demo's tables on a CPU

Each case runs in a process of its own and adds rows: a quantity, predicted beside measured; what is there already is
not run again. `rates` comes first: steps are predicted from the curves that it measured, and from the documented
shares of bandwidth (`datasheet`).
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from prices import cluster_of
from results import read_csv

from cost_models.defaults import OWN_STACK
from cost_models.files import catalog
from cost_models.measured.calibration.microbenchmarks import table_rates
from cost_models.recommender.options import STAGES
from cost_models.recommender.prices import RecommenderEstimate, estimate
from cost_models.recommender.question import RecommenderQuestion, complete_recommender
from cost_models.specs.recommender.constants import TablePoint, TableRates
from cost_models.specs.recommender.sharding import parse_sharding
from cost_models.specs.recommender.training import RecommenderTraining
from executor.data.clicks import MadeUpClicks
from executor.embeddings.exchanges import Places
from executor.microbenchmarks.kernels import tables
from executor.microbenchmarks.stopwatch import Stopwatch, scale_of
from executor.recommender.engine import RecommenderEngine
from executor.recommender.train import peak_memory
from executor.timing import StepClock

FIELDS = ("case", "quantity", "row_bytes", "pooling", "predicted", "datasheet", "measured", "failure")
RATES = "rates"
NOT_TENSORS = ("workspace", "communicators")
_STEPS, _WARM_UP, _BATCHES = 8, 2, 3
_BUDGET_SECONDS = 0.2


def main() -> None:
    """Run what is missing, or the one case that a child was given."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--cluster", default="hgx-h200")
    parser.add_argument("--profile", help="of `meshwright calibrate`; default: the catalogue's")
    parser.add_argument("--dry", action="store_true")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.case:
        print(json.dumps(rates(asked) if asked.case == RATES else step(asked.case, asked)))
        return
    go_on(asked)


def go_on(asked: argparse.Namespace) -> None:
    """Run what is missing."""
    done = {row["case"] for row in read_csv(asked.out)}
    for case in cases(dry=asked.dry):
        if case not in done:
            _append(asked.out, _in_a_process(case, asked))


def row(folder: Path, cluster: str, *, dry: bool) -> dict[str, Any]:
    """Run what is missing in a folder; the step of the middle batch as a row of results.csv. Raises RuntimeError."""
    asked = argparse.Namespace(out=folder / "recommender.csv", cluster=cluster, profile=None, dry=dry)
    go_on(asked)
    found = read_csv(asked.out)
    if failed := [f"{one['case']}: {one['failure']}" for one in found if one["failure"]]:
        raise RuntimeError("; ".join(failed))
    of_case = {one["quantity"]: one for one in found if one["case"] == cases(dry=dry)[2]}
    seconds = {stage: of_case[stage] for stage in (*STAGES, "step")}
    told: dict[str, Any] = {f"spent_{name}_seconds": float(one["measured"]) for name, one in seconds.items()}
    for tier, column in (("measured", "predicted"), ("datasheet", "datasheet")):
        told |= {f"{tier}_{name}_seconds": float(one[column]) for name, one in seconds.items()}
        told[f"{tier}_error"] = told[f"{tier}_step_seconds"] / told["spent_step_seconds"] - 1
    peak = of_case["peak bytes"]
    held = {"peak_bytes": float(peak["measured"]), "predicted_peak_bytes": float(peak["predicted"])}
    return {"model": cases(dry=dry)[2], "step_seconds": told.pop("spent_step_seconds"), **told, **held}


def cases(*, dry: bool) -> list[str]:
    """What is run, in order: global batch, optimizer of the tables."""
    batches = (64, 256) if dry else (6912, 16384, 55296)
    return [RATES, *(f"{batch} sgd" for batch in batches), f"{batches[1]} rowwise-adagrad"]


def rates(asked: argparse.Namespace) -> list[dict[str, Any]]:
    """Efficiencies of lookups by width and pooling, of sums and of optimizers by width."""
    device = _device(asked)
    scale = scale_of("cpu" if asked.dry else "cuda", quick=asked.dry)
    if asked.dry:
        scale = replace(scale, table_bytes=2**20, table_ids=2**12)
    watch = Stopwatch(device=device, budget_seconds=1e-4 if asked.dry else _BUDGET_SECONDS)
    bandwidth = cluster_of(asked.cluster, dry=asked.dry).gpu.memory_bandwidth
    found = table_rates(list(tables(watch, scale)), bandwidth, "")
    assert found is not None
    kinds = {"lookup": found.lookup, "sums": found.sums, **found.changes}
    return [
        {"quantity": name, "row_bytes": one.row_bytes, "pooling": one.pooling, "measured": one.efficiency}
        for name, points in kinds.items()
        for one in points
    ]


def step(case: str, asked: argparse.Namespace) -> list[dict[str, Any]]:
    """Seconds of every stage and of a step, and bytes at the peak."""
    question = question_of(case, asked, measured_rates(asked.out))
    sharding = parse_sharding(
        " ".join(f"table:{table}=whole@0" for table in range(question.model.num_tables)),
        question.model.num_tables,
    )
    priced, plain = (estimate(one, sharding) for one in (question, question_of(case, asked, None)))
    device = _device(asked)
    dist.init_process_group("gloo" if asked.dry else "nccl", store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
    engine = RecommenderEngine(question.model, sharding, question.training, Places(1, 1), device)
    engine.set_rate(1e-3)
    clicks = MadeUpClicks(question.model, question.training.global_batch, seed=0)
    samples = [clicks.slice(number, 0, 1).to(device) for number in range(_BATCHES)]
    clock = StepClock(device)
    for number in range(_WARM_UP + _STEPS):
        if number == _WARM_UP:
            clock.forget()
        clock.time(*engine.stages(samples[number % _BATCHES]))
    laps = {
        stage: statistics.median(each[at].wall for each in clock.steps) for at, stage in enumerate(STAGES)
    }
    whole = statistics.median(clock.wall_seconds)
    rows = [_compared(stage, priced.stages[stage], plain.stages[stage], laps[stage]) for stage in STAGES]
    rows.append(_compared("step", priced.step_seconds, plain.step_seconds, whole))
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    peak = sum(peak_memory(engine, samples[0]).values())
    rows.append(_compared("peak bytes", tensor_bytes(priced), tensor_bytes(plain), peak))
    if device.type == "cuda":
        rows.append(
            _compared(
                "peak bytes of the allocator",
                tensor_bytes(priced),
                tensor_bytes(plain),
                torch.cuda.max_memory_allocated(),
            )
        )
    return rows


def question_of(case: str, asked: argparse.Namespace, known: TableRates | None) -> RecommenderQuestion:
    """MLPerf's DLRM-DCNv2 on one GPU with tables in bf16, 48.7 GiB; or the demo."""
    batch, optimizer = case.split()
    training = RecommenderTraining.model_validate(
        {
            "global_batch": int(batch),
            "optimizer": optimizer,
            "table_dtype": "bf16",
            "precision": "fp32" if asked.dry else "bf16",
            "dense_optimizer": "adagrad",
        }
    )
    model = catalog.load_recommender("dlrm-tiny" if asked.dry else "dlrm-dcnv2")
    cluster = cluster_of(asked.cluster, dry=asked.dry)
    question = complete_recommender(model, cluster, training, stack=OWN_STACK, profile=asked.profile)
    hardware = question.hardware.model_copy(update={"tables": known})
    return replace(question, hardware=hardware)


def measured_rates(out: Path) -> TableRates | None:
    """The curves that `rates` wrote; None where it failed."""
    rows = [row for row in read_csv(out) if row["case"] == RATES and not row["failure"]]

    def points(name: str) -> tuple[TablePoint, ...]:
        return tuple(
            TablePoint(
                row_bytes=float(row["row_bytes"]),
                pooling=float(row["pooling"]),
                efficiency=float(row["measured"]),
            )
            for row in rows
            if row["quantity"] == name
        )

    kinds = dict.fromkeys(row["quantity"] for row in rows if row["quantity"] not in ("lookup", "sums"))
    if not rows:
        return None
    return TableRates(
        lookup=points("lookup"), sums=points("sums"), changes={kind: points(kind) for kind in kinds}
    )


def tensor_bytes(priced: RecommenderEstimate) -> float:
    """Predicted bytes that tensors hold."""
    return sum(float(size[0]) for part, size in priced.device_parts.items() if part not in NOT_TENSORS)


def _compared(quantity: str, predicted: float, datasheet: float, measured: float) -> dict[str, Any]:
    return {"quantity": quantity, "predicted": predicted, "datasheet": datasheet, "measured": measured}


def _device(asked: argparse.Namespace) -> torch.device:
    return torch.device("cpu" if asked.dry else "cuda:0")


def _in_a_process(case: str, asked: argparse.Namespace) -> list[dict[str, Any]]:
    command = [sys.executable, __file__, str(asked.out), "--case", case, "--cluster", asked.cluster]
    command += ["--dry"] * asked.dry + (["--profile", asked.profile] if asked.profile else [])
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = done.stdout.strip().splitlines()
    rows: list[dict[str, Any]] = json.loads(lines[-1]) if done.returncode == 0 and lines else []
    if not rows:
        rows = [{"failure": (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]}]
    print(case, rows[-1], flush=True)
    return [{"case": case, **row} for row in rows]


def _append(path: Path, rows: list[dict[str, Any]]) -> None:
    new = not path.exists()
    with path.open("a", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, FIELDS)
        if new:
            writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
