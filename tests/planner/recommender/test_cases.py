"""Cases of the program of record: none of them leaves out the optimum, and together they bound it."""

from __future__ import annotations

import math
from threading import Event

import numpy as np
from effort import number
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from shardings import least_of_all, random_prices

from cost_models.errors import DoesNotFitError
from planner.exact.solvers import SolverName
from planner.recommender.problem import OBJECTIVES, Objective, Problem, pose
from planner.recommender.restrictions import ShardingRestrictions
from planner.recommender.search import Case, Search, probed, split


def search_of(problem: Problem, solver: SolverName, value: float) -> tuple[Search, Case]:
    """A search with a known value, and the case of all option rows."""
    rows = np.arange(len(problem.rows.picks))
    search = Search(problem=problem, solver=solver, interrupt=Event(), value=value)
    return search, Case(rows, 0.0, np.zeros(len(rows)))


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
    search, every = search_of(problem, "highs", least * known)
    whole = probed(search, every, has_places=False)
    assert whole is not None
    assert whole.bound <= least * (1 + 1e-9)
    for parts in ([whole], _split_through(search, whole)):
        found = [probed(search, part, has_places=True) for part in parts]
        bounds = [one.bound for one in found if one is not None]
        assert min(bounds) <= least * (1 + 1e-9)


def _split_through(search: Search, case: Case) -> list[Case]:
    parts = split(search, case)
    return [case] if parts is None else [end for one in parts for end in _split_through(search, one)]


def test_probing_says_more_than_reduced_costs() -> None:
    problem = pose(random_prices(5, tables=20, gpus=4), "step", ShardingRestrictions())
    solvers: tuple[SolverName, ...] = ("highs", "cbc")
    solved, by_costs = (probed(*search_of(problem, solver, 1.0), has_places=False) for solver in solvers)
    assert solved is not None
    assert by_costs is not None
    assert (solved.row_bounds >= by_costs.row_bounds * (1 - 1e-6)).all()
    assert (solved.row_bounds > by_costs.row_bounds * 1.001).any()
