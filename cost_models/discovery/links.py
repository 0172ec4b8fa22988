"""Links of a node: between its GPUs (NVLinks, the matrix of `nvidia-smi topo -m`), and to other nodes, as far as a node
shows them (adapters, NCCL's topology file); what a person says of links, and what of them is not known.

Rates of adapters are the kernel's, or those of the file that clouds ship for their machines, which also says which GPUs
share a PCIe switch.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations, permutations, takewhile
from typing import Any, NamedTuple
from xml.etree import ElementTree

from cost_models.discovery.host import SeenGpu, positive_integer
from cost_models.errors import InputError, Problem, did_you_mean
from cost_models.files.local import Machine
from cost_models.units import counted, format_bandwidth, parse_bandwidth, parse_seconds

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_NVLINKS = re.compile(r"NV(\d{1,3})", re.ASCII)
_CELL = re.compile(r"X|PIX|PXB|PHB|NODE|SYS|NV\d{1,3}", re.ASCII)
_DEVICE = re.compile(r"(GPU|NIC|mlx|bnxt|rdmap|ibp|roce|hfi|irdma)\S*", re.ASCII)
_LEGEND = re.compile(r"^\s*(NIC\d+):\s*(\S+)\s*$", re.ASCII)
NEAR = ("PIX", "PXB")
"""Ways that stay under one host bridge, through PCIe switches only."""


class Topology(dict[tuple[str, str], str]):
    """Connection matrix of `nvidia-smi topo -m`: pair of device names (`GPU0`, `mlx5_0`) → what lies between, which is
    NV12, PIX, PXB, PHB, NODE or SYS."""

    def path(self, first: str, second: str) -> str:
        """Connection type between two devices in the driver's notation (`NV12`, `PIX`, `SYS`); empty if unknown."""
        return self.get((first, second)) or self.get((second, first)) or ""

    def nvlinks(self, first: str, second: str) -> int:
        """Number of NVLinks from one GPU to another, or to the switches between them; 0 if there are none."""
        match = _NVLINKS.fullmatch(self.path(first, second))
        return int(match[1]) if match else 0

    def near(self, name: str) -> set[str]:
        """Devices connected to a given device through PCIe switches only."""
        return {pair[1 - pair.index(name)] for pair, way in self.items() if name in pair and way in NEAR}


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
    columns, topology = list[str](), Topology()
    for line in lines:
        words = line.split()
        if not columns and words and words[0].startswith("GPU"):
            # without the columns of CPU and NUMA affinity after them, of which one is called "GPU NUMA ID"
            columns = list(takewhile(_DEVICE.fullmatch, words))
            columns = columns[:-1] if columns[-1] == "GPU" else columns
        elif words and _DEVICE.fullmatch(words[0]) and _CELL.fullmatch((words[1:] or [""])[0]):
            for column, way in zip(columns, words[1:], strict=False):
                if _CELL.fullmatch(way) and way != "X":
                    topology[real.get(words[0], words[0]), real.get(column, column)] = way
    return topology


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


class Inside(NamedTuple):
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
    rate = min(sum(gpu.nvlinks) * number / (len(gpu.nvlinks) or 1) for number, gpu in shown)
    if len(groups) == 1 < len(names):
        return Inside(_over_nvlink(gpus, set(counts.values()), min(row.values()), rate))
    node, sizes = _through_host(gpus, topology, names), {len(group) for group in groups}
    if len(groups) == len(names):
        return Inside(node)
    if len(sizes) > 1:
        joined = ", ".join("+".join(group) for group in groups if len(group) > 1)
        unequal = f"NVLinks that join a part of the GPUs ({joined}) are left out: groups differ in size"
        node.assumed.append(unequal)
        return Inside(node)
    size, by_bridge = sizes.pop(), [one for group in groups for one in group]
    node.source = f"nvidia-smi: NVLink inside {counted(len(groups), 'group')} of {size}, PCIe between"
    bridge = LinkReading(fields=link("nvlink", rate), source=node.source)
    order = [] if by_bridge == names else [gpus[names.index(one)].index for one in by_bridge]
    return Inside(node, bridge, size, tuple(order))


