"""Tables held otherwise: others stay where they are, free shards go where they cost least, rules refuse in words."""

from __future__ import annotations

import pytest

from cost_models.errors import InputError
from cost_models.files.loading import resolve_cluster
from cost_models.recommender.prices import estimate
from cost_models.recommender.question import RecommenderQuestion, complete_recommender
from cost_models.specs.recommender.model import RecommenderSpec
from cost_models.specs.recommender.sharding import Sharding, parse_sharding
from cost_models.specs.recommender.training import RecommenderTraining
from planner.recommender.advice import alternative
from planner.recommender.restrictions import ShardingRestrictions

NONE = ShardingRestrictions()
TABLES = (
    {"name": "user", "rows": 4_000_000, "width": 64, "pooling": 2.0},
    {"name": "item", "rows": 1_000_000, "width": 48, "pooling": 8.0},
    {"name": "shelf", "rows": 20_000, "width": 64, "count": 2},
)


@pytest.fixture(scope="module")
def question() -> RecommenderQuestion:
    model = RecommenderSpec.model_validate(
        {"name": "shop", "tables": TABLES, "interaction": {"kind": "none"}, "bottom_mlp": (32, 16)}
    )
    return complete_recommender(
        model,
        resolve_cluster("dgx-h100", 4),
        RecommenderTraining(global_batch=8192),
        stack=None,
        profile=None,
    )


@pytest.fixture(scope="module")
def sharding() -> Sharding:
    return parse_sharding("table:0=whole@0 table:1=column2@1,2 table:2-3=copy", 4)


def test_free_shards_lie_where_the_step_is_shortest(
    question: RecommenderQuestion, sharding: Sharding
) -> None:
    found = alternative(question, sharding, "table:2=whole", NONE)
    assert found.sharding is not None
    assert [found.sharding.tables[one] for one in (0, 1, 3)] == [sharding.tables[one] for one in (0, 1, 3)]
    steps = []
    for gpu in range(4):
        text = f"table:0=whole@0 table:1=column2@1,2 table:2=whole@{gpu} table:3=copy"
        steps.append(estimate(question, parse_sharding(text, 4)).step_seconds)
    assert estimate(question, found.sharding).step_seconds == pytest.approx(min(steps))


def test_places_that_are_said_are_kept(question: RecommenderQuestion, sharding: Sharding) -> None:
    found = alternative(question, sharding, "table:0=row table:1=whole@3", NONE)
    assert str(found.sharding) == "table:0=row table:1=whole@3 table:2-3=copy"
    assert found.tables == (0, 1)


@pytest.mark.parametrize(
    ("words", "rule"),
    [
        ("table:1=column5", "item has 48 columns, which 5 slices do not divide; 2, 3, 4 do"),
        ("table:0=column8", "`column8` has 8 slices, and there are 4 GPUs"),
    ],
)
def test_rules_refuse(question: RecommenderQuestion, sharding: Sharding, words: str, rule: str) -> None:
    found = alternative(question, sharding, words, NONE)
    assert found.sharding is None
    assert found.refused == rule


def test_what_the_plan_forbids_is_priced_and_told(question: RecommenderQuestion, sharding: Sharding) -> None:
    limits = ShardingRestrictions(forbidden=frozenset({"row"}))
    found = alternative(question, sharding, "table:0=row", limits)
    assert found.sharding is not None
    assert found.forbidden == "the plan forbids `row`"


def test_words_that_are_none(question: RecommenderQuestion, sharding: Sharding) -> None:
    with pytest.raises(InputError, match="no word of a sharding"):
        alternative(question, sharding, "tp8", NONE)
