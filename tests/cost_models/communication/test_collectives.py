"""Seconds of collectives, and of resharding between a stage and the next."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from asking import ask
from clusters import EVERY_SMALL_LAYOUT, cluster, columns, dp_groups, profile
from hypothesis import given
from hypothesis import strategies as st
from tables import rows

from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import Layout, parse_layout
from cost_models.communication.collectives import (
    all_gather_seconds,
    all_reduce_seconds,
    all_to_all_seconds,
    broadcast_seconds,
    point_to_point_seconds,
    reduce_scatter_seconds,
)
from cost_models.communication.resharding import ReshardBytes, StoredTensor, reshard
from cost_models.communication.topology import axis_groups
from cost_models.specs.hardware import CollectiveCurve, CurvePoint
from cost_models.specs.transformer import TransformerSpec

COLLECTIVES = {
    "all_reduce": all_reduce_seconds,
    "all_gather": all_gather_seconds,
    "reduce_scatter": reduce_scatter_seconds,
    "broadcast": broadcast_seconds,
    "all_to_all": all_to_all_seconds,
    "p2p": point_to_point_seconds,
}
NAMES = pytest.mark.parametrize("name", COLLECTIVES)


def curve(operation: str, group_size: int, *points: tuple[float, float], nodes: int = 1) -> CollectiveCurve:
    """Measured (bytes, seconds) points."""
    measured = tuple(CurvePoint(size=size, seconds=seconds) for size, seconds in points)
    return CollectiveCurve(operation=operation, group_size=group_size, nodes=nodes, points=measured)


def test_ring_inside_a_node_by_hand() -> None:
    """8 ranks at 80 % of 300 GB/s: 7/8 of 240 MB take 0.875 ms, 7 hops of 1 us each; all-reduce does both."""
    groups = dp_groups(8)
    np.testing.assert_allclose(all_gather_seconds(240e6, groups, profile()), 0.875e-3 + 7e-6)
    np.testing.assert_allclose(reduce_scatter_seconds(240e6, groups, profile()), 0.875e-3 + 7e-6)
    np.testing.assert_allclose(all_reduce_seconds(240e6, groups, profile()), 2 * (0.875e-3 + 7e-6))


def test_ring_across_nodes_by_hand() -> None:
    """tp8 dp4: one member to a node, 90 % of 25 GB/s; 3 hops of 5 us, or log2(4) up a tree and down."""
    groups = dp_groups(4, tp=8)
    transfer = 0.75 * 90e6 / 22.5e9
    np.testing.assert_allclose(all_gather_seconds(90e6, groups, profile()), transfer + 15e-6)
    np.testing.assert_allclose(all_reduce_seconds(90e6, groups, profile()), 2 * transfer + 2 * 10e-6)


def test_all_members_of_a_node_share_its_network() -> None:
    """16 ranks on 2 nodes: 8 · 25 GB/s · 0.9 out of a node; 13 hops inside and 2 between nodes."""
    seconds = all_gather_seconds(1e9, dp_groups(16), profile())
    np.testing.assert_allclose(seconds, 15 / 16 * 1e9 / 180e9 + 13 * 1e-6 + 2 * 5e-6)


def test_a_broadcast_goes_along_a_chain_chunk_by_chunk() -> None:
    """16 ranks on 2 nodes of four adapters: all of 180 MB at 180 GB/s, and the first 512 KiB of four channels over 14
    hops at 240 GB/s and one at 180 GB/s before the last rank begins."""
    four = cluster(nodes=2, rails=4)
    seconds = broadcast_seconds(180e6, dp_groups(16, of=four), profile())
    latency = 13 * 1e-6 + 2 * 5e-6
    fill = 4 * 2**19 * (14 / 240e9 + 1 / 180e9)
    np.testing.assert_allclose(seconds, 1e-3 + latency + fill)


def test_a_tree_keeps_the_latency_of_large_all_reduces_logarithmic() -> None:
    """512 ranks on 64 nodes: chains of 7 inside, log2(64) = 6 across, up and down."""
    seconds = all_reduce_seconds(1e-9, dp_groups(512), profile())
    np.testing.assert_allclose(seconds, 2 * (7 * 1e-6 + 6 * 5e-6), rtol=1e-6)


def test_all_to_all_by_hand() -> None:
    """16 ranks send 1 MB to every other: 8 · 8 MB leave a node; 7 near and 8 far exchanges."""
    seconds = all_to_all_seconds(256e6, dp_groups(16), profile())
    np.testing.assert_allclose(seconds, 64e6 / 180e9 + 7 * 1e-6 + 8 * 5e-6)


def test_a_stage_boundary_between_nodes_has_one_share_of_the_network() -> None:
    """pp2 inside a node, then between nodes; two stages to a node share the node's network all the same."""
    groups = axis_groups(cluster(nodes=2), columns((4, 1, 2), (8, 1, 2), (4, 1, 4))).pp
    inside, across = 24e6 / 240e9 + 1e-6, 24e6 / 22.5e9 + 5e-6
    np.testing.assert_allclose(point_to_point_seconds(24e6, groups, profile()), [inside, across, across])


