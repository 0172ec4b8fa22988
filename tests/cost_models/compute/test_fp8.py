"""fp8 training: products of the blocks at twice the rate behind casts, everything else as in 16 bits."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import Layout
from cost_models.compute.block import block_seconds
from cost_models.compute.ends import end_seconds
from cost_models.compute.gemm import device_of, matrix_seconds
from cost_models.defaults import complete_question
from cost_models.files import catalog
from cost_models.files.loading import resolve_cluster
from cost_models.pipeline.pricing import estimate
from cost_models.pipeline.stage_costs import memory_terms
from cost_models.question import Question
from cost_models.specs.training import TrainingSpec

BATCH, SEQUENCE = 64, 8192
ONE = LayoutColumns.of([Layout(dp=8, zero=1)])


def asked(precision: str, model: str = "llama3-8b", stack: str = "megatron-core", **facts: Any) -> Question:
    training = TrainingSpec(global_batch=BATCH, sequence_length=SEQUENCE, precision=precision)  # type: ignore[arg-type]
    question = complete_question(
        catalog.load_model(model), resolve_cluster("dgx-h100", 8), training, stack=stack
    )
    return replace(question, stack=question.stack.model_copy(update=facts))


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
    wide, fp8 = asked("bf16"), asked("fp8")
    gpu = wide.cluster.gpu.model_copy(update={"sustained": {}, "rate_per_watt": {}, "sm_count": 1})
    wide, fp8 = (replace(q, cluster=q.cluster.model_copy(update={"gpu": gpu})) for q in (wide, fp8))
    device = device_of(fp8)
    forward, backward, *_ = matrix_seconds(fp8, ONE, device)
    slow_forward, slow_backward, *_ = matrix_seconds(wide, ONE, device_of(wide))
    inputs = SEQUENCE * (4096 + 14336)  # of out, down
    gradients = SEQUENCE * (4096 + 2 * 1024 + 4096 + 2 * 14336 + 4096)
    kernel = device.profile.kernel_seconds
    assert forward == pytest.approx(slow_forward / 2 + 2 * kernel + 4 * inputs / device.memory_rate, rel=1e-3)
    cast = 4 * kernel + 4 * gradients / device.memory_rate
    assert backward == pytest.approx(slow_backward / 2 + cast, rel=1e-3)


@pytest.mark.parametrize(
    ("fuses", "casts", "times", "cast", "turned", "scaled"),
    [(False, (14, 15, 2), (3, 1, 2, 1), 33, 2, 12), (True, (2, 2, 1), (1, 1, 1, 1), 5, 0, 4)],
    ids=["eager", "compiled"],
)
def test_casts_apart_by_hand(
    fuses: bool, casts: tuple[int, int, int], times: tuple[int, ...], cast: int, turned: int, scaled: int
) -> None:
    """torchao: kernels of a cast, of one that is turned too, of a scaling; then bytes an element of each.

    q, k, v and gate, up are matrices of their own, whose input is cast for each of them unless a compiler sees it.
    """
    wide, fp8 = (asked(p, stack="meshwright", fused_elementwise=fuses) for p in ("bf16", "fp8"))
    gpu = wide.cluster.gpu.model_copy(update={"sustained": {}, "rate_per_watt": {}, "sm_count": 1})
    wide, fp8 = (replace(q, cluster=q.cluster.model_copy(update={"gpu": gpu})) for q in (wide, fp8))
    device = device_of(fp8)
    got = matrix_seconds(fp8, ONE, device)
    slow = matrix_seconds(wide, ONE, device_of(wide))
    widths, matrices = (4096, 4096, 4096, 14336), (3, 1, 2, 1)  # into qkv, out, gate and up, down
    inputs = SEQUENCE * sum(n * width for n, width in zip(times, widths, strict=True))
    results = SEQUENCE * sum(n * width for n, width in zip(matrices, widths, strict=True))
    weights = 4096 * (6144 + 4096 + 28672 + 14336)
    gradients = SEQUENCE * (6144 + 4096 + 28672 + 4096)
    kernel, rate = device.profile.kernel_seconds, device.memory_rate
    of_inputs, of_weights = sum(times), sum(matrices)
    forward = casts[0] * kernel * (of_inputs + of_weights) + cast * (inputs + weights) / rate
    assert got[0] == pytest.approx(slow[0] / 2 + forward, rel=1e-3)
    backward = kernel * (casts[0] * of_weights + casts[1] * (2 * of_weights + of_inputs))
    backward += (cast * gradients + (cast + turned) * (weights + gradients + inputs)) / rate
    backward += casts[2] * kernel * 2 * of_weights + scaled * (results + weights) / rate
    assert got[1] == pytest.approx(slow[1] / 2 + backward, rel=1e-3)


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
    worse = question.hardware.model_copy(update={"fp8_gemm_efficiency": efficiency / 2})
    slower = device_of(replace(question, hardware=worse))
    assert slower.sustained == pytest.approx(device_of(question).sustained / 2)
    wide = device_of(replace(asked("bf16"), hardware=worse))
    unchanged = replace(device_of(asked("bf16")), profile=worse)
    for name in (field.name for field in fields(unchanged)):
        assert np.array_equal(getattr(wide, name), getattr(unchanged, name)), name


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


def test_experts_multiply_in_fp8_and_routers_do_not() -> None:
    wide, fp8 = asked("bf16", "qwen3-30b-a3b"), asked("fp8", "qwen3-30b-a3b")
    slow, quick = (matrix_seconds(question, ONE, device_of(question))[0] for question in (wide, fp8))
    assert 0.5 * slow < quick < slow
    priced = estimate(fp8, Layout(dp=8, ep=8, zero=1))
    assert priced.time.total == pytest.approx(priced.step_seconds)
    assert 0 < priced.mfu < 1
