"""What groups get on regular graphs is what the catalogue's levels give, on odd ones what counting by hand gives."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from clusters import profile
from fabrics import cluster, dgx, leaves, pod, rails, ring
from hypothesis import given, settings
from hypothesis import strategies as st

from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import ORDERS, Layout
from cost_models.communication import collectives
from cost_models.communication.topology import axis_groups, fabric_of, group_of
from cost_models.fabric.fabric import FabricLevel, group_ranks, shares
from cost_models.specs.cluster import ClusterSpec

PRICES = (
    collectives.all_reduce_seconds,
    collectives.all_gather_seconds,
    collectives.broadcast_seconds,
    collectives.all_to_all_seconds,
    collectives.point_to_point_seconds,
)


def some_layouts(world: int, count: int = 150) -> LayoutColumns:
    """Layouts of all ranks in every order, with shards and experts."""
    draw, found = np.random.default_rng(0), []
    while len(found) < count:
        tp, cp, pp = (int(draw.choice([1, 2, 3, 4, 8, 16])) for _ in range(3))
        if world % (tp * cp * pp):
            continue
        dp = world // (tp * cp * pp)
        ep = int(draw.choice([d for d in (1, 2, 4, 8, 16) if (tp * cp * dp) % d == 0]))
        shard = int(draw.choice([d for d in range(1, cp * dp + 1) if cp * dp % d == 0]))
        order = ORDERS[draw.integers(len(ORDERS))]
        found.append(Layout(tp=tp, cp=cp, dp=dp, pp=pp, ep=ep, etp=1, zero=1, shard=shard, order=order))
    return LayoutColumns.of(found)


def prices(of: ClusterSpec, columns: LayoutColumns) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """(prices, N): every collective over the groups of every axis."""
    found, hardware = axis_groups(of, columns), profile(collective_seconds=1e-5)
    axes = (
        found.tp,
        found.cp,
        found.pp,
        found.ep,
        found.data.replicas,
        found.data.shard,
        found.data.copies,
        found.experts.replicas,
    )
    rows = [price(1e8, groups, hardware) for groups in axes for price in PRICES]
    return np.array([*rows, collectives.fan_out_seconds(1e8, 2e7, found.ep, hardware)])


REGULAR = {
    "a pod": (pod(12), dgx(12)),
    "rails without a spine": (rails(), dgx(32)),
    "as many cables up as down": (leaves(spines=64), None),
    "a spine of half": (leaves(spines=32), dgx(32, oversubscription=2.0, nodes_per_leaf=8)),
    "a spine of a quarter": (leaves(spines=16), dgx(32, oversubscription=4.0, nodes_per_leaf=8)),
}


@pytest.mark.parametrize("name", REGULAR)
@pytest.mark.parametrize("counted", [False, True], ids=["known to be regular", "counted"])
def test_a_regular_graph_costs_what_the_catalogue_says_to_the_bit(
    name: str, counted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines, known = REGULAR[name]
    graph = cluster(lines)
    known = known or graph.model_copy(update={"graph": ()})  # the catalogue has no spine then
    assert not fabric_of(graph).odd
    assert not any(level.odd for level in fabric_of(graph).levels)
    shares.cache_clear()
    if counted:
        monkeypatch.setattr(FabricLevel, "odd", True)
    columns = some_layouts(known.num_gpus)
    np.testing.assert_array_equal(prices(graph, columns), prices(known, columns))
    shares.cache_clear()


def test_one_cable_at_a_quarter_slows_the_groups_over_it_alone() -> None:
    """Adapter 5 of node 3 has 12.5 of 50 GB/s. A group with one GPU in each node has that; with two, 25 by both or 50
    by the better one; with eight, 100 by all or 350 by seven."""
    odd = cluster(pod(without="n3.nic5", instead=["n3.nic5 -- network 100 Gb/s 2.5 us"]))
    assert fabric_of(odd).odd == ("n3.nic5-network has 100 Gb/s where the 31 siblings have 400 Gb/s",)
    assert ring(odd, 8, 1) == 450
    assert ring(odd, 4, 8) == 12.5
    assert ring(odd, 8, 4) == 50
    assert ring(odd, 32, 1) == 350
    assert ring(odd, 2, 8) == 12.5  # nodes 2 and 3
    first = group_of(odd.model_copy(update={"nodes": 3}), 3, 8)  # the first three nodes do not have it
    assert first.ring_bandwidth()[0] == 50e9
    share = shares(fabric_of(odd), 4, 8, 32, 1, 32)[1]
    assert (share.exchange, share.pair, share.delay) == (0.25, 0.25, 1.0)


def test_seven_of_eight_adapters() -> None:
    """GPU 7 of node 3 goes by the adapter of GPU 0, and each of the two has half of it."""
    lines = [
        line.replace("n[0-3].gpu[0-7] -- n[0-3].nic[0-7]", "n[0-2].gpu[0-7] -- n[0-2].nic[0-7]")
        for line in pod(without="n3.nic7")
    ]
    odd = cluster([*lines, "n3.gpu[0-6] -- n3.nic[0-6] 64 GB/s"])
    assert fabric_of(odd).odd == ("n3 has 7 adapters where others have 8",)
    assert [ring(odd, 4, 8), ring(odd, 32, 1), ring(odd, 8, 1)] == [25, 350, 450]
    assert shares(fabric_of(odd), 4, 8, 32, 1, 32)[1].exchange == 0.5


def test_a_slow_cable_between_leaf_and_spine() -> None:
    """Leaf 3 divides what it sends among 32 cables, so that one of 12.5 GB/s lets through 32 x 12.5 = 400 GB/s. 64
    rings with a GPU under each leaf have 6.25 each, 8 rings of all nodes 50 each, as their adapters do."""
    odd = cluster(leaves(instead=["leaf[0-2] -- spine0 400 Gb/s", "leaf3 -- spine0 100 Gb/s"]))
    assert fabric_of(odd).odd == ("leaf3-spine0 has 100 Gb/s where its 31 siblings have 400 Gb/s",)
    assert [ring(odd, 4, 64), ring(odd, 32, 8), ring(odd, 8, 8)] == [6.25, 50, 50]
    assert ring(cluster(leaves()), 4, 64) == 25


def test_leaves_of_24_and_of_8_nodes() -> None:
    """64 cables of 50 GB/s out of each: a GPU has 16.7 GB/s under the large one, and 64 rings over both have 50."""
    lines = [
        *pod(32)[:2], "n[0-23].nic[0-7] -- leaf0 400 Gb/s 2.5 us", "n[24-31].nic[0-7] -- leaf1 400 Gb/s 2.5 us",
        "leaf[0-1] -- *spine[0-63] 400 Gb/s",
    ]  # fmt: skip
    odd = cluster(lines)
    leaf, spine = fabric_of(odd).levels[1:]
    assert leaf.sizes == (192, 64)
    assert spine.bandwidth == pytest.approx(50e9 / 3)
    over_all = group_of(odd, 32, 8)
    assert (over_all.reach[1].members[0], over_all.reach[1].peers[0], over_all.reach[2].domains[0]) == (
        8,
        1,
        2,
    )
    assert ring(odd, 32, 8) == 50
    assert ring(odd, 4, 64) == pytest.approx(50)
    assert not group_of(odd, 8, 8).reach[2].meets[0]  # eight nodes are under one leaf wherever they begin


def test_a_longer_cable_takes_longer_on_average_over_its_group() -> None:
    odd = cluster(pod(without="n3.nic0", instead=["n3.nic0 -- network 400 Gb/s 22.5 us"]))
    assert shares(fabric_of(odd), 4, 8, 32, 1, 32)[1].delay == pytest.approx((3 * 5 + 45) / 4 / 5)


@settings(deadline=None, max_examples=25)
@given(
    rates=st.lists(st.sampled_from([100, 200, 400]), min_size=32, max_size=32),
    size=st.sampled_from([2, 4, 8, 16, 32]),
    step=st.sampled_from([1, 2, 4, 8, 16]),
)
def test_rings_over_any_adapters_are_as_fast_as_counting_one_by_one_says(
    rates: list[int], size: int, step: int
) -> None:
    if 32 % (size * step):
        return
    lines = [
        *pod()[:2],
        *(f"n{at // 8}.nic{at % 8} -- network {rate} Gb/s 2.5 us" for at, rate in enumerate(rates)),
    ]
    odd = cluster(lines)
    load: Counter[int] = Counter()
    for group in group_ranks(size, step, 32, 1, 32).tolist():
        for node in {rank // 8 for rank in group} if len({rank // 8 for rank in group}) > 1 else ():
            mine = sorted((rank for rank in group if rank // 8 == node), key=lambda rank: -rates[rank])
            most = max(range(1, len(mine) + 1), key=lambda k: (k * rates[mine[k - 1]], k))
            load.update(dict.fromkeys(mine[:most], 1 / most))  # type: ignore[dict-item]
    found = min((rates[rank] / 8 / part for rank, part in load.items()), default=450)
    assert ring(odd, size, step) == pytest.approx(min(found, 450 if step < 8 else np.inf))


def test_patterns_are_counted_once_and_worlds_that_somebody_enlarged_are_as_usual() -> None:
    fabric = fabric_of(cluster(leaves(instead=["leaf[0-2] -- spine0 400 Gb/s", "leaf3 -- spine0 100 Gb/s"])))
    assert shares(fabric, 4, 64, 256, 1, 256) is shares(fabric, 4, 64, 256, 1, 256)
    assert {share.ring for share in shares(fabric, 8, 64, 512, 1, 512)} == {1.0}
