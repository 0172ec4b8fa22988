"""Ranks sit in the executor's mesh where the cost model prices them, whatever the order of the axes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from cost_models.specs.axis_orders import ORDERS, Order, ranks_inside
from cost_models.specs.layout import Layout
from executor.mesh import AXES, make_mesh, pipeline_rank, rank_places


def layout_in(order: Order) -> Layout:
    return Layout(tp=2, dp=3, pp=4, order=order)


@pytest.mark.parametrize("order", ORDERS)
def test_places_are_as_far_apart_as_the_cost_model_says(order: Order) -> None:
    layout = layout_in(order)
    places = rank_places(layout)
    assert sorted(places.flatten().tolist()) == list(range(24))
    degrees = {axis: np.array([getattr(layout, axis)]) for axis in ("tp", "cp", "dp", "pp")}
    index = np.array([ORDERS.index(layout.order)])
    for at, axis in enumerate(AXES):
        stride = 1 if axis == "tp" else int(ranks_inside(axis, index, **degrees)[0])
        assert set(torch.diff(places, dim=at).flatten().tolist()) == {stride}


@pytest.mark.parametrize("order", ["tp-cp-dp-pp", "tp-pp-dp-cp"])
def test_the_mesh_has_the_groups_of_these_places(order: Order) -> None:
    layout = layout_in(order)
    places = rank_places(layout)
    dist.init_process_group("fake", store=FakeStore(), rank=5, world_size=24)
    try:
        mesh = make_mesh(layout, "cpu")
        stage, replica, shard = (places == 5).nonzero()[0].tolist()
        assert tuple(mesh.get_coordinate() or ()) == (stage, replica, shard)
        assert pipeline_rank(layout, 5) == stage
        assert mesh["pp"].mesh.tolist() == places[:, replica, shard].tolist()
        assert mesh["dp"].mesh.tolist() == places[stage, :, shard].tolist()
        assert mesh["tp"].mesh.tolist() == places[stage, replica].tolist()
    finally:
        dist.destroy_process_group()
