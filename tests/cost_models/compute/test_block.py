"""Seconds of a block: windows of attention, by counting, and curves of operators where a profile was measured."""

from __future__ import annotations

import pytest
from asking import ask, change

from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import Layout
from cost_models.compute.block import BlockSeconds, block_seconds
from cost_models.compute.ends import end_seconds
from cost_models.compute.gemm import device_of
from cost_models.compute.measured_operators import measured_block
from cost_models.errors import InputError
from cost_models.files import catalog
from cost_models.files.catalog import load_model
from cost_models.operators.flops import forward_flops
from cost_models.pipeline.pricing import estimate
from cost_models.question import Question
from cost_models.specs.hardware import AttentionCurve, CurvePoint, HardwareProfile, OperatorCurve
from cost_models.specs.training import TrainingSpec
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


def straight(seconds_per_element: float) -> tuple[CurvePoint, ...]:
    """Proportional to the elements over the whole range of this test."""
    return tuple(CurvePoint(size=size, seconds=size * seconds_per_element) for size in (1.0, 1e9))


def cpu_profile(**changes: object) -> HardwareProfile:
    operators = tuple(
        OperatorCurve.model_validate(
            {"operator": name, "forward": straight(seconds), "backward": straight(2 * seconds)}
        )
        for name, seconds in SECONDS_PER_ELEMENT.items()
    )
    return catalog.load_profile("datasheet-cpu").model_copy(update={"operators": operators, **changes})


def question_on_a_cpu(hardware: HardwareProfile, stack: str = "meshwright") -> Question:
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
    passes = measured_block(question_on_a_cpu(cpu_profile()), LAYOUTS)
    assert passes[0, 0] == pytest.approx(2 * n * 1e-9 + f * 2e-9 + 2 * n * 3e-9)
    assert passes[1, 0] == pytest.approx(2 * 2 * n * 1e-9 + 2 * f * 2e-9 + 4 * n * 3e-9 + (5 * n + f) * 5e-10)


def test_attention_curves_replace_the_efficiencies() -> None:
    points = (CurvePoint(size=16, seconds=1e-3), CurvePoint(size=64, seconds=1e-3))
    curve = AttentionCurve(head_dim=16, forward=points, backward=points)
    without, with_curve = (
        block(question_on_a_cpu(cpu_profile())),
        block(question_on_a_cpu(cpu_profile(attention=(curve,)))),
    )
    assert (with_curve.forward - without.forward)[0] == pytest.approx(4e-3, rel=0.05)
    assert (with_curve.forward - without.forward)[1] == pytest.approx(8e-3, rel=0.05)


def test_the_ends_of_the_model_follow_the_curves() -> None:
    asked = question_on_a_cpu(cpu_profile())
    ends = end_seconds(asked, LAYOUTS, device_of(asked))
    assert ends.embedding_forward[0] == pytest.approx(2048 * 3e-9)
    assert (ends.head_backward > ends.head_forward).all()
