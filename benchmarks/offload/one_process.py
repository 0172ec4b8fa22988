"""Updates, copies and both memories of the executor with offload, beside what a calibrated profile predicts.

Every layout trains a small GPT in one process of a CPU, whose memory is both tiers. Seconds are CPU time of the thread
that updates or copies, of the fastest quarter of steps, as `calibrate` keeps the fastest quarter of its rounds. Bytes
are of every storage alive, followed through one more step.

    python -m meshwright calibrate --processes 1 -o profile.yaml
    python benchmarks/offload/one_process.py profile.yaml benchmarks/offload/one_process.csv
"""

from __future__ import annotations

import csv
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import parse_layout
from cost_models.axes.offload.channels import channel_seconds
from cost_models.defaults import complete_question
from cost_models.files.loading import resolve_cluster
from cost_models.pipeline.pricing import estimate
from cost_models.specs.training import TrainingSpec
from cost_models.specs.transformer import TransformerSpec
from executor.axes.offload.blocks import OffloadAxis
from executor.data.batches import Batches
from executor.engine.engine import Engine
from executor.launch.environment import worker_environment
from executor.measure.memory import measure_tiers
from executor.measure.report import predicted_parts
from executor.run_config import EngineOptions
from planner.plan import Plan, make_plan

MODEL = TransformerSpec(
    num_layers=6,
    hidden_size=256,
    num_heads=4,
    num_kv_heads=4,
    head_dim=64,
    ffn_hidden_size=1024,
    vocab_size=512,
    max_positions=256,
)
BATCH, SEQUENCE = 8, 256
CASES = (
    ("mbs4 offload=states", "fp32"),
    ("mbs4 offload=states:3", "fp32"),
    ("mbs4 offload=parked", "fp32"),
    ("mbs4 offload=streamed ring=1", "fp32"),
    ("mbs4 offload=streamed ring=2", "fp32"),
    ("mbs8 offload=streamed ring=2", "fp32"),
    ("mbs4 offload=streamed ring=4", "fp32"),
    ("mbs4 offload=streamed:4 ring=3 recompute=full", "fp32"),
    ("mbs8 offload=streamed:4 ring=4 recompute=full", "fp32"),
    ("mbs4 offload=states:2/parked:2/streamed:2", "fp32"),
    ("mbs4 offload=streamed/activations", "fp32"),
    ("mbs2 offload=activations", "fp32"),
    ("mbs2 offload=states/activations recompute=full", "fp32"),
    ("mbs4 offload=states", "bf16"),
    ("mbs4 offload=parked", "bf16"),
    ("mbs4 offload=streamed ring=2", "bf16"),
)
WARM_UP, STEPS = 2, 12
TRAINS = "MESHWRIGHT_TRAINS"
"""In the environment of the process that trains: its allocator keeps pages only where that is said at its start."""


def plan_of(words: str, precision: str, profile: str) -> Plan:
    """The layout as `plan` would have it, priced with the profile."""
    training = TrainingSpec.model_validate(
        {"global_batch": BATCH, "sequence_length": SEQUENCE, "precision": precision}
    )
    question = complete_question(MODEL, resolve_cluster("local", 1), training, profile=profile)
    return make_plan(question, estimate(question, parse_layout(words)))


def trained(plan: Plan) -> dict[str, float]:
    """Seconds and bytes of a step."""
    engine = Engine(plan, torch.device("cpu"), EngineOptions())
    batches = Batches(plan.training, vocabulary=MODEL.vocab_size, seed=0)
    offload = engine.axis(OffloadAxis)
    assert offload is not None
    link, steps = offload.link, []
    for step in range(WARM_UP + STEPS):
        engine.step(*batches.slice(step, 0, 1))
        steps.append(link.taken())
    parts, host = measure_tiers(engine, *batches.slice(WARM_UP + STEPS, 0, 1))
    return {
        "update_s": quietest([one.update_seconds for one in steps[WARM_UP:]]),
        "copies_s": quietest([one.copy_seconds for one in steps[WARM_UP:]]),
        "device_bytes": sum(parts.values()),
        "host_bytes": host,
    }


def quietest(seconds: list[float]) -> float:
    """The mean of the fastest quarter."""
    return statistics.fmean(sorted(seconds)[: len(seconds) // 4])


def predicted(plan: Plan) -> dict[str, float]:
    """The same as priced."""
    seconds = channel_seconds(plan.question, LayoutColumns.of([plan.layout]))
    return {
        "update_s": float(seconds.update[0]),
        "copies_s": float(seconds.copies[0]),
        "device_bytes": sum(predicted_parts(plan.prediction.rank_memory[0]).values()),
        "host_bytes": plan.prediction.host_bytes or 0.0,
    }


def rows(profile: str) -> list[dict[str, Any]]:
    """A row for each layout, shown as it is found."""
    found = []
    for words, precision in CASES:
        plan = plan_of(words, precision, profile)
        ours, theirs = predicted(plan), trained(plan)
        row: dict[str, Any] = {"layout": words, "precision": precision}
        for name in ours:
            row |= {f"{name}_predicted": ours[name], f"{name}_measured": theirs[name]}
        found.append(row)
        errors = [f"{ours[name] / theirs[name] - 1:+7.1%}" if theirs[name] else "      -" for name in ours]
        print(f"{words:50} {precision}", *errors, flush=True)
    return found


def main() -> None:
    """`one_process.py PROFILE OUT.csv`."""
    profile, out = sys.argv[1:]
    if TRAINS not in os.environ:
        environment = worker_environment() | {TRAINS: "1"}
        sys.exit(subprocess.run([sys.executable, __file__, profile, out], env=environment).returncode)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    found = rows(profile)
    dist.destroy_process_group()
    with Path(out).open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, found[0])
        writer.writeheader()
        writer.writerows(found)


if __name__ == "__main__":
    main()
