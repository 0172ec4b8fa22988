"""Searches of one answer share their spaces; others do not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from small import small_question

from cost_models.specs.choices import RECOMPUTE_POLICIES
from planner.bounds import cores as cores_module
from planner.bounds.cores import relaxed_bounds
from planner.search.search import Budget, search
from planner.space.restrictions import Restrictions, parse_restrictions
from planner.space.space import SpaceCache, legal_space


def test_a_space_is_shared_whatever_the_limit_of_memory() -> None:
    question, spaces = small_question(), SpaceCache()
    with spaces.shared():
        space = legal_space(question, Restrictions())
        assert legal_space(small_question(), Restrictions(max_memory=1e9)) is space
        assert legal_space(question, parse_restrictions(["tp=2"])) is not space
        assert legal_space(small_question(memory="2 GiB"), Restrictions()) is not space
    assert legal_space(question, Restrictions()) is not space


def test_a_space_is_shared_whatever_is_recomputed_and_how_surely_it_fits() -> None:
    question, spaces = small_question(), SpaceCache()
    with spaces.shared():
        space = legal_space(question, Restrictions())
        assert legal_space(question, Restrictions(forbidden_recompute=frozenset({"full"}))) is space
        surer = legal_space(replace(question, confidence=0.9), Restrictions(confidence=0.9))
    assert surer.cores is space.cores
    assert surer.question.confidence == 0.9


def test_a_budget_searches_for_an_answer_once() -> None:
    question, budget = small_question(), Budget()
    first = budget.search(question, Restrictions(), closes_with_ilp=False)
    again = budget.search(small_question(), Restrictions())
    assert first is not None
    assert again is not None
    assert budget.searches == 1
    assert again.estimates == first.estimates
    assert (first.certificate.settled, again.certificate.settled is None) == (None, False)
    budget.search(question, Restrictions(), top=2)
    assert budget.searches == 2


def test_what_is_searched_within_shared_spaces_is_what_is_found_alone() -> None:
    question, budget = small_question(memory="400 MiB"), Budget()
    for trainer in (None, "megatron"):
        for confidence in (0.5, 0.9, 0.5):
            asked = replace(question, confidence=confidence)
            limits = parse_restrictions(trainer=trainer)
            shared, alone = budget.search(asked, limits), search(asked, top=1, restrictions=limits)
            assert shared is not None
            assert shared.estimates == alone.estimates


def test_priced_cores_are_not_priced_again(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = np.array([True] * len(RECOMPUTE_POLICIES))
    space, cores, priced = legal_space(small_question(), Restrictions()), np.arange(20), []
    first = relaxed_bounds(space, cores, whole, None)
    terms = cores_module.terms_by_kind
    monkeypatch.setattr(cores_module, "terms_by_kind", lambda *a, **k: priced.append(a) or terms(*a, **k))
    for policy in range(len(RECOMPUTE_POLICIES)):
        alone = np.arange(len(RECOMPUTE_POLICIES)) == policy
        bounds = relaxed_bounds(space, cores, alone, None)
        fresh = legal_space(small_question(), Restrictions())
        assert not priced
        assert bounds.tobytes() == relaxed_bounds(fresh, cores, alone, None).tobytes()
        assert (bounds >= first).all()
        priced.clear()
