"""Seconds of a block: its matrix products, and a whole step by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from asking import ask, change, on_a_cpu, straight

from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import Layout, parse_layout
from cost_models.compute.block import BlockSeconds, block_seconds
from cost_models.compute.ends import end_seconds
from cost_models.compute.gemm import device_of, gemm_seconds, matrix_seconds, product_operators
from cost_models.compute.measured_operators import measured_block
from cost_models.compute.mixing import flash_seconds
from cost_models.errors import InputError
from cost_models.files import catalog
from cost_models.files.catalog import load_model
from cost_models.operators.flops import forward_flops, model_flops, recomputed_flops
from cost_models.operators.record import tokens_on_rank
from cost_models.operators.traffic import routing_traffic
from cost_models.pipeline.pricing import estimate
from cost_models.pipeline.stage_costs import memory_terms
from cost_models.question import Question
from cost_models.specs.hardware import AttentionCurve, CurvePoint, OperatorCurve
from cost_models.specs.transformer import TransformerSpec
from planner.rules.stack import require_runnable

SMALL = {"num_layers": 8, "hidden_size": 64, "num_heads": 4, "vocab_size": 256, "attention_window": 10}


def spec(**change: object) -> TransformerSpec:
    return TransformerSpec.model_validate(SMALL | change)


@pytest.mark.parametrize("length", [7, 10, 25, 40])
@pytest.mark.parametrize("kind", ["sliding", "chunked"])
def test_what_a_query_sees_is_counted(kind: str, length: int) -> None:
    """Up to the diagonal's half, which the field counts as half of a square."""
    first = {"sliding": lambda at: max(0, at - 9), "chunked": lambda at: at - at % 10}[kind]
    by_counting = sum(at - first(at) + 0.5 for at in range(length)) / length
    assert spec(window_kind=kind).unmasked(length) == pytest.approx(by_counting, abs=0.5)
    assert spec(window_kind=kind).attended(length) == min(10, length)


def test_blocks_take_turns() -> None:
    """[window, window, full] over eight blocks: full are the third and the sixth."""
    model = spec(window_pattern=["window", "window", "full"])
    windows = [model.window_of(layer) for layer in range(8)]
    assert windows == [10, 10, None, 10, 10, None, 10, 10]
    assert model.windowed_share == 6 / 8
    assert model.attended(40) == (6 * 10 + 2 * 40) / 8
    attention = 4 * 40 * model.attended(40) * model.query_size
    assert forward_flops(model, 40).block_attention == attention


def test_a_step_of_blocks_in_turns_lies_between_all_and_none() -> None:
    """Seconds and FLOPs are the means over the blocks, so that half of them saves half of what all do."""
    question = ask("llama3-8b", "dgx-h100", 8, global_batch=8, sequence_length=32768)
    window = {"attention_window": 4096}
    none, half, every = (
        estimate(change(question, model=fields), Layout(dp=8, zero=3)).time["compute"]
        for fields in ({}, window | {"window_pattern": ("window", "full")}, window)
    )
    assert none > half > every
    assert none - half == pytest.approx(half - every)


def test_a_model_that_is_more_than_its_spec_is_priced_and_not_run() -> None:
    model = load_model("llama3-8b").model_copy(update={"left_out": ("attention sinks", "soft-capped scores")})
    question = ask(model, "dgx-h100", 8, global_batch=8, sequence_length=4096)
    with pytest.raises(InputError, match="no attention sinks or soft-capped scores: it would train another"):
        require_runnable(question, Layout(dp=8))


SECONDS_PER_ELEMENT = {"layernorm": 1e-9, "gelu": 2e-9, "add": 3e-9, "bias-gradient": 5e-10}
LAYOUTS = LayoutColumns.of([Layout(), Layout(mbs=2), Layout(tp=2), Layout(tp=2, sp=True)])


def question_on_a_cpu(**hardware: object) -> Question:
    operators = tuple(
        OperatorCurve(operator=name, forward=straight(seconds), backward=straight(2 * seconds))  # type: ignore[arg-type]
        for name, seconds in SECONDS_PER_ELEMENT.items()
    )
    return on_a_cpu(2, operators=operators, **hardware)


def block(asked: Question) -> BlockSeconds:
    return block_seconds(asked, LAYOUTS, device_of(asked))


def test_operators_of_a_gpt_block_by_hand() -> None:
    """One sequence of 32 tokens: n = 2048, f = 8192; biases over 3n + n + f + n."""
    n, f = 2048, 8192
    passes = measured_block(question_on_a_cpu(), LAYOUTS)
    assert passes[0, 0] == pytest.approx(2 * n * 1e-9 + f * 2e-9 + 2 * n * 3e-9)
    assert passes[1, 0] == pytest.approx(2 * 2 * n * 1e-9 + 2 * f * 2e-9 + 4 * n * 3e-9 + (5 * n + f) * 5e-10)


def test_attention_curves_replace_the_efficiencies() -> None:
    points = (CurvePoint(size=16, seconds=1e-3), CurvePoint(size=64, seconds=1e-3))
    curve = AttentionCurve(head_dim=16, forward=points, backward=points)
    without, with_curve = (block(question_on_a_cpu()), block(question_on_a_cpu(attention=(curve,))))
    assert (with_curve.forward - without.forward)[0] == pytest.approx(4e-3, rel=0.05)
    assert (with_curve.forward - without.forward)[1] == pytest.approx(8e-3, rel=0.05)


def test_the_ends_of_the_model_follow_the_curves() -> None:
    asked = question_on_a_cpu()
    ends = end_seconds(asked, LAYOUTS, device_of(asked))
    assert ends.embedding_forward[0] == pytest.approx(2048 * 3e-9)
    assert (ends.head_backward > ends.head_forward).all()


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


def test_what_reads_other_inputs_stays_apart() -> None:
    for model, left in [
        ({"parallel_block": False}, ["queries, keys, values", "output projection", "mlp up", "mlp down"]),
        ({"parallel_norms": 2}, ["queries, keys, values", "mlp up", "output projection, mlp down"]),
        ({}, ["queries, keys, values, mlp up", "output projection, mlp down"]),
    ]:
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
