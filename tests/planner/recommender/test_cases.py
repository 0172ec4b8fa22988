"""Cases of the program of record: none of them leaves out the optimum, and together they bound it."""

from __future__ import annotations

import math

import numpy as np
from effort import number
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from shardings import least_of_all, random_prices

from cost_models.errors import DoesNotFitError
from planner.exact.solvers import Interrupt, SolverName
from planner.recommender.restrictions import ShardingRestrictions
from planner.recommender.search.problem import OBJECTIVES, Objective, Problem, pose
from planner.recommender.search.search import Case, Cases


def cases_of(problem: Problem, solver: SolverName) -> Cases:
    return Cases(problem, solver, 1e-3, Interrupt(), lambda: math.inf)


@settings(max_examples=number(15, 300), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(1000, 10**6), st.sampled_from(OBJECTIVES), st.floats(1.0, 1.2))
def test_the_least_case_is_never_above_the_optimum(seed: int, objective: Objective, known: float) -> None:
    priced = random_prices(seed, tables=3)
    least = least_of_all(priced, objective)
    try:
        problem = pose(priced, objective, ShardingRestrictions())
    except DoesNotFitError:
        return
    if math.isinf(least):
        return
    value, cases = least * known, cases_of(problem, "highs")
    whole = cases.case(np.arange(len(problem.picks)), value)
    assert whole is not None
    assert whole.bound <= least * (1 + 1e-9)
    for parts in ([whole], _split_through(cases, whole, value)):
        bounds = [found.bound for part in parts if (found := cases.with_places(part, value)) is not None]
        assert min(bounds) <= least * (1 + 1e-9)


def _split_through(cases: Cases, case: Case, value: float) -> list[Case]:
    parts = cases.split(case, value)
    return [case] if parts is None else [end for one in parts for end in _split_through(cases, one, value)]


def test_probing_says_more_than_reduced_costs() -> None:
    problem = pose(random_prices(5, tables=20, gpus=4), "step", ShardingRestrictions())
    rows = np.arange(len(problem.picks))
    probed, by_costs = (cases_of(problem, solver).case(rows, 1.0) for solver in ("highs", "cbc"))
    assert probed is not None
    assert by_costs is not None
    assert (probed.with_row >= by_costs.with_row * (1 - 1e-6)).all()
    assert (probed.with_row > by_costs.with_row * 1.001).any()
