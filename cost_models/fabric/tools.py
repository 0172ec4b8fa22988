"""Links in the output of `nvidia-smi topo -m` (one node) and `ibnetdiscover` (an InfiniBand network)."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import combinations

from cost_models.discovery.links import MOST_NVLINKS, Topology, groups_of, parse_topology
from cost_models.errors import InputError, Problem, first_few
from cost_models.fabric.fabric import most_common
from cost_models.specs.graph import Link, fold, natural, read_link
from cost_models.units import counted, parse_seconds

_RATES = re.compile(r"^\s*#?\s*bandwidths?\s*[:=]\s*(.+)$", re.IGNORECASE | re.MULTILINE)
_RATE = re.compile(
    r"\s*(NV\d{1,3}|PIX|PXB|PHB|NODE|SYS|NIC)\s*[:= ]\s*([\d.]+\s*[A-Za-z]+/s)\s*", re.I | re.A
)
_GPU = re.compile(r"^\s*#?\s*gpu\s*[:=]\s*(\S+)\s*$", re.IGNORECASE | re.MULTILINE)
_EXAMPLE = "bandwidths: NV18 450 GB/s, PIX 64 GB/s, NODE 32 GB/s, SYS 20 GB/s, NIC 400 Gb/s"
_HUBS = {"PIX": "switch", "PXB": "pcie", "PHB": "bridge", "NODE": "numa", "SYS": "host"}
"""Cell of the matrix → what joins two devices at most so far apart, the nearest first (legend of `nvidia-smi topo`)."""


@dataclass(slots=True, kw_only=True)
class LinkFile:
    """Links, cluster facts (`gpu`, `name`), assumptions and notes read from a file."""

    links: list[Link] = field(default_factory=list)
    facts: dict[str, str] = field(default_factory=dict)
    """`gpu` and `name`, where the file has them."""
    assumed: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class UserStatement:
    """Facts about the cluster that the user states on the command line because the file of links lacks them."""

    nodes: int | None = None
    """Nodes alike, where the file shows one; None: one."""
    intra_node: Mapping[str, str] | None = None
    """Kind, bandwidth and latency of the link between GPUs of a node, where the file has none."""
    inter_node: Mapping[str, str] | None = None
    """Kind, bandwidth and latency of the link between nodes."""
    hosts: str | None = None
    """Pattern of the names of the GPU nodes (`gpu*`), where the file shows other hosts too."""
    gpus: int | None = None
    """GPUs of each node, where the file shows adapters; None: as many as these."""


def unreadable(source: str, problems: Sequence[Problem], hint: str) -> InputError:
    """Error that lists the problems in a file of links."""
    headline = f"{counted(len(problems), 'problem')} in {source}"
    return InputError(headline, problems=first_few(problems), hint=hint)


def from_topo(text: str, source: str, statement: UserStatement) -> LinkFile:
    """Parse the links of a node from `nvidia-smi topo -m` output with a line of bandwidths, for as many equal
    nodes as the user states.

    NVLinks of all GPUs to all lead to a switch, others to the GPUs themselves. GPUs and adapters under one PCIe bridge
    (PIX, PXB) are on a switch, switches on a hub for each farther way (PHB, NODE, SYS) at its rate. Every adapter has a
    cable to one network that carries all at once, which no node shows.
    """
    count = statement.nodes or 1
    topology = parse_topology(text)
    devices = sorted({name for pair in topology.ways for name in pair}, key=natural)
    gpus = [name for name in devices if name.startswith("GPU")]
    nics = [name for name in devices if name not in gpus]
    beside_gpus = {name for gpu in gpus for name in topology.near(gpu)}
    nics = [name for name in nics if name in beside_gpus] or nics  # others serve storage
    rates, problems = _stated_rates(text, source)
    nodes = f"node[0-{count - 1}]" if count > 1 else "node0"
    file = LinkFile(facts={"gpu": match[1]} if (match := _GPU.search(text)) else {})
    names = {"network": "network"} | {name: f"{nodes}.gpu{at}" for at, name in enumerate(gpus)}
    names |= {name: f"{nodes}.nic{at}" for at, name in enumerate(nics)}
    unused = dict(rates)
    for first, second, cell in _wires(topology, gpus, nics):
        if cell == "NIC" and count == 1:
            continue
        unused.pop(cell, None)
        if cell not in rates:
            problems += [Problem(source, f"no bandwidth of `{cell}` is said")]
            continue
        one, other = (names.get(end, f"{nodes}.{end}") for end in (first, second))
        file.links += read_link({"from": one, "to": other, "bandwidth": rates[cell]}, source, problems)
    if problems:
        raise unreadable(source, list(dict.fromkeys(problems)), f"a line like `{_EXAMPLE}`")
    file.notes += [f"`{cell} {rate}` is not used: nothing here is linked so" for cell, rate in unused.items()]
    if count > 1:
        file.assumed.append("one network carries all adapters at once (a node does not show its switches)")
    return file


def _stated_rates(text: str, source: str) -> tuple[dict[str, str], list[Problem]]:
    """Parse the line of bandwidths into a map from matrix cell (`NV18`, `PIX`) to bandwidth text, with the problems of
    that line."""
    rates, problems = dict[str, str](), list[Problem]()
    for match in _RATES.finditer(text):
        line = f"{source}:{text.count(chr(10), 0, match.start(1)) + 1}"
        for part in match[1].split(","):
            if (rate := _RATE.fullmatch(part)) is None:
                message = f"`{part.strip()[:60]}` is no bandwidth of a cell of the matrix"
                problems.append(Problem(line, message))
            elif rates.setdefault(rate[1].upper(), rate[2]) != rate[2]:
                problems.append(Problem(line, f"`{rate[1].upper()}` has two bandwidths"))
    if not rates and not problems:
        message = "the matrix says what joins devices and not how fast: a line of bandwidths is missing"
        problems.append(Problem(source, message))
    return rates, problems


def _wires(topology: Topology, gpus: Sequence[str], nics: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    """Yield (device, device, matrix cell) for every link of a node."""
    cells = {(one, other): topology.path(one, other) for one, other in combinations(gpus, 2)}
    nvlinks = sum(topology.nvlinks(*pair) for pair in cells if gpus[0] in pair)
    if len(set(cells.values())) == 1 and nvlinks > MOST_NVLINKS:
        yield from ((gpu, "nvswitch", topology.path(*gpus[:2])) for gpu in gpus)
    else:
        yield from ((one, other, cell) for (one, other), cell in cells.items() if cell.startswith("NV"))
    yield from ((nic, "network", "NIC") for nic in nics)
    if not nics and all(cell.startswith("NV") for cell in cells.values()):
        return  # NVLinks hide what else joins two GPUs
    devices = [*gpus, *nics]
    hub = dict(zip(devices, devices, strict=True))
    for at, (cell, name) in enumerate(_HUBS.items()):
        pairs = combinations(devices, 2)
        linked = [pair for pair in pairs if cell == "SYS" or topology.path(*pair) in list(_HUBS)[: at + 1]]
        for number, group in enumerate(groups_of(devices, linked)):
            lower_hubs = dict.fromkeys(hub[device] for device in group)
            if len(lower_hubs) > 1:
                yield from ((end, f"{name}{number}", cell) for end in lower_hubs)
                hub |= dict.fromkeys(group, f"{name}{number}")


_BLOCK = re.compile(r'^(Switch|Ca|Rt)\s+\d+\s+"([^"]+)"\s*#\s*"([^"]*)"', re.ASCII)
_GPU_NODE = re.compile(r"gpu|[dh]gx|[abhv][1-4]00|gb?[23]00|mi[23]\d\d")
_OTHER = re.compile(r"login|control|head|master|m[gn]mt|admin|stor|nfs|oss|mds|lustre|gpfs|bastion|monitor")
_PORT = re.compile(r'^\[(\d+)\]\S*\s+"([^"]+)"\[(\d+)\].*?\s(\d+)x([A-Z]{3}\d*)\s*(?:,.*)?$', re.ASCII)
_LANE_GBITS: Mapping[str, float] = {
    "SDR": 2, "DDR": 4, "QDR": 8, "FDR10": 10, "FDR": 13.64, "EDR": 25, "HDR": 50, "NDR": 100, "XDR": 200,
}  # fmt: skip
"""Gb/s of data of one lane: SDR to QDR spend a fifth on their code (InfiniBand Trade Association)."""


def from_ibnetdiscover(text: str, source: str, statement: UserStatement) -> LinkFile:
    """Parse the links of an InfiniBand network from `ibnetdiscover` output, with the active rate of every cable.
    GPUs per node are stated by the user or as many as adapters.

    The links inside nodes are what a person says, or missing, since the network does not show them. Hosts whose names
    are those of services, or unlike the names of GPU nodes where there are some, are left out.
    """
    devices, cables, problems = _devices_and_cables(text, source)
    hosts, file = defaultdict[str, list[str]](list), LinkFile()
    for guid, (kind, name) in devices.items():
        if kind == "Ca" and "Aggregation Node" not in name:
            hosts[_safe(name.split(" ")[0])].append(guid)
    if not hosts:
        problems.append(Problem(source, "it lists no adapter of a host"))
    if statement.intra_node is None:
        problems.append(Problem(source, "a network does not show the links between GPUs of a node"))
    if problems or statement.intra_node is None:
        hint = "--link intra_node=nvswitch,450GB/s says what joins the GPUs of a node"
        raise unreadable(source, problems, hint)
    others = _other_hosts(sorted(hosts, key=natural), statement.hosts)
    if len(others) == len(hosts):
        message = f"no host is called `{statement.hosts}`, they are {', '.join(others[:5])}"
        raise unreadable(source, [Problem("--hosts", message)], "a pattern like 'gpu*'")
    if others:
        alike = defaultdict[str, list[str]](list)
        for host in others:
            alike[re.sub(r"\d+", "#", host)].append(host)
        words = ", ".join(fold(some) or shape for shape, some in alike.items())
        file.notes.append(f"{counted(len(others), 'host')} left out, no GPU nodes by name (--hosts): {words}")
    count = most_common(len(guids) for host, guids in hosts.items() if host not in others)
    small = [host for host, guids in hosts.items() if host not in others and 2 * len(guids) <= count > 1]
    if small:
        hosts_left_out = f"{counted(len(small), 'host')} with half the adapters or fewer left out"
        file.notes.append(f"{hosts_left_out}: {', '.join(small[:5])}")
    nodes = {host: guids for host, guids in hosts.items() if host not in (*others, *small)}
    name_of_guid = _known_names(devices, nodes)
    if statement.gpus is None:
        as_many = "as many as adapters (a network does not show them; --gpus-per-node)"
        file.assumed.append(f"{counted(count, 'GPU')} a node, {as_many}")
    count = statement.gpus or count
    for (first, second, rate), number in cables.items():
        if first in name_of_guid and second in name_of_guid:
            ends = {"from": name_of_guid[first], "to": name_of_guid[second], "count": str(number)}
            cable = ends | {"bandwidth": f"{rate} Gb/s", "kind": "infiniband"}
            file.links += read_link(cable, source, problems)
    link = dict(statement.intra_node)
    if link.get("latency"):
        link["latency"] = f"{parse_seconds(link['latency']) / 2 * 1e6:.9g} us"
    switch = "nvswitch" if link["kind"] == "nvswitch" else "pcie"
    for host in sorted(nodes, key=natural):
        gpus = f"{host}.gpu[0-{count - 1}]" if count > 1 else f"{host}.gpu0"
        file.links += read_link(link | {"from": gpus, "to": f"{host}.{switch}"}, "--link", problems)
    if problems:
        raise unreadable(source, problems, "names of hosts and switches come from their descriptions")
    return file


def _other_hosts(hosts: list[str], pattern: str | None) -> list[str]:
    """Hosts that are not GPU nodes, by the user's pattern or else by usual host names."""
    if pattern is not None:
        return [host for host in hosts if not fnmatchcase(host, pattern)]
    gpu_nodes = [host for host in hosts if _GPU_NODE.search(host.lower())]
    gpu_nodes = gpu_nodes or [host for host in hosts if not _OTHER.match(host.lower())] or hosts
    return [host for host in hosts if host not in gpu_nodes]


