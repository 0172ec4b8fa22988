"""Links as tools print them: `nvidia-smi topo -m` of one node, and `ibnetdiscover` of an InfiniBand network."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import combinations

from cost_models.discovery.links import MOST_NVLINKS, Topology, parse_topology
from cost_models.errors import InputError, Problem, first_of
from cost_models.fabric.fabric import usual
from cost_models.specs.graph import Link, fold, natural, node_of, read_link
from cost_models.units import counted, parse_seconds

_RATES = re.compile(r"^\s*#?\s*bandwidths?\s*[:=]\s*(.+)$", re.IGNORECASE | re.MULTILINE)
_RATE = re.compile(
    r"\s*(NV\d{1,3}|PIX|PXB|PHB|NODE|SYS|NIC)\s*[:= ]\s*([\d.]+\s*[A-Za-z]+/s)\s*", re.IGNORECASE | re.ASCII
)
_GPU = re.compile(r"^\s*#?\s*gpu\s*[:=]\s*(\S+)\s*$", re.IGNORECASE | re.MULTILINE)
_EXAMPLE = "bandwidths: NV18 450 GB/s, PIX 64 GB/s, NODE 32 GB/s, SYS 20 GB/s, NIC 400 Gb/s"
_HUBS = {"PIX": "switch", "PXB": "pcie", "PHB": "bridge", "NODE": "numa", "SYS": "host"}
"""Cell of the matrix → what joins two devices at most so far apart, the nearest first (legend of `nvidia-smi topo`)."""


@dataclass(slots=True, kw_only=True)
class LinkFile:
    """What a file says."""

    links: list[Link] = field(default_factory=list)
    said: dict[str, str] = field(default_factory=dict)
    """`gpu` and `name`, where the file has them."""
    assumed: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """What a person says beside the file."""

    nodes: int | None = None
    """Nodes alike, where the file shows one; None: one."""
    intra_node: Mapping[str, str] | None = None
    """Kind, bandwidth and latency of the link between GPUs of a node, where the file has none."""
    inter_node: Mapping[str, str] | None = None
    """The same of the link between nodes, which every file has."""
    hosts: str | None = None
    """Pattern of the names of the GPU nodes (`gpu*`), where the file shows other hosts too."""
    gpus: int | None = None
    """GPUs of each node, where the file shows adapters; None: as many as these."""


def unreadable(source: str, problems: Sequence[Problem], hint: str) -> InputError:
    """The error of a file of links."""
    return InputError(
        f"{counted(len(problems), 'problem')} in {source}", problems=first_of(problems), hint=hint
    )


def from_topo(text: str, source: str, beside: Beside) -> LinkFile:
    """The matrix of `nvidia-smi topo -m` with a line of bandwidths: one node, of which there are as many as asked for.

    NVLinks of all GPUs to all lead to a switch, others to the GPUs themselves. GPUs and adapters under one PCIe bridge
    (PIX, PXB) are on a switch, switches on a hub for each farther way (PHB, NODE, SYS) at its rate. Every adapter has a
    cable to one network that carries all at once, which no node shows.
    """
    count = beside.nodes or 1
    topology = parse_topology(text)
    devices = sorted({name for pair in topology.ways for name in pair}, key=natural)
    gpus = [name for name in devices if name.startswith("GPU")]
    nics = [name for name in devices if name not in gpus]
    beside_gpus = {name for gpu in gpus for name in topology.near(gpu)}
    nics = [name for name in nics if name in beside_gpus] or nics  # others serve storage
    rates, problems = _said_rates(text, source)
    nodes = f"node[0-{count - 1}]" if count > 1 else "node0"
    found = LinkFile(said={"gpu": match[1]} if (match := _GPU.search(text)) else {})
    short = {
        name: f"{nodes}.{'gpu' if name in gpus else 'nic'}{at}"
        for some in (gpus, nics)
        for at, name in enumerate(some)
    }
    unused = dict(rates)
    for one, other, cell in _wires(topology, gpus, nics):
        if cell == "NIC" and count == 1:
            continue
        unused.pop(cell, None)
        if cell not in rates:
            problems += [Problem(source, f"no bandwidth of `{cell}` is said")]
            continue
        ends = [short.get(end) or (end if end == "network" else f"{nodes}.{end}") for end in (one, other)]
        links, wrong = read_link(ends[0], ends[1], rates[cell], place=source)
        found.links += links
        problems += wrong
    if problems:
        raise unreadable(source, list(dict.fromkeys(problems)), f"a line like `{_EXAMPLE}`")
    found.notes += [
        f"`{cell} {rate}` is not used: nothing here is linked so" for cell, rate in unused.items()
    ]
    if count > 1:
        found.assumed.append("one network carries all adapters at once (a node does not show its switches)")
    return found


def _said_rates(text: str, source: str) -> tuple[dict[str, str], list[Problem]]:
    """Cell of the matrix → bandwidth."""
    rates: dict[str, str] = {}
    problems: list[Problem] = []
    for match in _RATES.finditer(text):
        line = f"{source}:{text.count(chr(10), 0, match.start(1)) + 1}"
        for part in match[1].split(","):
            said = _RATE.fullmatch(part)
            if said is None:
                problems.append(
                    Problem(line, f"`{part.strip()[:60]}` is no bandwidth of a cell of the matrix")
                )
            elif rates.setdefault(said[1].upper(), said[2]) != said[2]:
                problems.append(Problem(line, f"`{said[1].upper()}` has two bandwidths"))
    if not rates and not problems:
        what = "the matrix says what joins devices and not how fast: a line of bandwidths is missing"
        problems.append(Problem(source, what))
    return rates, problems


def _wires(topology: Topology, gpus: Sequence[str], nics: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    """(device, device, cell of the matrix) for every link of a node."""
    cells = {(one, other): topology.between(one, other) for one, other in combinations(gpus, 2)}
    if (
        len(set(cells.values())) == 1
        and sum(topology.nvlinks(gpus[0], other) for other in gpus[1:]) > MOST_NVLINKS
    ):
        yield from ((gpu, "nvswitch", topology.between(*gpus[:2])) for gpu in gpus)
    else:
        yield from ((one, other, cell) for (one, other), cell in cells.items() if cell.startswith("NV"))
    yield from ((nic, "network", "NIC") for nic in nics)
    if not nics and all(cell.startswith("NV") for cell in cells.values()):
        return  # NVLinks hide what else joins two GPUs
    devices = [*gpus, *nics]
    hub = dict(zip(devices, devices, strict=True))
    for at, (cell, name) in enumerate(_HUBS.items()):
        joined = list(_HUBS)[: at + 1]
        linked = {
            (a, b): cell == "SYS" or topology.between(a, b) in joined for a, b in combinations(devices, 2)
        }
        for number, some in enumerate(topology.groups(devices, linked)):
            below = dict.fromkeys(hub[device] for device in some)
            if len(below) > 1:
                yield from ((end, f"{name}{number}", cell) for end in below)
                hub |= dict.fromkeys(some, f"{name}{number}")


_BLOCK = re.compile(r'^(Switch|Ca|Rt)\s+\d+\s+"([^"]+)"\s*#\s*"([^"]*)"', re.ASCII)
_GPU_NODE = re.compile(r"gpu|[dh]gx|[abhv][1-4]00|gb?[23]00|mi[23]\d\d")
_SERVICE = re.compile(
    r"^(login|control|head|master|m[gn]mt|admin|stor|nfs|oss|mds|lustre|gpfs|bastion|monitor)"
)
_PORT = re.compile(r'^\[(\d+)\]\S*\s+"([^"]+)"\[(\d+)\].*?\s(\d+)x([A-Z]{3}\d*)\s*(?:,.*)?$', re.ASCII)
_LANE_GBITS: Mapping[str, float] = {
    "SDR": 2, "DDR": 4, "QDR": 8, "FDR10": 10, "FDR": 13.64, "EDR": 25, "HDR": 50, "NDR": 100, "XDR": 200,
}  # fmt: skip
"""Gb/s of data of one lane: SDR to QDR spend a fifth on their code (InfiniBand Trade Association)."""


def from_ibnetdiscover(text: str, source: str, beside: Beside) -> LinkFile:
    """Switches, adapters and the active width and speed of every cable; GPUs as a person says, else one to an adapter.

    The links inside nodes are what a person says, or missing, since the network does not show them. Hosts whose names
    are those of services, or unlike the names of GPU nodes where there are some, are left out.
    """
    kinds, names, cables, problems = _ports(text, source)
    hosts: dict[str, list[str]] = defaultdict(list)
    for guid, kind in kinds.items():
        if kind == "Ca" and "Aggregation Node" not in names[guid]:
            hosts[_safe(names[guid].split(" ")[0])].append(guid)
    found = LinkFile()
    if not hosts:
        problems.append(Problem(source, "it lists no adapter of a host"))
    if beside.intra_node is None:
        problems.append(Problem(source, "a network does not show the links between GPUs of a node"))
    if problems:
        raise unreadable(
            source, problems, "--link intra_node=nvswitch,450GB/s says what joins the GPUs of a node"
        )
    others = _other_hosts(hosts, beside.hosts)
    if len(others) == len(hosts) > 0:
        what = f"no host is called `{beside.hosts}`, they are {', '.join(others[:5])}"
        raise unreadable(source, [Problem("--hosts", what)], "a pattern like 'gpu*'")
    if others:
        alike = dict.fromkeys(re.sub(r"\d+", "#", host) for host in others)
        some = ", ".join(
            fold(host for host in others if re.sub(r"\d+", "#", host) == one) or one for one in alike
        )
        found.notes.append(f"{counted(len(others), 'host')} left out, no GPU nodes by name (--hosts): {some}")
        hosts = {host: some for host, some in hosts.items() if host not in others}
    count = usual(len(some) for some in hosts.values())
    if small := [host for host, some in hosts.items() if 2 * len(some) <= count and count > 1]:
        found.notes.append(
            f"{counted(len(small), 'host')} with half the adapters or fewer left out: {', '.join(small[:5])}"
        )
    known = _known_names(kinds, names, {host: some for host, some in hosts.items() if host not in small})
    if beside.gpus is None:
        found.assumed.append(
            f"{counted(count, 'GPU')} a node, as many as adapters (a network does not show them; --gpus-per-node)"
        )
    count = beside.gpus or count
    for (one, other, rate), number in cables.items():
        if one in known and other in known:
            links, wrong = read_link(
                known[one], known[other], f"{rate} Gb/s", count=str(number), kind="infiniband", place=source
            )
            found.links += links
            problems += wrong
    link = beside.intra_node or {}
    seconds = link.get("latency", "")
    for host in sorted({node_of(name) for name in known.values()} - {""}, key=natural):
        end = f"{host}.nvswitch" if link["kind"] == "nvswitch" else f"{host}.pcie"
        latency = f"{parse_seconds(seconds) / 2 * 1e6:.9g} us" if seconds else ""
        gpus = f"{host}.gpu[0-{count - 1}]" if count > 1 else f"{host}.gpu0"
        links, wrong = read_link(gpus, end, link["bandwidth"], latency, kind=link["kind"], place="--link")
        found.links += links
        problems += wrong
    if problems:
        raise unreadable(source, problems, "names of hosts and switches come from their descriptions")
    return found


def _other_hosts(hosts: Iterable[str], pattern: str | None) -> list[str]:
    """Hosts that are no GPU nodes, in natural order: by a person's pattern, else by what hosts are usually called."""
    hosts = sorted(hosts, key=natural)
    if pattern is not None:
        return [host for host in hosts if not fnmatchcase(host, pattern)]
    gpu_nodes = [host for host in hosts if _GPU_NODE.search(host.lower())]
    gpu_nodes = gpu_nodes or [host for host in hosts if not _SERVICE.search(host.lower())] or hosts
    return [host for host in hosts if host not in gpu_nodes]


