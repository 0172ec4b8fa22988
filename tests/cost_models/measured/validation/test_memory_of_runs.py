"""Peaks of published runs against predictions: shapes and figures as printed, with the error each one may have.

Megatron-LM: golden values of its functional tests (github.com/NVIDIA/Megatron-LM, BSD-3), the largest number of bytes
allocated on the last rank. BigScience: chronicles of the 176B model's preparation, what `nvidia-smi` showed.
"""

from __future__ import annotations

import pytest
from printed_rows import from_printed

from cost_models.measured.validation.predictions import Prediction, predict

LAST_RANK = "torch allocated_bytes.all.peak on LAST rank"
TINY = {
    "layers": 12, "hidden": 512, "heads": 8, "kv_heads": 8, "ffn_hidden": 2048, "ffn_kind": "gelu", "seq_len": 1024,
    "tied_embeddings": 1, "framework": "Megatron-Core CI", "attention_kernel": "te", "gpu": "A100-SXM-80GB",
    "sequence_parallel": 0, "vp": 1, "num_gpus": 8, "zero_stage": 0, "micro_batch": 4, "global_batch": 32,
    "recompute": "none", "precision": "bf16",
    "memory_kind": LAST_RANK, "notes": "deterministic mode; no-gradient-accumulation-fusion; dropout default 0.1/0.1",
}  # fmt: skip
UNFUSED = f"{TINY['notes']}; attention-backend=unfused"
SEVEN = TINY | {
    "layers": 32, "hidden": 4096, "heads": 32, "ffn_hidden": 16384, "vocab": 131072, "seq_len": 8192,
    "tied_embeddings": 0, "zero_stage": 1, "global_batch": 8,
}  # fmt: skip
FIFTEEN = TINY | {
    "layers": 32, "hidden": 6144, "heads": 48, "head_dim": 128, "ffn_hidden": 24576, "ffn_kind": "squared-relu",
    "vocab": 256000, "seq_len": 4096, "tied_embeddings": 0, "zero_stage": 1, "sequence_parallel": 1,
    "global_batch": 384, "num_gpus": "", "notes": "overlap-grad-reduce; overlap-param-gather",
}  # fmt: skip
MIXTRAL = FIFTEEN | {
    "layers": 56, "ffn_hidden": 16384, "ffn_kind": "swiglu", "vocab": 32000, "moe_experts": 8, "moe_top_k": 2,
    "moe_ffn_hidden": 16384, "micro_batch": 1, "global_batch": 256,
}  # fmt: skip
BLOOM = {
    "layers": 72, "hidden": 14336, "heads": 64, "ffn_hidden": 57344, "ffn_kind": "gelu", "vocab": 250680,
    "seq_len": 2048, "tied_embeddings": 1, "framework": "Megatron-DeepSpeed (BigScience)", "zero_stage": 1,
    "attention_kernel": "megatron-fused", "gpu": "A100-SXM-80GB", "num_gpus": 384, "global_batch": 2048,
    "recompute": "full", "precision": "fp16", "memory_kind": "GPU memory, nvidia-smi-like max over nodes (GB)",
}  # fmt: skip