Devices = dict[str, tuple[str, str]]
"""GUID → kind (Switch, Ca or Rt) and description of a device."""
Cables = dict[tuple[str, str, float], int]
"""GUIDs of both ends, and Gb/s → number of cables."""


def _devices_and_cables(text: str, source: str) -> tuple[Devices, Cables, list[Problem]]:
    """Parse `ibnetdiscover` output into its devices, cables, and a problem for each line that cannot be read."""
    devices, problems, guid = Devices(), list[Problem](), ""
    ends: dict[tuple[str, int], tuple[tuple[str, int], float]] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if match := _BLOCK.match(line):
            guid = match[2]
            devices[guid] = match[1], match[3]
        elif line.startswith("["):
            port = _PORT.match(line)
            lane = port and _LANE_GBITS.get(port[5])
            if port is None or lane is None or not guid:
                message = f"width and speed of a port cannot be read ({', '.join(_LANE_GBITS)}), like `4xNDR`"
                problems.append(Problem(f"{source}:{number}", message))
            else:
                ends[guid, int(port[1])] = (port[2], int(port[3])), int(port[4]) * lane
    cables: Cables = defaultdict(int)
    for near, (far, rate) in ends.items():
        # each cable once, also one that one end reports
        if far[0] in devices and (near < far or far not in ends):
            first, second = sorted((near[0], far[0]), key=lambda end: devices[end][0] == "Switch")
            cables[first, second, rate] += 1
    return devices, cables, problems


def _known_names(devices: Devices, hosts: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Map each GUID to a device name, `host.nic0` in order of descriptions or the description of a switch."""

    def ordered(guids: Iterable[str]) -> list[str]:
        return sorted(guids, key=lambda guid: (natural(devices[guid][1]), guid))

    names = {guid: f"{host}.nic{at}" for host, nics in hosts.items() for at, guid in enumerate(ordered(nics))}
    uses = Counter[str]()
    for guid in ordered(guid for guid, (kind, _) in devices.items() if kind != "Ca"):
        name = _safe(devices[guid][1].removeprefix("MF0;").partition(":")[0]).replace(".", "-")
        name = name if re.search("switch|leaf|spine|core|tor|sw", name.lower()) else f"switch-{name}"
        uses[name] += 1
        names[guid] = name if uses[name] == 1 else f"{name}-{uses[name]}"
    return names


def _safe(text: str) -> str:
    """Device name from a free-text description, with special characters replaced by dashes."""
    return re.sub(r"[^A-Za-z0-9_-]+", "-", text).strip("-_")[:60] or "unnamed"