@NAMES
def test_nothing_to_do_takes_no_time(name: str) -> None:
    startup = profile(curve(name, 2, (1.0, 1.0), (2.0, 2.0)), collective_seconds=1.0)
    assert COLLECTIVES[name](1e6, dp_groups(1), startup).tolist() == [0.0]
    assert COLLECTIVES[name](0, dp_groups(2), startup).tolist() == [0.0]


@NAMES
def test_start_up_is_paid_once(name: str) -> None:
    without, with_start_up = (
        COLLECTIVES[name](1e6, dp_groups(4), profile(collective_seconds=s)) for s in (0.0, 1e-3)
    )
    np.testing.assert_allclose(with_start_up - without, 1e-3)


@given(st.sampled_from(EVERY_SMALL_LAYOUT), st.floats(1e9, 1e12))
def test_gather_and_scatter_make_an_all_reduce(degrees: tuple[int, int, int], message: float) -> None:
    for groups in three_axes(degrees):
        twice = all_gather_seconds(message, groups, profile()) + reduce_scatter_seconds(
            message, groups, profile()
        )
        latency = 2 * all_gather_seconds(1e-30, groups, profile()) - all_reduce_seconds(
            1e-30, groups, profile()
        )
        np.testing.assert_allclose(twice - latency, all_reduce_seconds(message, groups, profile()))


def three_axes(degrees: tuple[int, int, int], **fields: str) -> tuple:
    """The groups of all three axes."""
    groups = axis_groups(cluster(nodes=12, **fields), columns(degrees))
    return groups.tp, groups.dp, groups.pp


@NAMES
@given(
    degrees=st.sampled_from(EVERY_SMALL_LAYOUT),
    message=st.floats(0, 1e12),
    more=st.floats(0, 1e12),
    bandwidth=st.integers(1, 500),
    faster=st.integers(0, 500),
    link=st.sampled_from(["intra", "inter"]),
)
def test_more_bytes_are_slower_and_more_bandwidth_is_not(
    name: str,
    degrees: tuple[int, int, int],
    message: float,
    more: float,
    bandwidth: int,
    faster: int,
    link: str,
) -> None:
    seconds = COLLECTIVES[name]
    slow = three_axes(degrees, **{link: f"{bandwidth} GB/s"})
    fast = three_axes(degrees, **{link: f"{bandwidth + faster} GB/s"})
    for slow_axis, fast_axis in zip(slow, fast, strict=True):
        assert seconds(message + more, slow_axis, profile()) >= seconds(message, slow_axis, profile())
        assert seconds(message, fast_axis, profile()) <= seconds(message, slow_axis, profile())


@NAMES
def test_a_measured_curve_replaces_the_formula_where_it_matches(name: str) -> None:
    measured = profile(curve(name, 2, (1e3, 7e-3), (1e6, 7e-3)))
    groups = axis_groups(cluster(), columns((1, 2, 1), (1, 4, 1), (8, 2, 1))).dp
    seconds, formula = (COLLECTIVES[name](1e4, groups, used) for used in (measured, profile()))
    assert seconds[0] == pytest.approx(7e-3)
    replaced = 2 if name == "p2p" else 1  # a boundary has two ends, however long the pipeline
    np.testing.assert_array_equal(seconds[replaced:], formula[replaced:])


