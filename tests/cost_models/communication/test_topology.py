"""Which links a group uses, against an oracle that walks the ranks."""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import pairwise, permutations

import numpy as np
import pytest
from clusters import cluster, columns, levelled, profile
from hypothesis import given, settings
from hypothesis import strategies as st

from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import Layout, canonical_order, parse_layout, same_seats
from cost_models.communication.collectives import (
    all_gather_seconds,
    all_reduce_seconds,
    all_to_all_seconds,
    point_to_point_seconds,
)
from cost_models.communication.topology import Groups, Level, axis_groups, group_of, levels_of, link_graph
from cost_models.files import catalog
from cost_models.files.loading import resolve_cluster
from cost_models.specs.choices import ORDERS
from cost_models.specs.cluster import ClusterSpec
from cost_models.specs.hardware import HardwareProfile

Listed = np.ndarray[tuple[int, int], np.dtype[np.int64]]
"""(groups, members): global ranks."""


def domain(levels: tuple[Level, ...], at: int, gpu: int) -> int:
    """Which domain of a level a GPU is in; below the first level, itself."""
    if at < 0:
        return gpu
    capacity = levels[at].gpus
    return 0 if capacity is None else gpu // capacity


def turn(levels: tuple[Level, ...], one: int, other: int) -> int:
    """The level at which the path between two GPUs turns: the first with both in one domain."""
    return next(at for at in range(len(levels)) if domain(levels, at, one) == domain(levels, at, other))


def passed(levels: tuple[Level, ...], at: int) -> range:
    """The levels whose links a path that turns at a level passes on its way up: those of the medium."""
    first = at
    while not levels[first].opens:
        first -= 1
    return range(first, at + 1)


def ring_rate(cluster: ClusterSpec, groups: Listed) -> float:
    """Bytes/s of each ring while there is one through every group, ranks in order: the first edge that is full.

    A group leaves a domain by the links of all its members there, in equal parts: one ring for each of them.
    """
    levels = levels_of(cluster)
    load: dict[tuple[str, str], float] = defaultdict(float)
    for group in groups.tolist():
        for (at, inner), hops in _leaving(levels, group).items():
            members = [gpu for gpu in group if domain(levels, at - 1, gpu) == inner]
            for gpu in members:
                load[_edge(levels, at, gpu)] += hops / len(members)
    graph = link_graph(cluster, sorted(groups.reshape(-1).tolist()))
    return min((graph.edges[edge]["bandwidth"] / flow for edge, flow in load.items()), default=np.inf)


def hand_over_rate(cluster: ClusterSpec, groups: Listed) -> float:
    """Bytes/s of the slowest transfer while every member sends to the next: the first edge that is full, for each."""
    levels = levels_of(cluster)
    graph = link_graph(cluster, sorted(groups.reshape(-1).tolist()))
    paths = [
        [_edge(levels, at, one) for at in passed(levels, turn(levels, one, other))]
        for group in groups.tolist()
        for one, other in pairwise(group)
    ]
    load = Counter(edge for path in paths for edge in path)
    return min(
        (graph.edges[edge]["bandwidth"] / load[edge] for path in paths for edge in path), default=np.inf
    )


def all_to_all_rate(cluster: ClusterSpec, groups: Listed) -> float:
    """Bytes/s from each member to each other while all of them send: the first edge that is full."""
    levels = levels_of(cluster)
    graph = link_graph(cluster, sorted(groups.reshape(-1).tolist()))
    load = Counter(
        _edge(levels, at, one)
        for group in groups.tolist()
        for one, other in permutations(group, 2)
        for at in passed(levels, turn(levels, one, other))
    )
    return min((graph.edges[edge]["bandwidth"] / flow for edge, flow in load.items()), default=np.inf)


def _leaving(levels: tuple[Level, ...], group: list[int]) -> Counter[tuple[int, int]]:
    """(level, domain of the level inside) → times that a ring goes out of that domain by the links of the level."""
    count: Counter[tuple[int, int]] = Counter()
    for one, other in zip(group, group[1:] + group[:1], strict=True):
        if one != other:
            at = turn(levels, one, other)
            count.update((level, domain(levels, level - 1, one)) for level in passed(levels, at))
    return count


def _edge(levels: tuple[Level, ...], at: int, gpu: int) -> tuple[str, str]:
    """The edge by which a GPU's bytes go up to a level."""
    level, switch = levels[at], f"{levels[at].name}{domain(levels, at, gpu)}"
    if not level.opens:
        return f"{levels[at - 1].name}{domain(levels, at - 1, gpu)}", switch
    sharers = level.sharers or 1
    if level.network or sharers > 1:
        return f"{level.name}.adapter{gpu // sharers}", switch
    return f"gpu{gpu}", switch


AXES = ("tp", "cp", "pp", "every", "shard", "copies", "ep", "etp", "experts", "expert shard", "expert copies")