PEAKS: dict[str, tuple[dict[str, object], dict[str, object], float, float]] = {
    # name: (what the runs have in common, what is its own, GB, error it may have)
    "15B, tensor parallel, A100": (FIFTEEN, {"tp": 8}, 28.3919, 0.02),
    "15B, fused loss, GB200":
        (FIFTEEN, {"tp": 4, "pp": 2, "vp": 2, "gpu": "GB200", "notes": "cross-entropy-loss-fusion"}, 42.63935, 0.01),
    "7B, interleaved":
        (SEVEN, {"tp": 1, "pp": 4, "vp": 8, "dp": 2, "kv_heads": 8, "micro_batch": 1}, 60.48906, 0.01),
    "7B, tensor parallel": (SEVEN, {"tp": 4, "dp": 2, "kv_heads": 8, "micro_batch": 2}, 58.18812, 0.015),
    "Mixtral 8x22B": (MIXTRAL, {"tp": 2, "pp": 8, "ep": 8}, 28.16847, 0.03),
    "tiny, ZeRO-1, H100": (TINY, {"vocab": 50304, "dp": 8, "zero_stage": 1, "gpu": "H100-SXM-80GB"}, 2.69179, 0.02),
    "tiny, stored scores": (TINY, {"vocab": 50304, "dp": 8, "zero_stage": 1, "notes": UNFUSED}, 4.67318, 0.02),
    "tiny, full recompute": (TINY, {"vocab": 50304, "dp": 8, "recompute": "full"}, 2.53617, 0.04),
    "tiny, interleaved": (TINY, {"vocab": 50304, "pp": 4, "vp": 3, "dp": 2, "notes": UNFUSED}, 4.12061, 0.02),
    "tiny, tensor and pipeline":
        (TINY, {"vocab": 50432, "tp": 2, "pp": 2, "dp": 2, "notes": UNFUSED}, 1.90016, 0.02),
    "tiny, Megatron's kernels, fp16":
        (TINY, {"vocab": 50304, "pp": 4, "dp": 2, "attention_kernel": "megatron-fused", "precision": "fp16"},
         2.67519, 0.02),
    "BLOOM, microbatch 1": (BLOOM, {"tp": 8, "pp": 12, "dp": 4, "micro_batch": 1}, 29, 0.05),
    "BLOOM, microbatch 8": (BLOOM, {"tp": 8, "pp": 12, "dp": 4, "micro_batch": 8}, 69, 0.05),
    "BLOOM, two stages": (BLOOM, {"tp": 8, "pp": 2, "dp": 24, "micro_batch": 1, "global_batch": 2016}, 65, 0.05),
    "BLOOM, bf16":
        (BLOOM, {"layers": 70, "tp": 8, "pp": 12, "dp": 4, "micro_batch": 2, "precision": "bf16"}, 40, 0.05),
}  # fmt: skip


def predicted(*cells: dict[str, object]) -> Prediction:
    merged = {key: str(value) for part in cells for key, value in part.items()}
    (one,) = predict([from_printed({"row_id": "run", "source_id": "test"} | merged)])
    assert not one.skipped
    return one


@pytest.mark.parametrize("name", PEAKS)
def test_a_published_peak_is_met(name: str) -> None:
    common, own, gigabytes, error = PEAKS[name]
    assert predicted(common, own).peak_bytes == pytest.approx(gigabytes * 1e9, rel=error)


@pytest.mark.parametrize(
    ("layout", "fits"),
    [
        ({"tp": 8, "pp": 1, "dp": 48, "micro_batch": 1, "global_batch": 2016}, False),
        ({"tp": 2, "pp": 6, "dp": 32, "micro_batch": 2}, False),
        ({"tp": 2, "pp": 6, "dp": 32, "micro_batch": 1}, False),
        ({"layers": 100, "hidden": 12288, "ffn_hidden": 49152, "tp": 4, "pp": 6, "dp": 16, "micro_batch": 1}
         | {"precision": "bf16"}, False),
        ({"tp": 8, "pp": 6, "dp": 8, "micro_batch": 8, "layers": 78}, True),  # 75 GB were seen
        ({"tp": 4, "pp": 6, "dp": 16, "micro_batch": 4}, True),  # 75 GB
        ({"tp": 8, "pp": 2, "dp": 24, "micro_batch": 2, "global_batch": 2016}, True),  # 76 GB
    ],
)  # fmt: skip
def test_runs_out_of_memory_are_told_from_those_that_nearly_filled_the_device(
    layout: dict[str, object], fits: bool
) -> None:
    assert predicted(BLOOM, layout).fits is fits


def test_a_peak_is_counted_as_the_row_counts() -> None:
    words = {"allocated": "allocated", "reserved": "torch max_memory_reserved", "driver": "nvidia-smi"}
    layout = {"tp": 8, "pp": 12, "dp": 4, "micro_batch": 1}
    allocated, reserved, driver = (
        predicted(BLOOM, layout, {"memory_kind": kind}).peak_bytes or 0.0 for kind in words.values()
    )
    assert allocated < reserved < driver
    last = predicted(BLOOM, layout, {"memory_kind": LAST_RANK}).peak_bytes or 0.0
    assert last < allocated  # the first rank is the fullest: it keeps most microbatches


def test_without_a_number_of_gpus_memory_is_predicted_and_time_is_not() -> None:
    one = predicted(FIFTEEN, {"tp": 8})
    assert one.step_seconds is None
    assert not one.parts
    assert any("GPUs: the row names none" in words for words in one.assumptions)