def test_a_curve_measured_across_nodes_serves_groups_across_nodes() -> None:
    measured = profile(curve("all_reduce", 2, (1e3, 7e-3), (1e6, 7e-3), nodes=2))
    groups = axis_groups(cluster(), columns((1, 2, 1), (8, 2, 1))).dp
    seconds = all_reduce_seconds(1e4, groups, measured)
    assert seconds[0] < 1e-3
    assert seconds[1] == pytest.approx(7e-3)


H, FFN, VOCABULARY, EXPERTS = 16, 32, 64, 4
PER_NODE = 4
DENSE = {"name": "small", "num_layers": 4, "hidden_size": H, "num_heads": 4, "ffn_hidden_size": FFN}
DENSE |= {"vocab_size": VOCABULARY, "gated_mlp": True, "norm": "rmsnorm", "norm_bias": False}
DENSE |= {"positions": "rotary", "attention_bias": False, "mlp_bias": False}
MIXTURE = DENSE | {"num_experts": EXPERTS, "experts_per_token": 2, "moe_ffn_hidden_size": FFN}
MIXTURE |= {"tied_embeddings": False}
COLUMNS = [(H, H)] * 3
ROWS = [(H, H)]


def tensors(model: TransformerSpec) -> Iterator[tuple[str, tuple[int, ...], int | None]]:
    """(how ranks share it, shape, block or None for the embedding, -1 for the head, -2 for the last norm, -3 for
    an embedding that is the head, too)."""
    for block in range(model.num_layers):
        yield from (("columns", shape, block) for shape in COLUMNS)
        yield from (("rows", shape, block) for shape in ROWS)
        yield from (("whole", (H, 1), block) for _ in range(2))
        if model.num_experts:
            yield "whole", (EXPERTS * H, 1), block  # of the router, as many rows as ranks cut evenly
            for shape in [(EXPERTS, FFN, H)] * 2 + [(EXPERTS, H, FFN)]:
                yield "experts", shape, block
        else:
            yield from (("columns", (FFN, H), block) for _ in range(2))
            yield "rows", (H, FFN), block
    yield "whole", (H, 1), -2
    yield "columns", (VOCABULARY, H), -3 if model.tied_embeddings else None
    if not model.tied_embeddings:
        yield "columns", (VOCABULARY, H), -1


def places(layout: Layout) -> list[dict[str, int]]:
    """Of every rank, counted through the axes from the inside out."""
    inside_out = layout.order.split("-")
    found = []
    for rank in range(layout.num_gpus):
        left, at = rank, {}
        for axis in inside_out:
            left, at[axis] = divmod(left, getattr(layout, axis))
        found.append(at)
    for rank, at in enumerate(found):
        same = [one for one, other in enumerate(found) if (other["pp"], other["tp"]) == (at["pp"], at["tp"])]
        stage = [one for one, other in enumerate(found) if other["pp"] == at["pp"]]
        at["replica"], at["seat"] = same.index(rank), stage.index(rank)
    return found


def cut(mask: np.ndarray, dim: int, part: int, parts: int) -> None:
    """Keep one of equal parts of what is left along a dimension."""
    left = np.flatnonzero(mask.any(axis=tuple(at for at in range(mask.ndim) if at != dim)))
    size = len(left) / parts
    keep = np.zeros(mask.shape[dim], dtype=bool)
    keep[left[round(part * size) : round((part + 1) * size)]] = True
    mask &= np.moveaxis(np.broadcast_to(keep, (*np.delete(mask.shape, dim), len(keep))), -1, dim)


