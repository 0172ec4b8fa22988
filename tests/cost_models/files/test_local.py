"""`local` is this machine's GPUs where the driver reports ones the catalogue knows, else its CPU."""

from __future__ import annotations

import pytest

from cost_models.files import catalog


def test_known_gpus_make_a_gpu_machine_with_the_links_of_their_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog, "installed_gpus", lambda: ("NVIDIA H100 80GB HBM3",) * 4)
    machine = catalog.local_cluster()
    assert machine.name == "local"
    assert machine.gpu == catalog.load_gpu("h100-sxm")
    assert machine.num_gpus == 4
    assert machine.links.intra_node == catalog.load_cluster("dgx-h100").links.intra_node
    assert catalog.local_cluster(2).num_gpus == 2


def test_a_gpu_without_a_catalogue_node_is_reached_through_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog, "installed_gpus", lambda: ("NVIDIA H100 NVL",))
    machine = catalog.local_cluster()
    assert machine.links.intra_node.kind == "pcie"
    assert machine.links.intra_node.bandwidth == catalog.load_gpu("h100-nvl").host_bandwidth


@pytest.mark.parametrize("reported", [(), ("Some New GPU",), ("NVIDIA H200", "NVIDIA A100-SXM4-80GB")])
def test_anything_else_is_the_cpu(monkeypatch: pytest.MonkeyPatch, reported: tuple[str, ...]) -> None:
    monkeypatch.setattr(catalog, "installed_gpus", lambda: reported)
    assert catalog.local_cluster(2).gpu.kind == "cpu"
