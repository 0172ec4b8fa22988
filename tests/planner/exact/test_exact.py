"""The search equals brute force on random small questions, in buildings too, and no level bounds above it."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
from agreeing import require_query, tight_queries
from asking import ask
from brute import AXES, EVERY_POLICY, Everything
from effort import number
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from questions import Query, base, building_base, packed_base, random_query, tuned_base

from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import Layout
from cost_models.files.catalog import load_cluster
from cost_models.pipeline.pricing import crossing, estimate
from cost_models.pipeline.stage_costs import stage_costs
from cost_models.question import Question
from cost_models.specs.choices import RECOMPUTE_POLICIES
from cost_models.specs.cluster import BuildingsSpec, LinkSpec
from planner.bounds.cores import ideal_seconds, relaxed_bounds
from planner.bounds.steps import capacity_bounds
from planner.placement.leaf import TOLERANCE
from planner.placement.rank_costs import groups_of
from planner.rules.legality import check
from planner.search.candidates import UniformCandidates
from planner.search.search import search
from planner.space.restrictions import Restrictions, parse_restrictions
from planner.space.space import legal_space

QUERIES = number(30, 2000)
TIGHT = number(6, 40)
"""Questions asked under the least limits of memory."""
TUNED = number(9, 300)
COUNTED = number(4, 200)
BASES = 48
"""Random questions; restrictions and limits make many of each."""


def ask_both(query: Query) -> None:
    """Check a query, that what is found fits and is legal, and that the integer program agrees."""
    if (result := require_query(query)) is None:
        return
    for one in result.estimates:
        assert one.fits
        assert one.peak_bytes <= (query.restrictions.max_memory or np.inf)
    assert not check(query.question, result.best.layout, query.restrictions.trainer)
    proof = result.certificate
    if proof.settled is not None:
        assert proof.settled.objective == pytest.approx(proof.bound, rel=10 * TOLERANCE)


@pytest.mark.timeout(1800)
def test_search_equals_brute_force_on_random_questions() -> None:
    tally = SimpleNamespace(queries=0, layouts=0, infeasible=0)

    @given(st.integers(0, 10**9))
    @settings(max_examples=QUERIES, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    def ask(seed: int) -> None:
        query = random_query(np.random.default_rng(seed), BASES)
        ask_both(query)
        tally.queries += 1
        tally.layouts += query.layouts
        tally.infeasible += not query.seconds

    ask()
    print(f"{tally.queries:,} queries over {tally.layouts:,} layouts, {tally.infeasible:,} infeasible")
    assert tally.queries >= QUERIES
    assert tally.layouts > 9 * QUERIES
    assert QUERIES / 20 < tally.infeasible < QUERIES / 2


@pytest.mark.timeout(1800)
def test_search_equals_brute_force_where_adapters_are_trained() -> None:
    for seed in range(TUNED):
        ask_both(random_query(np.random.default_rng(seed), TUNED // 3, tuned_base))


@pytest.mark.timeout(1800)
def test_search_equals_brute_force_where_documents_are_packed() -> None:
    for seed in range(TUNED):
        ask_both(random_query(np.random.default_rng(seed), TUNED // 3, packed_base))


@pytest.mark.timeout(1800)
def test_search_equals_brute_force_where_a_trainer_counts_the_blocks_in_full() -> None:
    """And so does the integer program over the whole question."""
    for seed in range(COUNTED):
        query = random_query(np.random.default_rng(seed), COUNTED, trainer="megatron")
        ask_both(query)
        if query.seconds:
            found = search(query.question, top=query.top, restrictions=query.restrictions, proof="ilp")
            seconds = [one.step_seconds for one in found.estimates]
            assert seconds == pytest.approx(query.seconds[: query.top], rel=10 * TOLERANCE)


def test_a_rank_is_no_faster_than_the_policy_that_fits_it() -> None:
    """Its bound of one block mixed two policies in fractions; the other rank's was then too high for the best."""
    ask_both(random_query(np.random.default_rng(179), 100, packed_base))


@pytest.mark.timeout(1800)
def test_what_needs_least_memory_is_found() -> None:
    """Limits just above the least peaks of all: a bound that asks for a byte too many loses the only answer."""
    for seed in range(TIGHT):
        for query in tight_queries(seed):
            ask_both(query)


BUILDING_BASES = number(4, 48)
BUILDING_QUERIES = number(8, 600)


