"""Tensors of stage boundaries that a rank holds, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from cost_models.arrays import Array
from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import parse_layout
from cost_models.defaults import complete_question
from cost_models.files import catalog
from cost_models.memory.activations import boundary_bytes
from cost_models.specs.training import TrainingSpec

STREAM = 1024 * 1600 * 2.0
"""Bytes of the stream of a microbatch of GPT-2 XL in bf16."""


def held(stack: str, *layouts: str) -> tuple[Array, Array, Array]:
    """Bytes of every rank, of the first and of the last besides, of a batch of 16 sequences."""
    cluster = catalog.load_cluster("dgx-h100").model_copy(update={"nodes": 1})
    training = TrainingSpec(global_batch=16, sequence_length=1024)
    question = complete_question(catalog.load_model("gpt2-xl"), cluster, training, stack=stack)
    return boundary_bytes(question, LayoutColumns.of([parse_layout(layout) for layout in layouts]))


def test_a_rank_has_a_buffer_each_way() -> None:
    """Of its part of the stream with sequence parallelism; none without a pipeline."""
    every, first, last = held("megatron-core", "pp4 dp2 mbs1", "tp2 pp4 dp1 mbs1 sp", "dp8 mbs1 zero1")
    assert every == pytest.approx([2 * STREAM, STREAM, 0])
    assert not first.any()
    assert not last.any()


def test_torch_keeps_what_it_received_and_with_chunks_what_it_sent() -> None:
    """Eight microbatches of a stage: one tensor each. With two chunks a rank three for each stage, less the gradients
    that do not exist yet; the last rank sends nothing on and receives no gradients, the first sends none back."""
    every, first, last = held(
        "meshwright", "pp4 dp2 mbs1", "pp4 vpp2 dp2 mbs1", "pp4 dp2 mbs1 schedule=zero-bubble"
    )
    chunked = 3 * 2 * 8 - 2 * (4 + 1)
    split = 4 * 8 - (3 - 2) * 4
    np.testing.assert_allclose(every / STREAM, [8, chunked, split])
    np.testing.assert_allclose(first / STREAM, [0, -8, -2 * 8])
    np.testing.assert_allclose(last / STREAM, [-8, -2 * 8, -2 * 8])
