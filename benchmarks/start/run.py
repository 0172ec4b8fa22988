"""What one rank needs to be built, beside what the plan says it keeps: `run.py OUT.csv`.

Storages of a rank in a fake process group, from before the engine to after the optimizer's states: of large plans on
fake tensors, of small ones on real tensors with initial values drawn, in processes of their own, whose resident memory
is told, too, beside what they had before. Both against the plan's share: weights, gradient buffers and states that
last. Under ZeRO-2 and 3 that is the shard that the optimizer updates, and moments: weights are gathered from it block
by block as they compute, and there are no gradients before a backward pass.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import os
import resource
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil
import torch

from cost_models.axes.layout import parse_layout
from cost_models.defaults import OWN_STACK, complete_question
from cost_models.files.loading import resolve_cluster, resolve_model
from cost_models.files.whole import write_whole
from cost_models.pipeline.pricing import estimate
from cost_models.specs.training import TrainingSpec
from executor.emulate.stand_ins import fake_process_group, without_values
from executor.engine.engine import Engine
from executor.measure.memory import StorageTracker
from executor.run_config import EngineOptions
from executor.transformer.train import TransformerState
from meshwright.terminal.output import as_csv
from planner.plan import Plan, make_plan

FAKE = [
    ("llama3.1-405b", "dgx-h100", "tp2 dp512 mbs1 zero3 recompute=full", 512, 8192, (513,)),
    (
        *("deepseek-v3", "dgx-h100", "pp16 dp128 ep8 mbs1 zero1 recompute=full layers=3*3,4*13"),
        *(15360, 4096, range(0, 2048, 128)),
    ),
    ("gpt2-xl", "dgx-h100", "dp64 mbs1 zero3", 64, 1024, (3,)),
]
"""Model, cluster, layout, sequences and tokens of each, ranks."""
REAL = [
    ("gpt2-xl", "dgx-h100", "dp64 mbs1 zero3", 64, 1024, (3,)),
    ("gpt2-xl", "dgx-h100", "tp8 mbs1 zero0", 8, 1024, (3,)),
    ("gpt2-xl", "dgx-h100", "dp8 mbs1 zero1", 8, 1024, (3,)),
]
_MALLOC = {"MALLOC_MMAP_THRESHOLD_": "65536", "OMP_NUM_THREADS": "1"}
"""What is freed goes back to the system, so that resident memory is what is held."""


def plan_of(model: str, cluster: str, layout: str, batch: int, sequence: int) -> Plan:
    """This layout on our executor."""
    parsed = parse_layout(layout)
    job = TrainingSpec(global_batch=batch, sequence_length=sequence)
    place = resolve_cluster(cluster, parsed.num_gpus)
    question = complete_question(resolve_model(model).spec, place, job, stack=OWN_STACK)
    return make_plan(question, estimate(question, parsed))


def planned_bytes(plan: Plan, rank: int) -> float:
    """The plan's share of a rank that lasts from step to step."""
    parts = plan.prediction.rank_memory[plan.layout.place_along("pp", rank)]
    if plan.layout.zero <= 1:
        return parts["weights"] + parts["gradients"] + parts["optimizer"]
    return parts["optimizer"] * 12 / 8  # two moments of 4 bytes, and the fp32 shard


def build(plan: Plan, rank: int, *, fake: bool) -> dict[str, Any]:
    """A row."""
    for layout in ("dp2 mbs1 zero3", "tp2 mbs1 zero0"):  # what is imported at first use is no part of it
        with fake_process_group(0, 2):
            small = plan_of("gpt2-tiny", "local", layout, 2, 16)
            TransformerState(Engine(small, torch.device("cpu"), EngineOptions())).contents()
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # what is free below is not to be used again
    before, began = psutil.Process().memory_info().rss, time.process_time()
    with ExitStack() as stack:
        stack.enter_context(fake_process_group(rank, plan.layout.num_gpus))
        if fake:
            stack.enter_context(without_values())
        tracker = stack.enter_context(StorageTracker())
        engine = Engine(plan, torch.device("cpu"), EngineOptions(), filled=not fake)
        seconds = time.process_time() - began
        state = TransformerState(engine).contents()
        for held in state.values():  # pages of zeros are resident once they are written
            for piece in held.pieces if not fake else ():
                piece.tensor.add_(0)
        largest = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    return {
        "model": plan.model.name,
        "layout": str(plan.layout),
        "rank": rank,
        "values": "none" if fake else "drawn",
        "planned_bytes": round(planned_bytes(plan, rank)),
        "peak_bytes": sum(tracker.peak.values()),
        "kept_bytes": sum(tracker.now.values()),
        "resident_bytes": None if fake else largest,
        "cpu_seconds": round(seconds, 1),
        "elements_updated": sum(
            p.tensor.numel() for n, h in state.items() for p in h.pieces if n[:7] == "weights"
        ),
        "torch": torch.__version__,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--one", help="a case, in this process: its row goes to OUT as JSON")
    options = parser.parse_args()
    if options.one:
        kind, index = options.one.split(":")
        *asked, ranks = (FAKE if kind == "fake" else REAL)[int(index)]
        torch.set_num_threads(1)
        plan = plan_of(*asked)  # type: ignore[arg-type]
        own = [build(plan, rank, fake=kind == "fake") for rank in ranks]  # type: ignore[attr-defined]
        options.out.write_text(json.dumps(own), "utf-8")
        return
    rows: list[dict[str, Any]] = []
    for case in [f"fake:{at}" for at in range(len(FAKE))] + [f"real:{at}" for at in range(len(REAL))]:
        part = options.out.with_suffix(".json")
        subprocess.run(
            [sys.executable, __file__, str(part), "--one", case], check=True, env=os.environ | _MALLOC
        )
        came = json.loads(part.read_text("utf-8"))
        rows += came
        part.unlink()
        planned, peak = (sum(row[name] for row in came) for name in ("planned_bytes", "peak_bytes"))
        print(
            f"{came[0]['layout']}: {peak / len(came):.5g} bytes a rank, {peak / planned - 1:+.2%}", flush=True
        )
    write_whole(options.out, as_csv(rows))


if __name__ == "__main__":
    main()