def owners(
    layout: Layout, how: str, shape: tuple[int, ...], block: int | None, *, sharded: bool
) -> np.ndarray:
    """(R, ...) which elements every rank has."""
    stages = np.repeat(np.arange(layout.pp), layout.layers).tolist()
    last = layout.pp - 1
    there = {None: {0}, -1: {last}, -2: {last}, -3: {0, last}}.get(block) or {stages[block or 0]}
    found = np.zeros((layout.num_gpus, *shape), dtype=bool)
    expert_shard = int(LayoutColumns.of([layout]).expert_shard[0])
    for rank, at in enumerate(places(layout)):
        if at["pp"] not in there:
            continue
        mine = np.ones(shape, dtype=bool)
        if how == "experts":
            cut(mine, 0, at["seat"] // layout.expert_tp % layout.ep, layout.ep)
            if sharded:
                cut(mine, 1, at["seat"] // (layout.expert_tp * layout.ep) % expert_shard, expert_shard)
        else:
            if how != "whole":
                cut(mine, 0 if how == "columns" else 1, at["tp"], layout.tp)
            if sharded:
                cut(mine, 0, at["replica"] % layout.shard_group, layout.shard_group)
        found[rank] = mine
    return found


def moved(
    model: TransformerSpec, first: str, second: str, kept: tuple[StoredTensor, ...]
) -> tuple[ReshardBytes, np.ndarray]:
    """What is priced, and (R, 4) elements there, needed, received by each rank and received by its node from others."""
    question = ask(model, "dgx-h100", stack="meshwright", global_batch=16, sequence_length=32)
    layouts = [parse_layout(first), parse_layout(second)]
    ranks = max(one.num_gpus for one in layouts)
    found = np.zeros((ranks, 4))
    for one in kept:
        for how, shape, block in tensors(model):
            masks = []
            for layout in layouts:
                mask = np.zeros((ranks, *shape), dtype=bool)
                mask[: layout.num_gpus] = owners(
                    layout, how, shape, block, sharded=layout.zero >= one.from_stage
                )
                masks.append(mask.reshape(ranks, -1))
            have, want = masks
            need = want & ~have
            found[:, :3] += one.bytes_each * np.stack([have.sum(1), want.sum(1), need.sum(1)], axis=1)
            for start in range(0, ranks, PER_NODE):
                node = slice(start, start + PER_NODE)
                found[start, 3] += one.bytes_each * (need[node].any(0) & ~have[node].any(0)).sum()
    return reshard(question, layouts[0], layouts[1], kept, PER_NODE), found


WEIGHTS = (StoredTensor(bytes_each=2.0, from_stage=3),)
STATES = (*WEIGHTS, StoredTensor(bytes_each=12.0, from_stage=1))


@pytest.mark.parametrize("kept", [WEIGHTS, STATES])
def test_every_element_is_moved_once(kept: tuple[StoredTensor, ...]) -> None:
    for model, first, second in rows("""
        dense | tp2 dp4 mbs1 zero3 layers=4 | tp2 dp4 mbs1 zero3 layers=4
        dense | tp2 pp2 dp2 mbs1 zero1 layers=2,2 | dp8 mbs1 zero3 layers=4
        dense | dp8 mbs1 zero3 layers=4 | tp4 dp2 mbs1 zero0 layers=4
        dense | pp4 dp2 mbs1 zero2 layers=1*4 | tp2 pp2 dp2 mbs1 zero3 layers=3,1
        dense | tp2 cp2 dp4 mbs1 zero3 shard4 layers=4 order=tp-dp-cp-pp | tp4 dp2 mbs1 zero1 layers=4
        dense | dp4 mbs1 zero3 layers=4 | tp2 dp8 mbs1 zero3 layers=4
        mixture | dp8 ep4 mbs1 zero3 layers=4 | tp2 dp4 ep2 etp1 mbs1 zero0 layers=4
        mixture | pp2 dp4 ep2 mbs1 zero1 layers=2,2 | dp8 ep4 mbs1 zero3 layers=4
    """):
        spec = TransformerSpec.model_validate(DENSE if model == "dense" else MIXTURE)
        hold(*moved(spec, first, second, kept))


def hold(found: ReshardBytes, counted: np.ndarray) -> None:
    there, needed, received, crossed = counted.T
    assert found.there == pytest.approx(there)
    assert found.needed == pytest.approx(needed)
    assert found.received_total == pytest.approx(received)
    of_nodes = found.received.reshape(-1, PER_NODE).sum(axis=1)
    assert of_nodes == pytest.approx(crossed[::PER_NODE])
    assert found.sent.sum() == pytest.approx(found.received.sum())
    inside = [one.reshape(-1, PER_NODE).sum(axis=1) for one in (found.sent_inside, found.received_inside)]
    assert inside[0] == pytest.approx(inside[1])