def campus(buildings: int, link: str = "25 Gb/s", nodes: int = 32) -> Question:
    """Llama 3 8B on nodes of DGX H100 in so many buildings."""
    plain = load_cluster("dgx-h100").model_copy(update={"nodes": nodes})
    between = LinkSpec(kind="ethernet", bandwidth=link, latency="60 us")
    update = {"buildings": BuildingsSpec(nodes=nodes // buildings, link=between)} if buildings > 1 else {}
    return ask("llama3-8b", plain.model_copy(update=update), global_batch=512, sequence_length=8192)


@pytest.mark.timeout(1800)
def test_search_equals_brute_force_in_several_buildings() -> None:
    rng = np.random.default_rng(17)
    for _ in range(BUILDING_QUERIES):
        ask_both(random_query(rng, BUILDING_BASES, building_base))


def test_a_policy_slower_than_another_is_not_settled() -> None:
    """Trainers of one recompute policy have a search for each; the first found what later ones need not beat."""
    limits = parse_restrictions(("mbs=3", "zero=2"), max_memory=6404099, trainer="torchtitan")
    proof = search(building_base(29).question, top=1, restrictions=limits).certificate
    assert (proof.undecided, proof.gap) == (0, 0)


@pytest.mark.parametrize("seed", range(BUILDING_BASES))
def test_no_bound_is_above_what_brute_force_finds_in_buildings(seed: int) -> None:
    found = building_base(seed)
    space = legal_space(found.question, Restrictions())
    policies = found.question.training.recompute
    rows, every = space.all_rows(), np.arange(len(space.cores))
    exact = exact_seconds(found, rows, np.inf) * (1 + TOLERANCE)
    candidates = UniformCandidates(found.question, Restrictions(), space)
    candidates.open_cores(every, threshold=0.0)
    closed = candidates.unopened
    best = np.array([exact[np.repeat(every, space.sizes) == core].min() for core in every])
    least = np.array([closed.bound[closed.core == core].min() for core in every])
    assert (least <= best).all()
    allowed = np.array([policy in policies for policy in ("none", "selective", "full")])
    assert (relaxed_bounds(space, every, allowed, None) <= best).all()


def test_sharding_inside_a_building_crosses_with_a_shard_alone() -> None:
    """Hierarchical: gradients are scattered inside the building and summed between k of them, 2 (k - 1)/k of a shard;
    a ring through all ranks carries (n - 1)/n of gradients and of weights."""
    question = campus(2)
    flat, hybrid = (
        crossing(question, estimate(question, Layout(tp=8, dp=32, zero=1, shard=shard)))
        for shard in (None, 16)
    )
    scatter, gather = 4.0, 2.0  # bytes of a gradient and of a weight
    ring = (scatter + gather) * 31 / 32 / 16
    assert hybrid.uses[0].gpu_bytes / flat.uses[0].gpu_bytes == pytest.approx(
        2 * scatter * 1 / 2 / 16 / ring, rel=0.02
    )
    assert hybrid.uses[0].share < flat.uses[0].share


LEVEL_BASES = 24


def exact_seconds(found: Everything, rows: LayoutColumns, max_memory: float) -> np.ndarray:
    """(N,) of the same layouts by brute force; infinite where nothing fits."""
    known = {tuple(row): index for index, row in enumerate(_table(found.columns))}
    own = [known[tuple(row)] for row in _table(rows)]
    each = [found.best(np.array([index]), EVERY_POLICY, max_memory)[0] for index in own]
    return np.array([seconds[0] if seconds else math.inf for seconds in each])


def _table(columns: LayoutColumns) -> list[list[int]]:
    table: list[list[int]] = np.stack([getattr(columns, axis) for axis in AXES], axis=1).tolist()
    return table


def limits_of(found: Everything, seed: int) -> list[float | None]:
    """No limit, and two that some placements just keep to."""
    rng = np.random.default_rng(seed)
    peaks = np.concatenate([own.peak for own in found.placed])
    tight = [float(np.quantile(peaks, share)) for share in (rng.random() ** 2 / 4, rng.random() ** 2 / 2)]
    return [None, *tight]


@pytest.mark.parametrize("seed", range(LEVEL_BASES))
def test_no_level_bounds_above_what_brute_force_finds(seed: int) -> None:
    found = base(seed)
    question = found.question
    space = legal_space(question, Restrictions())
    policies = question.training.recompute
    allowed = np.array([policy in policies for policy in RECOMPUTE_POLICIES])
    rows, every = space.all_rows(), np.arange(len(space.cores))
    core_of_row = np.repeat(every, space.sizes)
    costs = stage_costs(question, rows)
    for max_memory in limits_of(found, seed):
        exact = exact_seconds(found, rows, max_memory or math.inf) * (1 + TOLERANCE)
        ideal = ideal_seconds(space, allowed)
        relaxed = relaxed_bounds(space, every, allowed, max_memory)
        candidates = UniformCandidates(question, Restrictions(max_memory=max_memory), space)
        candidates.open_cores(every, threshold=0.0)
        limited = costs.within(max_memory)
        quick, capacity = candidates.bounds(rows, limited), np.empty(len(rows))
        for own in groups_of(rows):
            capacity[own] = capacity_bounds(candidates.group(rows, limited, own))
        assert (ideal[core_of_row] <= exact).all()
        assert (relaxed[core_of_row] <= exact).all()
        assert (quick == candidates.unopened.bound).all()
        assert (quick <= capacity * (1 + TOLERANCE)).all()
        assert (capacity <= exact).all()
    assert candidates.unopened.counts.layouts.sum() == len(space) == len(rows) == space.sizes.sum()
