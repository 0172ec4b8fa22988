"""Matrix products: what power leaves of their rate, products that run as one, and fp8 behind its casts."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from asking import ask, change

from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import Layout
from cost_models.compute.block import block_seconds
from cost_models.compute.ends import end_seconds
from cost_models.compute.gemm import device_of, gemm_seconds, matrix_seconds, product_operators
from cost_models.files import catalog
from cost_models.pipeline.pricing import estimate
from cost_models.pipeline.stage_costs import memory_terms
from cost_models.question import Question

ONE_LAYOUT = LayoutColumns.of([Layout(dp=8, zero=1)])


def llama_on(cluster: str, precision: str = "bf16") -> Question:
    return ask("llama3-8b", cluster, 8, global_batch=64, sequence_length=8192, precision=precision)


def test_a_large_product_by_hand() -> None:
    """8192³ at 700 W · 1.078 TFLOP/s a watt, times the profile's share: 2,048 tiles of 256 × 128 in 16 waves of 132."""
    device = device_of(llama_on("dgx-h100"))
    side = np.array([8192.0])
    rate = 700 * 1.078e12 * device.profile.gemm_efficiency * (8192 / (8192 + 64)) * 2048 / (16 * 132)
    np.testing.assert_allclose(gemm_seconds(side, side, side, device), 2 * 8192.0**3 / rate)


def test_what_a_shape_wastes_comes_on_top_of_what_power_allows() -> None:
    """4,096 tokens on 148 multiprocessors, tp8 of Llama 3 70B: its 1,280 query, key and value columns fill two waves of
    tiles little more than half, and nothing clocks up for them."""
    device = device_of(llama_on("dgx-b200"))
    tokens, inner = np.array([4096.0]), np.array([8192.0])
    narrow, wide = (gemm_seconds(tokens, np.array([n]), inner, device) / n for n in (1280.0, 10240.0))
    assert device.peak * device.sustained * 0.6 > device.power_rate  # half of it would have been enough
    assert narrow > 1.2 * wide


def test_a_machine_may_set_less_than_the_board() -> None:
    """What is bound by power slows with the root of its watts; what memory bounds does not."""
    question = llama_on("dgx-h100")
    capped = change(question, cluster={"gpu_watts": 350})
    full, half = device_of(question), device_of(capped)
    large, narrow = np.array([8192.0]), np.array([16.0])
    np.testing.assert_allclose(
        gemm_seconds(large, large, large, half) / gemm_seconds(large, large, large, full), math.sqrt(2)
    )
    np.testing.assert_allclose(
        gemm_seconds(large, narrow, large, half), gemm_seconds(large, narrow, large, full)
    )
    board = question.cluster.gpu.model_copy(update={"tdp_watts": 350})
    assert device_of(change(question, cluster={"gpu": board})).power_rate == half.power_rate


def test_products_in_fp4_are_quicker_behind_longer_casts() -> None:
    fp8, fp4 = llama_on("dgx-b200", "fp8"), llama_on("dgx-b200", "fp4")
    assert fp4.training.element_bytes == 2.0
    assert fp4.training.operand_bytes == pytest.approx(0.5625)
    assert fp4.training.wide_precision == "bf16"
    (narrow, *_), (wide, *_) = (matrix_seconds(q, ONE_LAYOUT, device_of(q)) for q in (fp4, fp8))
    assert 0.5 * wide < narrow < 0.85 * wide


TP, TOKENS, HIDDEN = 8, 4096, 12288
COLUMNS = LayoutColumns.of([Layout(tp=TP, dp=1, mbs=2, zero=1, sp=True)])


