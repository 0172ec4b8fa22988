"""Lower bounds are lower: no placement the search covers is faster, and what they call impossible is."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from effort import number
from hypothesis import given, settings
from hypothesis import strategies as st
from several_pools import mixed_leaf
from synthetic import costs_by_kind, exhaustive_best, random_costs, random_leaf

from cost_models.schedules.actions import peak_moments
from cost_models.schedules.registry import build, engine_refusal
from cost_models.specs.kinds import Kinds
from planner.bounds.steps import PRECISION, capacity_bounds, quick_bounds, rank_sizes
from planner.exact.labels import place_by_labels
from planner.exact.program import paths_through
from planner.placement.leaf import TOLERANCE, Leaf, Task, priced
from planner.placement.rank_costs import RankCosts

SEEDS = st.integers(min_value=0, max_value=10**6)
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
    leaf = Leaf(**priced(costs_by_kind(roomy, each, kinds), kinds), **shape)
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


@given(SEEDS, st.sampled_from(["one kind", "several kinds", "pools"]))
@settings(max_examples=number(60, 200), deadline=None, derandomize=True)
def test_the_best_placement_keeps_to_the_sizes_its_step_allows(seed: int, blocks: str) -> None:
    leaf = leaf_with(seed, blocks)
    if not leaf.is_plain or math.isinf(exact := exhaustive_best(leaf)):
        return
    least, most = rank_sizes(RankCosts.of(leaf), np.array([exact]))
    solution = place_by_labels(Task(leaf))
    assert solution is not None
    assert solution.placement is not None
    assert (least[0] <= solution.placement.layers).all()
    assert (most[0] >= solution.placement.layers).all()


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


@given(SEEDS)
@settings(max_examples=number(40, 100), deadline=None, derandomize=True)
def test_paths_through_ranks_are_never_longer_than_the_timeline(seed: int) -> None:
    leaf, rng = random_leaf(seed), np.random.default_rng(seed)
    if not leaf.is_plain:
        return
    forward, backward, p2p = rng.random(leaf.pp), rng.random(leaf.pp), float(rng.random())
    ends = leaf.timeline.rank_ends(forward, backward, p2p)
    paths = paths_through(leaf)
    assert len(paths) == leaf.pp
    for path in paths:
        length = path.forward_counts @ forward + path.backward_counts @ backward + path.p2p_count * p2p
        assert length <= ends[path.rank] * (1 + TOLERANCE)


@given(
    st.sampled_from(["gpipe", "1f1b", "interleaved"]),
    st.integers(2, 5),
    st.integers(2, 4),
    st.integers(1, 12),
)
@settings(max_examples=number(40, 100), deadline=None, derandomize=True)
def test_the_memory_bound_looks_at_a_real_moment(schedule: str, pp: int, chunks: int, m: int) -> None:
    vpp = chunks if schedule == "interleaved" else 1
    if engine_refusal(schedule, pp, vpp, m):
        return
    leaf = random_leaf(0)
    shape: dict[str, Any] = {"pp": pp, "vpp": vpp, "schedule": schedule, "kinds": Kinds((0,) * pp * vpp)}
    group = RankCosts(costs=leaf.costs, microbatches=np.array([m]), allowed=leaf.allowed, **shape)
    for rank, live in enumerate(peak_moments(build(schedule, pp, vpp, m))[0]):
        assert (live >= group.live[0, rank]).all(axis=1).any()
