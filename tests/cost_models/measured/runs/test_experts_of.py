"""How rows say that their trainer exchanged tokens with experts."""

from __future__ import annotations

from typing import Any

import pytest

from cost_models.measured.runs.printed import PrintedRow, expert_changes, further_tokens, keeps_experts_whole

FLEX = {"expert_dispatch": "tokens", "weighs_inside_experts": True}
BRIDGE = "Megatron-Bridge, NeMo container {}"


@pytest.mark.parametrize(
    ("cells", "changes"),
    [
        ({"framework": "Megatron-Core", "other_kernels": "DeepEP"}, FLEX),
        ({"framework": "Megatron-Core", "other_kernels": "A2A"}, {"expert_dispatch": "copies"}),
        ({"framework": "Megatron-Core", "notes": "+1f1b overlap, main"}, {"overlap_expert_exchange": 1.0}),
        ({"framework": "NeMo 24.07"}, {"expert_dispatch": "copies", "weighs_inside_experts": False}),
        ({"framework": BRIDGE.format("26.04"), "precision": "fp8-mxfp8"}, {}),
        ({"framework": BRIDGE.format("26.06"), "precision": "bf16"}, {}),
        ({"framework": "mcore", "notes": "forced; recompute modules layernorm moe"}, {}),
        ({"framework": "mcore", "notes": "recompute-modules=[layernorm moe_act]"}, {}),
        (
            {"framework": BRIDGE.format("26.04"), "model_name": "Qwen3_235B_a22B", "gpu": "H100-SXM-80GB"},
            {"expert_dispatch": "copies", "overlap_expert_exchange": 1.0},
        ),
        (
            {"framework": BRIDGE.format("26.04"), "model_name": "GPT OSS 120B", "gpu": "B300-SXM-270GB"},
            {"expert_dispatch": "copies"},
        ),
        ({"framework": BRIDGE.format("26.04"), "model_name": "GPT OSS 120B", "gpu": "GB300"}, {}),
        (
            {
                "framework": BRIDGE.format("26.06.01"),
                "precision": "fp8-mxfp8",
                "model_name": "Qwen3_235B_a22B",
                "gpu": "GB200",
            },
            {"overlap_expert_exchange": 1.0, "experts_in_one_kernel": True},
        ),
        (  # no recipe of these captures the step
            {
                "framework": BRIDGE.format("26.06"),
                "precision": "fp8-mxfp8",
                "model_name": "GPT OSS 120B",
                "gpu": "B300-SXM-270GB",
            },
            {"expert_dispatch": "copies"},
        ),
        (
            {
                "framework": BRIDGE.format("26.06"),
                "precision": "fp8-mxfp8",
                "model_name": "Kimi_K2",
                "gpu": "GB300",
            },
            {"places_blocks": "in-turn", "recomputes_latent_heads": False},
        ),
        (
            {"framework": BRIDGE.format("26.04"), "model_name": "DeepSeekV3", "gpu": "B200-SXM-180GB"},
            {"places_blocks": "in-turn", "recomputes_latent_heads": True},
        ),
    ],
)
def test_words_and_releases(cells: dict[str, str], changes: dict[str, Any]) -> None:
    assert expert_changes(PrintedRow({"moe_experts": "128", **cells})) == changes
    assert expert_changes(PrintedRow({"moe_experts": "", **cells})) == {}


@pytest.mark.parametrize(
    ("name", "framework", "times"),
    [
        ("DeepSeekV3", BRIDGE.format("26.04"), 1),
        ("DeepSeekV3 (w/o MTP)", BRIDGE.format("25.11"), 0),
        ("DeepSeekV3 (w/ MTP)", "Megatron-Core", 1),
        ("DeepSeek-V3", "Megatron-Core", 0),
        ("Kimi_K2", BRIDGE.format("26.04"), 0),
    ],
)
def test_tokens_predicted_beyond_the_next(name: str, framework: str, times: int) -> None:
    assert further_tokens(PrintedRow({"model_name": name, "framework": framework})) == times


def test_recipes_that_keep_experts_whole() -> None:
    assert keeps_experts_whole(PrintedRow({"moe_experts": "128", "framework": BRIDGE.format("26.04")}))
    assert keeps_experts_whole(
        PrintedRow({"moe_experts": "128", "framework": "mcore", "other_kernels": "DeepEP"})
    )
    assert not keeps_experts_whole(
        PrintedRow({"moe_experts": "8", "framework": "NeMo (DGXC recipe v24.11.1)"})
    )
