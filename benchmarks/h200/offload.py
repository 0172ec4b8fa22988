"""Blocks in host memory on one GPU: five rings, every residency, and the largest Llama shape against FSDP2's offload.

    python benchmarks/h200/offload.py OUT.csv [--cluster hgx-h200] [--host-memory 128GiB] [--profile FILE]
    python benchmarks/h200/offload.py OUT.csv --dry        the same path with tiny models on a CPU

Each case runs in a process of its own and adds a row: seconds of a step, peak of the device, what is in host memory,
each beside what was predicted; what is there already is not run again. `largest ...` rows have as many blocks as fit by
the prediction; `fsdp2 ...` trains the same blocks with `fully_shard` and `CPUOffloadPolicy` alone. No GPU has run it.
"""

from __future__ import annotations

import argparse
import csv
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from measuring import initialise_on_device
from prices import cluster_of
from results import read_csv
from torch import nn
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard

from cost_models.axes.layout import parse_layout
from cost_models.defaults import OWN_STACK, complete_question
from cost_models.estimate import Estimate
from cost_models.files import catalog
from cost_models.pipeline.pricing import estimate
from cost_models.question import Question
from cost_models.specs.training import TrainingSpec
from cost_models.units import parse_bytes
from executor.engine.engine import Engine, loss
from executor.models.transformer import Transformer
from executor.run_config import EngineOptions
from planner.plan import make_plan

FIELDS = (
    *("case", "layers", "step_seconds", "predicted_step_seconds", "peak_bytes", "predicted_peak_bytes"),
    *("host_bytes", "predicted_host_bytes", "tokens_per_second", "failure"),
)
RINGS = (1, 2, 3, 4, 6)
WAYS = (
    "",
    "offload=states",
    "offload=parked",
    "offload=states/activations",
    *(f"ring={ring}" for ring in RINGS),
)
LARGEST = ("", "offload=states", "offload=parked", "offload=streamed ring=2")
HOST_SHARE = 0.85
"""Of the host's memory that blocks may have; the rest is the process and what it loads."""
_STEPS, _WARM_UP = 4, 2
_MOST_BLOCKS = 400


def main() -> None:
    """Run what is missing, or the one case that a child was given."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--cluster", default="hgx-h200")
    parser.add_argument("--host-memory", default="128GiB")
    parser.add_argument("--profile")
    parser.add_argument("--dry", action="store_true")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.case:
        print(json.dumps(measure(asked.case, asked)))
        return
    done = {row["case"] for row in read_csv(asked.out)}
    for case in cases():
        if case not in done:
            _append(asked.out, _in_a_process(case, asked))


def cases() -> list[str]:
    """What is run, in order."""
    ways = [f"offload=streamed {way}" if way.startswith("ring") else way for way in WAYS]
    largest = [f"largest {way}".strip() for way in LARGEST]
    return [*(f"8 blocks {way}".strip() for way in ways), *largest, "fsdp2 offload=streamed ring=2"]


def measure(case: str, asked: argparse.Namespace) -> dict[str, Any]:
    """One row."""
    way = case.removeprefix("8 blocks").removeprefix("largest").removeprefix("fsdp2").strip()
    blocks = 8 if case.startswith("8 blocks") else largest(way, asked)
    question, priced = price(way, blocks, asked)
    device = torch.device("cpu" if asked.dry else "cuda:0")
    dist.init_process_group("gloo" if asked.dry else "nccl", store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
    if case.startswith("fsdp2"):
        step, on_host = fsdp2(question, priced, device)
        predicted: dict[str, float] = {}
    else:
        engine = Engine(make_plan(question, priced), device, EngineOptions())
        step = engine.step

        def on_host() -> int:
            return sum(one.nbytes for one in engine.host_tensors())

        predicted = {
            "predicted_step_seconds": priced.step_seconds,
            "predicted_peak_bytes": sum(
                size for part, size in priced.rank_memory[0].items() if part != "reserved"
            ),
            "predicted_host_bytes": priced.host_bytes,
        }
    seconds = _timed(step, question, device)
    peak = 0 if asked.dry else torch.cuda.max_memory_allocated()
    return {
        "layers": blocks,
        "step_seconds": seconds,
        "tokens_per_second": question.training.tokens_per_step / seconds,
        "peak_bytes": peak,
        "host_bytes": on_host(),
        **predicted,
    }


def price(way: str, blocks: int, asked: argparse.Namespace) -> tuple[Question, Estimate]:
    """Llama 3 8B's blocks, so many of them, each recomputed; four sequences of 4,096 tokens."""
    shape = {"num_layers": blocks}
    if asked.dry:
        shape |= {
            "hidden_size": 64,
            "ffn_hidden_size": 128,
            "num_heads": 4,
            "num_kv_heads": 2,
            "vocab_size": 256,
        }
    model = catalog.load_model("llama3-8b").model_copy(update=shape)
    length = 64 if asked.dry else 4096
    job = TrainingSpec(global_batch=4, sequence_length=length, precision="fp32" if asked.dry else "bf16")
    question = complete_question(
        model, cluster_of(asked.cluster, dry=asked.dry), job, stack=OWN_STACK, profile=asked.profile
    )
    return question, estimate(question, parse_layout(f"mbs4 recompute=full {way}"))