def mesh(layout: Layout) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    """(pp, dp, cp, tp): the global rank of every place, read off the name of the order."""
    inside_out = layout.order.split("-")
    ranks = np.arange(layout.num_gpus).reshape([getattr(layout, axis) for axis in reversed(inside_out)])
    return ranks.transpose([list(reversed(inside_out)).index(axis) for axis in ("pp", "dp", "cp", "tp")])


def listed(layout: Layout, axis: str) -> Listed:
    """Every group of an axis, written out rank by rank."""
    places = mesh(layout)
    if axis in ("pp", "cp", "tp"):
        at = {"pp": 0, "cp": 2, "tp": 3}[axis]
        return np.moveaxis(places, at, -1).reshape(-1, places.shape[at])
    stages = np.sort(places.reshape(layout.pp, -1), axis=1)
    x = LayoutColumns.of([layout])
    copies, expert_shard = int(x.expert_replicas[0]), int(x.expert_shard[0])
    same = np.sort(places.transpose(0, 3, 1, 2).reshape(layout.pp * layout.tp, -1), axis=1)
    experts = stages.reshape(layout.pp, copies, layout.ep, layout.expert_tp)
    same_experts = experts.transpose(0, 2, 3, 1).reshape(-1, copies)
    cut = same.reshape(len(same), -1, layout.shard_group)
    expert_cut = same_experts.reshape(len(same_experts), -1, expert_shard)
    return {
        "every": same,
        "shard": cut.reshape(-1, layout.shard_group),
        "copies": cut.transpose(0, 2, 1).reshape(-1, cut.shape[1]),
        "etp": experts.reshape(-1, layout.expert_tp),
        "ep": experts.transpose(0, 1, 3, 2).reshape(-1, layout.ep),
        "experts": same_experts,
        "expert shard": expert_cut.reshape(-1, expert_shard),
        "expert copies": expert_cut.transpose(0, 2, 1).reshape(-1, expert_cut.shape[1]),
    }[axis]


def groups_of(layout: Layout, axis: str, of: ClusterSpec) -> Groups:
    """Groups of one axis of a layout on a cluster."""
    found = axis_groups(of, LayoutColumns.of([layout]))
    return {
        "every": found.data.replicas,
        "shard": found.data.shard,
        "copies": found.data.copies,
        "experts": found.experts.replicas,
        "expert shard": found.experts.shard,
        "expert copies": found.experts.copies,
    }.get(axis) or getattr(found, axis)


@st.composite
def layouts(draw: st.DrawFn, degrees: tuple[int, ...]) -> Layout:
    """Any order of small degrees, hybrid shards and experts of their own degrees included."""
    degree = st.sampled_from(degrees)
    tp, cp, dp, pp = (draw(degree) for _ in range(4))
    etp = draw(st.sampled_from([d for d in degrees if (tp * cp * dp) % d == 0]))
    ep = draw(st.sampled_from([d for d in degrees if (tp * cp * dp) % (etp * d) == 0]))
    shard = draw(st.sampled_from([d for d in range(1, cp * dp + 1) if cp * dp % d == 0]))
    order = draw(st.sampled_from(ORDERS))
    return Layout(tp=tp, cp=cp, dp=dp, pp=pp, ep=ep, etp=etp, zero=1, shard=shard, order=order)


@given(cp=st.integers(1, 3), dp=st.integers(1, 3), pp=st.integers(1, 3))
def test_orders_that_seat_ranks_alike_are_one_order(cp: int, dp: int, pp: int) -> None:
    seats = {order: mesh(Layout(tp=2, cp=cp, dp=dp, pp=pp, order=order)).tobytes() for order in ORDERS}
    as_named = {
        order: np.arange(2 * cp * dp * pp).reshape(
            [{"tp": 2, "cp": cp, "dp": dp, "pp": pp}[axis] for axis in reversed(order.split("-"))]
        )
        for order in ORDERS
    }
    for order, ranks in as_named.items():
        axes = list(reversed(order.split("-")))
        seated = ranks.transpose([axes.index(axis) for axis in ("pp", "dp", "cp", "tp")])
        assert seated.tobytes() == seats[order]
    assert len(set(seats.values())) == len(set(same_seats(cp, dp, pp)))
    first = [ORDERS.index(canonical_order(order, cp, dp, pp)) for order in ORDERS]
    columns = same_seats(*(np.array([degree]) for degree in (cp, dp, pp)))
    assert columns[0].tolist() == first


def test_oversubscription_slows_what_leaves_its_leaf_for_all_who_share_it() -> None:
    """Leaves of two nodes, half the bandwidth out of them. dp4 of tp8 has two members in each leaf, and two shares of
    its way out: as much as one adapter. Where every member is under a leaf of its own half an adapter's is left."""
    hardware = cluster(nodes=4, oversubscription=2.0, nodes_per_leaf=2)
    groups = axis_groups(hardware, columns((8, 2, 1), (8, 4, 1), (8, 2, 2)))
    np.testing.assert_allclose(groups.dp.ring_bandwidth(), [25e9, 25e9, 25e9])
    np.testing.assert_allclose(groups.pp.ring_bandwidth()[2], 12.5e9)
    undescribed = axis_groups(cluster(nodes=4, oversubscription=2.0), columns((8, 2, 1)))
    np.testing.assert_allclose(undescribed.dp.ring_bandwidth(), [12.5e9])


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


