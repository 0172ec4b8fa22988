"""Links between the GPUs of a node: NVLinks, the matrix of `nvidia-smi topo -m`, and what of them is not known."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, permutations, takewhile
from typing import Any

from cost_models.discovery.gpus import SeenGpu
from cost_models.files.local import Machine
from cost_models.units import counted, format_bandwidth

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_NVLINKS = re.compile(r"NV(\d{1,3})", re.ASCII)
_CELL = re.compile(r"X|PIX|PXB|PHB|NODE|SYS|NV\d{1,3}", re.ASCII)
_DEVICE = re.compile(r"(GPU|NIC|mlx|bnxt|rdmap|ibp|roce|hfi|irdma)\S*", re.ASCII)
_LEGEND = re.compile(r"^\s*(NIC\d+):\s*(\S+)\s*$", re.ASCII)
NEAR = ("PIX", "PXB")
"""Ways that stay under one host bridge, through PCIe switches only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """Connection matrix of `nvidia-smi topo -m`, keyed by pairs of device names (`GPU0`, `mlx5_0`)."""

    ways: Mapping[tuple[str, str], str] = field(default_factory=dict)
    """Two devices → what lies between: NV12, PIX, PXB, PHB, NODE or SYS."""

    def path(self, first: str, second: str) -> str:
        """Connection type between two devices in the driver's notation (`NV12`, `PIX`, `SYS`); empty if unknown."""
        return self.ways.get((first, second)) or self.ways.get((second, first)) or ""

    def nvlinks(self, first: str, second: str) -> int:
        """Number of NVLinks from one GPU to another, or to the switches between them; 0 if there are none."""
        match = _NVLINKS.fullmatch(self.path(first, second))
        return int(match[1]) if match else 0

    def near(self, name: str) -> set[str]:
        """Devices connected to a given device through PCIe switches only."""
        return {pair[1 - pair.index(name)] for pair, way in self.ways.items() if name in pair and way in NEAR}


def groups_of(devices: Sequence[str], linked: Iterable[tuple[str, str]]) -> list[list[str]]:
    """Connected components of `devices` under the pairs `linked`, each in the order of `devices`."""
    import networkx

    graph: networkx.Graph[str] = networkx.Graph()
    graph.add_nodes_from(devices)
    graph.add_edges_from(linked)
    return [sorted(group, key=devices.index) for group in networkx.connected_components(graph)]


def read_topology(machine: Machine) -> Topology:
    """Run `nvidia-smi topo -m` and parse the connection matrix; empty if none is printed."""
    return parse_topology(machine.run("nvidia-smi", "topo", "-m") or "")


def parse_topology(output: str) -> Topology:
    """Parse the connection matrix from the output of `nvidia-smi topo -m`; empty if there is none."""
    lines = _COLOURS.sub("", output).splitlines()
    real = {match[1]: match[2] for line in lines if (match := _LEGEND.match(line))}
    columns: list[str] = []
    ways = {}
    for line in lines:
        words = line.split()
        if not columns and words and words[0].startswith("GPU"):
            # without the columns of CPU and NUMA affinity after them, of which one is called "GPU NUMA ID"
            columns = list(takewhile(_DEVICE.fullmatch, words))
            columns = columns[:-1] if columns[-1] == "GPU" else columns
        elif words and _DEVICE.fullmatch(words[0]) and _CELL.fullmatch((words[1:] or [""])[0]):
            for column, way in zip(columns, words[1:], strict=False):
                if _CELL.fullmatch(way) and way != "X":
                    ways[real.get(words[0], words[0]), real.get(column, column)] = way
    return Topology(ways=ways)


UNKNOWN = "unknown"
"""Value of a field that the user must state: `plan` refuses it and names the field."""
USUAL_LATENCY = dict.fromkeys(("nvswitch", "nvlink", "xgmi"), "3 us") | {"pcie": "8 us", "infiniband": "5 us"}
USUAL_LATENCY |= {"roce": "6 us", "ethernet": "15 us", "shared-memory": "50 us"}
"""Usual latency of one hop of a medium, as the catalogue's clusters have it; no driver says it."""
MOST_NVLINKS = 18
"""NVLinks that a GPU has at most (Hopper, Blackwell): more of them in one row of the matrix are those of a switch."""
Fields = dict[str, Any]


@dataclass(kw_only=True)
class LinkReading:
    """A link of a cluster file, as detected or as the user states it."""

    fields: Fields = field(default_factory=dict)
    """Kind, bandwidth and latency; empty where nothing is known."""
    source: str = ""
    """Source that reports the link."""
    why_open: str = "the driver does not say what one link carries"
    """Reason why a value is unknown, or all are."""
    rails: int = 0
    """Adapters of a node, where the link is a network."""
    assumed: list[str] = field(default_factory=list)