def largest(way: str, asked: argparse.Namespace) -> int:
    """Most blocks that fit on the device and in the host's memory, as predicted."""
    room = HOST_SHARE * parse_bytes(asked.host_memory)
    low, high = 4, 12 if asked.dry else _MOST_BLOCKS
    while low < high:
        middle = (low + high + 1) // 2
        _, priced = price(way, middle, asked)
        low, high = (middle, high) if priced.fits and priced.host_bytes <= room else (low, middle - 1)
    return low


def fsdp2(
    question: Question, priced: Estimate, device: torch.device
) -> tuple[Callable[[torch.Tensor, torch.Tensor], object], Callable[[], int]]:
    """The same model with PyTorch's own offload: shards, gradients and states on the host, updated there at the end."""
    from executor.engine.engine import recompute_activations

    model = Transformer(question.model, vocabulary=question.model.vocab_size)
    initialise_on_device(model, 0)
    recompute_activations(model, priced.layout.stage_recompute[0])
    dtype = torch.float32 if question.training.precision == "fp32" else torch.bfloat16
    how: dict[str, Any] = {
        "mesh": dist.init_device_mesh(device.type, (1,)),
        "mp_policy": MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32),
        "offload_policy": CPUOffloadPolicy(pin_memory=device.type == "cuda"),
    }
    for module in (*model.blocks.values(), model):
        fully_shard(module, **how)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)

    def step(tokens: torch.Tensor, targets: torch.Tensor) -> None:
        loss(model(tokens.to(device)), targets.to(device)).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()

    return step, lambda: _bytes_with_states(model, optimizer)


def _bytes_with_states(model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    states = [one for state in optimizer.state.values() for one in state.values()]
    return sum(one.nbytes for one in (*model.parameters(), *states))


def _timed(
    step: Callable[[torch.Tensor, torch.Tensor], object], question: Question, device: torch.device
) -> float:
    """Median seconds of a step."""
    shape = (question.training.global_batch, question.training.sequence_length)
    tokens, targets = (torch.randint(question.model.vocab_size, shape) for _ in range(2))
    seconds = []
    for number in range(_WARM_UP + _STEPS):
        if device.type == "cuda" and number == _WARM_UP:
            torch.cuda.reset_peak_memory_stats()
        start = time.perf_counter()
        step(tokens, targets)
        if device.type == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    return sorted(seconds[_WARM_UP:])[_STEPS // 2]


def _in_a_process(case: str, asked: argparse.Namespace) -> dict[str, Any]:
    command = [sys.executable, __file__, str(asked.out), "--case", case, "--cluster", asked.cluster]
    command += ["--host-memory", asked.host_memory, *["--dry"] * asked.dry]
    command += ["--profile", asked.profile] if asked.profile else []
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = done.stdout.strip().splitlines()
    row = json.loads(lines[-1]) if done.returncode == 0 and lines else {}
    if not row:
        row["failure"] = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    print(case, row, flush=True)
    return {"case": case, **row}


def _append(path: Path, row: dict[str, Any]) -> None:
    new = not path.exists()
    with path.open("a", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, FIELDS)
        if new:
            writer.writeheader()
        writer.writerow(row)


if __name__ == "__main__":
    main()
