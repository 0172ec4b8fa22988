"""The search for the least expected step, or the least slow one, equals brute force in every scenario."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from agreeing import require_query
from effort import number
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from questions import Query, random_query
from small import small_question
from weighed_brute import weighed_base, with_scenarios

from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import parse_layout
from cost_models.pipeline.pricing import estimate, place_layout, scenarios_of, weighed_costs
from cost_models.risk import num_weighed, weigh, weighed_mask
from planner.placement.leaf import TOLERANCE

QUERIES = number(12, 800)
BASES = number(3, 48)
COUNTED = number(3, 60)


def ask_both(query: Query) -> None:
    """Check a query, and that its certificate says what was minimised."""
    if (result := require_query(query)) is not None:
        weighed = num_weighed(len(scenarios_of(query.question)), query.question.risk)
        assert (result.certificate.minimised, result.certificate.scenarios) == (query.question.risk, weighed)


@pytest.mark.timeout(1800)
def test_search_equals_brute_force_where_scenarios_are_weighed() -> None:
    asked: Counter[str] = Counter()

    @given(st.integers(0, 10**9))
    @settings(max_examples=QUERIES, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    def ask(seed: int) -> None:
        query = random_query(np.random.default_rng(seed), BASES, of=weighed_base)
        ask_both(query)
        asked[query.question.risk] += bool(query.seconds)

    ask()
    print(asked)
    # what is drawn hangs on which modules are loaded, whose constants hypothesis tries, too
    assert min(asked["neutral"], asked["averse"]) > QUERIES / 6


@pytest.mark.timeout(1800)
def test_search_equals_brute_force_where_a_trainer_counts_the_blocks_in_full() -> None:
    for seed in range(COUNTED):
        ask_both(random_query(np.random.default_rng(seed), COUNTED, weighed_base, trainer="megatron"))


@pytest.mark.parametrize("risk", ["neutral", "averse"])
def test_no_placement_takes_less_than_at_mean_costs(risk: str) -> None:
    """The step is convex in its costs, so the mean of steps is no less than the step at mean costs."""
    question = with_scenarios(small_question(4), np.random.default_rng(1), risk)
    for words in ("tp2 pp2 dp1 mbs1", "pp4 mbs1", "pp2 vpp2 dp2 mbs1", "dp4 mbs2"):
        layout = parse_layout(words)
        placed = place_layout(layout, question)
        weighed = estimate(question, layout).weighed_seconds
        assert weighed is not None
        each = [estimate(one, layout).step_seconds for one in scenarios_of(question)]
        assert weighed == pytest.approx(float(weigh(np.array(each), question.risk)))
        mean = weighed_costs(question, LayoutColumns.of([placed.layout]))
        at_mean = float(placed.pipeline(mean).step_seconds(placed.blocks))
        assert min(each) < at_mean <= weighed * (1 + TOLERANCE)


def test_the_slowest_quarter_is_never_less_than_any_other() -> None:
    seconds = np.random.default_rng(0).random((10, 7))
    weighed = weigh(seconds, "averse")
    assert num_weighed(10, "averse") == 3
    assert weighed == pytest.approx(np.where(weighed_mask(seconds, "averse"), seconds, 0).sum(axis=0) / 3)
    for _ in range(100):
        some = np.random.default_rng(_).permutation(10)[:3]
        assert (seconds[some].mean(axis=0) <= weighed + 1e-12).all()
