"""Rows that differ in one cell differ as they must, whatever the trainer."""

from __future__ import annotations

import pytest
from printed_rows import from_printed

from cost_models.measured.validation.predictions import predict

ROW = {
    "model_name": "llama3-8b", "seq_len": "4096", "gpu": "H100-SXM-80GB", "gpus_per_node": "8",
    "num_gpus": "64", "tp": "1", "micro_batch": "1", "global_batch": "512", "zero_stage": "1",
    "recompute": "none", "precision": "bf16", "sequence_parallel": "1",
}  # fmt: skip
TRAINERS = ("nanotron", "Megatron-Core", "NeMo", "torchtitan", "FSDP", "DeepSpeed", "MaxText")
TRAINERS += ("Megatron-LM 2021",)
LAWS: tuple[tuple[str, tuple[str, ...], str, str], ...] = (
    ("micro_batch", ("1", "2", "4", "8"), "rises", "falls"),
    ("zero_stage", ("0", "1", "2", "3"), "falls", ""),
    ("hybrid_shard", ("2", "4", "8", "16", "32"), "falls", ""),
    ("recompute", ("none", "selective", "full"), "falls", "rises"),
    ("tp", ("1", "2", "4", "8"), "falls", "rises"),
    ("pp", ("1", "2", "4", "8"), "falls", ""),
    ("cp", ("1", "2", "4", "8"), "falls", ""),
    ("seq_len", ("2048", "4096", "8192"), "rises", "rises"),
    ("precision", ("fp32", "tf32", "bf16", "fp8"), "", "falls"),
    ("attention_kernel", ("eager", "megatron-fused", "flash1", "flash2", "flash3"), "falls", "falls"),
    ("gpu", ("V100", "A100 40GB", "A100 80GB", "H100", "H200", "B200"), "", "falls"),
    ("num_gpus", ("8", "16", "64", "256"), "falls", "falls"),
    ("compile", ("0", "1"), "falls", "falls"),
    ("interconnect", ("1x100Gb/s", "2x200Gb/s", "8x200Gb/s", "8x50GB/s"), "", "falls"),
    ("offload", ("none", "optimizer", "parameters"), "falls", "rises"),
)
"""Column, cells, what memory does, what the step time does."""


@pytest.mark.parametrize("trainer", TRAINERS)
@pytest.mark.parametrize(("column", "cells", "memory", "seconds"), LAWS, ids=[law[0] for law in LAWS])
def test_one_cell_moves_predictions_the_right_way(
    trainer: str, column: str, cells: tuple[str, ...], memory: str, seconds: str
) -> None:
    rows = [from_printed(ROW | {"row_id": cell, "framework": trainer, column: cell}) for cell in cells]
    found = list(predict(rows))
    assert not [one.skipped for one in found if one.skipped]
    for law, values in (
        (memory, [one.peak_bytes or 0.0 for one in found]),
        (seconds, [one.step_seconds or 0.0 for one in found]),
    ):
        if law:
            assert values == sorted(values, reverse=law == "falls")
