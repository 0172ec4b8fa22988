"""Explanations, comparisons and curves on a real question, small enough to be searched at once."""

from __future__ import annotations

import numpy as np
import pytest

from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import parse_layout
from cost_models.axes.stages import even_layers
from cost_models.defaults import complete_question
from cost_models.errors import InputError
from cost_models.estimate import Breakdown, Estimate
from cost_models.files.loading import resolve_cluster, resolve_model, resolve_training
from cost_models.pipeline.pricing import estimate as price
from cost_models.question import Question
from cost_models.risk import FITTING
from cost_models.specs.choices import RECOMPUTE_POLICIES
from planner.answers.frontier import pareto_rows
from planner.explain.compare import compare, difference
from planner.explain.reasons import (
    CHANGES,
    binding_constraint,
    complete_layout,
    sensitivities,
    ties_and_rival,
    why_not,
)
from planner.plan import PlanCache, make_plan
from planner.search.search import place_layout, scaling_sizes, search
from planner.space.restrictions import Restrictions, parse_restrictions
from planner.space.space import balanced_prices

SECONDS = 20.0


@pytest.fixture(scope="module")
def asked() -> Question:
    return complete_question(
        resolve_model("megatron-18b").spec,
        resolve_cluster("dgx-a100-80gb", 16),
        resolve_training(None, global_batch=64, sequence_length=2048),
    )


@pytest.fixture(scope="module")
def ranked(asked) -> tuple[Estimate, ...]:
    return search(asked, top=4, time_limit=SECONDS).estimates


def test_difference_sums_to_the_change_of_the_totals() -> None:
    before, after = Breakdown(compute=5.0, bubble=1.0), Breakdown(compute=4.0, tp_comm=3.0)
    change = difference(before, after)
    assert change.total == pytest.approx(after.total - before.total)
    assert list(change) == ["tp_comm", "compute", "bubble"]


def test_compared_parts_sum_to_their_totals(asked, ranked) -> None:
    lines = compare(ranked, [asked] * len(ranked))
    by_name = {line.name: line.values for line in lines}
    for column in range(len(ranked)):
        seconds = sum(line.values[column] for line in lines if line.group == "time")
        assert seconds == pytest.approx(by_name["step"][column])
        parts = [line for line in lines if line.group == "memory" and line.name != "peak memory"]
        assert sum(line.values[column] for line in parts) == pytest.approx(by_name["peak memory"][column])


def test_rivals_are_ties_or_slower(ranked) -> None:
    best = ranked[0]
    equal, rival = ties_and_rival(best, ranked)
    assert all(tie.step_seconds == pytest.approx(best.step_seconds, rel=1e-3) for tie in equal)
    assert rival is not None
    change = difference(best.time, rival.time)
    assert change.total == pytest.approx(rival.step_seconds - best.step_seconds)
    assert rival not in equal


def test_what_binds_is_faster_and_too_large(asked, ranked) -> None:
    bound = binding_constraint(asked, ranked[0], Restrictions())
    assert bound.resource == "memory"
    assert bound.faster is not None
    assert bound.faster.step_seconds < ranked[0].step_seconds
    assert bound.faster.peak_bytes > ranked[0].memory_limit
    assert bound.change


def test_why_not(asked, ranked) -> None:
    _, rival = ties_and_rival(ranked[0], ranked)
    assert rival is not None
    illegal, large, second = (
        why_not(asked, ranked[0], words) for words in ("tp5 mbs3", "dp16 mbs1", str(rival.layout))
    )
    assert [answer.reason for answer in (illegal, large, second)] == ["illegal", "memory", "slower"]
    assert len(illegal.problems) == 5
    assert large.estimate is not None
    assert large.estimate.peak_bytes > ranked[0].memory_limit
    assert second.estimate is not None
    assert second.estimate.step_seconds == pytest.approx(rival.step_seconds)
    with pytest.raises(InputError, match="is not a layout"):
        why_not(asked, ranked[0], "tp8 qq4")


def test_sensitivities_go_the_right_way(asked, ranked) -> None:
    cache = PlanCache(make_plan(asked, ranked[0]))
    answers = {one.change: one for one in sensitivities(asked, ranked[0], Restrictions(), cache)}
    assert set(answers) == {
        words
        for words in CHANGES
        if not words.endswith(("buildings", "pools"))  # all stand in one
    }
    for words, answer in answers.items():
        slack = 1e-9 * ranked[0].step_seconds
        for seconds in (answer.repriced.step_seconds, answer.best.step_seconds):
            if words.startswith("half"):
                assert seconds >= ranked[0].step_seconds - slack
            else:
                assert seconds <= ranked[0].step_seconds + slack
        assert answer.best.step_seconds <= answer.repriced.step_seconds


