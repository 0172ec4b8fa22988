"""What-if searches that start from the bounds of the question before: exact, and sparing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from brute import Everything
from questions import base, building_base

from cost_models.defaults import complete_question
from cost_models.estimate import Estimate
from cost_models.files.loading import resolve_cluster, resolve_model, resolve_training
from cost_models.pipeline.pricing import estimate as price
from cost_models.question import Question
from cost_models.specs.choices import RECOMPUTE_POLICIES
from planner.bounds.cores import ideal_seconds, relaxed_bounds
from planner.explain.reasons import CHANGES, QUANTITIES, Change, faster_under, seconds_to_beat
from planner.search.search import Budget, place_layout, search
from planner.space.restrictions import Restrictions
from planner.space.space import Space, legal_space

FREE = Restrictions()
EVERY_CHANGE = [
    *CHANGES.values(),
    *(Change(quantity, factor) for quantity in QUANTITIES for factor in (0.75, 8.0)),
]
LAYOUTS = 3


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


@pytest.mark.parametrize("found", [*map(base, (1, 5)), building_base(0)])
def test_bounds_that_outlive_a_change_are_below_every_step(found: Everything) -> None:
    question = _of(found)
    rng, space = np.random.default_rng(0), _bounded(question)
    rows, core = space.all_rows(), np.repeat(np.arange(len(space.cores)), space.sizes)
    some = rng.choice(len(core), min(LAYOUTS, len(core)), replace=False).tolist()
    for change in EVERY_CHANGE:
        if (changed := change.apply(question)) is None:
            continue
        least = change.least_seconds(space, FREE)
        for row in some:
            priced = price(changed, place_layout(changed, rows.layout(row)))
            assert least[core[row]] <= priced.step_seconds * (1 + 1e-9), (change, priced.layout)


@pytest.mark.parametrize("found", [base(1), building_base(0)])
def test_a_search_from_known_bounds_agrees_with_the_whole_one(found: Everything) -> None:
    question = _of(found)
    space, plan = _bounded(question), search(question, top=1).best
    for change in CHANGES.values():
        if (changed := change.apply(question)) is not None:
            below = seconds_to_beat(price(changed, plan.layout)) * (1 - 1e-9)
            sparing = faster_under(change, (question, changed), FREE, below, space, Budget())
            whole = _fastest(changed, below)
            assert (sparing and sparing.step_seconds) == pytest.approx(whole and whole.step_seconds)


def test_cores_that_cannot_win_are_not_bounded_again() -> None:
    question = complete_question(
        resolve_model("megatron-18b").spec,
        resolve_cluster("dgx-a100-80gb", 16),
        resolve_training(None, global_batch=64, sequence_length=2048),
    )
    space, best = _bounded(question), search(question, top=1).best.step_seconds
    for change in (Change("inter-node bandwidth", 0.99), Change("compute efficiency", 1.01)):
        kept = change.least_seconds(space, FREE) < best / change.factor
        assert kept.sum() < len(space.cores) / 3


def test_a_space_remembers_the_bounds_of_its_cores() -> None:
    question = base(1).question
    space = legal_space(question, FREE)
    first = ideal_seconds(space, _allowed(question))
    assert ideal_seconds(space, _allowed(question)) is first
    assert ideal_seconds(space.with_question(question), _allowed(question)) is not first
