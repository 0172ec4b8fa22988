"""Links between the GPUs of a node: NVLinks, the matrix of `nvidia-smi topo -m`, and what of them is not known."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cost_models.discovery.gpus import SeenGpu
from cost_models.discovery.machine import Machine
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

    def near(self, device: str) -> set[str]:
        """Devices connected to a given device through PCIe switches only."""
        return {
            pair[1 - pair.index(device)] for pair, way in self.ways.items() if device in pair and way in NEAR
        }

    def groups(self, devices: Sequence[str], linked: Mapping[tuple[str, str], bool]) -> list[list[str]]:
        """Connected components of `devices` under the pairs marked in `linked`, each in the order of `devices`."""
        import networkx

        graph: networkx.Graph[str] = networkx.Graph()
        graph.add_nodes_from(devices)
        graph.add_edges_from(pair for pair, joined in linked.items() if joined)
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
        if not columns:
            columns = _columns(words)
        elif words and _DEVICE.fullmatch(words[0]) and _CELL.fullmatch((words[1:] or [""])[0]):
            for column, way in zip(columns, words[1:], strict=False):
                if _CELL.fullmatch(way) and way != "X":
                    ways[real.get(words[0], words[0]), real.get(column, column)] = way
    return Topology(ways=ways)


def _columns(words: Iterable[str]) -> list[str]:
    """Device names in the matrix's header line, without the CPU and NUMA affinity columns after them."""
    names = list(words)
    if not names or not names[0].startswith("GPU"):
        return []
    end = next((at for at, word in enumerate(names) if not _DEVICE.fullmatch(word)), len(names))
    columns = names[:end]
    return columns[:-1] if columns[-1:] == ["GPU"] else columns  # of "GPU NUMA ID"


UNKNOWN = "unknown"
"""Value of a field that the user must state: `plan` refuses it and names the field."""
USUAL_LATENCY = {
    "nvswitch": "3 us",
    "nvlink": "3 us",
    "xgmi": "3 us",
    "pcie": "8 us",
    "infiniband": "5 us",
    "roce": "6 us",
    "ethernet": "15 us",
    "shared-memory": "50 us",
}
"""Usual latency of one hop of a medium, as the catalogue's clusters have it; no driver says it."""
MOST_NVLINKS = 18
"""NVLinks that a GPU has at most (Hopper, Blackwell): more of them in one row of the matrix are those of a switch."""
Fields = dict[str, Any]


@dataclass(kw_only=True)
class Inside:
    """Links between the GPUs of one node, as fields of a cluster file."""

    node: Fields
    """The link between any two GPUs."""
    group: Fields | None = None
    """The link between GPUs of one NVLink bridge, where a bridge joins only part of the node."""
    group_size: int = 1
    order: tuple[int, ...] = ()
    """GPUs by bridge, where bridges do not join neighbours."""
    witness: str = ""
    assumed: list[str] = field(default_factory=list)


def link(kind: str, bandwidth: float, **fields: Any) -> Fields:
    """Cluster file fields of a link, with the usual latency of its kind; a bandwidth of 0 becomes `unknown`."""
    rate = format_bandwidth(bandwidth) if bandwidth else UNKNOWN
    return {**fields, "kind": kind, "bandwidth": rate, "latency": USUAL_LATENCY[kind]}


def inside_node(gpus: Sequence[SeenGpu], topology: Topology) -> Inside:
    """Detect how the GPUs of a node are linked, as NVLink among all, NVLink within groups, or PCIe only."""
    names = [f"GPU{gpu.index}" for gpu in gpus]
    rows = [[topology.nvlinks(one, other) for other in names if other != one] for one in names]
    bridged = {
        (one, other): topology.nvlinks(one, other) > 0 for one in names for other in names if one != other
    }
    groups = topology.groups(names, bridged)
    if len(groups) == len(names):
        return _through_host(gpus, topology, names)
    if len(groups) == 1:
        return _all_by_nvlink(gpus, rows)
    return _in_groups(gpus, topology, names, groups)


