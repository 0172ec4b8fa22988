"""Groups by arithmetic against every rank written out, and against the graph of the cluster."""

from __future__ import annotations

from collections import Counter

import networkx
import numpy as np
import pytest
from clusters import EVERY_SMALL_LAYOUT, cluster, columns
from hypothesis import given
from hypothesis import strategies as st

from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import parse_layout
from cost_models.communication.topology import axis_groups, link_graph

POWERS = [degrees for degrees in EVERY_SMALL_LAYOUT if not any(degree % 3 == 0 for degree in degrees)]


def spread(axis: str, degrees: tuple[int, int, int], gpus_per_node: int) -> tuple[int, int, bool]:
    """All ranks of all groups listed: fewest members in a node, most nodes, whether any node holds two."""
    tp, dp, pp = degrees
    ranks = np.arange(tp * dp * pp).reshape(pp, dp, tp)
    at = {"pp": 0, "dp": 1, "tp": 2}[axis]
    groups = np.moveaxis(ranks, at, -1).reshape(-1, ranks.shape[at])
    members = [Counter((group // gpus_per_node).tolist()) for group in groups]
    sizes = [size for count in members for size in count.values()]
    return min(sizes), max(len(count) for count in members), max(sizes) > 1


@pytest.mark.parametrize("axis", ["tp", "dp", "pp"])
def test_powers_of_two_sit_exactly_where_listing_says(axis: str) -> None:
    groups = getattr(axis_groups(cluster(nodes=12), columns(*POWERS)), axis)
    listed = [spread(axis, degrees, 8)[:2] for degrees in POWERS]
    assert list(zip(groups.ranks_per_node.tolist(), groups.nodes.tolist(), strict=True)) == listed


@pytest.mark.parametrize(
    ("text", "sizes", "nodes", "per_node"),
    [
        ("tp4 cp2 dp2 pp2", (2, 4, 2), (1, 2, 2), (2, 2, 1)),
        ("tp2 cp8 dp1 pp2", (8, 8, 2), (2, 2, 2), (4, 4, 1)),
        ("tp8 cp2 dp2 pp1", (2, 4, 1), (2, 4, 1), (1, 1, 1)),
    ],
)
def test_context_ranks_sit_between_tensor_and_data(
    text: str, sizes: tuple[int, ...], nodes: tuple[int, ...], per_node: tuple[int, ...]
) -> None:
    """(cp, cp with dp, pp) groups of 32 ranks on nodes of 8, counted by hand."""
    found = axis_groups(cluster(nodes=4), LayoutColumns.of([parse_layout(text)]))
    for index, groups in enumerate((found.cp, found.dp, found.pp)):
        assert (groups.size[0], groups.nodes[0], groups.ranks_per_node[0]) == (
            sizes[index],
            nodes[index],
            per_node[index],
        )


@pytest.mark.parametrize("axis", ["tp", "dp", "pp"])
@pytest.mark.parametrize("gpus_per_node", [1, 4, 6, 8])
def test_odd_sizes_are_never_priced_better_than_they_are(axis: str, gpus_per_node: int) -> None:
    groups = getattr(
        axis_groups(cluster(nodes=96, gpus_per_node=gpus_per_node), columns(*EVERY_SMALL_LAYOUT)), axis
    )
    members, nodes, shared = zip(
        *(spread(axis, degrees, gpus_per_node) for degrees in EVERY_SMALL_LAYOUT), strict=True
    )
    assert (groups.ranks_per_node <= members).all()
    assert (groups.nodes >= nodes).all()
    assert (groups.nodes <= groups.size).all()
    assert (groups.reach[0].meets >= shared).all()


def test_a_group_has_its_share_of_the_cut_around_its_node() -> None:
    """The cut between a node and its leaf is the node's network, owned in proportion to members."""
    hardware = cluster(nodes=4, nodes_per_leaf=2)
    graph = link_graph(hardware)
    for gpu in range(8):
        graph.add_edge("all gpus", f"gpu{gpu}")  # no capacity: unlimited
    cut, _ = networkx.minimum_cut(graph, "all gpus", "network0", capacity="bandwidth")
    assert cut == pytest.approx(8 * 25e9)
    groups = axis_groups(hardware, columns((2, 16, 1), (8, 4, 1), (1, 32, 1)))
    np.testing.assert_allclose(groups.dp.reach[1].bandwidth, cut * np.array([4, 1, 8]) / 8)
    np.testing.assert_allclose(groups.dp.ring_bandwidth(), [100e9, 25e9, 200e9])


def test_the_slowest_link_of_a_ring_is_inside_the_node_where_the_network_is_faster() -> None:
    groups = axis_groups(cluster(intra="100 GB/s"), columns((1, 16, 1), (8, 1, 2)))
    np.testing.assert_allclose(groups.dp.ring_bandwidth(), [100e9, 100e9])
    np.testing.assert_allclose(groups.tp.ring_bandwidth(), [100e9, 100e9])


def test_members_that_share_no_node_never_use_its_links() -> None:
    groups = axis_groups(cluster(intra="10 GB/s", nodes=2), columns((8, 2, 1)))
    np.testing.assert_allclose(groups.dp.ring_bandwidth(), [25e9])


def test_oversubscription_slows_what_leaves_its_leaf_for_all_who_share_it() -> None:
    """Leaves of two nodes, half the bandwidth out of them. dp4 of tp8 has two members in each leaf, and two shares of
    its way out: as much as one adapter. Where every member is under a leaf of its own half an adapter's is left."""
    hardware = cluster(nodes=4, oversubscription=2.0, nodes_per_leaf=2)
    groups = axis_groups(hardware, columns((8, 2, 1), (8, 4, 1), (8, 2, 2)))
    np.testing.assert_allclose(groups.dp.ring_bandwidth(), [25e9, 25e9, 25e9])
    np.testing.assert_allclose(groups.pp.ring_bandwidth()[2], 12.5e9)
    undescribed = axis_groups(cluster(nodes=4, oversubscription=2.0), columns((8, 2, 1)))
    np.testing.assert_allclose(undescribed.dp.ring_bandwidth(), [12.5e9])


def test_the_graph_has_the_links_of_the_cluster() -> None:
    graph = link_graph(cluster(nodes=100, nodes_per_leaf=2, oversubscription=2.0), range(24))
    kinds = Counter(kind for _, kind in graph.nodes(data="kind"))
    assert kinds == {"gpu": 24, "switch": 3 + 2 + 1, "adapter": 24}
    assert graph.edges["leaf.adapter0", "leaf0"]["bandwidth"] == pytest.approx(25e9)
    assert graph.edges["leaf0", "spine0"]["bandwidth"] == pytest.approx(200e9)

    def latency(source: str, target: str) -> float:
        return float(networkx.shortest_path_length(graph, source, target, weight="latency"))

    assert latency("gpu0", "gpu7") == pytest.approx(1e-6)
    assert latency("gpu0", "gpu8") == pytest.approx(5e-6)
    assert latency("gpu0", "gpu16") == pytest.approx(5e-6)
    assert networkx.is_connected(graph)


def test_one_node_needs_no_network() -> None:
    graph = link_graph(cluster(nodes=1, inter=None))
    assert set(dict(graph.nodes(data="kind")).values()) == {"gpu", "switch"}
    groups = axis_groups(cluster(nodes=1, inter=None), columns((2, 3, 1), (8, 1, 1), (3, 1, 2)))
    assert all((own.nodes == 1).all() for own in (groups.tp, groups.dp, groups.pp))


@given(st.sampled_from(EVERY_SMALL_LAYOUT), st.integers(1, 600), st.integers(0, 600), st.booleans())
def test_a_faster_link_never_lowers_a_bandwidth(
    degrees: tuple[int, int, int], bandwidth: int, more: int, inside: bool
) -> None:
    name = "intra" if inside else "inter"
    slow, fast = (
        axis_groups(cluster(nodes=12, **{name: f"{value} GB/s"}), columns(degrees))
        for value in (bandwidth, bandwidth + more)
    )
    for axis in ("tp", "dp", "pp"):
        assert getattr(fast, axis).ring_bandwidth() >= getattr(slow, axis).ring_bandwidth()
