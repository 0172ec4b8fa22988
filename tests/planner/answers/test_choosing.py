"""Among layouts that the model cannot tell apart the scenarios choose, and a plan file keeps why."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from small import small_question

from cost_models.question import Question
from cost_models.risk import interquartile_mean
from cost_models.specs.hardware import Scenarios
from planner.answers.recommend import (
    LEAST_MEAN_GAIN,
    Recommendation,
    choose_by_scenarios,
    max_slowdown,
    middle_seconds,
    recommend,
)
from planner.plan import Plan, load_plan, make_plan, save_plan
from planner.search.branching import MAX_COMPARED
from planner.search.search import Budget, search
from planner.space.restrictions import Restrictions
from planner.verify.plans import verify

SLOW_HOSTS = Scenarios(factors={"tensor_parallel_host_seconds": "1 50 100 200"}, unexplained=0.6)
"""Hosts that may be far slower with tensor parallelism than on paper."""


def with_scenarios(question: Question, told: Scenarios | None) -> Question:
    return replace(question, hardware=question.hardware.model_copy(update={"scenarios": told}))


@pytest.fixture(scope="module")
def asked() -> Question:
    return with_scenarios(small_question(4, "400 MiB"), SLOW_HOSTS)


@pytest.fixture(scope="module")
def told(asked: Question) -> Recommendation:
    found = recommend(asked, search(asked, top=1), Restrictions(), Budget())
    assert found is not None
    return found


@pytest.fixture(scope="module")
def plan(asked: Question, told: Recommendation) -> Plan:
    written = told.for_file(Restrictions(), 1)
    return make_plan(asked, told.estimate, told.certificate, told.within, recommendation=written)


def test_far_scenarios_do_not_move_the_middle() -> None:
    assert interquartile_mean(np.array([1e9, 2.0, 4.0, 1e-9])) == 3.0
    assert interquartile_mean(np.array([5.0])) == 5.0


def test_the_least_middle_of_the_near_layouts_is_recommended(asked: Question, told: Recommendation) -> None:
    """On paper tensor parallelism is fastest; where hosts are slow at it, it is not."""
    choice = told.choice
    assert choice is not None
    assert (choice.first.tp, told.estimate.layout.tp) == (2, 1)
    assert choice.first_seconds < told.estimate.step_seconds <= choice.first_seconds * (1 + choice.share)
    assert choice.share == SLOW_HOSTS.unexplained
    own, first = (middle_seconds(asked, one) for one in (told.estimate.layout, choice.first))
    assert (choice.middle_seconds, choice.first_middle_seconds) == (own, first)
    assert own < first * (1 - LEAST_MEAN_GAIN)
    kind = search(asked, top=30, restrictions=told.within)
    assert kind.best.layout == choice.first
    assert told.certificate.bound == kind.certificate.bound == choice.first_seconds
    near = [one for one in kind.estimates if one.step_seconds < choice.first_seconds * (1 + choice.share)]
    assert own <= min(middle_seconds(asked, one.layout) for one in near[:MAX_COMPARED]) * (1 + 1e-9)


@pytest.mark.parametrize("told", [None, SLOW_HOSTS])
def test_who_has_no_scenarios_or_weighs_them_chooses_on_paper(
    asked: Question, told: Scenarios | None
) -> None:
    question = with_scenarios(asked, told)
    question = replace(question, risk="none" if told is None else "averse")
    assert max_slowdown(question) is None
    assert choose_by_scenarios(question, Restrictions(), search(asked, top=1), Budget()) is None


def test_the_choice_is_in_the_plan_file_and_is_made_again(
    plan: Plan, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("choice") / "plan.yaml"
    save_plan(plan, path)
    read = load_plan(path)
    assert read.recommendation == plan.recommendation
    checks = {one.name: one for one in verify(read)}
    assert [one.what for one in checks.values() if not one.passed] == []
    assert checks["recommendation"].passed
    assert "recommended again" in checks["optimum"].what


def test_another_choice_than_would_be_made_fails(asked: Question, plan: Plan) -> None:
    assert plan.recommendation is not None
    assert plan.recommendation.choice is not None
    choice = plan.recommendation.choice.model_copy(update={"middle_seconds": 1e-3})
    told = plan.recommendation.model_copy(update={"choice": choice})
    wrong = {
        one.name: one.what
        for one in verify(plan.model_copy(update={"recommendation": told}))
        if not one.passed
    }
    assert wrong.keys() == {"recommendation"}
    assert "`choice.middle_seconds` says 0.001" in wrong["recommendation"]
