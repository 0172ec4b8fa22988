"""Arithmetic over levels against the explicit graph: what groups get while all groups of the axis communicate."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import Layout
from cost_models.communication.collectives import point_to_point_seconds
from cost_models.communication.topology import Groups, axis_groups
from cost_models.specs.cluster import ClusterSpec
from tests.communication.clusters import cluster, profile
from tests.communication.oracle import hand_over_rate, ring_cut, ring_rate
from tests.communication.test_axis_orders import AXES, layouts, listed

SPEEDS = ("10 GB/s", "25 GB/s", "40 GB/s", "300 GB/s")


@st.composite
def clusters(draw: st.DrawFn) -> ClusterSpec:
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


def of_axis(layout: Layout, axis: str, of: ClusterSpec) -> Groups:
    found = axis_groups(of, LayoutColumns.of([layout]))
    return {
        "every": found.data.every,
        "shard": found.data.shard,
        "copies": found.data.copies,
        "experts": found.experts.every,
        "expert shard": found.experts.shard,
        "expert copies": found.experts.copies,
    }.get(axis) or getattr(found, axis)


@pytest.mark.parametrize("axis", AXES)
@settings(deadline=None, max_examples=25)
@given(layout=layouts((1, 2, 4, 8)), of=clusters())
def test_a_ring_has_the_bottleneck_of_the_graph(axis: str, layout: Layout, of: ClusterSpec) -> None:
    if layout.num_gpus > of.num_gpus:
        return
    groups, ranks = of_axis(layout, axis, of), listed(layout, axis)
    if groups.size[0] > 1:
        assert groups.bandwidth[0] == pytest.approx(ring_rate(of, ranks))
        assert groups.bandwidth[0] == pytest.approx(ring_cut(of, ranks))


@pytest.mark.parametrize("axis", AXES)
@settings(deadline=None, max_examples=25)
@given(layout=layouts((1, 2, 3, 4, 6)), of=clusters())
def test_odd_rings_are_never_priced_better_than_the_graph_has_it(
    axis: str, layout: Layout, of: ClusterSpec
) -> None:
    if layout.num_gpus > of.num_gpus:
        return
    groups, ranks = of_axis(layout, axis, of), listed(layout, axis)
    if groups.size[0] > 1:
        assert groups.bandwidth[0] <= ring_rate(of, ranks) * (1 + 1e-9)


PIPELINES = [
    Layout(tp=2**tp, pp=2**pp, dp=2 ** (6 - tp - pp), order=order)
    for pp in range(1, 7)
    for tp in range(7 - pp)
    for order in ("tp-cp-dp-pp", "tp-pp-cp-dp")
]


@pytest.mark.parametrize("oversubscription", [1.0, 3.0])
@pytest.mark.parametrize("nodes_per_leaf", [None, 2, 8])
@pytest.mark.parametrize("per_node", [1, 4, 8])
def test_a_stage_hands_on_at_the_bottleneck_of_the_graph(
    per_node: int, nodes_per_leaf: int | None, oversubscription: float
) -> None:
    of = cluster(
        gpus_per_node=per_node,
        nodes=64 // per_node,
        nodes_per_leaf=nodes_per_leaf,
        oversubscription=oversubscription,
    )
    exact, message = (
        profile(link_efficiency=1.0, network_efficiency=1.0),
        1e15,
    )  # latency is nothing against it
    groups = axis_groups(of, LayoutColumns.of(PIPELINES)).pp
    found = message / point_to_point_seconds(message, groups, exact)
    expected = [hand_over_rate(of, listed(layout, "pp")) for layout in PIPELINES]
    np.testing.assert_allclose(found, expected, rtol=1e-6)
