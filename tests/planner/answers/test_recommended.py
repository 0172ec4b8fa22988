"""The recommended layout: simple, roomy, proved within its kind, chosen by scenarios where the model cannot tell."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from asking import ask, change
from small import small_question

from cost_models.axes.layout import parse_layout
from cost_models.estimate import Estimate, chance_of_gain, pair_error_of
from cost_models.pipeline.pricing import estimate
from cost_models.question import Question
from cost_models.risk import FITTING, RISKS
from cost_models.specs.hardware import Scenarios
from planner.answers.recommend import LEAST_MEAN_GAIN, Recommendation, count_near, middle_seconds, recommend
from planner.formats.registry import exporter_of
from planner.formats.trainers import refusals
from planner.plan import Plan, load_plan, make_plan, save_plan
from planner.search.branching import MAX_COMPARED
from planner.search.search import Budget, search
from planner.space.restrictions import Restrictions, parse_restrictions
from planner.verify.plans import verify


def gpt3(gpus: int = 1024) -> Question:
    return ask("gpt3-175b", "dgx-a100-80gb", gpus, global_batch=1536, sequence_length=2048)


def with_pair_error(question: Question, error: float) -> Question:
    return change(question, hardware={"pair_error": error})


def recommended(question: Question, budget: Budget | None = None) -> Recommendation:
    found = recommend(question, search(question, top=1), Restrictions(), budget or Budget())
    assert found is not None
    return found


def chance_between(slower: Estimate, faster: Estimate, error: float) -> float:
    gain = math.log(slower.step_seconds / faster.step_seconds)
    return chance_of_gain(gain, slower.layout, faster.layout, error)


@pytest.fixture(scope="module")
def told() -> Recommendation:
    return recommended(gpt3())


def test_the_stacks_own_trainer_can_run_it_though_it_cannot_run_the_fastest() -> None:
    job = {"global_batch": 1024, "sequence_length": 8192}
    question = ask("llama3-70b", "dgx-h100", 64, stack="megatron-core", **job)
    answer = recommended(question)
    assert refusals("megatron", question, answer.fastest.estimate.layout)
    assert not refusals("megatron", question, answer.estimate.layout)
    assert answer.classical is not None
    assert not refusals("megatron", question, answer.classical.estimate.layout)


def test_it_surely_fits_and_is_judged_by_the_whole_device(told: Recommendation) -> None:
    assert told.estimate.fits_probability >= FITTING
    assert told.estimate.memory_limit == estimate(gpt3(), told.estimate.layout).memory_limit
    assert not told.is_risky


def test_who_writes_a_recommendation(told: Recommendation) -> None:
    assert exporter_of(make_plan(gpt3(), told.estimate)) == ("megatron", "")
    mixed = {"recompute": ("full:1", *["none"] * 95), "pp": 8, "vpp": 12}
    uneven = replace(told.estimate, layout=told.estimate.layout.model_copy(update=mixed))
    _, why = exporter_of(make_plan(gpt3(), uneven))
    assert why.startswith("Megatron recomputes the same on every stage")


def test_a_device_filled_to_the_brim_is_not_worth_a_gain_that_may_be_none() -> None:
    """Only mbs is free, so that the fastest on paper fills the device and differs on that axis alone."""
    limits = parse_restrictions(("tp=8", "pp=4", "vpp=12", "cp=1"), ("shard", "recompute=selective,full"))
    question = with_pair_error(gpt3(), 0.2)
    found = search(question, top=1, restrictions=limits)
    told = recommend(question, found, limits, Budget())
    assert told is not None
    assert told.fastest.axes in ((), ("mbs",))
    assert told.estimate.fits_probability >= FITTING
    assert told.estimate.peak_bytes <= told.fastest.estimate.peak_bytes


def test_it_is_the_optimum_of_its_kind(told: Recommendation) -> None:
    again = search(gpt3(), top=1, restrictions=told.within)
    assert told.certificate.gap == again.certificate.gap == 0
    assert again.best.layout == told.estimate.layout


def test_a_model_that_errs_little_recommends_the_fastest() -> None:
    roomy = replace(gpt3(), confidence=0.95)  # so that the fastest is not passed over for its memory
    told = recommended(with_pair_error(roomy, 1e-4))
    assert told.is_fastest
    assert told.estimate.layout == told.fastest.estimate.layout


def test_the_chance_of_a_gain_is_three_in_four_at_the_median_error(told: Recommendation) -> None:
    fast = replace(told.estimate, step_seconds=1.0, layout=parse_layout("tp8 pp8 dp16"))
    slow = replace(fast, step_seconds=1.0618365, layout=parse_layout("tp8 pp4 dp32"))  # e^0.06
    assert chance_between(fast, fast, 0.06) == 0.5
    assert chance_between(slow, fast, 0.06) == pytest.approx(0.75, abs=1e-3)
    apart = replace(slow, layout=parse_layout("tp4 pp4 vpp2 dp32 cp2"))
    assert chance_between(apart, fast, 0.03) == pytest.approx(0.75, abs=1e-3)  # four axes: twice the error


def test_the_averse_judge_by_slow_cases_and_the_neutral_by_the_mean(told: Recommendation) -> None:
    scenarios = Scenarios(factors={"network_efficiency": "0.5 2.0"}, unexplained=0.05)
    question = change(gpt3(), hardware={"scenarios": scenarios})
    layout = told.estimate.layout
    paper, mean, slow = (estimate(replace(question, risk=risk), layout).compared_seconds for risk in RISKS)
    assert paper == told.estimate.step_seconds
    assert paper < mean < slow  # a network half as fast costs more than one twice as fast saves
    without = change(question, hardware={"scenarios": None})
    assert estimate(replace(without, risk="averse"), layout).compared_seconds == paper


def test_no_layout_within_the_models_error_is_left_uncounted() -> None:
    question = small_question(4, "220 MiB")
    every = search(question, top=10**6).estimates
    best, share = every[0].step_seconds, pair_error_of(question)
    found = search(question, top=1)
    near = count_near(question, Restrictions(), found, Budget())
    anew = count_near(question, Restrictions(), replace(found, searches=()), Budget())
    assert near == anew
    assert near is not None
    close = sum(one.step_seconds < best * (1 + share) for one in every)
    assert close > 1
    assert close <= near <= len(every) + 100
    alone = count_near(question, parse_restrictions(["tp=1", "pp=1"]), replace(found, searches=()), Budget())
    assert alone is not None
    assert alone <= near


SLOW_HOSTS = Scenarios(factors={"tensor_parallel_host_seconds": "1 50 100 200"}, unexplained=0.6)
"""Hosts that may be far slower with tensor parallelism than on paper."""


def with_scenarios(question: Question, told: Scenarios | None) -> Question:
    return change(question, hardware={"scenarios": told})


@pytest.fixture(scope="module")
def asked() -> Question:
    return with_scenarios(small_question(4, "400 MiB"), SLOW_HOSTS)


@pytest.fixture(scope="module")
def chosen(asked: Question) -> Recommendation:
    found = recommend(asked, search(asked, top=1), Restrictions(), Budget())
    assert found is not None
    return found


@pytest.fixture(scope="module")
def plan(asked: Question, chosen: Recommendation) -> Plan:
    written = chosen.for_file(Restrictions(), 1)
    return make_plan(asked, chosen.estimate, chosen.certificate, chosen.within, recommendation=written)


def test_the_least_middle_of_the_near_layouts_is_recommended(asked: Question, chosen: Recommendation) -> None:
    """On paper tensor parallelism is fastest; where hosts are slow at it, it is not."""
    choice = chosen.choice
    assert choice is not None
    assert (choice.first.tp, chosen.estimate.layout.tp) == (2, 1)
    assert choice.first_seconds < chosen.estimate.step_seconds <= choice.first_seconds * (1 + choice.share)
    assert choice.share == SLOW_HOSTS.unexplained
    own, first = (middle_seconds(asked, one) for one in (chosen.estimate.layout, choice.first))
    assert (choice.middle_seconds, choice.first_middle_seconds) == (own, first)
    assert own < first * (1 - LEAST_MEAN_GAIN)
    kind = search(asked, top=30, restrictions=chosen.within)
    assert kind.best.layout == choice.first
    assert chosen.certificate.bound == kind.certificate.bound == choice.first_seconds
    near = [one for one in kind.estimates if one.step_seconds < choice.first_seconds * (1 + choice.share)]
    assert own <= min(middle_seconds(asked, one.layout) for one in near[:MAX_COMPARED]) * (1 + 1e-9)


def test_the_choice_is_in_the_plan_file(plan: Plan, tmp_path_factory: pytest.TempPathFactory) -> None:
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
    checks = verify(plan.model_copy(update={"recommendation": told}))
    wrong = {one.name: one.what for one in checks if not one.passed}
    assert wrong.keys() == {"recommendation"}
    assert "`choice.middle_seconds` says 0.001" in wrong["recommendation"]
