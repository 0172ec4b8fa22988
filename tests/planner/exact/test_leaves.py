"""One layout's placement: label setting, the integer program, the chunk patterns and brute force agree."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from brute import price_placements
from effort import number
from hypothesis import example, given, settings
from hypothesis import strategies as st
from several_pools import mixed_leaf
from synthetic import every_placement, exhaustive_best, random_costs, random_leaf

from cost_models.errors import RunError
from cost_models.specs.kinds import Kinds
from planner.bounds.steps import capacity_bounds, quick_bounds
from planner.exact import labels
from planner.exact.labels import choices_in_time, place_by_labels
from planner.exact.program import best_placement, good_of_numbers, place_by_ilp, solve_record
from planner.placement.leaf import TOLERANCE, Leaf, Solution, Task
from planner.placement.mixes import good_placement
from planner.placement.patterns import best_pattern
from planner.placement.rank_costs import RankCosts

SEEDS = st.integers(min_value=0, max_value=10**6)


def same(one: float, other: float) -> bool:
    return one == other or math.isclose(one, other, rel_tol=TOLERANCE)


@given(SEEDS, st.booleans())
@example(3799, True)  # two patterns of the same sizes, each with the shorter backward pass of some chunk
@settings(max_examples=number(100, 400), deadline=None, derandomize=True)
def test_the_exact_placement_is_the_best_of_all(seed: int, several: bool) -> None:
    leaf = random_leaf(seed, several=several)
    exact = exhaustive_best(leaf)
    if not leaf.is_plain:
        found = best_pattern(leaf)
        assert same(found[1] if found else math.inf, exact)
        return
    solution = place_by_labels(Task(leaf, good_placement(leaf)))
    assert solution is not None
    assert same(solution.objective, exact)
    assert solution.status == ("optimal" if math.isfinite(exact) else "infeasible")
    if solution.placement is not None:
        assert same(leaf.price(solution.placement), solution.objective)
        assert sum(solution.placement.layers) == leaf.num_layers
        assert leaf.fits(solution.placement.table)


@given(SEEDS, st.booleans())
@settings(max_examples=number(40, 500), deadline=None, derandomize=True)
def test_labels_and_the_integer_program_prove_the_best_of_all(seed: int, several: bool) -> None:
    leaf = random_leaf(seed, plain=True, several=several)
    exact, start = exhaustive_best(leaf), good_placement(leaf)
    for solution in (
        place_by_labels(Task(leaf)),
        place_by_labels(Task(leaf, start)),
        place_by_ilp(Task(leaf, start)),
    ):
        assert solution is not None
        assert solution.status == ("optimal" if math.isfinite(exact) else "infeasible")
        assert same(solution.objective, exact)


@pytest.mark.timeout(1800)
@given(SEEDS, st.sampled_from(["one kind", "several kinds", "pools"]))
@settings(max_examples=number(40, 600), deadline=None, derandomize=True)
def test_the_best_number_of_blocks_in_full_is_the_best_of_all(seed: int, blocks: str) -> None:
    """Every stage recomputes as many first blocks in full: no bound is above the best, and the program agrees."""
    leaf = random_leaf(seed, several=blocks == "several kinds", counted=True)
    if blocks == "pools":
        leaf = replace(mixed_leaf(seed), uses_full_counts=True, allowed=np.array([True, False, True]))
    exact = exhaustive_best(leaf)
    if leaf.is_plain:
        start, bound = good_of_numbers(leaf, math.inf)
        assert bound <= exact * (1 + TOLERANCE)
        found = best_placement(Task(leaf, start))
        assert found.status == ("optimal" if math.isfinite(exact) else "infeasible")
        assert same(found.objective, exact)
        for cut_off, status in ((0.999 * exact, "cut off"), (1.001 * exact, "optimal")):
            if math.isfinite(exact):
                assert good_of_numbers(leaf, cut_off)[1] <= exact * (1 + TOLERANCE)
                assert best_placement(Task(leaf, cut_off=cut_off)).status == status
    else:
        known = best_pattern(leaf)
        assert same(known[1] if known else math.inf, exact)
    if blocks != "pools":
        assert capacity_bounds(RankCosts.of(leaf))[0] <= exact * (1 + TOLERANCE)
        assert quick_bounds(RankCosts.of(leaf))[0] <= exact * (1 + TOLERANCE)
    if math.isfinite(exact):
        record = solve_record([Task(leaf)], exact)
        assert record is not None
        assert same(record.objective, exact)


def larger_leaf(seed: int) -> Leaf:
    """Too large for brute force: four to nine ranks, up to 25 blocks, any policies, memory loose to tight."""
    rng = np.random.default_rng(seed)
    pp = int(rng.integers(4, 10))
    allowed = rng.random(3) < 0.6
    allowed[rng.integers(3)] = True
    return Leaf(
        costs=random_costs(rng, tightness=rng.uniform(0.2, 1.2)),
        pp=pp,
        vpp=1,
        schedule="gpipe" if seed % 6 == 0 else "1f1b",
        microbatches=int(rng.integers(pp, 4 * pp)),
        kinds=Kinds((0,) * int(rng.integers(pp + 1, 3 * pp))),
        allowed=allowed,
    )


@given(SEEDS)
@settings(max_examples=number(20, 60), deadline=None, derandomize=True)
def test_labels_agree_with_the_integer_program_on_larger_pipelines(seed: int) -> None:
    leaf = larger_leaf(seed)
    labels, program = place_by_labels(Task(leaf)), place_by_ilp(Task(leaf, good_placement(leaf)))
    assert labels is not None
    assert same(labels.objective, program.objective)
    assert labels.status == program.status


@given(SEEDS)
@settings(max_examples=number(30, 100), deadline=None, derandomize=True)
def test_what_labels_leave_holds_every_placement_in_time(seed: int) -> None:
    leaf = random_leaf(seed, plain=True)
    solution = best_placement(Task(leaf))
    if solution.placement is None:
        return
    choices = choices_in_time(leaf, solution.objective, solution.paths)
    assert choices is not None
    index = np.array(solution.placement.layers) - choices.first
    assert choices.useful[np.arange(leaf.pp), index].all()
    assert choices_in_time(leaf, 0.5 * leaf.busy_seconds(solution.placement.table)) is None


def test_the_integer_program_takes_over_where_labels_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    leaf = uneven_leaf()
    exact = best_placement(Task(leaf)).objective
    monkeypatch.setattr(labels, "MOST_LABELS", 0)
    assert place_by_labels(Task(leaf)) is None
    assert same(best_placement(Task(leaf)).objective, exact)


def uneven_leaf(
    pp: int = 4, layers: int = 10, microbatches: int = 9, seed: int = 5, policies: int = 3
) -> Leaf:
    """A leaf that takes several rounds: blocks do not divide, the head is heavy."""
    return Leaf(
        costs=random_costs(np.random.default_rng(seed), tightness=0.3),
        pp=pp,
        vpp=1,
        schedule="1f1b",
        microbatches=microbatches,
        kinds=Kinds((0,) * layers),
        allowed=np.arange(3) < policies,
    )


SOLVERS = pytest.mark.parametrize("solve", [best_placement, place_by_ilp])


@pytest.mark.parametrize("seed", range(4))
def test_the_fallback_solver_agrees(seed: int) -> None:
    leaf = uneven_leaf(seed=seed)
    assert same(
        place_by_ilp(Task(leaf), solver="cbc").objective, place_by_ilp(Task(leaf), solver="highs").objective
    )


@SOLVERS
def test_a_cut_off_below_the_optimum_proves_that_nothing_beats_it(solve: Callable[..., Solution]) -> None:
    leaf = uneven_leaf()
    best = solve(Task(leaf)).objective
    below = solve(Task(leaf, cut_off=0.999 * best))
    assert below.status == "cut off"
    assert below.objective >= best
    assert below.bound == pytest.approx(0.999 * best)
    assert same(solve(Task(leaf, cut_off=1.5 * best)).objective, best)


@SOLVERS
def test_paths_met_elsewhere_save_rounds_and_change_nothing(solve: Callable[..., Solution]) -> None:
    first = solve(Task(uneven_leaf(pp=4, layers=11, microbatches=6, seed=1)))
    again = solve(Task(uneven_leaf(pp=4, layers=11, microbatches=6, seed=1), met_paths=first.paths))
    assert again.rounds <= first.rounds
    assert same(again.objective, first.objective)
    other = uneven_leaf(pp=4, layers=11, microbatches=6, seed=2)
    assert same(solve(Task(other, met_paths=first.paths)).objective, solve(Task(other)).objective)


@SOLVERS
def test_out_of_time_the_bound_still_holds(solve: Callable[..., Solution]) -> None:
    leaf = uneven_leaf(pp=6, layers=17, microbatches=20)
    stopped = solve(Task(leaf, good_placement(leaf), deadline=0.0))
    assert stopped.status == "stopped"
    assert stopped.bound <= solve(Task(leaf)).objective <= stopped.objective * (1 + TOLERANCE)


@given(SEEDS)
@settings(max_examples=number(30, 100), deadline=None, derandomize=True)
def test_a_good_placement_is_a_placement(seed: int) -> None:
    leaf = random_leaf(seed)
    if not leaf.is_plain:
        return
    found = good_placement(leaf)
    if found is None:
        assert math.isinf(exhaustive_best(leaf))
        return
    assert sum(found[0].layers) == leaf.num_layers
    assert leaf.fits(found[0].table)
    assert same(leaf.price(found[0]), found[1])


def test_the_program_of_record_agrees_or_says_that_it_does_not() -> None:
    leaf = uneven_leaf()
    best = best_placement(Task(leaf))
    assert best.placement is not None
    survivors = [Task(leaf, (best.placement, best.objective))]
    record = solve_record(survivors, best.objective)
    assert record is not None
    assert same(record.objective, best.objective)
    with pytest.raises(RunError, match="finds nothing as good where the search finds"):
        solve_record(survivors, 0.99 * best.objective)
    with pytest.raises(RunError, match="one of them is wrong"):
        solve_record(survivors, 1.01 * best.objective)


@given(SEEDS, st.booleans(), st.sampled_from([1.0, 20.0]))
@settings(max_examples=number(60, 400), deadline=None, derandomize=True)
def test_steps_and_peaks_of_placements_are_those_of_brute_force(
    seed: int, several: bool, update: float
) -> None:
    """Whether activations fill a rank at its fullest moment, or what an update needs besides."""
    leaf = random_leaf(seed, several=several)
    costs, blocks = leaf.costs, leaf.kinds.in_sorts(every_placement(leaf))
    leaf = replace(leaf, costs=replace(costs, layer_update=update * costs.layer_update))
    shape = (leaf.schedule, leaf.pp, leaf.vpp, leaf.microbatches)
    (wanted,) = price_placements(shape, leaf.costs.in_sorts, blocks)
    np.testing.assert_allclose(leaf.step_seconds(blocks), wanted.seconds, rtol=1e-9)
    np.testing.assert_allclose(leaf.rank_bytes(blocks).max(axis=-1), wanted.peak, rtol=1e-9)
