"""A measured profile replaces bytes by curves, for unfused stacks only, and at every layout at once."""

from __future__ import annotations

import numpy as np
import pytest

from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import Layout
from cost_models.compute.block import BlockSeconds, block_seconds
from cost_models.compute.ends import end_seconds
from cost_models.compute.gemm import device_of
from cost_models.compute.measured_operators import measured_block
from cost_models.files import catalog
from cost_models.question import Question
from cost_models.specs.hardware import AttentionCurve, CurvePoint, HardwareProfile, OperatorCurve
from cost_models.specs.training import TrainingSpec
from cost_models.specs.transformer import TransformerSpec

SECONDS_PER_ELEMENT = {"layernorm": 1e-9, "gelu": 2e-9, "add": 3e-9, "bias-gradient": 5e-10}
LAYOUTS = LayoutColumns.of([Layout(), Layout(mbs=2), Layout(tp=2), Layout(tp=2, sp=True)])


def straight(seconds_per_element: float) -> tuple[CurvePoint, ...]:
    """Proportional to the elements over the whole range of this test."""
    return tuple(CurvePoint(size=size, seconds=size * seconds_per_element) for size in (1.0, 1e9))


def profile(**changes: object) -> HardwareProfile:
    operators = tuple(
        OperatorCurve.model_validate(
            {"operator": name, "forward": straight(seconds), "backward": straight(2 * seconds)}
        )
        for name, seconds in SECONDS_PER_ELEMENT.items()
    )
    return catalog.load_profile("datasheet-cpu").model_copy(update={"operators": operators, **changes})


def question(hardware: HardwareProfile, stack: str = "meshwright") -> Question:
    model = TransformerSpec.model_validate(
        {"num_layers": 2, "hidden_size": 64, "num_heads": 4, "vocab_size": 1000}
    )
    training = TrainingSpec(global_batch=8, sequence_length=32, precision="fp32")
    return Question(
        model=model,
        cluster=catalog.local_cluster(2),
        training=training,
        stack=catalog.load_stack(stack),
        hardware=hardware,
    )


def block(asked: Question) -> BlockSeconds:
    return block_seconds(asked, LAYOUTS, device_of(asked))


def test_operators_of_a_gpt_block_by_hand() -> None:
    """One sequence of 32 tokens: n = 2048, f = 8192; biases over 3n + n + f + n."""
    n, f = 2048, 8192
    passes = measured_block(question(profile()), LAYOUTS)
    assert passes[0, 0] == pytest.approx(2 * n * 1e-9 + f * 2e-9 + 2 * n * 3e-9)
    assert passes[1, 0] == pytest.approx(2 * 2 * n * 1e-9 + 2 * f * 2e-9 + 4 * n * 3e-9 + (5 * n + f) * 5e-10)


def test_operators_scale_with_the_layout() -> None:
    """Twice the microbatch costs twice; tensor parallelism splits the MLP, sequence parallelism the rest too."""
    forward = measured_block(question(profile()), LAYOUTS)[0]
    assert forward[1] == pytest.approx(2 * forward[0])
    assert forward[3] == pytest.approx(forward[0] / 2)
    assert forward[3] < forward[2] < forward[0]


def test_a_fused_stack_ignores_the_curves() -> None:
    bare = profile(operators=())
    measured, plain = question(profile(), "megatron-core"), question(bare, "megatron-core")
    assert np.array_equal(block(measured).forward, block(plain).forward)
    unfused = block(question(profile())).forward
    assert not np.array_equal(unfused, block(question(bare)).forward)


def test_attention_curves_replace_the_efficiencies() -> None:
    points = (CurvePoint(size=16, seconds=1e-3), CurvePoint(size=64, seconds=1e-3))
    curve = AttentionCurve(head_dim=16, forward=points, backward=points)
    without, with_curve = block(question(profile())), block(question(profile(attention=(curve,))))
    assert (with_curve.forward - without.forward)[0] == pytest.approx(4e-3, rel=0.05)
    assert (with_curve.forward - without.forward)[1] == pytest.approx(8e-3, rel=0.05)


def test_the_ends_of_the_model_follow_the_curves() -> None:
    asked = question(profile())
    ends = end_seconds(asked, LAYOUTS, device_of(asked))
    assert ends.embedding_forward[0] == pytest.approx(2048 * 3e-9)
    assert (ends.head_backward > ends.head_forward).all()