def _over_nvlink(gpus: Sequence[SeenGpu], counts: set[int], fewest: int, rate: float) -> LinkReading:
    """Link of a node whose GPUs all reach each other over NVLinks, through switches, directly or in several hops.
    `counts` are the numbers of NVLinks between two GPUs, `fewest` those of a GPU to all others, at least, which carry
    at least `rate` bytes/s."""
    most = max(counts)
    if len(counts) == 1 and len(gpus) > 2 and (fewest > MOST_NVLINKS or len(gpus[0].nvlinks) == most):
        fields = link("nvswitch", min(sum(gpu.nvlinks) for gpu in gpus))
        return LinkReading(fields=fields, source=f"nvidia-smi: NV{most} between all GPUs")
    source = f"nvidia-smi: {counted(fewest, 'NVLink')} a GPU, without switches"
    reading = LinkReading(fields=link("nvlink", rate), source=source)
    if 0 in counts:
        words = ", ".join(f"NV{count}" for count in sorted(counts - {0}))
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


_RDMA = "/sys/class/infiniband"
_RATE = re.compile(r"\s*([\d.]+) Gb/sec", re.ASCII)
_KINDS = {"InfiniBand": "infiniband", "Ethernet": "roce"}
_CHOICE = "NCCL_IB_HCA"


class Adapter(NamedTuple):
    """A network adapter with an active link."""

    name: str
    kind: str
    """`infiniband`, `roce` or `ethernet`."""
    rate: float
    """Bytes/s, one direction."""


def read_rdma(machine: Machine) -> list[Adapter]:
    """Read the RDMA adapters with an active port, each with the summed rate of its active ports."""
    adapters = []
    for name in machine.names(_RDMA):
        rate, layer = 0.0, ""
        for port in machine.names(f"{_RDMA}/{name}/ports"):
            place = f"{_RDMA}/{name}/ports/{port}"
            match = _RATE.match(machine.read(f"{place}/rate") or "")
            if match and "ACTIVE" in (machine.read(f"{place}/state") or ""):
                rate += float(match[1]) * 1e9 / 8
                layer = (machine.read(f"{place}/link_layer") or "").strip()
        if rate:
            adapters.append(Adapter(name, _KINDS.get(layer, "ethernet"), rate))
    return adapters


def read_ethernet(machine: Machine) -> list[Adapter]:
    """Read the network interfaces of physical devices that are up and report a rate."""
    adapters = []
    for name in machine.names("/sys/class/net"):
        place = f"/sys/class/net/{name}"
        state, speed = ((machine.read(f"{place}/{fact}") or "").strip() for fact in ("operstate", "speed"))
        megabits = positive_integer(speed, max_digits=8)
        if state == "up" and megabits and machine.names(f"{place}/device"):
            adapters.append(Adapter(name, "ethernet", megabits * 1e6 / 8))
    return adapters


def _is_selected(name: str, selection: str) -> bool:
    """Whether an adapter's name matches a value of `NCCL_IB_HCA`. `^` excludes, `=` means full names, else
    prefixes; ports follow a colon."""
    excludes, exact = selection[:1] == "^", "=" in selection[:2]
    listed = [one.partition(":")[0] for one in selection.lstrip("^=").split(",")]
    return any(name == one if exact else name.startswith(one) for one in listed if one) != excludes


_FILE = "NCCL_TOPO_FILE"
_GPU, _GRAPHICS, _SWITCH = "0x0302", "0x0300", "0x0604"
"""First digits of PCI classes: 3D controllers, displays, bridges."""


class NcclTopology(NamedTuple):
    """GPUs per PCIe switch and network adapters from an NCCL topology file; empty where there is none."""

    file: str = ""
    switches: tuple[int, ...] = ()
    """GPUs under each PCIe switch that is next to the host."""
    adapters: tuple[Adapter, ...] = ()


def read_nccl_topology(machine: Machine) -> NcclTopology:
    """Read the NCCL topology file named by `NCCL_TOPO_FILE`; empty if it is unset or unreadable."""
    file = machine.environment.get(_FILE, "")
    if not file:
        return NcclTopology()
    text = machine.read(file)
    if text is None:
        reason = "cannot be read"
    elif "<!" in re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL):  # no entities, which may grow without end
        reason = "is not plain XML"
    else:
        try:
            root = ElementTree.fromstring(text)
            return NcclTopology(file, tuple(_switches(root)), tuple(_adapters(root)))
        except ElementTree.ParseError as error:
            reason = f"is not XML: {error}"
    machine.unsaid.append(f"{_FILE}: `{file}` {reason}")
    return NcclTopology()


def _switches(root: ElementTree.Element) -> Iterator[int]:
    for device in root.findall(".//cpu/pci"):
        parts = [(inner.find("gpu"), inner.get("class", "")) for inner in device.iter("pci")]
        count = sum(gpu is not None or kind.startswith((_GPU, _GRAPHICS)) for gpu, kind in parts)
        if device.get("class", "").startswith(_SWITCH) and count:
            yield count


