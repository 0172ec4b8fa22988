"""Probing of option rows: it closes none that the optimum needs, and its bounds hold."""

from __future__ import annotations

import math

from effort import number
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from shardings import least_of_all, random_prices

from cost_models.errors import DoesNotFitError
from planner.recommender.problem import OBJECTIVES, Objective, build_problem
from planner.recommender.program import OptionsProgram, PlacesProgram
from planner.recommender.restrictions import ShardingRestrictions
from planner.recommender.search import Search, probe


@settings(max_examples=number(15, 300), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(1000, 10**6), st.sampled_from(OBJECTIVES), st.floats(1.0, 1.2))
def test_probing_leaves_the_optimum_open(seed: int, objective: Objective, known: float) -> None:
    priced = random_prices(seed, tables=3)
    least = least_of_all(priced, objective)
    try:
        problem = build_problem(priced, objective, ShardingRestrictions())
    except DoesNotFitError:
        return
    if math.isinf(least):
        return
    search = Search(problem=problem, solver="highs", value=least * known)
    for relaxed in (OptionsProgram, PlacesProgram):
        assert probe(search, relaxed)
        assert search.bound <= least * (1 + 1e-9)
        classes = problem.rows.unit_class[search.open_rows]
        assert set(classes.tolist()) == set(range(len(problem.members)))
