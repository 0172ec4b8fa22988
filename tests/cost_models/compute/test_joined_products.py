"""Products of a parallel block that run as one: their shapes, what they save by hand, and what stays apart."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import Layout
from cost_models.compute.gemm import device_of, gemm_seconds, matrix_seconds, product_operators
from cost_models.defaults import complete_question
from cost_models.files import catalog
from cost_models.files.loading import resolve_cluster
from cost_models.question import Question
from cost_models.specs.training import TrainingSpec

TP, TOKENS, HIDDEN = 8, 4096, 12288
COLUMNS = LayoutColumns.of([Layout(tp=TP, dp=1, mbs=2, zero=1, sp=True)])


def asked(*, joins: bool, **model: Any) -> Question:
    """GPT-3 175B in a node of A100s, blocks side by side unless told otherwise."""
    training = TrainingSpec(global_batch=2, sequence_length=TOKENS // 2)
    question = complete_question(
        catalog.load_model("gpt3-175b").model_copy(update={"parallel_block": True} | model),
        resolve_cluster("dgx-a100-80gb", TP),
        training,
        stack="megascale",
    )
    stack = question.stack.model_copy(update={"joins_parallel_products": joins})
    return replace(question, stack=stack)


def names(question: Question) -> list[str]:
    return [
        one.name
        for one, _ in product_operators(question.model, joined=question.stack.joins_parallel_products)
    ]


def test_two_products_are_left_of_four() -> None:
    question = asked(joins=True)
    assert names(question) == ["queries, keys, values, mlp up", "output projection, mlp down"]
    apart, joined = (
        sum(one.flops for one, _ in product_operators(question.model, joined=way)) for way in (False, True)
    )
    assert joined == apart


def test_their_seconds_by_hand() -> None:
    """Into the block 3h + 4h columns of a rank, out of it h + 4h inner: forward, towards inputs and towards weights."""
    question = asked(joins=True)
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


def test_waves_are_filled_once() -> None:
    """On 108 multiprocessors 576 and 768 tiles take 6 and 8 waves, together 13: a fourteenth less into the block."""
    apart, joined = (
        matrix_seconds(question, COLUMNS, device_of(question))
        for question in (asked(joins=False), asked(joins=True))
    )
    assert 0.9 * apart[0] < joined[0] < 0.97 * apart[0]
    assert joined[1] < apart[1]


@pytest.mark.parametrize(
    ("model", "left"),
    [
        ({"parallel_block": False}, ["queries, keys, values", "output projection", "mlp up", "mlp down"]),
        ({"parallel_norms": 2}, ["queries, keys, values", "mlp up", "output projection, mlp down"]),
    ],
)
def test_what_reads_other_inputs_stays_apart(model: dict[str, Any], left: list[str]) -> None:
    assert names(asked(joins=True, **model)) == left


def test_a_mixture_stays_as_it_is() -> None:
    model = catalog.load_model("mixtral-8x7b").model_copy(update={"parallel_block": True})
    assert product_operators(model, joined=True) == product_operators(model, joined=False)
