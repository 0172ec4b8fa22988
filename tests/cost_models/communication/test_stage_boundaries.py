"""What goes from a pipeline stage to the next, and what the head and the embedding send, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import Layout
from cost_models.communication.by_axis import boundary_seconds, tensor_seconds
from cost_models.communication.collectives import (
    all_gather_seconds,
    all_reduce_seconds,
    point_to_point_seconds,
    reduce_scatter_seconds,
)
from cost_models.communication.topology import axis_groups
from cost_models.defaults import complete_question
from cost_models.files import catalog
from cost_models.question import Question
from cost_models.specs.training import TrainingSpec

MESSAGE = 4096 * 4096 * 2.0
"""Bytes of the stream of a microbatch: 4,096 tokens of 4,096 numbers in bf16."""


def asked(stack: str) -> Question:
    cluster = catalog.load_cluster("dgx-h100").model_copy(update={"nodes": 2})
    training = TrainingSpec(global_batch=8, sequence_length=4096)
    return complete_question(catalog.load_model("llama3-8b"), cluster, training, stack=stack)


@pytest.mark.parametrize("stack", ["megatron-core", "megatron-2021"])
def test_a_stage_hands_on_its_part_of_the_stream(stack: str) -> None:
    """With sequence parallelism each tensor rank sends its tokens. Without, it sends all, unless the stack scatters
    them before and gathers them behind."""
    question = asked(stack)
    columns = LayoutColumns.of([Layout(tp=8, pp=2, sp=True), Layout(tp=8, pp=2), Layout(tp=8, dp=2)])
    groups, profile = axis_groups(question.cluster, columns), question.hardware
    part = point_to_point_seconds(MESSAGE / 8, groups.pp, profile)
    other = point_to_point_seconds(MESSAGE, groups.pp, profile)
    if stack == "megatron-2021":
        other = part + all_gather_seconds(MESSAGE, groups.tp, profile)
    np.testing.assert_allclose(boundary_seconds(question, columns, groups), [part[0], other[1], 0.0])
    assert part[0] < other[1]


def test_head_and_embedding_gather_and_scatter_with_sequence_parallelism_and_sum_without() -> None:
    question = asked("megatron-core")
    columns = LayoutColumns.of([Layout(tp=8, dp=2, sp=True), Layout(tp=8, dp=2)])
    group, profile = axis_groups(question.cluster, columns).tp, question.hardware
    found = tensor_seconds(question, columns, group)
    gather, scatter, total = (
        send(MESSAGE, group, profile)
        for send in (all_gather_seconds, reduce_scatter_seconds, all_reduce_seconds)
    )
    np.testing.assert_allclose(found.embedding_forward, [scatter[0], total[1]])
    np.testing.assert_allclose(found.embedding_backward, [gather[0], 0.0])
    np.testing.assert_allclose(found.head_forward, [gather[0], 0.0])
    np.testing.assert_allclose(found.head_backward, [scatter[0], total[1]])
    assert scatter[0] < total[1]
