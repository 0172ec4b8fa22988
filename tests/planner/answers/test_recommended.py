"""The recommended layout: simple, roomy, proved within its kind, and never far from the fastest on paper."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from small import small_question

from cost_models.axes.layout import parse_layout
from cost_models.defaults import complete_question
from cost_models.estimate import CLEAR, Estimate, chance_of_gain, pair_error_of
from cost_models.files import catalog
from cost_models.files.loading import resolve_cluster
from cost_models.pipeline.pricing import estimate
from cost_models.question import Question
from cost_models.risk import FITTING, RISKS
from cost_models.specs.hardware import Scenarios
from cost_models.specs.training import TrainingSpec
from planner.answers import recommend as module
from planner.answers.recommend import (
    LayoutKind,
    Recommendation,
    classical_layout,
    count_near,
    layout_kinds,
    recommend,
)
from planner.formats.registry import exporter_of
from planner.formats.trainers import refusals
from planner.plan import make_plan
from planner.search.search import Budget, search
from planner.space.restrictions import Restrictions, parse_restrictions


def gpt3(gpus: int = 1024) -> Question:
    training = TrainingSpec(global_batch=1536, sequence_length=2048)
    return complete_question(
        catalog.load_model("gpt3-175b"), resolve_cluster("dgx-a100-80gb", gpus), training
    )


def with_pair_error(question: Question, error: float) -> Question:
    return replace(question, hardware=question.hardware.model_copy(update={"pair_error": error}))


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


def test_it_uses_no_axis_that_no_timed_run_used(told: Recommendation) -> None:
    layout = told.estimate.layout
    assert (layout.cp, layout.shard, layout.order) == (1, None, "tp-cp-dp-pp")
    assert set(told.estimate.layout.recompute) == {"none"}


def test_the_stacks_own_trainer_can_run_it_though_it_cannot_run_the_fastest() -> None:
    training = TrainingSpec(global_batch=1024, sequence_length=8192)
    question = complete_question(
        catalog.load_model("llama3-70b"), resolve_cluster("dgx-h100", 64), training, stack="megatron-core"
    )
    answer = recommended(question)
    assert refusals("megatron", question, answer.fastest.estimate.layout)
    assert not refusals("megatron", question, answer.estimate.layout)
    assert answer.classical is not None
    assert not refusals("megatron", question, answer.classical.estimate.layout)


def test_it_surely_fits_and_is_judged_by_the_whole_device(told: Recommendation) -> None:
    assert told.estimate.fits_probability >= FITTING
    assert told.estimate.memory_limit == estimate(gpt3(), told.estimate.layout).memory_limit
    assert not told.is_risky


def test_no_time_is_given_for_memory_that_nobody_needs() -> None:
    """gpt-oss on an NVL72: 4 % slower for 9 GiB less than fit anyhow."""
    question = complete_question(
        catalog.load_model("gpt-oss-120b"),
        resolve_cluster("gb200-nvl72", 72),
        TrainingSpec(global_batch=576, sequence_length=8192),
    )
    told = recommended(question)
    assert told.estimate.fits_probability >= FITTING
    assert told.gain < 0.02


@pytest.fixture(scope="module")
def sharded() -> tuple[Question, Recommendation]:
    """Llama 3 8B with FSDP on eight 4090."""
    question = complete_question(
        catalog.load_model("llama3-8b"),
        resolve_cluster("pcie-4090", 8),
        TrainingSpec(global_batch=64, sequence_length=4096),
        stack="fsdp",
    )
    return question, recommended(question)


def test_what_is_ordinary_is_the_stacks(sharded: tuple[Question, Recommendation]) -> None:
    question, told = sharded
    layout = told.estimate.layout
    assert (layout.tp, layout.pp, layout.dp, layout.zero, len(layout.recompute)) == (1, 1, 8, 3, 1)
    assert told.fastest.estimate.layout.pp > 1
    assert told.estimate.fits_probability >= FITTING
    classical = classical_layout(question, Restrictions().with_confidence(question, FITTING))
    assert classical is not None
    assert (classical.layout.brief) == "tp1 pp1 dp8 mbs1 zero3 recompute=full"
    assert told.classical is not None
    assert told.classical.axes == ()


def test_a_recommendation_says_who_writes_it(
    told: Recommendation, sharded: tuple[Question, Recommendation]
) -> None:
    assert exporter_of(make_plan(gpt3(), told.estimate)) == ("megatron", "")
    name, why = exporter_of(make_plan(sharded[0], sharded[1].estimate))
    assert (not name) == bool(why)
    question = gpt3()
    uneven = told.estimate.layout.model_copy(
        update={"recompute": ("full:1", *["none"] * 95), "pp": 8, "vpp": 12}
    )
    _, why = exporter_of(make_plan(question, replace(told.estimate, layout=uneven)))
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


def test_the_fastest_on_paper_stays_what_it_was(told: Recommendation) -> None:
    assert told.fastest.estimate.layout == search(gpt3(), top=1).best.layout
    assert 0 <= told.gain < 0.1
    assert 0.5 <= told.fastest.chance < CLEAR


def test_a_model_that_errs_little_recommends_the_fastest() -> None:
    roomy = replace(gpt3(), confidence=0.95)  # so that the fastest is not passed over for its memory
    told = recommended(with_pair_error(roomy, 1e-4))
    assert told.is_fastest
    assert told.estimate.layout == told.fastest.estimate.layout


def test_a_fastest_layout_of_the_simplest_kind_costs_no_more_searches() -> None:
    question = complete_question(
        catalog.load_model("gpt2-small"),
        resolve_cluster("dgx-a100-80gb", 8),
        TrainingSpec(global_batch=64, sequence_length=1024),
    )
    budget = Budget()
    limits = next(iter(layout_kinds(question, Restrictions()))).limits
    found = search(question, top=1, restrictions=limits)
    told = recommend(question, found, limits, budget)
    assert told is not None
    assert told.is_fastest
    assert budget.searches == 0


def test_what_the_user_fixed_is_kept() -> None:
    question = gpt3()
    cp = Restrictions(only={"cp": frozenset([2])})
    assert all(
        step.limits.only["cp"] == {2} and "cp" not in step.limits.unused
        for step in layout_kinds(question, cp)
    )


def test_the_chance_of_a_gain_is_three_in_four_at_the_median_error(told: Recommendation) -> None:
    fast = replace(told.estimate, step_seconds=1.0, layout=parse_layout("tp8 pp8 dp16"))
    slow = replace(fast, step_seconds=1.0618365, layout=parse_layout("tp8 pp4 dp32"))  # e^0.06
    assert chance_between(fast, fast, 0.06) == 0.5
    assert chance_between(slow, fast, 0.06) == pytest.approx(0.75, abs=1e-3)
    apart = replace(slow, layout=parse_layout("tp4 pp4 vpp2 dp32 cp2"))
    assert chance_between(apart, fast, 0.03) == pytest.approx(0.75, abs=1e-3)  # four axes: twice the error


def test_the_classical_layout_of_gpt3() -> None:
    question = gpt3()
    found = classical_layout(question, Restrictions())
    assert found is not None
    assert found.layout.brief == "tp8 pp8 vpp12 dp16 mbs1 zero1 sp"


def test_nothing_is_recommended_without_a_proof() -> None:
    question = gpt3(512)
    found = search(question, top=1)
    open_ = found.certificate.model_copy(update={"gap": 0.1})
    assert recommend(question, replace(found, certificate=open_), Restrictions(), Budget()) is None


def test_the_averse_judge_by_slow_cases_and_the_neutral_by_the_mean(told: Recommendation) -> None:
    question = gpt3()
    hardware = question.hardware.model_copy(
        update={"scenarios": Scenarios(factors={"network_efficiency": "0.5 2.0"}, unexplained=0.05)}
    )
    question = replace(question, hardware=hardware)
    layout = told.estimate.layout
    paper, mean, slow = (estimate(replace(question, risk=risk), layout).compared_seconds for risk in RISKS)
    assert paper == told.estimate.step_seconds
    assert paper < mean < slow  # a network half as fast costs more than one twice as fast saves
    without = replace(question, hardware=hardware.model_copy(update={"scenarios": None}), risk="averse")
    assert estimate(without, layout).compared_seconds == paper


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


@pytest.mark.parametrize(("refused", "chosen"), [(True, "simple"), (False, "all")])
def test_what_a_trainer_cannot_run_is_no_reason_for_a_harder_layout(
    refused: bool, chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # 10.8 s cannot be told from 10.4 s, nor that from 10 s, of which the trainer runs only the first two
    question, limits = small_question(), Restrictions()
    seconds = {"simple": 10.8, "all": 10.4}
    found: dict[str, Any] = {
        name: SimpleNamespace(best=SimpleNamespace(compared_seconds=value), estimates=(1,))
        for name, value in seconds.items()
    }
    reference, ranked = SimpleNamespace(compared_seconds=10.0), SimpleNamespace(best=None)

    def chance(_: Question, one: Any, other: Any) -> float:
        return 0.5 if one.compared_seconds < 1.05 * other.compared_seconds else 0.9

    each: dict[float | None, str] = {float(at): name for at, name in enumerate(seconds)}
    ladder = [LayoutKind(name, replace(limits, max_memory=float(at))) for at, name in enumerate(seconds)]
    monkeypatch.setattr(module, "layout_kinds", lambda *_: iter(ladder))
    monkeypatch.setattr(module, "fastest_feasible", lambda *_: reference)
    monkeypatch.setattr(module, "_slowest_competitive", lambda *_: math.inf)
    monkeypatch.setattr(module, "chance_faster", chance)
    monkeypatch.setattr(module, "_is_refused", lambda *_: refused)
    monkeypatch.setattr(module, "close_proof", lambda result: result)
    monkeypatch.setattr(Budget, "try_search", lambda _, __, within, **___: found[each[within.max_memory]])
    kind = module.simplest_competitive(question, ranked, limits, Budget())  # type: ignore[arg-type]
    assert kind is not None
    assert kind[0] is found[chosen]
    assert kind[1].words == chosen
