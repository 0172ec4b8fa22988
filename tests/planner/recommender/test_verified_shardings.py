"""Shardings and certificates that hold are verified; those that do not are found out. What binds is named."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pulp
import pytest
from shardings import loads_of, random_prices

from cost_models.specs.recommender.sharding import Sharding, TablePlacement
from planner.exact.solvers import Solved, SolverName, solve
from planner.recommender.advice import binding_stages
from planner.recommender.problem import OBJECTIVES, Objective
from planner.recommender.restrictions import ShardingRestrictions
from planner.recommender.search import plan_sharding
from planner.verify import recommenders
from planner.verify.recommenders import verify_sharding

PRICES = replace(random_prices(11, gpus=4), device_memory=1e12, host_memory=1e12)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_another_solver_finds_nothing_better(objective: Objective) -> None:
    found = plan_sharding(PRICES, objective=objective)
    checks = verify_sharding(PRICES, found.sharding, found.certificate)
    assert all(check.passed for check in checks), checks
    assert [check.name for check in checks] == ["loads", "restrictions", "certificate", "bound"]


def test_the_planning_solver_decides_where_the_other_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    def stop_cbc(problem: pulp.LpProblem, solver: SolverName, *, seconds: float) -> Solved:
        return (
            Solved("stopped", -np.inf, has_solution=False)
            if solver == "cbc"
            else solve(problem, solver, seconds=seconds)
        )

    monkeypatch.setattr(recommenders, "solve", stop_cbc)
    found = plan_sharding(PRICES)
    proof = found.certificate
    bound = verify_sharding(PRICES, found.sharding, proof)[3]
    assert bound.passed
    assert bound.what == "cbc did not decide in time; highs finds no sharding below it"
    too_sure = proof.model_copy(update={"bound": proof.value * 1.05, "value": proof.value * 1.05})
    assert verify_sharding(PRICES, found.sharding, too_sure)[3].what == "highs finds a sharding below `bound`"


def test_false_claims_are_found_out() -> None:
    found = plan_sharding(PRICES)
    proof, tables = found.certificate, found.sharding.tables
    too_good = proof.model_copy(update={"value": proof.value * 0.9, "bound": proof.bound * 0.9})
    assert verify_sharding(PRICES, found.sharding, too_good)[0].passed is False
    too_sure = proof.model_copy(update={"bound": proof.value * 1.05, "value": proof.value * 1.05})
    assert verify_sharding(PRICES, found.sharding, too_sure)[3].passed is False
    for update in ({"space": "all"}, {"tables": 2}, {"distinct": 1}, {"options": 3}, {"greedy": 1.0}):
        false = proof.model_copy(update=update)
        assert f"`{next(iter(update))}` says" in verify_sharding(PRICES, found.sharding, false)[2].what
    used = tables[0].option.form
    forbidden = ShardingRestrictions(forbidden=frozenset({used}))
    if all(
        any(o.form != used for o in np.array(PRICES.options)[PRICES.table_class == c])
        for c in range(len(PRICES.counts))
    ):
        assert verify_sharding(PRICES, found.sharding, proof, restrictions=forbidden)[1].passed is False
    used_bytes = loads_of(PRICES, found.rows, [one.at for one in tables]).device_bytes.max()
    small = replace(PRICES, device_memory=float(used_bytes) * 0.99)
    moved = Sharding(tuple(TablePlacement(one.option, one.at) for one in tables))
    assert verify_sharding(small, moved, proof)[0].passed is False


def test_what_binds_is_the_busiest_gpu_and_what_a_change_costs() -> None:
    found = plan_sharding(PRICES)
    stages = binding_stages(PRICES, found.sharding)
    places = [one.at for one in found.sharding.tables]
    assert stages
    for stage in stages:
        assert stage.seconds >= stage.mean_seconds
        for one in stage.tables:
            left = [n for n in range(len(places)) if n != one.table]
            without = loads_of(PRICES, [found.rows[n] for n in left], [places[n] for n in left])
            assert one.without_seconds == pytest.approx(without.step_seconds)
            assert one.without_seconds <= found.certificate.value * (1 + 1e-9)
            if one.otherwise_seconds is not None:  # the search proved that nothing is better
                assert one.otherwise_seconds >= found.certificate.bound * (1 - 1e-9)