def any_clusters() -> st.SearchStrategy[ClusterSpec]:
    """Written either way."""
    return st.one_of(of_nodes(), of_levels())


@pytest.mark.parametrize("axis", AXES)
@settings(max_examples=30)
@given(data=st.data(), powers=st.booleans(), of=any_clusters())
def test_a_ring_has_the_bottleneck_of_the_graph(
    axis: str, data: st.DataObject, powers: bool, of: ClusterSpec
) -> None:
    """Exactly where degrees are powers of two, and odd ones are no faster."""
    layout = data.draw(layouts((1, 2, 4, 8) if powers else (1, 2, 3, 4, 6)))
    if layout.num_gpus > of.num_gpus:
        return
    groups, ranks = groups_of(layout, axis, of), listed(layout, axis)
    if groups.size[0] > 1:
        found, rate = groups.ring_bandwidth()[0], ring_rate(of, ranks)
        assert found <= rate * (1 + 1e-9)
        assert not powers or found == pytest.approx(rate)


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


@settings(max_examples=50)
@given(layout=layouts((1, 2, 4, 8)), of=any_clusters())
def test_an_all_to_all_takes_what_the_fullest_edge_takes(layout: Layout, of: ClusterSpec) -> None:
    exact = profile(link_efficiency=1.0, network_efficiency=1.0)
    for axis in ("cp", "ep"):
        groups = groups_of(layout, axis, of) if layout.num_gpus <= of.num_gpus else None
        if groups is not None and groups.size[0] > 1:
            seconds = all_to_all_seconds(1e15, groups, exact)[0]
            expected = 1e15 / groups.size[0] ** 2 / all_to_all_rate(of, listed(layout, axis))
            assert seconds == pytest.approx(expected, rel=1e-6)


def test_latency_is_paid_at_the_level_where_a_hop_turns() -> None:
    """A ring of 8 in four pairs: 3 hops inside a pair at 1 us and 4 between pairs at 8 us."""
    of = levelled(PAIRS, BOX | {"latency": "8 us"}, nodes=1)
    group = axis_groups(of, LayoutColumns.of([Layout(tp=8)])).tp
    np.testing.assert_allclose(all_gather_seconds(1e-9, group, profile()), 3 * 1e-6 + 4 * 8e-6, rtol=1e-6)


RCCL = {2**24: 148.8e-6, 2**26: 429.1e-6, 2**28: 1537.1e-6, 2**30: 5970.6e-6, 2**33: 47278e-6}
"""Bytes → seconds of `all_reduce_perf` on eight MI300X (Kolla et al. 2025, Understanding RCCL bandwidth, ROCm 6.3)."""


def as_tested() -> HardwareProfile:
    """What that test reaches of the links, before what training keeps of it."""
    known = catalog.load_profile("mi300x")
    return known.model_copy(update={"link_efficiency": 317 / 448})


def test_an_all_reduce_takes_what_rccl_tests_measured() -> None:
    group = group_of(resolve_cluster("mi300x", 8), 8)
    for size, measured in RCCL.items():
        assert all_reduce_seconds(size, group, as_tested())[0] == pytest.approx(measured, rel=0.06)


def test_two_gpus_have_one_link() -> None:
    """4 GiB between two MI300X: 47.7 GB/s where eight reach 312.9 (Bekman, ML Engineering, network benchmarks)."""
    node, size = resolve_cluster("mi300x", 8), 2.0**32
    two = size / all_reduce_seconds(size, group_of(node, 2), as_tested())[0]
    assert two == pytest.approx(47.7e9, rel=0.06)


def test_groups_within_a_node_share_its_links_by_their_size() -> None:
    """tp8 has all seven links of 64 GB/s, tp4 three, and a stage hands on over one; all of a node send at once."""
    node, links = resolve_cluster("mi300x", 16), profile(link_efficiency=1.0)
    assert axis_groups(
        node, LayoutColumns.of([parse_layout("tp8 dp2")])
    ).tp.ring_bandwidth() == pytest.approx(448e9)
    four = axis_groups(resolve_cluster("mi300x", 8), LayoutColumns.of([parse_layout("tp4 pp2")]))
    assert four.tp.ring_bandwidth() == pytest.approx(192e9)
    message = 64e9
    assert point_to_point_seconds(message, four.pp, links)[0] == pytest.approx(1.0, rel=1e-3)
    exchanged = all_to_all_seconds(8 * message, group_of(node, 8), links)[0]
    assert exchanged == pytest.approx(7 / 8 * message / 448e9, rel=1e-3)
