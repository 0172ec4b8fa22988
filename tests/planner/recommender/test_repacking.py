"""Two GPUs dealt out anew: where no move and no swap of single shards helps."""

from __future__ import annotations

import numpy as np
import pytest
from shardings import random_prices

from planner.recommender.local_search import State, improve, repack
from planner.recommender.problem import OBJECTIVES, build_problem
from planner.recommender.restrictions import ShardingRestrictions


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_sums_are_those_of_the_placement_and_slices_lie_apart(objective: str) -> None:
    for seed in range(6):
        problem = build_problem(random_prices(seed, tables=30, gpus=4), objective, ShardingRestrictions())  # type: ignore[arg-type]
        unscaled, problem = problem, problem.in_units_of(1e-3)
        state = State(problem)
        for unit in range(len(problem.units)):
            state.add(unit, *state.insertion(unit)[1])
        before = state.score
        repack(state, 0, np.random.default_rng(seed))
        assert state.score <= before
        use = unscaled.use(state.placement)
        assert state.use[:, state.loads] == pytest.approx(use[:, state.loads] / 1e-3)
        assert state.use[:, state.memories] == pytest.approx(use[:, state.memories])
        assert all(len(set(places)) == len(places) for places in state.placement.places)
        improve(state, patience=3, seed=seed, target=0.0, stop=lambda: False)
        assert state.use == pytest.approx(problem.use(state.placement))
