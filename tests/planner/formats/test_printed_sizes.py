"""Sizes that logs print, held against a plan: those that say the same pass, in every trainer's words."""

from __future__ import annotations

from pathlib import Path

import pytest
from trainer_logs import WRITERS

from cost_models.axes.layout import parse_layout
from cost_models.defaults import complete_question
from cost_models.files.loading import resolve_cluster, resolve_model
from cost_models.measured.logs import Work, read_logs
from cost_models.pipeline.pricing import estimate
from cost_models.specs.training import TrainingSpec
from planner.formats.exporter import contradictions
from planner.plan import Plan, make_plan

SAYS = {
    "megatron": [
        "using world size: 8, data-parallel size: 2, context-parallel size: 1, tensor-model-parallel size: 2",
        "  normalization ................................... LayerNorm",
        "  num_layers ...................................... 12",
        "  add_bias_linear ................................. True",
        "  expert_model_parallel_size ...................... 1",
    ],
    "nemo": ["All distributed processes registered. Starting with 8 processes", "  micro_batch_size: 4"],
    "torchtitan": [
        "[titan] Trainer is initialized with local batch size 4, global batch size 64, gradient accumulation steps 8,"
        " sequence length 1024, total steps 10 (warmup 2)",
        '    "tensor_parallel_degree": 2,',
    ],
    "torchtune": ["batch_size: 4", "  max_seq_len: 1024"],
    "nanotron": ["parallelism=ParallelismArgs(dp=2,", "  pp=2,", "  tp=2,", "  micro_batch_size=4,"],
    "deepspeed": [
        "[2026-01-02 03:04:05,000] [INFO] [config.py:1005:print]   train_batch_size ............. 64",
        "[2026-01-02 03:04:05,000] [INFO] [config.py:1005:print]   zero_optimization_stage ...... 1",
        "[2026-01-02 03:04:05,000] [INFO] [config.py:1005:print]   train_micro_batch_size_per_gpu  4",
    ],
    "hugging_face": [
        "  Instantaneous batch size per device = 4",
        "  Total train batch size (w. parallel, distributed & accumulation) = 64",
    ],
}


@pytest.fixture(scope="module")
def plan() -> Plan:
    layout = parse_layout("tp2 pp2 dp2 mbs4 zero1 layers=6*2")
    training = TrainingSpec(global_batch=64, sequence_length=1024)
    model, cluster = resolve_model("gpt2-small").spec, resolve_cluster("dgx-a100-80gb", 8)
    question = complete_question(model, cluster, training)
    return make_plan(question, estimate(question, layout))


@pytest.mark.parametrize("trainer", SAYS)
def test_the_same_sizes_pass_and_others_are_named(tmp_path: Path, plan: Plan, trainer: str) -> None:
    work = Work(tokens=64 * 1024, sequences=64, gpus=8)
    path = tmp_path / "train.log"
    said = SAYS[trainer]
    path.write_text("\n".join([*said, *WRITERS[trainer]([1.0] * 9)]) + "\n")
    log = read_logs([path], work)
    assert log.settings
    assert [*contradictions(log, plan)] == []
    path.write_text("\n".join([*(_other(one) for one in said), *WRITERS[trainer]([1.0] * 9)]) + "\n")
    problems = [*contradictions(read_logs([path], work), plan)]
    lines = {int(one.where.partition(":")[2].split()[0]) for one in problems}
    assert problems
    assert lines <= set(range(1, len(said) + 1))
    assert all(": the log has " in str(one) for one in problems)


def _other(line: str) -> str:
    """The line with another size."""
    others = {"1024": "4096", "64": "48", "12": "24", " 4": " 16", "=4": "=16", "=2": "=4"}
    for size, another in others.items():
        if size in line:
            return line.replace(size, another)
    return line.replace(" 1", " 3").replace(" 8", " 32").replace(": 2,", ": 8,")