def _adapters(root: ElementTree.Element) -> Iterator[Adapter]:
    """Yield the network adapters in an NCCL topology file that state a rate. Files dumped by NCCL have it, in
    Mb/s."""
    for net in root.iter("net"):
        name = net.get("name", "net")
        if megabits := positive_integer(net.get("speed", ""), max_digits=8):
            kind = "infiniband" if name.startswith(("mlx", "ib")) else "ethernet"
            yield Adapter(name, kind, megabits * 1e6 / 8)


PLACES = ("intra_node", "inter_node")
EXAMPLE = "inter_node=infiniband,400Gb/s,5us"


def between_nodes(machine: Machine, topology: Topology, nccl: NcclTopology, gpus: list[str]) -> LinkReading:
    """Detect the network link of a node, with each GPU's share of the rate of the training adapters: those in
    `NCCL_IB_HCA`, else those near the GPUs, under their own PCIe switches, else all."""
    rdma, witness = read_rdma(machine), _RDMA
    if not rdma:
        rdma, witness = list(nccl.adapters), nccl.file
    if rdma and (selection := machine.environment.get(_CHOICE, "")):
        selected = [one for one in rdma if _is_selected(one.name, selection)]
        return _over(selected, f"those of {_CHOICE}", len(gpus), witness)
    if rdma:
        near = {device for gpu in gpus for device in topology.near(gpu)}
        beside = [one for one in rdma if one.name in near] or rdma
        return _over(beside, "those beside the GPUs" if len(beside) < len(rdma) else "", len(gpus), witness)
    wired = read_ethernet(machine)
    if len(wired) == 1:
        return _over(wired, "", len(gpus), "/sys/class/net")
    if not wired:
        return LinkReading(why_open="no adapter says at what rate it sends")
    rates = ", ".join(f"{one.name} {format_bandwidth(one.rate)}" for one in wired)
    which = f"which of {counted(len(wired), 'interface')} carry training is not known"
    return LinkReading(why_open=f"{which}: {rates}")


def _over(adapters: Sequence[Adapter], selection: str, gpus: int, witness: str) -> LinkReading:
    """Network link with the total rate of the given adapters divided evenly among the GPUs."""
    kinds = {one.kind for one in adapters}
    if len(kinds) != 1:
        return LinkReading(why_open="its adapters are of several kinds" if kinds else "no adapter is left")
    kind, rate = kinds.pop(), sum(one.rate for one in adapters)
    rates = sorted({format_bandwidth(one.rate) for one in adapters})
    source = f"{witness}: {counted(len(adapters), 'adapter')} of {' and '.join(rates)}"
    source += f", {selection}" if selection else ""
    network = LinkReading(fields=link(kind, rate / gpus), rails=len(adapters), source=source)
    network.assumed.append("switches between nodes carry all adapters at once (a node does not show them)")
    if witness not in (_RDMA, "/sys/class/net"):
        network.assumed.append(f"adapters are of {kind} (NCCL's file has only their rates)")
    return network


def parse_link(text: str) -> Fields:
    """Parse a link such as `infiniband,400Gb/s,5us` (latency optional) into cluster file fields. Raises
    InputError."""
    kind, *amounts = (word.strip() for word in text.split(","))
    if kind not in USUAL_LATENCY:
        message = f"`{kind}` is no kind of link{did_you_mean(kind, USUAL_LATENCY)}"
        raise _link_error(message, f"kinds: {', '.join(USUAL_LATENCY)}")
    if not 1 <= len(amounts) <= 2:
        raise _link_error(f"`{text}` is not KIND,BANDWIDTH or KIND,BANDWIDTH,LATENCY")
    try:
        fields = link(kind, parse_bandwidth(amounts[0]))
        if len(amounts) == 2:
            parse_seconds(amounts[1])
            fields["latency"] = amounts[1]
    except ValueError as error:
        raise _link_error(str(error)) from None
    return fields | {"bandwidth": amounts[0]}


def parse_links(texts: Sequence[str]) -> dict[str, Fields]:
    """Parse user-stated links such as `inter_node=infiniband,400Gb/s` into cluster file fields by place. Raises
    InputError."""
    links: dict[str, Fields] = {}
    for text in texts:
        place, equals, words = text.partition("=")
        if place not in PLACES or not equals:
            raise _link_error(f"`{text}` says no place: {' or '.join(PLACES)}")
        if place in links:
            raise _link_error(f"`{place}` is said twice", "say it once")
        links[place] = parse_link(words)
    return links


def _link_error(message: str, hint: str = f"like {EXAMPLE}") -> InputError:
    return InputError("a link cannot be read", problems=[Problem("--link", message)], hint=hint)
