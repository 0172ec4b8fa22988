"""Two GPUs dealt out anew: where no move and no swap of single shards helps."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from shardings import STAGES, random_prices

from cost_models.specs.recommender.sharding import Option
from planner.recommender.local_search import State, improve, repack
from planner.recommender.problem import OBJECTIVES, Placement, pose
from planner.recommender.restrictions import ShardingRestrictions

LONG, SHORT = 5.0, 2.0


def test_one_long_shard_for_two_short_ones() -> None:
    loads = np.zeros((2, STAGES))
    loads[:, 1] = LONG, SHORT
    none, size = np.zeros(2), np.zeros((2, 3))
    prices = replace(
        random_prices(0, gpus=2),
        options=(Option("whole"), Option("whole")),
        table_class=np.array([0, 1]),
        shards=np.ones(2, dtype=np.int64),
        shard_seconds=loads,
        everywhere_seconds=0 * loads,
        shard_bytes=size,
        everywhere_bytes=size,
        shard_host_bytes=none,
        everywhere_host_bytes=none,
        counts=np.array([2, 4]),
        stage_floors=np.zeros(STAGES),
        gpus=2,
        gpus_per_node=2,
    )
    problem = pose(prices, "step", ShardingRestrictions())
    state = State(problem.in_units_of(18.0))
    state.load(Placement(np.array([0, 0, 1, 1, 1, 1]), ((0,), (0,), (1,), (1,), (1,), (1,))))
    assert repack(state, 0, np.random.default_rng(0))
    assert problem.use(state.placement)[:, 1].tolist() == [9.0, 9.0]
    assert not repack(state, 0, np.random.default_rng(0))


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_sums_are_those_of_the_placement_and_slices_lie_apart(objective: str) -> None:
    for seed in range(6):
        problem = pose(random_prices(seed, tables=30, gpus=4), objective, ShardingRestrictions())  # type: ignore[arg-type]
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
