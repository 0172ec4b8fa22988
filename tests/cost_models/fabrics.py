"""Clusters as graphs of links, in round numbers: nodes of eight H100 with an adapter each, and switches between."""

from __future__ import annotations

from collections.abc import Sequence

from cost_models.communication.topology import group_of
from cost_models.fabric.files import LinkFile, draft_of_links
from cost_models.files.catalog import load_cluster
from cost_models.specs.cluster import ClusterSpec
from cost_models.specs.graph import read_lines


def inside(nodes: int) -> list[str]:
    """NVSwitch at 450 GB/s, and an adapter beside each GPU."""
    every = f"n[0-{nodes - 1}]"
    return [
        f"{every}.gpu[0-7] -- {every}.nvswitch 450 GB/s 1.5 us",
        f"{every}.gpu[0-7] -- {every}.nic[0-7] 64 GB/s",
    ]


def pod(nodes: int = 4, without: str = "", instead: Sequence[str] = ()) -> list[str]:
    """One network of 400 Gb/s; `without` an adapter's cable, and other lines in its place."""
    cables = [f"n{node}.nic{rail} -- network 400 Gb/s 2.5 us" for node in range(nodes) for rail in range(8)]
    return [*inside(nodes), *(line for line in cables if not line.startswith(f"{without} ")), *instead]


def leaves(nodes: int = 32, under: int = 8, spines: int = 32, instead: Sequence[str] = ()) -> list[str]:
    """Leaf switches with a cable of 400 Gb/s to every spine; spine 0 has the lines of `instead`, if any."""
    count = nodes // under
    cables = [f"n[0-{nodes - 1}].nic[0-7] -- leaf[0-{count - 1}] 400 Gb/s 2.5 us"]
    first = instead or [f"leaf[0-{count - 1}] -- spine0 400 Gb/s"]
    return [*inside(nodes), *cables, *first, f"leaf[0-{count - 1}] -- *spine[1-{spines - 1}] 400 Gb/s"]


def rails(nodes: int = 32) -> list[str]:
    """GPU i of every node is on leaf i, and there is no spine."""
    return [
        *inside(nodes),
        *(f"n[0-{nodes - 1}].nic{rail} -- leaf{rail} 400 Gb/s 2.5 us" for rail in range(8)),
    ]


def cluster(lines: Sequence[str]) -> ClusterSpec:
    """The cluster that `--from-links` writes."""
    links, problems = read_lines(lines)
    assert not problems, problems
    return draft_of_links(LinkFile(links=links), "test", "h100-sxm", "test").cluster


def dgx(nodes: int, **fields: object) -> ClusterSpec:
    """The catalogue's DGX H100."""
    return load_cluster("dgx-h100").model_copy(update={"nodes": nodes, **fields})


def ring(of: ClusterSpec, size: int, stride: int) -> float:
    """GB/s of the slowest ring through groups of `size` GPUs, `stride` apart."""
    return float(group_of(of, size, stride).ring_bandwidth()[0]) / 1e9
