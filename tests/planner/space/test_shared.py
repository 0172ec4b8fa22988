"""Searches of one answer share their spaces; others do not."""

from __future__ import annotations

from small import small_question

from planner.search.budget import Budget
from planner.search.search import search
from planner.space.layouts import Restrictions, legal_space, parse_restrictions
from planner.space.shared import Spaces


def test_a_space_is_shared_whatever_the_limit_of_memory() -> None:
    question, spaces = small_question(), Spaces()
    with spaces.shared():
        space = legal_space(question, Restrictions())
        assert legal_space(small_question(), Restrictions(max_memory=1e9)) is space
        assert legal_space(question, parse_restrictions(["tp=2"])) is not space
        assert legal_space(small_question(memory="2 GiB"), Restrictions()) is not space
    assert legal_space(question, Restrictions()) is not space


def test_searches_under_falling_limits_agree_with_searches_alone() -> None:
    question, budget, limit = small_question(), Budget(), 1e12
    for _ in range(4):
        limits = Restrictions(max_memory=limit)
        shared, alone = budget.search(question, limits), search(question, top=1, restrictions=limits)
        assert shared is not None
        assert shared.estimates == alone.estimates
        limit = 0.9 * alone.best.peak_bytes
