"""Clusters of several buildings: the proof holds with a third level of links, and what crosses them is told."""

from __future__ import annotations

import numpy as np
import pytest
from effort import number
from questions import building_base, random_query
from test_exact import ask_both
from test_levels import exact_seconds

from cost_models.axes.layout import Layout
from cost_models.defaults import complete_question
from cost_models.files.catalog import load_cluster, load_model
from cost_models.pipeline.pricing import crossing, estimate
from cost_models.question import Question
from cost_models.specs.cluster import BuildingsSpec, LinkSpec
from cost_models.specs.training import TrainingSpec
from planner.bounds.cores import relaxed_bounds
from planner.placement.leaf import TOLERANCE
from planner.search.candidates import UniformCandidates
from planner.search.search import search
from planner.space.restrictions import Restrictions, parse_restrictions
from planner.space.space import legal_space

BASES = number(4, 48)
QUERIES = number(8, 600)


def campus(buildings: int, link: str = "25 Gb/s", nodes: int = 32) -> Question:
    """Llama 3 8B on nodes of DGX H100 in so many buildings."""
    plain = load_cluster("dgx-h100").model_copy(update={"nodes": nodes})
    between = LinkSpec(kind="ethernet", bandwidth=link, latency="60 us")
    update = {"buildings": BuildingsSpec(nodes=nodes // buildings, link=between)}
    cluster = plain.model_copy(update=update if buildings > 1 else {})
    return complete_question(
        load_model("llama3-8b"), cluster, TrainingSpec(global_batch=512, sequence_length=8192)
    )


@pytest.mark.timeout(1800)
def test_search_equals_brute_force_in_several_buildings() -> None:
    rng = np.random.default_rng(17)
    for _ in range(QUERIES):
        ask_both(random_query(rng, BASES, building_base))


def test_a_policy_slower_than_another_is_not_settled() -> None:
    """Trainers of one recompute policy have a search for each; the first found what later ones need not beat."""
    limits = parse_restrictions(("mbs=3", "zero=2"), max_memory=6404099, trainer="torchtitan")
    proof = search(building_base(29).question, top=1, restrictions=limits).certificate
    assert (proof.undecided, proof.gap) == (0, 0)


@pytest.mark.parametrize("seed", range(BASES))
def test_no_bound_is_above_what_brute_force_finds_in_buildings(seed: int) -> None:
    found = building_base(seed)
    space = legal_space(found.question, Restrictions())
    policies = found.question.training.recompute
    rows, every = space.all_rows(), np.arange(len(space.cores))
    exact = exact_seconds(found, rows, np.inf) * (1 + TOLERANCE)
    candidates = UniformCandidates(found.question, Restrictions(), space)
    candidates.open_cores(every, threshold=0.0)
    closed = candidates.closed
    best = np.array([exact[np.repeat(every, space.sizes) == core].min() for core in every])
    least = np.array([closed.bound[closed.core == core].min() for core in every])
    assert (least <= best).all()
    allowed = np.array([policy in policies for policy in ("none", "selective", "full")])
    assert (relaxed_bounds(space, every, allowed, None) <= best).all()


def test_which_axis_crosses_is_told() -> None:
    """Of two buildings of 128 GPUs a pipeline of two stages crosses, or its replicas do: by the order of the axes."""
    for order, across, stay in (("tp-cp-dp-pp", ["pp"], ("tp", "dp")), ("tp-pp-cp-dp", ["dp"], ("tp", "pp"))):
        question = campus(2)
        found = crossing(question, estimate(question, Layout(tp=8, pp=2, dp=16, zero=1, order=order)))
        assert found is not None
        assert ([one.axis for one in found.uses], found.stay, found.inside) == (across, stay, "building")
    assert crossing(campus(1), estimate(campus(1), Layout(tp=8, dp=32))) is None


def test_sharding_inside_a_building_crosses_with_a_shard_alone() -> None:
    """Hierarchical: gradients are scattered inside the building and summed between k of them, 2 (k - 1)/k of a shard;
    a ring through all ranks carries (n - 1)/n of gradients and of weights."""
    question = campus(2)
    flat, hybrid = (
        crossing(question, estimate(question, Layout(tp=8, dp=32, zero=1, shard=shard)))
        for shard in (None, 16)
    )
    assert flat is not None
    assert hybrid is not None
    scatter, gather = 4.0, 2.0  # bytes of a gradient and of a weight
    ring = (scatter + gather) * 31 / 32 / 16
    assert hybrid.uses[0].gpu_bytes / flat.uses[0].gpu_bytes == pytest.approx(
        2 * scatter * 1 / 2 / 16 / ring, rel=0.02
    )
    assert hybrid.uses[0].share < flat.uses[0].share
