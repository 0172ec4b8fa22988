"""Small clusters, layouts and a profile of round numbers for the communication tests."""

from __future__ import annotations

from itertools import product

from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import Layout
from cost_models.communication.topology import Groups, axis_groups
from cost_models.specs.cluster import ClusterSpec, GpuSpec, Links, LinkSpec
from cost_models.specs.hardware import CollectiveCurve, HardwareProfile

GPU = GpuSpec(
    name="test",
    memory="80 GiB",
    memory_bandwidth="2 TB/s",
    peak={"bf16": "300 TFLOP/s", "fp32": "20 TFLOP/s"},
)


def cluster(
    *,
    gpus_per_node: int = 8,
    nodes: int = 8,
    intra: str = "300 GB/s",
    inter: str | None = "25 GB/s",
    **fields: object,
) -> ClusterSpec:
    """A cluster of `nodes` nodes; 1 us inside a node, 5 us between nodes."""
    network = LinkSpec(kind="infiniband", bandwidth=inter, latency="5 us") if inter else None
    links = Links(intra_node=LinkSpec(kind="nvswitch", bandwidth=intra, latency="1 us"), inter_node=network)
    return ClusterSpec(gpu=GPU, gpus_per_node=gpus_per_node, nodes=nodes, links=links, **fields)


def levelled(*levels: dict[str, object], gpus_per_node: int = 8, nodes: int = 8) -> ClusterSpec:
    """A cluster whose links are levels; 1 us inside a node, 5 us between nodes unless they say."""
    usual = {"kind": "pcie", "latency": "1 us"}, {"kind": "infiniband", "latency": "5 us"}
    links = [usual["gpus" not in level and level.get("nodes") != 1] | level for level in levels]
    return ClusterSpec(gpu=GPU, gpus_per_node=gpus_per_node, nodes=nodes, links=links)


def columns(*degrees: tuple[int, int, int]) -> LayoutColumns:
    """Layouts of (tp, dp, pp)."""
    return LayoutColumns.of([Layout(tp=tp, dp=dp, pp=pp) for tp, dp, pp in degrees])


def dp_groups(size: int, *, tp: int = 1, of: ClusterSpec | None = None) -> Groups:
    """Data-parallel groups of one layout."""
    return axis_groups(of or cluster(nodes=-(-size * tp // 8)), columns((tp, size, 1))).dp


def profile(*curves: CollectiveCurve, collective_seconds: float = 0.0, **fields: float) -> HardwareProfile:
    """80 % of the links inside a node, 90 % of the network, no start-up unless given."""
    efficiencies = {"link_efficiency": 0.8, "network_efficiency": 0.9} | fields
    return HardwareProfile(
        name="test",
        tier="datasheet",
        gpu="test",
        stack="test",
        gemm_efficiency=0.7,
        attention_forward_efficiency=0.5,
        attention_backward_efficiency=0.5,
        memory_efficiency=0.8,
        kernel_seconds=0.0,
        optimizer_efficiency=0.8,
        collective_seconds=collective_seconds,
        collectives=curves,
        **efficiencies,
    )


EVERY_SMALL_LAYOUT = [
    degrees
    for degrees in product((1, 2, 3, 4, 6, 8, 12, 16), repeat=3)
    if degrees[0] * degrees[1] * degrees[2] <= 96
]