def _all_by_nvlink(gpus: Sequence[SeenGpu], rows: list[list[int]]) -> Inside:
    """Links of a node whose GPUs all reach each other over NVLinks, through switches, directly or in several hops."""
    links_of_pair, fullest = rows[0][0], max(sum(row) for row in rows)
    bandwidth = min(gpu.nvlink for gpu in gpus)
    even = all(count == links_of_pair for row in rows for count in row)
    if even and len(gpus) > 2 and (fullest > MOST_NVLINKS or len(gpus[0].nvlinks) == links_of_pair):
        return Inside(node=link("nvswitch", bandwidth), witness=f"NV{links_of_pair} between all GPUs")
    fewest_links = min(sum(row) for row in rows)
    bandwidth = min(
        (gpu.nvlink * sum(row) / (len(gpu.nvlinks) or 1)) for gpu, row in zip(gpus, rows, strict=True)
    )
    inside = Inside(
        node=link("nvlink", bandwidth), witness=f"{counted(fewest_links, 'NVLink')} a GPU, without switches"
    )
    if not all(count for row in rows for count in row):
        counts = ", ".join(
            f"NV{count}" for count in sorted({count for row in rows for count in row if count})
        )
        inside.assumed.append(
            f"rings use all {fewest_links} NVLinks of a GPU ({counts}); not every pair of GPUs has one"
        )
    return inside


def _in_groups(
    gpus: Sequence[SeenGpu], topology: Topology, names: list[str], groups: list[list[str]]
) -> Inside:
    """Links of a node where NVLink bridges join groups of GPUs and PCIe joins the groups."""
    inside = _through_host(gpus, topology, names)
    sizes = {len(group) for group in groups}
    if len(sizes) > 1:
        group_words = ", ".join("+".join(group) for group in groups if len(group) > 1)
        inside.assumed.append(
            f"NVLinks that join a part of the GPUs ({group_words}) are left out: groups differ in size"
        )
        return inside
    by_name = dict(zip(names, gpus, strict=True))
    bandwidth = min(
        by_name[one].nvlink
        * sum(topology.nvlinks(one, other) for other in group)
        / (len(by_name[one].nvlinks) or 1)
        for group in groups
        for one in group
    )
    inside.group, inside.group_size = link("nvlink", bandwidth), sizes.pop()
    inside.witness = f"NVLink inside {counted(len(groups), 'group')} of {inside.group_size}, PCIe between"
    if (order := [one for group in groups for one in group]) != names:
        inside.order = tuple(by_name[one].index for one in order)
    return inside


def _through_host(gpus: Sequence[SeenGpu], topology: Topology, names: list[str]) -> Inside:
    """Links of a node whose GPUs reach each other over PCIe only."""
    inside = Inside(node=link("pcie", min(gpu.pcie for gpu in gpus)), witness="PCIe")
    ways = [topology.path(one, other) for at, one in enumerate(names) for other in names[at + 1 :]]
    if len(names) > 1 and not all(ways):
        inside.assumed.append("no NVLink between GPUs: `nvidia-smi topo -m` does not say what joins them")
    if "SYS" in ways:
        inside.assumed.append(
            "GPUs of two sockets send as fast as those of one (how they are joined is not shown)"
        )
    return inside


def sharing_host_link(topology: Topology, names: Sequence[str]) -> int | None:
    """Largest number of GPUs under one PCIe switch, which share its link to the host; None where the matrix does
    not show it."""
    near_devices = {one: topology.near(one) for one in names}
    same_switch = {
        (one, other): topology.path(one, other) in NEAR
        or bool((near_devices[one] & near_devices[other]) - set(names))
        for one in names
        for other in names
        if one != other
    }
    by_nvlink = any(topology.nvlinks(*pair) for pair in same_switch)
    if (
        by_nvlink
        and not any(near - set(names) for near in near_devices.values())
        and not any(same_switch.values())
    ):
        return None  # NVLinks hide what else joins two GPUs, and there is no adapter to tell
    return max((len(group) for group in topology.groups(names, same_switch)), default=1)
