"""The search equals brute force on random small questions, over all axes, restrictions and limits of memory."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from effort import number
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from questions import Query, packed_base, random_query, tuned_base
from tight import tight_queries

from cost_models.errors import InfeasibleError
from planner.placement.leaf import TOLERANCE
from planner.rules.legality import check
from planner.search.search import search

QUERIES = number(30, 2000)
TIGHT = number(6, 40)
"""Questions asked under the least limits of memory."""
TUNED = number(9, 300)
COUNTED = number(4, 200)
BASES = 48
"""Random questions; restrictions and limits make many of each."""


@dataclass
class Tally:
    """What the queries were, all together."""

    queries: int = 0
    layouts: int = 0
    infeasible: int = 0


def ask_both(query: Query) -> None:
    """The search has brute force's answer, or none where it has none, and its proof adds up."""
    if not query.seconds:
        with pytest.raises(InfeasibleError):
            search(query.question, top=query.top, restrictions=query.restrictions)
        return
    result = search(query.question, top=query.top, restrictions=query.restrictions)
    found = [one.step_seconds for one in result.estimates]
    assert found == pytest.approx(query.seconds[: query.top], rel=10 * TOLERANCE)
    for one in result.estimates:
        assert one.fits
        assert one.peak_bytes <= (query.restrictions.max_memory or np.inf)
    assert not check(query.question, result.best.layout, query.restrictions.trainer)
    proof = result.certificate
    assert (proof.layouts, proof.undecided, proof.gap) == (query.layouts, 0, 0)
    assert proof.layouts == proof.infeasible + proof.pruned + proof.solved
    assert proof.bound == pytest.approx(query.seconds[0], rel=10 * TOLERANCE)
    if proof.settled is not None:
        assert proof.settled.objective == pytest.approx(proof.bound, rel=10 * TOLERANCE)


@pytest.mark.timeout(1800)
def test_search_equals_brute_force_on_random_questions() -> None:
    tally = Tally()

    @given(st.integers(0, 10**9))
    @settings(max_examples=QUERIES, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    def ask(seed: int) -> None:
        query = random_query(np.random.default_rng(seed), BASES)
        ask_both(query)
        tally.queries += 1
        tally.layouts += query.layouts
        tally.infeasible += not query.seconds

    ask()
    print(f"{tally.queries:,} queries over {tally.layouts:,} layouts, {tally.infeasible:,} infeasible")
    assert tally.queries >= QUERIES
    assert tally.layouts > 9 * QUERIES
    assert QUERIES / 20 < tally.infeasible < QUERIES / 2


@pytest.mark.timeout(1800)
def test_search_equals_brute_force_where_adapters_are_trained() -> None:
    for seed in range(TUNED):
        ask_both(random_query(np.random.default_rng(seed), TUNED // 3, tuned_base))


@pytest.mark.timeout(1800)
def test_search_equals_brute_force_where_documents_are_packed() -> None:
    for seed in range(TUNED):
        ask_both(random_query(np.random.default_rng(seed), TUNED // 3, packed_base))


@pytest.mark.timeout(1800)
def test_search_equals_brute_force_where_a_trainer_counts_the_blocks_in_full() -> None:
    """And so does the integer program over the whole question."""
    for seed in range(COUNTED):
        query = random_query(np.random.default_rng(seed), COUNTED, trainer="megatron")
        ask_both(query)
        if query.seconds:
            found = search(query.question, top=query.top, restrictions=query.restrictions, proof="ilp")
            seconds = [one.step_seconds for one in found.estimates]
            assert seconds == pytest.approx(query.seconds[: query.top], rel=10 * TOLERANCE)


def test_a_rank_is_no_faster_than_the_policy_that_fits_it() -> None:
    """Its bound of one block mixed two policies in fractions; the other rank's was then too high for the best."""
    ask_both(random_query(np.random.default_rng(179), 100, packed_base))


@pytest.mark.timeout(1800)
def test_what_needs_least_memory_is_found() -> None:
    """Limits just above the least peaks of all: a bound that asks for a byte too many loses the only answer."""
    for seed in range(TIGHT):
        for query in tight_queries(seed):
            ask_both(query)
