"""Prices whose formula is short enough to be written down again: a wrong factor shows here, whatever else it moves."""

from __future__ import annotations

import numpy as np
import pytest
from asking import ask

from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import parse_layout
from cost_models.compute.gemm import device_of, gemm_seconds
from cost_models.compute.mixing import flash_seconds
from cost_models.operators.flops import model_flops, recomputed_flops
from cost_models.operators.record import tokens_on_rank
from cost_models.operators.traffic import routing_traffic
from cost_models.pipeline.pricing import estimate
from cost_models.question import Question

BF16, FP32 = 2, 4


def question(model: str, gpus: int = 8, batch: int = 64, sequence: int = 4096) -> Question:
    job = {"global_batch": batch, "sequence_length": sequence}
    return ask(model, "dgx-h100", gpus, stack="megatron-core", **job)


def test_a_product_of_one_row_takes_what_reading_its_weights_takes() -> None:
    device, side = device_of(question("llama3-8b")), 8192
    seconds = gemm_seconds(np.array([1.0]), np.array([float(side)]), np.array([float(side)]), device)
    moved = BF16 * (side * side + 2 * side)
    assert float(seconds[0]) == pytest.approx(moved / device.memory_rate)


def test_flash_attention_runs_five_products_backward_for_two_forward() -> None:
    asked = question("llama3-8b", sequence=32768)
    device, columns = device_of(asked), LayoutColumns.of([parse_layout("tp1 pp1 dp8 mbs1")])
    forward, backward = (float(seconds[0]) for seconds in flash_seconds(asked, columns, device))
    there, back = device.attention_shares[:, 0]
    assert backward * back / (forward * there) == pytest.approx(5 / 2)


def test_full_recompute_runs_every_block_forward_once_more() -> None:
    asked = question("llama3-8b")
    model, training = asked.model, asked.training
    again = recomputed_flops(model, training, parse_layout("tp1 pp1 dp8 mbs1 recompute=full layers=32"))
    logits = 2 * training.tokens_per_step * model.hidden_size * model.vocab_size
    assert again == pytest.approx(model_flops(model, training) / 3 - logits)


def test_copies_of_tokens_are_laid_out_by_expert_where_a_rank_has_several() -> None:
    """Read once and written k times, read and written by expert and once more on the way back, read k times, summed."""
    asked = question("mixtral-8x7b")
    model = asked.model
    for ep, reorderings in ((4, 2), (8, 0)):
        columns = LayoutColumns.of([parse_layout(f"tp1 pp1 ep{ep} dp8 mbs1")])
        traffic = routing_traffic(asked, columns)
        assert traffic is not None
        tokens = asked.training.sequence_length
        copies, sent = tokens * model.experts_per_token, float(tokens_on_rank(asked, columns, "sent")[0])
        rows = 2 * (tokens + sent) + 2 * reorderings * copies
        scores = 4 * FP32 * tokens * model.num_experts
        moved = BF16 * model.hidden_size * rows + scores
        assert float(traffic.moved[0, 0]) == pytest.approx(moved)


def test_an_update_reads_and_writes_states_and_weights() -> None:
    asked = question("gpt2-xl", gpus=1, batch=1, sequence=1024)
    priced = estimate(asked, parse_layout("tp1 pp1 dp1 mbs1"))
    parameters = priced.rank_memory[0]["weights"] / BF16
    hardware = asked.hardware
    rate = asked.cluster.gpu.memory_bandwidth * hardware.optimizer_efficiency
    moved = priced.time["optimizer"] * rate / parameters
    gradient, states = 3 * FP32, 2 * 3 * FP32  # norm, update, zeroed; master weight, two moments, both ways
    assert moved == pytest.approx(gradient + states, rel=1e-3)
