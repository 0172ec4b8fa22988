"""Power: products run at the clocks that the GPU's power limit leaves, and lose on top what their shape wastes."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import Layout
from cost_models.compute.gemm import device_of, gemm_seconds, matrix_seconds
from cost_models.defaults import complete_question
from cost_models.files import catalog
from cost_models.files.loading import resolve_cluster
from cost_models.question import Question
from cost_models.specs.training import TrainingSpec

ONE = LayoutColumns.of([Layout(dp=8, zero=1)])


def asked(cluster: str, precision: str = "bf16") -> Question:
    training = TrainingSpec(global_batch=64, sequence_length=8192, precision=precision)  # type: ignore[arg-type]
    return complete_question(catalog.load_model("llama3-8b"), resolve_cluster(cluster, 8), training)


def test_a_large_product_by_hand() -> None:
    """8192³ at 700 W · 1.078 TFLOP/s a watt, times the profile's share: 2,048 tiles of 256 × 128 in 16 waves of 132."""
    device = device_of(asked("dgx-h100"))
    side = np.array([8192.0])
    rate = 700 * 1.078e12 * device.profile.gemm_efficiency * (8192 / (8192 + 64)) * 2048 / (16 * 132)
    np.testing.assert_allclose(gemm_seconds(side, side, side, device), 2 * 8192.0**3 / rate)


def test_what_a_shape_wastes_comes_on_top_of_what_power_allows() -> None:
    """4,096 tokens on 148 multiprocessors, tp8 of Llama 3 70B: its 1,280 query, key and value columns fill two waves of
    tiles little more than half, and nothing clocks up for them."""
    device = device_of(asked("dgx-b200"))
    tokens, inner = np.array([4096.0]), np.array([8192.0])
    narrow, wide = (gemm_seconds(tokens, np.array([n]), inner, device) / n for n in (1280.0, 10240.0))
    assert device.peak * device.sustained * 0.6 > device.power_rate  # half of it would have been enough
    assert narrow > 1.2 * wide


def test_smaller_products_share_the_clocks_of_large_ones() -> None:
    """Half of the watts: all products slow alike, whatever share of their tile slots they fill."""
    question = asked("dgx-h100")
    capped = replace(question, cluster=question.cluster.model_copy(update={"gpu_watts": 350}))
    full, half = device_of(question), device_of(capped)
    inner = np.array([8192.0])
    for side in (np.array([512.0]), inner):
        slower = gemm_seconds(side, side, inner, half) / gemm_seconds(side, side, inner, full)
        np.testing.assert_allclose(slower, math.sqrt(2))


def test_a_machine_may_set_less_than_the_board() -> None:
    """What is bound by power slows with the root of its watts; what memory bounds does not."""
    question = asked("dgx-h100")
    capped = replace(question, cluster=question.cluster.model_copy(update={"gpu_watts": 350}))
    full, half = device_of(question), device_of(capped)
    large, narrow = np.array([8192.0]), np.array([16.0])
    np.testing.assert_allclose(
        gemm_seconds(large, large, large, half) / gemm_seconds(large, large, large, full), math.sqrt(2)
    )
    np.testing.assert_allclose(
        gemm_seconds(large, narrow, large, half), gemm_seconds(large, narrow, large, full)
    )
    board = question.cluster.gpu.model_copy(update={"tdp_watts": 350})
    same = replace(question, cluster=question.cluster.model_copy(update={"gpu": board}))
    assert device_of(same).power_rate == half.power_rate


def test_modules_share_their_power_with_the_cpu() -> None:
    """Alps: 660 W for a GH200's CPU and GPU together, where the GPU alone could take 900."""
    alone = asked("gh200-quad")
    assert device_of(alone).power_rate == pytest.approx(math.sqrt(480 * 700) * 1.078e12)


def test_a_gpu_without_power_figures_is_bound_by_its_peak() -> None:
    gpu = catalog.load_gpu("mi300x")
    assert gpu.power_rate("bf16") == math.inf
    assert gpu.model_copy(update={"tdp_watts": None}).power_rate("bf16") == math.inf


def test_blackwell_is_bound_by_power_and_not_by_its_peak() -> None:
    """GB300, GB200 and B200 differ as their watts do, not as their peaks do."""
    seconds = {}
    for name in ("dgx-b200", "gb300-nvl72"):
        question = asked(name)
        forward, *_ = matrix_seconds(question, ONE, device_of(question))
        seconds[question.cluster.gpu.name] = forward[0]
    assert seconds["b200"] / seconds["gb300"] == pytest.approx(1.4, rel=0.02)


def test_products_in_fp4_are_quicker_behind_longer_casts() -> None:
    fp8, fp4 = asked("dgx-b200", "fp8"), asked("dgx-b200", "fp4")
    assert fp4.training.element_bytes == 2.0
    assert fp4.training.operand_bytes == pytest.approx(0.5625)
    assert fp4.training.wide_precision == "bf16"
    (narrow, *_), (wide, *_) = (matrix_seconds(q, ONE, device_of(q)) for q in (fp4, fp8))
    assert 0.5 * wide < narrow < 0.85 * wide
