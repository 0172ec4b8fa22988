"""The mesh of ranks, in the order of the layout: tensor ranks are neighbours, the rest is as `order` says."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from cost_models.specs.layout import Layout

AXES = ("pp", "dp", "tp")


def rank_places(layout: Layout) -> Tensor:
    """(pp, dp, tp) the global rank of every place in the mesh, as `cost_models.communication.topology` has it."""
    inside_out = [axis for axis in layout.order.split("-") if axis in AXES]
    outside_in = inside_out[::-1]
    degrees = [getattr(layout, axis) for axis in outside_in]
    ranks = torch.arange(layout.pp * layout.dp * layout.tp, device="cpu").reshape(degrees)
    return ranks.permute([outside_in.index(axis) for axis in AXES]).contiguous()


def pipeline_rank(layout: Layout, rank: int) -> int:
    """The pipeline rank that a global rank belongs to."""
    return int((rank_places(layout) == rank).nonzero()[0, 0])


def make_mesh(layout: Layout, device_type: str) -> DeviceMesh:
    """A (pp, dp, tp) mesh over all ranks of the default process group."""
    return DeviceMesh(device_type, rank_places(layout), mesh_dim_names=AXES)
