"""Several clusters: the ranking is that of searches one by one, and the frontier what none of them beats."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from asking import change
from small import small_question

from cost_models.errors import InfeasibleError, RunError
from cost_models.question import Question
from planner.answers.optimum import Offer, Optimum, Ranking, offers_of, optimise, rank_offers
from planner.objectives import Objective
from planner.plan import make_plan
from planner.search.search import Budget
from planner.verify.plans import verify

COST = Objective(name="cost")


def question(name: str, memory: str = "1 GiB", speed: float = 1.0) -> Question:
    """A small model on a cluster of that name, whose GPUs are so many times as fast."""
    asked = small_question(4, memory, tokens=1e9)
    gpu = asked.cluster.gpu
    peak = {precision: rate * speed for precision, rate in gpu.peak.items()}
    return change(asked, cluster={"name": name, "gpu": gpu.model_copy(update={"peak": peak})})


def offers() -> tuple[Offer, Offer]:
    """A slow one, and one that is faster and dearer."""
    return (
        Offer(question=question("slow"), sizes=(1, 2, 4), price=1.0),
        Offer(question=question("fast", speed=4.0), sizes=(1, 2, 4), price=2.0),
    )


def one_by_one(objective: Objective) -> list[tuple[Offer, Optimum]]:
    return [
        (offer, optimise(offer.question, replace(objective, price=price), sizes=(size,), top=1))
        for offer in offers()
        for size in offer.sizes
        for price in [offer.price if objective.name == "cost" else None]
    ]


def ranked(objective: Objective, budget: Budget | None = None) -> Ranking:
    return rank_offers(offers(), objective, budget=budget)


@pytest.mark.parametrize("name", ["time", "cost", "mfu", "gpu-hours"])
def test_the_best_is_the_best_of_all_asked_one_by_one(name: str) -> None:
    objective = Objective(name=name)  # type: ignore[arg-type]
    ranking, apart = ranked(objective), one_by_one(objective)
    losses = sorted(objective.measure.loss(optimum.value) for _, optimum in apart)
    assert [objective.measure.loss(one.optimum.value) for one in ranking.answers] == pytest.approx(losses)
    assert ranking.gap <= 2e-9
    assert not ranking.left_out


def test_places_are_those_that_the_optima_may_have() -> None:
    """Of random gaps: drawn between bound and value, optima are ranked at every place that is said and at no other."""
    rng, exact = random.Random(0), ranked(COST)
    for _ in range(20):
        gaps = [rng.choice([0.0, rng.uniform(0.0, 0.6)]) for _ in exact.answers]
        unproved = tuple(
            replace(one, optimum=replace(one.optimum, bound=one.optimum.value * (1 - gap)))
            for one, gap in zip(exact.answers, gaps, strict=True)
        )
        ranking = replace(exact, answers=unproved)
        seen: list[set[int]] = [set() for _ in unproved]
        for row, one in enumerate(unproved):
            for end in (one.optimum.bound, one.optimum.value):
                others = [other.optimum for place, other in enumerate(unproved) if place != row]
                least = sum(other.value < end for other in others)
                most = sum(other.bound < end for other in others)
                seen[row] |= {1 + least, 1 + most}
        assert [ranking.places(one) for one in unproved] == [(min(each), max(each)) for each in seen]
    assert [exact.places(one) for one in exact.answers] == [(n, n) for n in range(1, len(exact.answers) + 1)]


def test_days_and_cost_are_those_of_the_cluster_and_its_price() -> None:
    for one in ranked(COST).answers:
        asked, step, plain = one.optimum.question, one.optimum.result.best.step_seconds, Objective()
        assert one.days == pytest.approx(plain.training_seconds(asked, step) / 86400)
        assert one.cost == pytest.approx(
            Objective().gpu_hours(asked, step) * {"slow": 1.0, "fast": 2.0}[one.offer.name]
        )


def test_nothing_beats_the_frontier_in_both() -> None:
    ranking = ranked(Objective())
    frontier = ranking.frontier
    points = [(one.days or 0.0, one.cost or 0.0) for one in frontier]
    assert points == sorted(points)
    assert [cost for _, cost in points] == sorted((cost for _, cost in points), reverse=True)
    for one in ranking.answers:
        better = [p for p in points if p[0] <= (one.days or 0.0) and p[1] <= (one.cost or 0.0)]
        assert better, "what is not of the frontier is beaten by it"


def test_who_misses_the_deadline_is_left_out_with_the_days_it_takes() -> None:
    soonest = min(one.days or 0.0 for one in ranked(COST).answers)
    late = replace(COST, deadline=1.05 * soonest * 86400)
    ranking = ranked(late)
    assert ranking.best.offer.name == "fast"
    assert {(name, gpus) for name, gpus, _ in ranking.left_out} >= {("slow", 1), ("slow", 4)}
    assert all(why.startswith("at least ") for *_, why in ranking.left_out)
    with pytest.raises(InfeasibleError, match="on any of these clusters") as caught:
        ranked(replace(COST, deadline=0.5 * soonest * 86400))
    assert len(caught.value.problems) == 6


def test_what_time_did_not_reach_leaves_the_answer_open() -> None:
    with pytest.raises(RunError, match="time ran out"):
        ranked(COST, Budget(time_limit=0.0))
    whole = ranked(COST)
    stopped = replace(whole, unanswered=1)
    assert stopped.gap == 1
    assert stopped.bound == 0


def test_a_plan_file_names_the_clusters_and_is_verified_over_them() -> None:
    ranking = ranked(COST)
    optimum = ranking.best.optimum
    objective = optimum.for_file(4)
    assert objective is not None
    written = objective.model_copy(update={"offers": tuple(offer.for_file for offer in ranking.offers)})
    plan = make_plan(optimum.question, optimum.result.best, optimum.result.certificate, None, written)
    assert [(one.name, one.sizes, one.price) for one in offers_of(plan)] == [
        ("slow", (1, 2, 4), 1.0),
        ("fast", (1, 2, 4), 2.0),
    ]
    (check,) = [check for check in verify(plan) if check.name == "clusters"]
    assert check.passed
    cheap = written.model_copy(
        update={"offers": tuple(one.model_copy(update={"price": 0.01}) for one in written.offers)}
    )
    (check,) = [one for one in verify(plan.model_copy(update={"objective": cheap})) if one.name == "clusters"]
    assert check.passed is False
