"""Bounds of branches and of leaves against brute force."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from brute import price_placements
from effort import number
from hypothesis import example, given, settings
from hypothesis import strategies as st
from small import mixed_leaf
from synthetic import costs_by_kind, every_placement, exhaustive_best, random_costs, random_leaf

from cost_models.errors import RunError
from cost_models.specs.kinds import Kinds
from planner.bounds.steps import PRECISION, capacity_bounds, quick_bounds
from planner.exact import labels
from planner.exact.labels import place_by_labels
from planner.exact.program import best_placement, good_of_numbers, place_by_ilp, solve_record
from planner.placement.leaf import TOLERANCE, Leaf, Solution, Task, leaf_arguments
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
    assert same(labels.objective, program.objective)
    assert labels.status == program.status


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


def test_the_program_of_record_agrees_or_says_that_it_does_not() -> None:
    leaf = uneven_leaf()
    best = best_placement(Task(leaf))
    assert best.placement is not None
    survivors = [Task(leaf, (best.placement, best.objective))]
    record = solve_record(survivors, best.objective)
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


BLOCKS = st.sampled_from(["one kind", "several kinds", "in full", "pools"])


def leaf_with(seed: int, blocks: str) -> Leaf:
    """A random leaf of any schedule, or on several pools."""
    if blocks == "pools":
        return mixed_leaf(seed)
    return random_leaf(seed, several=blocks == "several kinds", counted=blocks == "in full")


@given(SEEDS, BLOCKS)
@settings(max_examples=number(140, 800), deadline=None, derandomize=True)
def test_no_placement_is_faster_than_the_bounds(seed: int, blocks: str) -> None:
    leaf = leaf_with(seed, blocks)
    exact = exhaustive_best(leaf)
    quick, capacity = quick_bounds(RankCosts.of(leaf))[0], capacity_bounds(RankCosts.of(leaf))[0]
    assert quick <= capacity * (1 + TOLERANCE)
    assert capacity <= exact * (1 + TOLERANCE)


@given(
    SEEDS, st.floats(min_value=0.5, max_value=3.0), st.floats(min_value=0.0, max_value=20.0), st.booleans()
)
@settings(max_examples=number(60, 150), deadline=None, derandomize=True)
def test_nor_with_slow_transfers_and_a_large_head(
    seed: int, transfer: float, head: float, plain: bool
) -> None:
    """The last rank is the busiest one of few blocks, and every way to it and back counts."""
    leaf = random_leaf(seed, plain=plain)
    few = {"kinds": Kinds((0,) * (leaf.pp + seed % 2))} if plain else {"microbatches": 2 * leaf.pp}
    leaf = replace(leaf, **few)
    x = replace(leaf.costs, p2p=leaf.costs.p2p + transfer, head_forward=leaf.costs.head_forward + head)
    leaf = replace(leaf, costs=x)
    assert capacity_bounds(RankCosts.of(leaf))[0] <= exhaustive_best(leaf) * (1 + TOLERANCE)


def test_a_rank_between_the_ends_may_have_any_run_of_blocks() -> None:
    """Blocks of one and of three seconds, 3 1 1 1 | 1 1 1 3 | 3 3 on three ranks: six seconds each, which no other
    split reaches, and later blocks on the middle rank take longer."""
    kinds = Kinds((0, 1, 1, 1, 1, 1, 1, 0, 0, 0))
    costs = random_costs(np.random.default_rng(0))
    free = replace(
        costs, **{one.name: 0.0 * getattr(costs, one.name) for one in fields(costs) if one.name != "kinds"}
    )
    roomy = replace(free, memory_limit=np.array([1e9]))
    each = [
        replace(roomy, layer_forward=np.array([s / 3]), layer_backward=np.full((1, 3), 2 * s / 3))
        for s in (3.0, 1.0)
    ]
    shape: dict[str, Any] = {"pp": 3, "vpp": 1, "schedule": "1f1b", "microbatches": 40}
    shape["allowed"] = np.array([True, False, False])
    leaf = Leaf(**leaf_arguments(costs_by_kind(roomy, each, kinds), kinds), **shape)
    exact, bound = exhaustive_best(leaf), capacity_bounds(RankCosts.of(leaf))[0]
    assert exact == pytest.approx((40 + 2) * 6.0)
    assert 0.95 * exact < bound <= exact * (1 + TOLERANCE)


@given(SEEDS, st.floats(min_value=0.8, max_value=1.2))
@settings(max_examples=number(30, 60), deadline=None, derandomize=True)
def test_a_capacity_bound_is_as_close_as_the_cut_off_asks(seed: int, share: float) -> None:
    group = RankCosts.of(random_leaf(seed))
    whole = capacity_bounds(group)[0]
    cut_off = share * (whole if math.isfinite(whole) else 1.0)
    found = capacity_bounds(group, cut_off)[0]
    assert found <= whole * (1 + 2 * PRECISION)
    assert found >= min(whole, cut_off) * (1 - 2 * PRECISION)


@pytest.mark.parametrize(("blocks", "gap"), [("one kind", 0.045), ("several kinds", 0.06), ("pools", 0.05)])
def test_the_bounds_are_worth_having(blocks: str, gap: float) -> None:
    """Of several kinds of blocks those of one chunk a rank; in chunks they are coarse."""
    several = blocks == "several kinds"
    leaves = [
        mixed_leaf(seed) if blocks == "pools" else random_leaf(seed, several=several, plain=several)
        for seed in range(80 if blocks == "pools" else 60)
    ]
    exact = np.array([exhaustive_best(leaf) for leaf in leaves])
    bound = np.array([capacity_bounds(RankCosts.of(leaf))[0] for leaf in leaves])
    feasible = np.isfinite(exact)
    assert np.mean(1 - bound[feasible] / exact[feasible]) < gap
    assert np.isinf(bound[~feasible]).mean() > 0.5


def test_the_quick_bound_knows_how_many_blocks_uneven_stages_have() -> None:
    """Of 94 blocks on 8 ranks of 6 chunks a rank has 11 or 12, not 6 times the smallest stage."""
    leaf = random_leaf(7)
    shape: dict[str, Any] = {"pp": 8, "vpp": 6, "schedule": "interleaved", "kinds": Kinds((0,) * 94)}
    group = replace(RankCosts.of(leaf), microbatches=np.array([64]), **shape)
    roomy = replace(group, costs=replace(leaf.costs, memory_limit=np.array([1e6])))
    quick, patterns = quick_bounds(roomy)[0], capacity_bounds(roomy)[0]
    assert 0.95 * patterns < quick <= patterns * (1 + TOLERANCE)
