"""Arithmetic over levels against the explicit graph: what groups get while all groups of the axis communicate."""

from __future__ import annotations

import numpy as np
import pytest
from clusters import cluster, levelled, profile
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import all_to_all_rate, hand_over_rate, ring_cut, ring_rate
from test_axis_orders import AXES, layouts, listed

from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import Layout
from cost_models.communication.collectives import (
    all_gather_seconds,
    all_to_all_seconds,
    point_to_point_seconds,
)
from cost_models.communication.topology import Groups, axis_groups
from cost_models.specs.cluster import ClusterSpec

SPEEDS = ("10 GB/s", "25 GB/s", "40 GB/s", "300 GB/s")


@st.composite
def of_levels(draw: st.DrawFn) -> ClusterSpec:
    """64 GPUs under any levels that nest: pairs and sockets of one medium or of two, leaves, spines, shared links."""
    per_node = draw(st.sampled_from([2, 4, 8, 16]))
    inside = draw(st.sets(st.sampled_from([2, 4, 8]), max_size=2).map(sorted))
    beyond = draw(st.sets(st.sampled_from([2, 4, 8, 16]), max_size=2).map(sorted))
    sizes = [{"gpus": n} for n in inside if n < per_node] + [{"nodes": 1}]
    kinds = [draw(st.sampled_from(["nvlink", "pcie"])) for _ in sizes]
    sizes += [{"nodes": n} for n in beyond if n * per_node < 64] + [{}]
    kinds += ["roce"] * (len(sizes) - len(kinds))
    levels: list[dict[str, object]] = []
    speed = 0
    for at, (size, kind) in enumerate(zip(sizes, kinds, strict=True)):
        same = at and kind == kinds[at - 1]
        speed = draw(st.integers(1, speed if same else 300))
        level = {"name": f"level{at}", "kind": kind, "bandwidth": f"{speed} GB/s"} | size
        if at and not same:
            inner = sizes[at - 1].get("gpus", per_node)
            level["sharers"] = draw(st.sampled_from([n for n in (1, 2, 4, 8) if n <= inner]))
        levels.append(level)
    return levelled(*levels, gpus_per_node=per_node, nodes=64 // per_node)


@st.composite
def of_nodes(draw: st.DrawFn) -> ClusterSpec:
    """64 GPUs in nodes of any power of two, under leaves of any, with a spine as wide or thinner."""
    per_node = draw(st.sampled_from([1, 2, 4, 8, 16]))
    nodes = 64 // per_node
    return cluster(
        gpus_per_node=per_node,
        nodes=nodes,
        intra=draw(st.sampled_from(SPEEDS)),
        inter=draw(st.sampled_from(SPEEDS)),
        oversubscription=draw(st.sampled_from([1.0, 2.0, 7.0])),
        nodes_per_leaf=draw(st.sampled_from([None, *(n for n in (1, 2, 4, 8) if n <= nodes)])),
    )


def clusters() -> st.SearchStrategy[ClusterSpec]:
    """Written either way."""
    return st.one_of(of_nodes(), of_levels())


def of_axis(layout: Layout, axis: str, of: ClusterSpec) -> Groups:
    found = axis_groups(of, LayoutColumns.of([layout]))
    return {
        "every": found.data.replicas,
        "shard": found.data.shard,
        "copies": found.data.copies,
        "experts": found.experts.replicas,
        "expert shard": found.experts.shard,
        "expert copies": found.experts.copies,
    }.get(axis) or getattr(found, axis)


@pytest.mark.parametrize("axis", AXES)
@settings(deadline=None, max_examples=20)
@given(layout=layouts((1, 2, 4, 8)), of=clusters())
def test_a_ring_has_the_bottleneck_of_the_graph(axis: str, layout: Layout, of: ClusterSpec) -> None:
    if layout.num_gpus > of.num_gpus:
        return
    groups, ranks = of_axis(layout, axis, of), listed(layout, axis)
    if groups.size[0] > 1:
        assert groups.ring_bandwidth()[0] == pytest.approx(ring_rate(of, ranks))
        assert groups.ring_bandwidth()[0] == pytest.approx(ring_cut(of, ranks))


@pytest.mark.parametrize("axis", AXES)
@settings(deadline=None, max_examples=20)
@given(layout=layouts((1, 2, 3, 4, 6)), of=clusters())
def test_odd_rings_are_never_priced_better_than_the_graph_has_it(
    axis: str, layout: Layout, of: ClusterSpec
) -> None:
    if layout.num_gpus > of.num_gpus:
        return
    groups, ranks = of_axis(layout, axis, of), listed(layout, axis)
    if groups.size[0] > 1:
        assert groups.ring_bandwidth()[0] <= ring_rate(of, ranks) * (1 + 1e-9)


PIPELINES = [
    Layout(tp=2**tp, pp=2**pp, dp=2 ** (6 - tp - pp), order=order)
    for pp in range(1, 7)
    for tp in range(7 - pp)
    for order in ("tp-cp-dp-pp", "tp-pp-cp-dp")
]


PAIRS = {"name": "pair", "gpus": 2, "kind": "nvlink", "bandwidth": "50 GB/s"}
BOX = {"name": "box", "nodes": 1, "bandwidth": "32 GB/s"}
PIPED = {
    "plain": cluster(),
    "small nodes": cluster(gpus_per_node=1, nodes=64, oversubscription=3.0, nodes_per_leaf=2),
    "leaves": cluster(oversubscription=3.0, nodes_per_leaf=2),
    "undescribed leaves": cluster(oversubscription=3.0),
    "pairs": levelled(PAIRS, BOX, {"name": "network", "bandwidth": "3 GB/s", "sharers": 4}),
    "sockets": levelled(
        {"name": "socket", "gpus": 4, "bandwidth": "32 GB/s"},
        {"name": "box", "nodes": 1, "bandwidth": "6 GB/s"},
        {"name": "leaf", "nodes": 2, "bandwidth": "4 GB/s", "sharers": 2},
        {"name": "building", "nodes": 4, "bandwidth": "4 GB/s"},
        {"name": "campus", "bandwidth": "0.1 GB/s"},
    ),
}


@pytest.mark.parametrize("of", PIPED)
def test_a_stage_hands_on_at_the_bottleneck_of_the_graph(of: str) -> None:
    exact, message = (
        profile(link_efficiency=1.0, network_efficiency=1.0),
        1e15,
    )  # latency is nothing against it
    groups = axis_groups(PIPED[of], LayoutColumns.of(PIPELINES)).pp
    found = message / point_to_point_seconds(message, groups, exact)
    expected = [hand_over_rate(PIPED[of], listed(layout, "pp")) for layout in PIPELINES]
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@settings(deadline=None, max_examples=50)
@given(layout=layouts((1, 2, 4, 8)), of=clusters())
def test_an_all_to_all_takes_what_the_fullest_edge_takes(layout: Layout, of: ClusterSpec) -> None:
    exact = profile(link_efficiency=1.0, network_efficiency=1.0)
    for axis in ("cp", "ep"):
        groups = of_axis(layout, axis, of) if layout.num_gpus <= of.num_gpus else None
        if groups is not None and groups.size[0] > 1:
            seconds = all_to_all_seconds(1e15, groups, exact)[0]
            expected = 1e15 / groups.size[0] ** 2 / all_to_all_rate(of, listed(layout, axis))
            assert seconds == pytest.approx(expected, rel=1e-6)


def test_a_pipeline_between_buildings_has_all_of_the_way_between_them() -> None:
    """Eight stages of one node: only the stages on either side of the border use the link that all share."""
    of = levelled(
        BOX,
        {"name": "building", "nodes": 4, "bandwidth": "10 GB/s"},
        {"name": "campus", "bandwidth": "1 GB/s"},
    )
    x = LayoutColumns.of([Layout(tp=8, pp=8), Layout(tp=8, pp=2, dp=4), Layout(tp=8, dp=8)])
    exact, message = profile(link_efficiency=1.0, network_efficiency=1.0), 1e12
    found = axis_groups(of, x)
    seconds = point_to_point_seconds(message, found.pp, exact)
    np.testing.assert_allclose(seconds[:2], [message / 4e9, message / 1e9], rtol=1e-5)
    np.testing.assert_allclose(found.dp.ring_bandwidth()[1:], [10e9, 4e9])


def test_pieces_of_a_group_that_fill_their_pairs_leave_the_box_between_them_alone() -> None:
    box, network = (
        {"name": "box", "nodes": 1, "bandwidth": "1 GB/s"},
        {"name": "network", "bandwidth": "2 GB/s"},
    )
    of = levelled(PAIRS | {"bandwidth": "3 GB/s"}, box, network, gpus_per_node=4, nodes=2)
    layout = Layout(cp=2, pp=2, dp=2, ep=4, order="tp-cp-pp-dp")
    assert listed(layout, "ep").tolist() == [[0, 1, 4, 5], [2, 3, 6, 7]]
    assert of_axis(layout, "ep", of).ring_bandwidth()[0] == pytest.approx(3e9)


def test_more_than_a_pair_meets_pcie_by_the_ways_out_of_both_cards() -> None:
    of = levelled(PAIRS, BOX, nodes=1)
    found = axis_groups(of, LayoutColumns.of([Layout(tp=2, dp=4), Layout(tp=4, dp=2), Layout(tp=8)]))
    np.testing.assert_allclose(found.tp.ring_bandwidth(), [50e9, 50e9, 50e9])
    np.testing.assert_allclose(found.dp.ring_bandwidth()[:2], [32e9, 32e9])


def test_latency_is_paid_at_the_level_where_a_hop_turns() -> None:
    """A ring of 8 in four pairs: 3 hops inside a pair at 1 us and 4 between pairs at 8 us."""
    of = levelled(PAIRS, BOX | {"latency": "8 us"}, nodes=1)
    group = axis_groups(of, LayoutColumns.of([Layout(tp=8)])).tp
    np.testing.assert_allclose(all_gather_seconds(1e-9, group, profile()), 3 * 1e-6 + 4 * 8e-6, rtol=1e-6)
