"""What Megatron-LM of 2021, 2022 and 2023 and its kin do otherwise: sums behind products, gradients, biases, copies."""

from __future__ import annotations

from typing import Any

import pytest

from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import parse_layout
from cost_models.files import catalog
from cost_models.memory.states import state_bytes
from cost_models.operators.accumulation import gradient_accumulation_bytes
from cost_models.operators.traffic import block_traffic
from cost_models.pipeline.pricing import estimate
from cost_models.question import Question
from cost_models.specs.training import TrainingSpec

TOKENS, HIDDEN = 2048, 12288


def asked(stack: str, precision: str = "fp16", **facts: Any) -> Question:
    return Question(
        model=catalog.load_model("gpt3-175b"),
        cluster=catalog.load_cluster("dgx-a100-80gb").model_copy(update={"nodes": 8}),
        training=TrainingSpec(global_batch=64, sequence_length=TOKENS, precision=precision),
        stack=catalog.load_stack(stack).model_copy(update=facts),
        hardware=catalog.load_profile("datasheet-gpu"),
    )


def columns(layout: str) -> LayoutColumns:
    return LayoutColumns.of([parse_layout(layout)])


@pytest.mark.parametrize("sp", ["", " sp"])
def test_inputs_gradients_are_summed_behind_weights_gradients(sp: str) -> None:
    """Both sums of a block's backward pass: two of four that it makes, or with sequence parallelism two of eight."""
    layout = parse_layout(f"tp8 pp8{sp}")
    waits, hides = (
        estimate(asked("megatron-2022", reduces_behind_weight_products=way), layout) for way in (False, True)
    )
    everything = [one.time["tp_comm"] + one.hidden_comm["tp_comm"] for one in (waits, hides)]
    assert everything[0] == pytest.approx(everything[1])
    assert (1.2 if sp else 1.4) < waits.time["tp_comm"] / hides.time["tp_comm"] < (1.4 if sp else 2.1)


def test_gradients_are_in_16_bits_in_fp16_alone() -> None:
    for precision, held in (("fp16", 2.0), ("bf16", 4.0)):
        assert state_bytes(asked("megatron-2021", precision), columns("tp8 pp8")).gradients == held


def test_products_add_to_fp32_gradients_only_in_2022() -> None:
    """In fp16 a kernel reads two tensors of 16 bits and writes one, for every microbatch."""
    for stack, precision, moved in (
        ("megatron-2022", "fp16", 6.0),
        ("megatron-2022", "bf16", 0.0),
        ("megatron-2023", "fp16", 0.0),
        ("megatron-2021", "fp16", 6.0 * 63 / 64),
    ):
        question = asked(stack, precision)
        assert gradient_accumulation_bytes(question, columns("tp8 pp8")) == pytest.approx(moved), stack


def test_biases_and_copies_around_attention_take_passes() -> None:
    """Of a rank's eighth: 3h of queries, keys and values, 4h of the MLP; output biases are whole."""
    plain: dict[str, Any] = {"separate_biases": False, "attention_copies": (0.0, 0.0)}
    more, less = (block_traffic(asked("megatron-2021", **facts), columns("tp8 pp8")) for facts in ({}, plain))
    numbers, element = TOKENS * HIDDEN, 2
    added, copied = 2 * 3 / 8, 2 * 1 / 8
    assert more.moved[0] - less.moved[0] == pytest.approx(numbers * element * (added + copied))
    summed, copied = (3 + 4) / 8 + 2, 2 * 4 / 8
    assert more.moved[1] - less.moved[1] == pytest.approx(numbers * element * (summed + copied))