def _ports(
    text: str, source: str
) -> tuple[dict[str, str], dict[str, str], dict[tuple[str, str, float], int], list[Problem]]:
    """GUID → Switch, Ca or Rt; GUID → description; cables between two GUIDs by rate; what cannot be read."""
    kinds: dict[str, str] = {}
    names: dict[str, str] = {}
    ends: dict[tuple[str, int], tuple[str, int, float]] = {}
    problems: list[Problem] = []
    here = ""
    for number, line in enumerate(text.splitlines(), start=1):
        if match := _BLOCK.match(line):
            here = match[2]
            kinds[here], names[here] = match[1], match[3]
        elif line.startswith("["):
            port = _PORT.match(line)
            lane = port and _LANE_GBITS.get(port[5])
            if port is None or lane is None or not here:
                what = f"width and speed of a port cannot be read ({', '.join(_LANE_GBITS)}), like `4xNDR`"
                problems.append(Problem(f"{source}:{number}", what))
            else:
                ends[here, int(port[1])] = (port[2], int(port[3]), int(port[4]) * lane)
    cables: dict[tuple[str, str, float], int] = defaultdict(int)
    for (one, port_of_one), (other, port_of_other, rate) in ends.items():
        if other in kinds and (
            (one, port_of_one) < (other, port_of_other) or (other, port_of_other) not in ends
        ):
            first, second = sorted((one, other), key=lambda guid: kinds[guid] == "Switch")
            cables[first, second, rate] += 1
    return kinds, names, cables, problems


def _known_names(
    kinds: Mapping[str, str], names: Mapping[str, str], hosts: Mapping[str, Sequence[str]]
) -> dict[str, str]:
    """GUID → name of a device: `host.nic0` in order of descriptions, switches by theirs."""
    known: dict[str, str] = {}
    for host, guids in hosts.items():
        for at, guid in enumerate(sorted(guids, key=lambda one: (natural(names[one]), one))):
            known[guid] = f"{host}.nic{at}"
    taken: dict[str, int] = defaultdict(int)
    for guid in sorted(
        (one for one in kinds if kinds[one] != "Ca"), key=lambda one: (natural(names[one]), one)
    ):
        name = _safe(names[guid].removeprefix("MF0;").partition(":")[0]).replace(".", "-")
        name = name if re.search("switch|leaf|spine|core|tor|sw", name.lower()) else f"switch-{name}"
        taken[name] += 1
        known[guid] = name if taken[name] == 1 else f"{name}-{taken[name]}"
    return known


def _safe(text: str) -> str:
    """A description as a name."""
    return re.sub(r"[^A-Za-z0-9_-]+", "-", text).strip("-_")[:60] or "unnamed"
