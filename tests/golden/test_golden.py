"""Fixed questions and their answers, committed: a change to the model or the search shows here as a diff.

python tests/golden/test_golden.py        rewrites answers.json after a deliberate change
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from asking import ask

from planner.search.search import search
from planner.space.restrictions import parse_restrictions

ANSWERS = Path(__file__).with_name("answers.json")
QUANTITIES = ("step_seconds", "mfu", "peak_bytes")
QUESTIONS: dict[str, tuple[str, str, int | None, int, int, dict[str, Any]]] = {
    "gpt3-175b on 1024 A100": ("gpt3-175b", "dgx-a100-80gb", 1024, 1536, 2048, {}),
    "gpt3-175b on 64 A100, as in 2021": ("gpt3-175b", "dgx-a100-80gb", 64, 64, 2048, {"stack": "megatron-2021"}),
    "llama3-70b on 64 H100": ("llama3-70b", "dgx-h100", 64, 1024, 8192, {}),
    "llama2-7b on 8 A100, FSDP": ("llama2-7b", "dgx-a100-80gb", 8, 64, 4096, {"stack": "fsdp"}),
    "megatron-1t on 3072 A100": ("megatron-1t", "dgx-a100-80gb", 3072, 3072, 2048, {}),
    "mixtral-8x7b on 64 H100": ("mixtral-8x7b", "dgx-h100", 64, 256, 4096, {}),
    "deepseek-v3 on 1024 H100": ("deepseek-v3", "dgx-h100", 1024, 4096, 4096, {}),
    "llama3-70b on 64 H100, in fp8": ("llama3-70b", "dgx-h100", 64, 1024, 8192, {"precision": "fp8"}),
    "llama3-70b on A100 and H100": ("llama3-70b", "dgx-a100-80gb:64+dgx-h100:64", None, 512, 4096, {}),
    "llama3-8b on A100 and H100, whole replicas":
        ("llama3-8b", "dgx-a100-80gb:64+dgx-h100:64", None, 512, 4096, {"allow": ("replicas",)}),
    "llama3-8b on 64 H100, 128k tokens": ("llama3-8b", "dgx-h100", 64, 32, 131072, {}),
    "llama3-8b on 32 H100, our own stack": ("llama3-8b", "dgx-h100", 32, 256, 8192, {"stack": "meshwright"}),
    "qwen3-32b on 64 H100": ("qwen3-32b", "dgx-h100", 64, 512, 4096, {}),
}  # fmt: skip
"""Name -> model, cluster, GPUs, global batch, sequence, and what else is said."""


def answer(name: str) -> list[dict[str, Any]]:
    """The best two layouts with what they are said to cost."""
    model, cluster, gpus, batch, sequence, more = QUESTIONS[name]
    limits = parse_restrictions(allow=more.get("allow", ()))
    job = {key: value for key, value in more.items() if key != "allow"}
    question = ask(model, cluster, gpus, global_batch=batch, sequence_length=sequence, **job)
    return [
        {"layout": str(one.layout)} | {quantity: getattr(one, quantity) for quantity in QUANTITIES}
        for one in search(question, top=2, restrictions=limits).estimates
    ]


@pytest.mark.parametrize("name", QUESTIONS)
def test_the_answer_has_not_changed(name: str) -> None:
    committed = json.loads(ANSWERS.read_text("utf-8"))[name]
    found = answer(name)
    assert [one["layout"] for one in found] == [one["layout"] for one in committed]
    for ours, theirs in zip(found, committed, strict=True):
        for quantity in QUANTITIES:
            assert ours[quantity] == pytest.approx(theirs[quantity], rel=1e-9), quantity


if __name__ == "__main__":
    answers = {name: answer(name) for name in QUESTIONS}
    ANSWERS.write_text(json.dumps(answers, indent=1) + "\n", encoding="utf-8")
