"""The formulas of the papers, as fixtures: FLOPs, activation bytes, MFU / HFU pairs."""

from __future__ import annotations

import numpy as np
import pytest

from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import Layout
from cost_models.files import catalog
from cost_models.memory.activations import activation_bytes
from cost_models.operators.flops import causal_flops, model_flops, recomputed_flops, utilisation
from cost_models.operators.parameters import parameters
from cost_models.question import Question
from cost_models.specs.training import TrainingSpec
from cost_models.specs.transformer import TransformerSpec

A100_PEAK = 312e12


def gpt(layers: int, hidden: int, heads: int) -> TransformerSpec:
    return TransformerSpec(
        num_layers=layers, hidden_size=hidden, num_heads=heads, vocab_size=51200, max_positions=2048
    )


def question(model: TransformerSpec, *, attention: str = "fused-softmax", batch: int = 8) -> Question:
    stack = catalog.load_stack("megatron-2021").model_copy(update={"attention": attention})
    return Question(
        model=model,
        cluster=catalog.load_cluster("dgx-a100-80gb"),
        training=TrainingSpec(global_batch=batch, sequence_length=2048, dropout=0.1),
        stack=stack,
        hardware=catalog.load_profile("datasheet-gpu"),
    )


def test_a_gpt_block_has_12_h_squared_plus_13_h_parameters() -> None:
    h = 12288
    block = parameters(gpt(96, h, 96), np.array([1])).block[0]
    assert block == 12 * h**2 + 13 * h


def test_model_and_hardware_flops_are_equation_3() -> None:
    h, layers, s, batch, vocabulary = 12288, 96, 2048, 1536, 51200
    model, training = gpt(layers, h, 96), TrainingSpec(global_batch=batch, sequence_length=s)
    useful = 72 * batch * s * layers * h**2 * (1 + s / (6 * h) + vocabulary / (12 * layers * h))
    assert model_flops(model, training) == pytest.approx(useful, rel=1e-12)
    full = Layout(pp=8, dp=16, recompute=("full",), layers=(12,) * 8)
    spent = 96 * batch * s * layers * h**2 * (1 + s / (6 * h) + vocabulary / (16 * layers * h))
    assert model_flops(model, training) + recomputed_flops(model, training, full) == pytest.approx(
        spent, rel=1e-12
    )


@pytest.mark.parametrize(
    ("layers", "hidden", "heads", "gpus", "batch", "seconds", "mfu", "hfu"),
    [
        (48, 6144, 64, 8, 4, 1.10, 41.5, 43.7),
        (96, 12288, 96, 64, 64, 13.75, 51.4, 52.8),
        (105, 20480, 128, 280, 280, 37.83, 56.0, 57.0),
        (128, 25600, 160, 512, 512, 71.49, 56.3, 57.0),
    ],
    ids=["22B", "175B", "530B", "1T"],
)
def test_mfu_and_hfu_of_selective(
    layers: int, hidden: int, heads: int, gpus: int, batch: int, seconds: float, mfu: float, hfu: float
) -> None:
    """Korthikanti et al. 2022, table 5, whose step times are rounded to 0.01 s.

    The paper's equation 8 counts the attention core three more times under selective recompute (s/3h instead of s/6h).
    The core runs forward once more, so what we call hardware FLOPs adds a third of that.
    """
    model = gpt(layers, hidden, heads)
    training = TrainingSpec(global_batch=batch, sequence_length=2048)
    selective = Layout(recompute=("selective",), layers=(layers,))
    useful = model_flops(model, training)
    again = recomputed_flops(model, training, selective)
    assert (
        recomputed_flops(model, training, selective, ("norms", "latent-heads")) == 0
    )  # a dense GPT has neither
    assert 100 * utilisation(useful, seconds, gpus, A100_PEAK) == pytest.approx(mfu, abs=0.2)
    assert 100 * utilisation(useful + 3 * again, seconds, gpus, A100_PEAK) == pytest.approx(hfu, abs=0.2)


@pytest.mark.parametrize("tp", [1, 2, 8])
@pytest.mark.parametrize("sp", [False, True])
def test_activation_bytes_are_korthikanti_table_2(tp: int, sp: bool) -> None:
    if sp and tp == 1:
        pytest.skip("sequence parallelism needs tensor parallelism")
    s, b, h, a = 2048, 4, 6144, 64
    asked = question(gpt(48, h, a))
    kept = activation_bytes(asked, LayoutColumns.of([Layout(tp=tp, sp=sp, mbs=b)])).block[0]
    core = 5 * a * s / (h * tp)
    outside = 10 / tp if sp else 10
    assert kept[0] == pytest.approx(s * b * h * (outside + 24 / tp + core), rel=1e-12)
    assert kept[1] == pytest.approx(s * b * h * (outside + 24 / tp), rel=1e-12)
    assert kept[2] == pytest.approx(2 * s * b * h / (tp if sp else 1), rel=1e-12)


def test_a_flash_kernel_keeps_what_selective_recompute_keeps_and_one_row_of_sums() -> None:
    s, b, h, a = 2048, 1, 6144, 64
    layout = LayoutColumns.of([Layout(mbs=b)])
    flash = activation_bytes(question(gpt(48, h, a), attention="flash2"), layout).block[0]
    fused = activation_bytes(question(gpt(48, h, a)), layout).block[0]
    assert flash[0] == pytest.approx(fused[1] + 4 * a * s * b, rel=1e-12)


def test_causal_mfu_counts_what_a_mask_leaves() -> None:
    """GPT-3: half of 4·s·h a token and block; within a window what the window leaves of it."""
    model = catalog.load_model("gpt3-175b")
    training = TrainingSpec(global_batch=8, sequence_length=2048)
    scores = 3 * 8 * 96 * 4 * 2048**2 * 12288
    assert model_flops(model, training) - causal_flops(model, training) == pytest.approx(scores / 2)
    windowed = model.model_copy(update={"attention_window": 512})
    left = 512 * (1 - 512 / 2048 / 2) / 512
    scores = 3 * 8 * 96 * 4 * 2048 * 512 * 12288
    masked = model_flops(windowed, training) - causal_flops(windowed, training)
    assert masked == pytest.approx(scores * (1 - left))
