"""What questions differ in is named, field by field where the names are the same."""

from __future__ import annotations

from dataclasses import replace

import pytest
from small import small_question

from cost_models.question import Question
from planner.explain.compare import compare, differences, same_work
from planner.search.search import search

QUESTION = small_question()


def _with(**training: object) -> Question:
    return replace(QUESTION, training=QUESTION.training.model_copy(update=training))


@pytest.mark.parametrize(
    ("other", "told", "same"),
    [
        (QUESTION, {}, True),
        (small_question(8), {"GPUs": ("4", "8")}, True),
        (_with(global_batch=16), {"global batch": ("8", "16")}, False),
        (
            _with(sequence_length=128, global_batch=16),
            {"global batch": ("8", "16"), "sequence": ("256", "128")},
            True,
        ),
        (_with(precision="fp32"), {"precision": ("bf16", "fp32")}, True),
        (_with(dropout=0.1), {"dropout": ("0.0", "0.1")}, True),
        (_with(tokens=1e9, recompute=("full",)), {}, True),
        (small_question(stack="nemo"), {"stack": ("megatron-core", "nemo")}, True),
        (
            replace(QUESTION, model=QUESTION.model.model_copy(update={"num_layers": 8})),
            {"model num layers": ("4", "8")},
            False,
        ),
        (
            replace(QUESTION, model=QUESTION.model.model_copy(update={"name": "other"})),
            {"model": ("small", "other")},
            True,
        ),
    ],
)
def test_what_differs_is_named(other: Question, told: dict[str, tuple[str, ...]], same: bool) -> None:
    found = differences([QUESTION, other])
    names = {one.what: one.values for one in found if one.what != "profile"}
    assert names == told
    assert same_work([QUESTION, other]) == same


def test_parts_of_different_work_are_shares_of_their_steps() -> None:
    other = _with(global_batch=16)
    estimates = [search(question, top=1).best for question in (QUESTION, other)]
    lines = compare(estimates, [QUESTION, other])
    for column in (0, 1):
        assert sum(line.values[column] for line in lines if line.group == "time") == pytest.approx(1.0)
    step = next(line for line in lines if line.name == "step")
    assert not step.comparable
    assert all(line.comparable for line in lines if line.unit == "share")
