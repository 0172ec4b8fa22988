"""Every axis order: groups by arithmetic against every rank of a mesh written out."""

from __future__ import annotations

from collections import Counter
from itertools import permutations

import numpy as np
import pytest
from clusters import cluster
from hypothesis import given, settings
from hypothesis import strategies as st

from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import Layout, canonical_order, same_seats
from cost_models.communication.topology import Groups, axis_groups
from cost_models.specs.choices import ORDERS

Listed = np.ndarray[tuple[int, int], np.dtype[np.int64]]
"""(groups, members): global ranks."""

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


def spread(groups: Listed, gpus_per_node: int) -> tuple[int, int, bool]:
    """Fewest members in a node, most nodes of a group, whether any node holds two."""
    members = [Counter((group // gpus_per_node).tolist()) for group in groups]
    sizes = [size for count in members for size in count.values()]
    return min(sizes), max(len(count) for count in members), max(sizes) > 1


def priced(layout: Layout, axis: str, gpus_per_node: int) -> Groups:
    found = axis_groups(cluster(nodes=64, gpus_per_node=gpus_per_node), LayoutColumns.of([layout]))
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


@pytest.mark.parametrize("axis", AXES)
@settings(deadline=None)
@given(layout=layouts((1, 2, 4, 8)), gpus_per_node=st.sampled_from([1, 2, 4, 8, 16]))
def test_powers_of_two_sit_exactly_where_listing_says(axis: str, layout: Layout, gpus_per_node: int) -> None:
    groups = priced(layout, axis, gpus_per_node)
    fewest, most, shared = spread(listed(layout, axis), gpus_per_node)
    assert (groups.ranks_per_node[0], groups.nodes[0]) == (fewest, most)
    if groups.size[0] > 1:
        assert groups.reach[0].meets[0] == shared


@pytest.mark.parametrize("axis", AXES)
@settings(deadline=None)
@given(layout=layouts((1, 2, 3, 4, 6)), gpus_per_node=st.sampled_from([1, 3, 4, 6, 8, 12]))
def test_odd_sizes_are_never_priced_better_than_they_are(
    axis: str, layout: Layout, gpus_per_node: int
) -> None:
    groups = priced(layout, axis, gpus_per_node)
    ranks = listed(layout, axis)
    fewest, most, shared = spread(ranks, gpus_per_node)
    assert groups.size[0] == ranks.shape[1]
    assert groups.ranks_per_node[0] <= fewest
    assert most <= groups.nodes[0] <= groups.size[0]
    assert groups.reach[0].meets[0] >= shared


def test_by_hand_pipelines_inside_the_node_send_data_out() -> None:
    """tp2 pp4 fill a node of 8: stages pass their tensors over its links, every gradient crosses the network."""
    inside, outside = (
        axis_groups(cluster(nodes=4), LayoutColumns.of([Layout(tp=2, pp=4, dp=4, order=order)]))
        for order in ("tp-pp-dp-cp", "tp-cp-dp-pp")
    )
    assert (inside.pp.nodes[0], inside.dp.nodes[0]) == (1, 4)
    assert (outside.pp.nodes[0], outside.dp.nodes[0]) == (4, 1)


def test_gradients_of_ranks_on_either_side_of_a_pipeline_are_counted_together() -> None:
    """tp1 cp2 pp2 dp8 on nodes of 8: a node holds two context ranks and two data ranks of each stage."""
    groups = axis_groups(
        cluster(nodes=4), LayoutColumns.of([Layout(cp=2, pp=2, dp=8, order="tp-cp-pp-dp")])
    ).data.replicas
    assert (groups.size[0], groups.ranks_per_node[0], groups.nodes[0]) == (16, 4, 4)


@settings(deadline=None)
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


def test_every_order_of_three_axes_can_be_named() -> None:
    assert {order.removeprefix("tp-") for order in ORDERS} == {
        "-".join(axes) for axes in permutations(("cp", "dp", "pp"))
    }