def gpt3_of_parallel_blocks(*, joins: bool, **model: Any) -> Question:
    """GPT-3 175B in a node of A100s, blocks side by side unless told otherwise."""
    shape = catalog.load_model("gpt3-175b").model_copy(update={"parallel_block": True} | model)
    job = {"global_batch": 2, "sequence_length": TOKENS // 2}
    facts = {"joins_parallel_products": joins}
    return ask(shape, "dgx-a100-80gb", TP, stack="megascale", facts=facts, **job)


def names(question: Question) -> list[str]:
    return [
        one.name
        for one, _ in product_operators(question.model, joined=question.stack.joins_parallel_products)
    ]


def test_their_seconds_by_hand() -> None:
    """Into the block 3h + 4h columns of a rank, out of it h + 4h inner: forward, towards inputs and towards weights."""
    question = gpt3_of_parallel_blocks(joins=True)
    device = device_of(question)
    rows, hidden, wide, inner = (
        np.array([float(x)]) for x in (TOKENS, HIDDEN, 7 * HIDDEN / TP, 5 * HIDDEN / TP)
    )
    forward, backward, weight, of_columns = matrix_seconds(question, COLUMNS, device)
    into, out_of = gemm_seconds(rows, wide, hidden, device), gemm_seconds(rows, hidden, inner, device)
    np.testing.assert_allclose(forward, into + out_of)
    towards = gemm_seconds(hidden, wide, rows, device, over_rows=True)
    np.testing.assert_allclose(of_columns, towards)
    np.testing.assert_allclose(weight, towards + gemm_seconds(inner, hidden, rows, device, over_rows=True))
    inputs = gemm_seconds(rows, hidden, wide, device) + gemm_seconds(rows, inner, hidden, device)
    np.testing.assert_allclose(backward, weight + inputs)


@pytest.mark.parametrize(
    ("model", "left"),
    [
        ({"parallel_block": False}, ["queries, keys, values", "output projection", "mlp up", "mlp down"]),
        ({"parallel_norms": 2}, ["queries, keys, values", "mlp up", "output projection, mlp down"]),
        ({}, ["queries, keys, values, mlp up", "output projection, mlp down"]),
    ],
)
def test_what_reads_other_inputs_stays_apart(model: dict[str, Any], left: list[str]) -> None:
    assert names(gpt3_of_parallel_blocks(joins=True, **model)) == left


BATCH, SEQUENCE = 64, 8192
ONE = LayoutColumns.of([Layout(dp=8, zero=1)])


def asked(precision: str, model: str = "llama3-8b", stack: str = "megatron-core", **facts: Any) -> Question:
    job = {"global_batch": BATCH, "sequence_length": SEQUENCE, "precision": precision}
    return ask(model, "dgx-h100", 8, stack=stack, facts=facts, **job)


def untiled(question: Question) -> Question:
    """On a GPU whose products fill it whatever their shape, at its peak."""
    whole = {"sustained": {}, "rate_per_watt": {}, "sm_count": 1}
    return change(question, cluster={"gpu": question.cluster.gpu.model_copy(update=whole)})


def test_only_products_of_the_blocks_are_faster() -> None:
    wide, fp8 = asked("bf16"), asked("fp8")
    slow, quick = block_seconds(wide, ONE, device_of(wide)), block_seconds(fp8, ONE, device_of(fp8))
    np.testing.assert_allclose(quick.core_forward, slow.core_forward)
    np.testing.assert_allclose(quick.core_backward, slow.core_backward)
    assert slow.matrices_backward / 2 < quick.matrices_backward < 0.8 * slow.matrices_backward
    rest = slow.forward - matrix_seconds(wide, ONE, device_of(wide))[0]
    np.testing.assert_allclose(quick.forward - matrix_seconds(fp8, ONE, device_of(fp8))[0], rest)
    ends = [end_seconds(question, ONE, device_of(question, uncast=True)) for question in (wide, fp8)]
    np.testing.assert_allclose(ends[0].head_forward, ends[1].head_forward)


def test_casts_by_hand() -> None:
    """Without casts a product at twice the sustained rate takes half as long; each cast moves 2 + 1 + 1 bytes.

    The norms of Transformer Engine hand over the inputs of qkv and up already cast.
    """
    wide, fp8 = untiled(asked("bf16")), untiled(asked("fp8"))
    device = device_of(fp8)
    forward, backward, *_ = matrix_seconds(fp8, ONE, device)
    slow_forward, slow_backward, *_ = matrix_seconds(wide, ONE, device_of(wide))
    inputs = SEQUENCE * (4096 + 14336)  # of out, down
    gradients = SEQUENCE * (4096 + 2 * 1024 + 4096 + 2 * 14336 + 4096)
    kernel = device.profile.kernel_seconds
    assert forward == pytest.approx(slow_forward / 2 + 2 * kernel + 4 * inputs / device.memory_rate, rel=1e-3)
    cast = 4 * kernel + 4 * gradients / device.memory_rate
    assert backward == pytest.approx(slow_backward / 2 + cast, rel=1e-3)


def test_casts_that_are_not_fused_hold_an_operand_in_fp32() -> None:
    """Nine bytes of each element of the widest, the input of down; nothing is kept otherwise than in bf16."""
    wide, fp8 = (asked(p, stack="meshwright") for p in ("bf16", "fp8"))
    fused = asked("fp8", stack="meshwright", fused_elementwise=True)
    apart = memory_terms(fp8, ONE)["working"]["working"] - memory_terms(wide, ONE)["working"]["working"]
    assert apart[0, 0] == pytest.approx(9 * SEQUENCE * 14336)
    assert (
        memory_terms(fused, ONE)["working"]["working"][0, 0]
        < memory_terms(fp8, ONE)["working"]["working"][0, 0]
    )
    parts = [estimate(question, Layout(dp=8, zero=1)).rank_memory[0] for question in (wide, fp8)]
    for part in ("weights", "gradients", "optimizer", "activations"):
        assert parts[0][part] == parts[1][part]


def test_a_profile_may_know_its_own_fp8_products() -> None:
    question = asked("fp8")
    efficiency = question.hardware.gemm_efficiency
    worse = {"fp8_gemm_efficiency": efficiency / 2}
    slower = device_of(change(question, hardware=worse))
    assert slower.sustained == pytest.approx(device_of(question).sustained / 2)
    assert device_of(change(asked("bf16"), hardware=worse)).sustained == device_of(asked("bf16")).sustained


def test_saved_inputs_are_one_byte_each() -> None:
    """Llama 3 8B: inputs of qkv, up and down lose a byte, the output projection keeps a copy of its own."""
    layout = Layout(dp=8, zero=1)
    kept = [
        estimate(asked("fp8", fp8_saves_inputs=saves), layout).rank_memory[0]["activations"]
        for saves in (False, True)
    ]
    tokens, live = SEQUENCE, 1
    saved = tokens * (4096 + 4096 + 14336 - 4096)
    assert kept[0] - kept[1] == pytest.approx(32 * live * saved)
    wide = estimate(asked("bf16"), layout).rank_memory[0]["activations"]
    assert kept[0] == pytest.approx(wide)


def test_weight_copies_are_those_of_the_blocks() -> None:
    layout = Layout(dp=8, zero=1)
    wide, fp8 = (
        estimate(asked(precision), layout).rank_memory[0]["weights"] for precision in ("bf16", "fp8")
    )
    embeddings = 2 * 128256 * 4096 + 4096
    assert fp8 - wide == pytest.approx(2 * (8_030_261_248 - embeddings))