@dataclass(kw_only=True)
class Inside:
    """Links between the GPUs of one node."""

    node: LinkReading
    """The link between any two GPUs."""
    group: LinkReading | None = None
    """The link between GPUs of one NVLink bridge, where a bridge joins only part of the node."""
    group_size: int = 1
    order: tuple[int, ...] = ()
    """GPUs by bridge, where bridges do not join neighbours."""


def link(kind: str, bandwidth: float) -> Fields:
    """Cluster file fields of a link, with the usual latency of its kind; a bandwidth of 0 becomes `unknown`."""
    rate = format_bandwidth(bandwidth) if bandwidth else UNKNOWN
    return {"kind": kind, "bandwidth": rate, "latency": USUAL_LATENCY[kind]}


def inside_node(gpus: Sequence[SeenGpu], topology: Topology) -> Inside:
    """Detect how the GPUs of a node are linked: NVLink among all, NVLink within groups, or PCIe only."""
    names = [f"GPU{gpu.index}" for gpu in gpus]
    counts = {(one, other): topology.nvlinks(one, other) for one, other in permutations(names, 2)}
    groups = groups_of(names, (pair for pair, count in counts.items() if count))
    row = {one: sum(counts[one, other] for other in names if other != one) for one in names}
    # of links that are up, those to the GPUs that the matrix shows
    shown = zip(row.values(), gpus, strict=True)
    rate = min(gpu.nvlink * number / (len(gpu.nvlinks) or 1) for number, gpu in shown)
    if len(groups) == 1 < len(names):
        return Inside(node=_over_nvlink(gpus, counts, row, rate))
    inside = Inside(node=_through_host(gpus, topology, names))
    sizes = {len(group) for group in groups}
    if len(groups) == len(names):
        return inside
    if len(sizes) > 1:
        joined = ", ".join("+".join(group) for group in groups if len(group) > 1)
        unequal = f"NVLinks that join a part of the GPUs ({joined}) are left out: groups differ in size"
        inside.node.assumed.append(unequal)
        return inside
    inside.group_size = sizes.pop()
    source = f"nvidia-smi: NVLink inside {counted(len(groups), 'group')} of {inside.group_size}, PCIe between"
    inside.node.source = source
    inside.group = LinkReading(fields=link("nvlink", rate), source=source)
    if (order := [one for group in groups for one in group]) != names:
        inside.order = tuple(gpus[names.index(one)].index for one in order)
    return inside


def _over_nvlink(
    gpus: Sequence[SeenGpu], counts: Mapping[tuple[str, str], int], row: Mapping[str, int], rate: float
) -> LinkReading:
    """Link of a node whose GPUs all reach each other over NVLinks, through switches, directly or in several hops.
    `counts` are NVLinks of two GPUs, `row` those of a GPU to all others, of the bandwidth `rate` at least, bytes/s."""
    different, fewest = set(counts.values()), min(row.values())
    most = max(different)
    if len(different) == 1 and len(gpus) > 2 and (fewest > MOST_NVLINKS or len(gpus[0].nvlinks) == most):
        fields = link("nvswitch", min(gpu.nvlink for gpu in gpus))
        return LinkReading(fields=fields, source=f"nvidia-smi: NV{most} between all GPUs")
    source = f"nvidia-smi: {counted(fewest, 'NVLink')} a GPU, without switches"
    reading = LinkReading(fields=link("nvlink", rate), source=source)
    if 0 in different:
        words = ", ".join(f"NV{count}" for count in sorted(different - {0}))
        rings = f"rings use all {fewest} NVLinks of a GPU ({words})"
        reading.assumed.append(f"{rings}; not every pair of GPUs has one")
    return reading


def _through_host(gpus: Sequence[SeenGpu], topology: Topology, names: list[str]) -> LinkReading:
    """Link of a node whose GPUs reach each other over PCIe only."""
    reading = LinkReading(fields=link("pcie", min(gpu.pcie for gpu in gpus)), source="nvidia-smi: PCIe")
    ways = [topology.path(one, other) for one, other in combinations(names, 2)]
    if not all(ways):
        reading.assumed.append("no NVLink between GPUs: `nvidia-smi topo -m` does not say what joins them")
    if "SYS" in ways:
        fast = "GPUs of two sockets send as fast as those of one (how they are joined is not shown)"
        reading.assumed.append(fast)
    return reading


def sharing_host_link(topology: Topology, names: Sequence[str]) -> int | None:
    """Largest number of GPUs under one PCIe switch, which share its link to the host; None where the matrix does
    not show it."""
    near, pairs, gpus = {one: topology.near(one) for one in names}, list(permutations(names, 2)), set(names)
    same_switch = [(a, b) for a, b in pairs if b in near[a] or (near[a] & near[b]) - gpus]
    adapters = set().union(*near.values()) - gpus
    if not adapters and not same_switch and any(topology.nvlinks(*pair) for pair in pairs):
        return None  # NVLinks hide what else joins two GPUs, and there is no adapter to tell
    return max(map(len, groups_of(names, same_switch)), default=1)
