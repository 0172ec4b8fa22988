"""Ranks sit in the mesh where the cost model prices them, whatever the order of the axes, and tell one another JSON."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

import executor
from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import Layout, parse_layout
from cost_models.reliability import group_sizes
from cost_models.specs.choices import ORDERS, Order
from executor.mesh import (
    AXES,
    group_beside,
    make_context_group,
    make_expert_mesh,
    make_group_over,
    make_groups,
    make_mesh,
    parameter_places,
    place_of,
    rank_places,
)
from executor.messages import gather_json, json_from_first


def layout_in(order: Order, shard: int | None = None) -> Layout:
    return Layout(tp=2, cp=2, dp=3, pp=4, zero=1, shard=shard, order=order)


@pytest.mark.parametrize("order", ORDERS)
def test_places_are_as_far_apart_as_the_cost_model_says(order: Order) -> None:
    layout = layout_in(order)
    places = rank_places(layout)
    assert sorted(places.flatten().tolist()) == list(range(48))
    columns = LayoutColumns.of([layout])
    for at, axis in enumerate(AXES):
        stride = 1 if axis == "tp" else int(columns.stride(axis)[0])
        assert set(torch.diff(places, dim=at).flatten().tolist()) == {stride}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("shard", [None, 2, 3, 6])
def test_shard_groups_are_runs_of_the_replicas_in_order_of_rank(order: Order, shard: int | None) -> None:
    """Whatever lies between context and data, and each stage's replicas in the same order."""
    layout = layout_in(order, shard)
    places, parameters = rank_places(layout), parameter_places(layout)
    assert parameters.shape == (4, 6 // (shard or 6), shard or 6, 2)
    for stage in range(4):
        for slot in range(2):
            expected = sorted(places[stage, :, :, slot].flatten().tolist())
            assert parameters[stage, :, :, slot].flatten().tolist() == expected
    of_stages = {tuple(line) for line in places.flatten(1).T.tolist()}
    assert {tuple(line) for line in parameters.flatten(1).T.tolist()} == of_stages


@pytest.mark.parametrize("order", ["tp-cp-dp-pp", "tp-pp-dp-cp"])
def test_the_mesh_has_the_groups_of_these_places(order: Order) -> None:
    layout = layout_in(order, shard=2)
    places, parameters = rank_places(layout), parameter_places(layout)
    dist.init_process_group("fake", store=FakeStore(), rank=5, world_size=48)
    try:
        mesh, context = make_mesh(layout, "cpu"), make_context_group(layout)
        place = place_of(layout, 5)
        stage, copy, shard, slot = (parameters == 5).nonzero()[0].tolist()
        assert tuple(mesh.get_coordinate() or ()) == (stage, copy, shard, slot)
        assert (stage, slot) == (place.pp, place.tp)
        assert mesh["pp"].mesh.tolist() == places[:, place.dp, place.cp, slot].tolist()
        assert mesh["copy"].mesh.tolist() == parameters[stage, :, shard, slot].tolist()
        assert mesh["shard"].mesh.tolist() == parameters[stage, copy, :, slot].tolist()
        assert mesh["tp"].mesh.tolist() == places[stage, place.dp, place.cp].tolist()
        assert context is not None
        members = places[stage, place.dp, :, slot].tolist()
        assert dist.get_process_group_ranks(context) == members
    finally:
        dist.destroy_process_group()


def calls_of(layout: Layout, rank: int, *, splits: bool) -> tuple[int, int]:
    """How often a rank calls (`new_group`, `split_group`) for the meshes and groups of a layout with experts."""
    made, split = mock.Mock(wraps=dist.new_group), mock.Mock()
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=layout.num_gpus)
    try:
        split.side_effect = lambda split_ranks, group_desc: dist.group.WORLD
        with mock.patch.object(dist, "new_group", made), mock.patch.object(dist, "split_group", split):
            if splits:
                assert dist.group.WORLD is not None
                dist.group.WORLD.bound_device_id = torch.device("cuda", 0)
            mesh = make_mesh(layout, "cpu")
            make_expert_mesh(layout, "cpu")
            make_context_group(layout)
            group_beside(mesh, "shard")
            make_group_over(layout, ("copy", "shard"))
        for call in split.call_args_list:
            ranks = [one for group in call.kwargs["split_ranks"] for one in group]
            assert sorted(ranks) == list(range(layout.num_gpus))
        return made.call_count, split.call_count
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("splits", [False, True])
def test_groups_cost_as_many_calls_on_a_thousand_ranks_as_on_32(splits: bool) -> None:
    """One for each axis: on gloo of one's own group, on NCCL a split of all ranks; not one for each group of it."""
    small = parse_layout("tp2 cp2 pp2 dp4 ep2 zero1 shard4 mbs1")
    large = parse_layout("tp4 cp2 pp2 dp64 ep8 zero1 shard32 mbs1")
    axes = 4 + 5 + 1 + 1 + 1
    for layout in (small, large):
        found = calls_of(layout, layout.num_gpus - 1, splits=splits)
        assert found == ((0, axes) if splits else (axes, 0))


def test_a_start_is_priced_with_the_groups_that_are_made() -> None:
    layout = layout_in("tp-cp-dp-pp", shard=2)
    dist.init_process_group("fake", store=FakeStore(), rank=5, world_size=48)
    try:
        mesh = make_mesh(layout, "cpu")
        made = (dist.get_world_size(), dist.get_world_size(dist.new_group()), *mesh.shape)
        assert group_sizes(layout) == made
    finally:
        dist.destroy_process_group()


def test_a_rank_that_is_in_no_group_has_one_of_its_own() -> None:
    """Groups are named by how many a process has made, which must be as many on all ranks."""
    dist.init_process_group("fake", store=FakeStore(), rank=5, world_size=8)
    try:
        assert dist.get_process_group_ranks(make_groups(torch.tensor([[0, 7], [1, 6]]))) == [5]
        assert dist.get_process_group_ranks(make_groups(torch.tensor([[0, 5]]))) == [0, 5]
    finally:
        dist.destroy_process_group()


def _tell() -> tuple[list[Any], Any]:
    rank = dist.get_rank()
    said = {"rank": rank, "words": "é" * 1000 * rank, "none": None, "loss": float("inf")}
    return gather_json(said), json_from_first({"first": [rank, "ü"]} if rank == 0 else None)


def test_every_rank_hears_what_each_says(processes) -> None:
    everyone = [
        {"rank": rank, "words": "é" * 1000 * rank, "none": None, "loss": float("inf")} for rank in range(3)
    ]
    for gathered, first in processes.run(3, _tell):
        assert gathered == everyone
        assert first == {"first": [0, "ü"]}


def test_no_rank_tells_pickles() -> None:
    """Torch's collectives of objects unpickle what they get, which runs whatever it says."""
    sources = sorted(Path(executor.__path__[0]).rglob("*.py"))
    assert len(sources) > 50
    told = re.compile(r"\b(\w+_object|\w+_object_list|pickle\.\w+|torch\.load)\(")
    assert not [(path.name, found[0]) for path in sources if (found := told.search(path.read_text("utf-8")))]
