"""No plan of an everyday question uses its GPUs better than timed runs on such GPUs have shown to be possible."""

from __future__ import annotations

from functools import cache

import pytest
from effort import few

from cost_models.defaults import complete_question
from cost_models.files import catalog
from cost_models.files.loading import resolve_cluster
from cost_models.measured.runs.cases import timed_cases
from cost_models.operators.flops import causal_flops, model_flops, utilisation
from cost_models.specs.cluster import Precision
from cost_models.specs.training import TrainingSpec
from planner.search.search import search

_NOISE = 1.05
"""Publishers of one nominal configuration differ by 3 to 10 %: half of that is no news."""
_LONG = 16384
"""Tokens above which attention, of which a causal kernel computes half, makes most of the classical FLOPs."""
GRID = [
    (cluster, gpu, precision, model, gpus, sequence)
    for cluster, gpu, precision in (
        ("dgx-a100-80gb", "a100", "bf16"),
        ("dgx-h100", "h100", "bf16"),
        ("dgx-b200", "b200", "bf16"),
        ("dgx-h100", "h100", "fp8"),
        ("gb200-nvl72", "gb200", "fp8"),
    )
    for model, gpus, sequence in (
        ("llama2-7b", 8, 4096),
        ("llama3-8b", 8, 8192),
        ("llama3-8b", 64, 131072),
        ("llama3-70b", 64, 8192),
        ("llama3-70b", 64, 32768),
        ("gpt3-175b", 512, 2048),
    )
    if sequence <= _LONG or precision == "bf16"  # of long sequences in fp8 hardly any run was timed
    if gpus % 72 == 0 or gpus < 72 or cluster != "gb200-nvl72"  # whole racks
]


@cache
def timed(gpu: str, precision: Precision) -> tuple[tuple[int, float, float], ...]:
    """Tokens of a sequence, classical and causal MFU of every timed run on GPUs of the name."""
    reached = []
    for case in timed_cases():
        model, training, cluster = case.question.model, case.question.training, case.question.cluster
        alike = cluster.gpu.name == gpu or cluster.gpu.name.startswith(f"{gpu}-")
        if not alike or training.precision != precision or case.row.suspect:
            continue
        seconds, peak = case.row.step_seconds, cluster.gpu.peak[precision]
        classical, causal = (
            utilisation(flops(model, training, case.layout.tp), seconds, cluster.num_gpus, peak)
            for flops in (model_flops, causal_flops)
        )
        reached.append((training.sequence_length, classical, causal))
    return tuple(reached)


@pytest.mark.parametrize(("cluster", "gpu", "precision", "model", "gpus", "sequence"), GRID)
@few(9)
def test_a_plan_uses_no_gpu_better_than_a_timed_run_did(
    cluster: str, gpu: str, precision: Precision, model: str, gpus: int, sequence: int
) -> None:
    """By causal FLOPs among all runs; by classical ones among those of long or of short sequences, of which one that
    had less attention in its FLOPs counts as if it had as much."""
    tokens = max(4 * 2**20, gpus * sequence // 8)
    training = TrainingSpec(global_batch=tokens // sequence, sequence_length=sequence, precision=precision)
    question = complete_question(catalog.load_model(model), resolve_cluster(cluster, gpus), training)
    (fastest,) = search(question, top=1).estimates
    runs = timed(gpu, precision)
    assert fastest.causal_mfu <= _NOISE * max(causal for *_, causal in runs), fastest.layout
    masked = fastest.mfu / fastest.causal_mfu
    shown = max(
        max(classical, causal * masked)
        for length, classical, causal in runs
        if (length > _LONG) == (sequence > _LONG)
    )
    assert fastest.mfu <= _NOISE * shown, fastest.layout
