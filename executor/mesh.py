"""The mesh of ranks: pipeline outermost, then data, then tensor, so that tensor-parallel ranks are neighbours."""

from __future__ import annotations

from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from cost_models.specs.layout import Layout


def make_mesh(layout: Layout, device_type: str) -> DeviceMesh:
    """A (pp, dp, tp) mesh over all ranks of the default process group."""
    return init_device_mesh(device_type, (layout.pp, layout.dp, layout.tp), mesh_dim_names=("pp", "dp", "tp"))
