"""What questions differ in is named, and what-if searches that start from known bounds are exact."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from asking import change
from brute import Everything
from questions import base, building_base
from small import small_question

from cost_models.estimate import Estimate
from cost_models.pipeline.pricing import estimate as price
from cost_models.question import Question
from cost_models.specs.choices import RECOMPUTE_POLICIES
from planner.bounds.cores import relaxed_bounds
from planner.explain.compare import compare, differences, same_work
from planner.explain.reasons import CHANGES, QUANTITIES, Change, faster_under, seconds_to_beat
from planner.search.search import Budget, place_layout, search
from planner.space.restrictions import Restrictions
from planner.space.space import Space, legal_space

QUESTION = small_question()


def _with(**training: object) -> Question:
    return change(QUESTION, training=training)


HALVED = _with(sequence_length=128, global_batch=16)
"""Twice as many sequences of half the length."""


@pytest.mark.parametrize(
    ("other", "told", "same"),
    [
        (QUESTION, {}, True),
        (small_question(8), {"GPUs": ("4", "8")}, True),
        (_with(global_batch=16), {"global batch": ("8", "16")}, False),
        (HALVED, {"global batch": ("8", "16"), "sequence": ("256", "128")}, True),
        (_with(precision="fp32"), {"precision": ("bf16", "fp32")}, True),
        (_with(dropout=0.1), {"dropout": ("0.0", "0.1")}, True),
        (_with(tokens=1e9, recompute=("full",)), {}, True),
        (small_question(stack="nemo"), {"stack": ("megatron-core", "nemo")}, True),
        (change(QUESTION, model={"num_layers": 8}), {"model num layers": ("4", "8")}, False),
        (change(QUESTION, model={"name": "other"}), {"model": ("small", "other")}, True),
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


FREE = Restrictions()
EVERY_CHANGE = [
    *CHANGES.values(),
    *(Change(quantity, factor) for quantity in QUANTITIES for factor in (0.75, 8.0)),
]
LAYOUTS = 3
Bases = Callable[[int], Everything]


def _of(found: Everything) -> Question:
    """Its question under every recompute policy."""
    training = found.question.training.model_copy(update={"recompute": RECOMPUTE_POLICIES})
    return replace(found.question, training=training)


def _bounded(question: Question) -> Space:
    """The space of a question with all bounds of its cores known."""
    space = legal_space(question, FREE)
    relaxed_bounds(space, np.arange(len(space.cores)), _allowed(question), None)
    return space


def _allowed(question: Question) -> np.ndarray:
    return np.array([policy in FREE.recompute(question) for policy in RECOMPUTE_POLICIES])


def _fastest(question: Question, below: float) -> Estimate | None:
    return Budget().faster_than(below, question, FREE)


@pytest.mark.parametrize(("seed", "of"), [(1, base), (5, base), (0, building_base)])
def test_bounds_that_outlive_a_change_are_below_every_step(seed: int, of: Bases) -> None:
    question = _of(of(seed))
    rng, space = np.random.default_rng(0), _bounded(question)
    rows, core = space.all_rows(), np.repeat(np.arange(len(space.cores)), space.sizes)
    some = rng.choice(len(core), min(LAYOUTS, len(core)), replace=False).tolist()
    for what_if in EVERY_CHANGE:
        if (changed := what_if.apply(question)) is None:
            continue
        least = what_if.least_seconds(space, FREE)
        for row in some:
            priced = price(changed, place_layout(changed, rows.layout(row)))
            assert least[core[row]] <= priced.step_seconds * (1 + 1e-9), (what_if, priced.layout)


@pytest.mark.parametrize(("seed", "of"), [(1, base), (0, building_base)])
def test_a_search_from_known_bounds_agrees_with_the_whole_one(seed: int, of: Bases) -> None:
    question = _of(of(seed))
    space, plan = _bounded(question), search(question, top=1).best
    for what_if in CHANGES.values():
        if (changed := what_if.apply(question)) is not None:
            below = seconds_to_beat(price(changed, plan.layout)) * (1 - 1e-9)
            sparing = faster_under(what_if, (question, changed), FREE, below, space, Budget())
            whole = _fastest(changed, below)
            assert (sparing and sparing.step_seconds) == pytest.approx(whole and whole.step_seconds)
