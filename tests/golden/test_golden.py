"""Fixed questions and their answers, committed: a change to the model or the search shows here as a diff.

python tests/golden/test_golden.py        rewrites answers.json after a deliberate change
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cost_models.defaults import complete_question
from cost_models.files import catalog
from cost_models.files.loading import resolve_cluster
from cost_models.specs.cluster import Precision
from cost_models.specs.training import TrainingSpec
from planner.search.search import search
from planner.space.restrictions import parse_restrictions

ANSWERS = Path(__file__).with_name("answers.json")
QUESTIONS: dict[str, dict[str, Any]] = {
    "gpt3-175b on 1024 A100": {
        "model": "gpt3-175b", "cluster": "dgx-a100-80gb", "gpus": 1024, "batch": 1536, "sequence": 2048,
    },
    "gpt3-175b on 64 A100, as in 2021": {
        "model": "gpt3-175b", "cluster": "dgx-a100-80gb", "gpus": 64, "batch": 64, "sequence": 2048,
        "stack": "megatron-2021",
    },
    "llama3-70b on 64 H100": {
        "model": "llama3-70b", "cluster": "dgx-h100", "gpus": 64, "batch": 1024, "sequence": 8192,
    },
    "llama2-7b on 8 A100, FSDP": {
        "model": "llama2-7b", "cluster": "dgx-a100-80gb", "gpus": 8, "batch": 64, "sequence": 4096, "stack": "fsdp",
    },
    "megatron-1t on 3072 A100": {
        "model": "megatron-1t", "cluster": "dgx-a100-80gb", "gpus": 3072, "batch": 3072, "sequence": 2048,
    },
    "mixtral-8x7b on 64 H100": {
        "model": "mixtral-8x7b", "cluster": "dgx-h100", "gpus": 64, "batch": 256, "sequence": 4096,
    },
    "deepseek-v3 on 1024 H100": {
        "model": "deepseek-v3", "cluster": "dgx-h100", "gpus": 1024, "batch": 4096, "sequence": 4096,
    },
    "llama3-70b on 64 H100, in fp8": {
        "model": "llama3-70b", "cluster": "dgx-h100", "gpus": 64, "batch": 1024, "sequence": 8192,
        "precision": "fp8",
    },
    "llama3-70b on A100 and H100": {
        "model": "llama3-70b", "cluster": "dgx-a100-80gb:64+dgx-h100:64", "batch": 512, "sequence": 4096,
    },
    "llama3-8b on A100 and H100, whole replicas": {
        "model": "llama3-8b", "cluster": "dgx-a100-80gb:64+dgx-h100:64", "batch": 512, "sequence": 4096,
        "allow": ("replicas",),
    },
    "llama3-8b on 64 H100, 128k tokens": {
        "model": "llama3-8b", "cluster": "dgx-h100", "gpus": 64, "batch": 32, "sequence": 131072,
    },
    "llama3-8b on 32 H100, our own stack": {
        "model": "llama3-8b", "cluster": "dgx-h100", "gpus": 32, "batch": 256, "sequence": 8192,
        "stack": "meshwright",
    },
    "qwen3-32b on 64 H100": {
        "model": "qwen3-32b", "cluster": "dgx-h100", "gpus": 64, "batch": 512, "sequence": 4096,
    },
}  # fmt: skip


def answer(
    *,
    model: str,
    cluster: str,
    batch: int,
    sequence: int,
    gpus: int | None = None,
    stack: str | None = None,
    precision: Precision = "bf16",
    allow: tuple[str, ...] = (),
) -> list[dict[str, Any]]:
    """The best two layouts with what they are said to cost."""
    training = TrainingSpec(global_batch=batch, sequence_length=sequence, precision=precision)
    question = complete_question(
        catalog.load_model(model), resolve_cluster(cluster, gpus), training, stack=stack
    )
    return [
        {
            "layout": str(one.layout),
            "step_seconds": one.step_seconds,
            "mfu": one.mfu,
            "peak_bytes": one.peak_bytes,
        }
        for one in search(question, top=2, restrictions=parse_restrictions(allow=allow)).estimates
    ]


@pytest.mark.parametrize("name", QUESTIONS)
def test_the_answer_has_not_changed(name: str) -> None:
    committed = json.loads(ANSWERS.read_text("utf-8"))[name]
    found = answer(**QUESTIONS[name])
    assert [one["layout"] for one in found] == [one["layout"] for one in committed]
    for ours, theirs in zip(found, committed, strict=True):
        for quantity in ("step_seconds", "mfu", "peak_bytes"):
            assert ours[quantity] == pytest.approx(theirs[quantity], rel=1e-9), quantity


if __name__ == "__main__":
    answers = {name: answer(**question) for name, question in QUESTIONS.items()}
    ANSWERS.write_text(json.dumps(answers, indent=1) + "\n", encoding="utf-8")