def test_a_layout_that_was_asked_for_is_held(asked) -> None:
    asked_for = price(asked, place_layout(asked, parse_layout("tp8 pp2 mbs1 sp")))
    for one in sensitivities(asked, asked_for, Restrictions(), None):
        assert one.best.layout == asked_for.layout
        assert one.replanned is None


def test_what_is_not_said_is_free_and_proved(asked) -> None:
    plan = price(asked, place_layout(asked, parse_layout("tp4 pp2 dp2 mbs2 zero1 sp")))
    fixed = parse_restrictions(["tp=8", "pp=2"]).with_confidence(asked, FITTING)
    best = search(asked, top=1, restrictions=fixed).best.layout
    found = complete_layout(asked, "tp8 pp2")
    assert found.estimate.layout == best
    assert {"dp1", f"mbs{best.mbs}", f"zero{best.zero}"} <= set(found.filled)
    assert found.certificate is not None
    assert found.certificate.gap == 0
    told = why_not(asked, plan, "tp8 pp2")
    assert told.completed is not None
    assert (told.completed.estimate, told.completed.filled) == (found.estimate, found.filled)
    whole = complete_layout(asked, "tp8 pp2 dp1 mbs1 zero0 sp recompute=full")
    assert whole.filled == ()
    assert str(whole.estimate.layout).startswith("tp8 pp2 dp1 mbs1 zero0 sp recompute=full")


def test_restrictions_hold_but_for_what_the_words_say(asked) -> None:
    limits = parse_restrictions(["tp=4"], ["zero1", "cp"])
    found = complete_layout(asked, "tp8 pp2", limits).estimate.layout
    assert (found.tp, found.pp, found.cp) == (8, 2, 1)
    assert complete_layout(asked, "tp8 cp2", limits).estimate.layout.cp == 2
    assert why_not(asked, price(asked, found), "tp8 cp2", limits).excluded


def test_a_layout_that_the_search_does_not_cover_is_priced_where_it_fits(asked) -> None:
    best = price(asked, place_layout(asked, parse_layout("tp8 pp2 mbs1 sp")))
    answer = why_not(asked, best, "tp2 pp8 vpp3 mbs1 sp")  # 24 stages of 40 blocks
    assert answer.estimate is not None
    assert answer.reason != "memory"
    assert answer.estimate.layout.recompute == ("none",)


LAYOUTS = ("tp8 pp2 dp1 mbs1", "tp8 pp1 dp2 mbs2 zero1 sp", "tp4 pp4 vpp2 dp1 mbs1 sp")
LAYOUTS += ("tp2 pp8 dp1 mbs1 schedule=gpipe", "tp1 pp4 dp4 mbs1 zero1")


@pytest.mark.parametrize("text", LAYOUTS)
def test_balanced_prices_are_close_to_exact_ones(asked, text: str) -> None:
    layout = parse_layout(text)
    prices = balanced_prices(asked, LayoutColumns.of([layout]))
    for index, policy in enumerate(RECOMPUTE_POLICIES):
        layers = even_layers(asked.model.num_layers, layout.num_stages)
        exact = price(asked, layout.model_copy(update={"layers": layers, "recompute": (policy,)}))
        assert prices.step_seconds[0, index] == pytest.approx(exact.step_seconds, rel=0.03)
        assert prices.peak_bytes[0, index] == pytest.approx(exact.peak_bytes, rel=0.03)


def test_by_hand(asked) -> None:
    assert even_layers(10, 4) == (2, 3, 3, 2)
    assert even_layers(96, 8) == (12,) * 8
    size, seconds = np.array([1.0, 2.0, 2.0, 3.0, 9.0]), np.array([5.0, 4.0, 6.0, 4.5, 1.0])
    assert pareto_rows(size, seconds, limit=5.0).tolist() == [0, 1]
    assert scaling_sizes(asked) == [2, 4, 8, 16, 32, 64]
    layout = parse_layout("tp8 pp2 mbs1 layers=21,19")
    assert place_layout(asked, layout) == layout
