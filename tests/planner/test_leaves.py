"""One layout's placement: the integer program, the chunk patterns and brute force agree."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic import exhaustive_best, random_costs, random_leaf

from cost_models.errors import RunError
from planner.chunks import best_pattern
from planner.heuristics import THOROUGH, good_placement
from planner.ilp.record import Survivor, settle
from planner.ilp.stages import solve_stages
from planner.placement import TOLERANCE, Leaf

SEEDS = st.integers(min_value=0, max_value=10**6)
ALL = np.ones(3, dtype=np.bool_)


def same(one: float, other: float) -> bool:
    return one == other or math.isclose(one, other, rel_tol=TOLERANCE)


@given(SEEDS)
@settings(max_examples=120, deadline=None, derandomize=True)
def test_the_exact_placement_is_the_best_of_all(seed: int) -> None:
    leaf = random_leaf(seed)
    exact = exhaustive_best(leaf)
    if not leaf.is_plain:
        found = best_pattern(leaf)
        assert same(found[1] if found else math.inf, exact)
        return
    solution = solve_stages(leaf, incumbent=good_placement(leaf))
    assert same(solution.objective, exact)
    assert solution.status == ("optimal" if math.isfinite(exact) else "infeasible")
    if solution.placement is not None:
        assert solution.gap == 0
        assert same(leaf.price(solution.placement), solution.objective)
        assert sum(solution.placement.layers) == leaf.num_layers
        assert leaf.fits(solution.placement.table)


@given(SEEDS)
@settings(max_examples=500, deadline=None, derandomize=True)
def test_the_integer_program_proves_the_best_of_all(seed: int) -> None:
    leaf = random_leaf(seed, plain=True)
    exact, solution = exhaustive_best(leaf), solve_stages(leaf, incumbent=good_placement(leaf))
    assert solution.status == ("optimal" if math.isfinite(exact) else "infeasible")
    assert same(solution.objective, exact)


def uneven_leaf(pp: int = 4, layers: int = 10, microbatches: int = 9, seed: int = 5) -> Leaf:
    """A leaf that takes several rounds: blocks do not divide, the head is heavy."""
    costs = random_costs(np.random.default_rng(seed), tightness=0.3)
    return Leaf(
        costs=costs, pp=pp, vpp=1, schedule="1f1b", microbatches=microbatches, num_layers=layers, allowed=ALL
    )


@pytest.mark.parametrize("seed", range(6))
def test_no_start_is_needed_to_reach_the_optimum(seed: int) -> None:
    leaf = uneven_leaf(seed=seed)
    assert same(solve_stages(leaf).objective, solve_stages(leaf, incumbent=good_placement(leaf)).objective)


@pytest.mark.parametrize("seed", range(4))
def test_the_fallback_solver_agrees(seed: int) -> None:
    leaf = uneven_leaf(seed=seed)
    assert same(solve_stages(leaf, solver="cbc").objective, solve_stages(leaf, solver="highs").objective)


def test_a_cut_off_below_the_optimum_proves_that_nothing_beats_it() -> None:
    leaf = uneven_leaf()
    best = solve_stages(leaf).objective
    below = solve_stages(leaf, cut_off=0.999 * best)
    assert below.status == "cut off"
    assert below.objective >= best
    assert below.bound == pytest.approx(0.999 * best)
    assert same(solve_stages(leaf, cut_off=1.5 * best).objective, best)


def test_paths_met_elsewhere_save_rounds_and_change_nothing() -> None:
    first = solve_stages(uneven_leaf(pp=4, layers=11, microbatches=6, seed=1))
    again = solve_stages(uneven_leaf(pp=4, layers=11, microbatches=6, seed=1), met_paths=first.paths)
    assert again.rounds <= first.rounds
    assert same(again.objective, first.objective)
    other = uneven_leaf(pp=4, layers=11, microbatches=6, seed=2)
    assert same(solve_stages(other, met_paths=first.paths).objective, solve_stages(other).objective)


def test_out_of_time_the_bound_still_holds() -> None:
    leaf = uneven_leaf(pp=6, layers=17, microbatches=20)
    start = good_placement(leaf)
    stopped = solve_stages(leaf, incumbent=start, time_limit=0.0)
    assert stopped.status == "stopped"
    assert stopped.bound <= solve_stages(leaf).objective <= stopped.objective * (1 + TOLERANCE)


@given(SEEDS)
@settings(max_examples=60, deadline=None, derandomize=True)
def test_a_good_placement_is_a_placement(seed: int) -> None:
    leaf = random_leaf(seed)
    if not leaf.is_plain:
        return
    for budget in (0, THOROUGH):
        found = good_placement(leaf, budget)
        if found is None:
            assert math.isinf(exhaustive_best(leaf))
            return
        assert sum(found[0].layers) == leaf.num_layers
        assert leaf.fits(found[0].table)
        assert same(leaf.price(found[0]), found[1])


@given(SEEDS)
@settings(max_examples=60, deadline=None, derandomize=True)
def test_busy_time_never_exceeds_the_step(seed: int) -> None:
    leaf = random_leaf(seed)
    blocks = np.zeros((leaf.num_stages, len(leaf.allowed)), dtype=np.int64)
    blocks[:, np.flatnonzero(leaf.allowed)[0]] = max(1, leaf.num_layers // leaf.num_stages)
    assert leaf.busy_seconds(blocks) <= leaf.step_seconds(blocks) * (1 + TOLERANCE)


def test_the_program_of_record_agrees_or_says_that_it_does_not() -> None:
    leaf = uneven_leaf()
    best = solve_stages(leaf)
    survivors = [Survivor(leaf, best.placement, ())]
    assert same(settle(survivors, best.objective).objective, best.objective)
    with pytest.raises(RunError, match="finds nothing as good where the search finds"):
        settle(survivors, 0.99 * best.objective)
    with pytest.raises(RunError, match="one of them is wrong"):
        settle(survivors, 1.01 * best.objective)
