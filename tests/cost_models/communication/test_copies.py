"""What gathering and exchanging costs a CPU: copies by hand, waits in full, and nothing where nobody is there."""

from __future__ import annotations

import numpy as np
import pytest

from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import parse_layout
from cost_models.compute.measured_operators import gathering_seconds, measured_block
from cost_models.files import catalog
from cost_models.pipeline.pricing import estimate
from cost_models.question import Question
from cost_models.specs.hardware import CurvePoint, OperatorCurve
from cost_models.specs.training import TrainingSpec
from cost_models.specs.transformer import TransformerSpec

COPY = 1e-9
"""Seconds of an element."""


@pytest.fixture(scope="module")
def question() -> Question:
    points = tuple(CurvePoint(size=size, seconds=COPY * size) for size in (1.0, 1e9))
    curve = OperatorCurve(operator="copy", forward=points)
    model = TransformerSpec.model_validate(
        {"num_layers": 2, "hidden_size": 64, "num_heads": 4, "vocab_size": 1000}
    )
    return Question(
        model=model,
        cluster=catalog.local_cluster(4),
        training=TrainingSpec(global_batch=8, sequence_length=32, precision="fp32"),
        stack=catalog.load_stack("meshwright"),
        hardware=catalog.load_profile("datasheet-cpu").model_copy(update={"operators": (curve,)}),
    )


def columns(*layouts: str) -> LayoutColumns:
    return LayoutColumns.of([parse_layout(layout) for layout in layouts])


def test_each_all_reduce_copies_the_activations_and_each_exchange_along_the_sequence(question) -> None:
    """32 tokens of 64: two all-reduces in a pass, or two gathers and two scatters."""
    passes = measured_block(question, columns("dp2", "tp2", "tp2 sp"))
    assert passes[0] == pytest.approx(COPY * 32 * 64 * np.array([0, 2, 4]))
    assert passes[1] == pytest.approx(COPY * 32 * 64 * np.array([0, 2, 4]))


def test_gathered_weights_are_copied_in_every_pass_and_gradients_once_a_step(question) -> None:
    """8 sequences over two ranks: four microbatches of one."""
    layouts = columns("dp2 zero3", "dp2 zero2", "zero3", "dp4 zero3 shard2")
    passes = gathering_seconds(question, layouts, np.full(4, 1000.0))
    assert passes[0] == pytest.approx(COPY * np.array([1500, 0, 0, 1500]))
    assert passes[1] == pytest.approx(COPY * np.array([1500 + 250, 0, 0, 1500 + 500]))


def test_a_cpu_waits_for_every_gather(question) -> None:
    """It has no streams to gather in behind its compute: nothing of the gathers is hidden."""
    priced = estimate(question, parse_layout("dp2 zero3"))
    assert priced.hidden_comm["dp_comm"] == 0.0
    gathers = 2 * 2 * 4  # blocks, passes, microbatches
    assert priced.time["dp_comm"] > gathers * question.hardware.collective_seconds
