"""Readers of files of links: a list of a cluster's links (CSV, JSON), the output of `nvidia-smi topo -m` (one node) and
of `ibnetdiscover` (an InfiniBand network); and the conversion to a cluster file, with typical levels and every link."""

from __future__ import annotations

import csv
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

from cost_models.arrays import group_by
from cost_models.discovery import MOST_NVLINKS, ClusterDraft, Topology, groups_of, parse_topology
from cost_models.documents import printable
from cost_models.errors import InputError, Problem, did_you_mean, first_few
from cost_models.fabric.fabric import Fabric, most_common
from cost_models.fabric.tiers import fabric_of_links
from cost_models.files.reading import parse_yaml, read_text
from cost_models.specs.graph import (
    COLUMNS,
    MOST_LINKS,
    Link,
    exact_rate,
    fold,
    natural,
    read_link,
    write_lines,
)
from cost_models.units import counted, parse_seconds

_RATES = re.compile(r"^\s*#?\s*bandwidths?\s*[:=]\s*(.+)$", re.IGNORECASE | re.MULTILINE)
_RATE = re.compile(r"\s*(NV\d{1,3}|PIX|PXB|PHB|NODE|SYS|NIC)\s*[:= ]\s*([\d.]+\s*[A-Z]+/s)\s*", re.I | re.A)
_GPU = re.compile(r"^\s*#?\s*gpu\s*[:=]\s*(\S+)\s*$", re.IGNORECASE | re.MULTILINE)
_EXAMPLE = "bandwidths: NV18 450 GB/s, PIX 64 GB/s, NODE 32 GB/s, SYS 20 GB/s, NIC 400 Gb/s"
_HUBS = {"PIX": "switch", "PXB": "pcie", "PHB": "bridge", "NODE": "numa", "SYS": "host"}
"""Connection between two devices for each cell of the matrix, the nearest first (legend of `nvidia-smi topo`)."""


@dataclass(slots=True, kw_only=True)
class LinkFile:
    """Contents of a file of links: links, cluster facts (`gpu`, `name`), assumptions and notes."""

    links: list[Link] = field(default_factory=list)
    facts: dict[str, str] = field(default_factory=dict)
    """Values of `gpu` and `name`, if the file has them."""
    assumed: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


class UserStatement(NamedTuple):
    """Facts about the cluster that the user states on the command line because the file of links lacks them."""

    nodes: int | None = None
    """Number of equal nodes, if the file shows one; None: one."""
    intra_node: Mapping[str, str] | None = None
    """Kind, bandwidth and latency of the link between GPUs of a node, if the file has none."""
    inter_node: Mapping[str, str] | None = None
    """Kind, bandwidth and latency of the link between nodes."""
    hosts: str | None = None
    """Pattern of the names of the GPU nodes (`gpu*`), if the file also shows other hosts."""
    gpus: int | None = None
    """Number of GPUs of each node, if the file shows adapters; None: as many as adapters."""


def unreadable_error(source: str, problems: Sequence[Problem], hint: str) -> InputError:
    """Create the error that lists the problems in a file of links."""
    headline = f"{counted(len(problems), 'problem')} in {source}"
    return InputError(headline, problems=first_few(problems), hint=hint)


def from_topo(text: str, source: str, statement: UserStatement) -> LinkFile:
    """Parse the links of one node from `nvidia-smi topo -m` output and a line of bandwidths, and repeat them
    for as many equal nodes as the user states.

    NVLinks of all GPUs to all lead to a switch, others to the GPUs themselves. GPUs and adapters under one PCIe bridge
    (PIX, PXB) are on a switch, switches on a hub for each farther way (PHB, NODE, SYS) at its rate. Every adapter has a
    cable to one network that carries all at once, which no node shows.
    """
    count, topology = statement.nodes or 1, parse_topology(text)
    devices = sorted({name for pair in topology for name in pair}, key=natural)
    gpus = [name for name in devices if name.startswith("GPU")]
    nics = [name for name in devices if name not in gpus]
    beside_gpus = {name for gpu in gpus for name in topology.near(gpu)}
    nics = [name for name in nics if name in beside_gpus] or nics  # others serve storage
    rates, problems = _stated_rates(text, source)
    nodes = f"node[0-{count - 1}]" if count > 1 else "node0"
    file = LinkFile(facts={"gpu": match[1]} if (match := _GPU.search(text)) else {})
    names = {"network": "network"} | {name: f"{nodes}.gpu{at}" for at, name in enumerate(gpus)}
    names |= {name: f"{nodes}.nic{at}" for at, name in enumerate(nics)}
    wires = [wire for wire in _wires(topology, gpus, nics) if count > 1 or wire[-1] != "NIC"]
    for first, second, cell in wires:
        if cell in rates:
            source_name, target = (names.get(end, f"{nodes}.{end}") for end in (first, second))
            wire = {"from": source_name, "to": target, "bandwidth": rates[cell]}
            file.links += read_link(wire, source, problems)
        else:
            problems.append(Problem(source, f"no bandwidth of `{cell}` is said"))
    if problems:
        raise unreadable_error(source, list(dict.fromkeys(problems)), f"a line like `{_EXAMPLE}`")
    unused = {cell: rate for cell, rate in rates.items() if cell not in {wire[-1] for wire in wires}}
    file.notes += [f"`{cell} {rate}` is not used: nothing here is linked so" for cell, rate in unused.items()]
    if count > 1:
        file.assumed.append("one network carries all adapters at once (a node does not show its switches)")
    return file


def _stated_rates(text: str, source: str) -> tuple[dict[str, str], list[Problem]]:
    """Parse the line of bandwidths of a topology: bandwidth text by matrix cell (`NV18`, `PIX`), and the
    problems of that line."""
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
_SERVICE = re.compile(r"login|control|head|master|m[gn]mt|admin|stor|nfs|oss|mds|lustre|gpfs|bastion|monitor")
_PORT = re.compile(r'^\[(\d+)\]\S*\s+"([^"]+)"\[(\d+)\].*?\s(\d+)x([A-Z]{3}\d*)\s*(?:,.*)?$', re.ASCII)
_LANES = {"SDR": 2, "DDR": 4, "QDR": 8, "FDR10": 10, "FDR": 13.64}
_LANES |= {"EDR": 25, "HDR": 50, "NDR": 100, "XDR": 200}
"""Gb/s of data of one lane: SDR to QDR spend a fifth on their code (InfiniBand Trade Association)."""


def from_ibnetdiscover(text: str, source: str, statement: UserStatement) -> LinkFile:
    """Parse the links of an InfiniBand network from `ibnetdiscover` output, with the active rate of every
    cable. The user states the GPUs per node; by default there are as many as adapters.

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
        raise unreadable_error(source, problems, hint)
    excluded = _other_hosts(sorted(hosts, key=natural), statement.hosts)
    if len(excluded) == len(hosts):
        message = f"no host is called `{statement.hosts}`, they are {', '.join(excluded[:5])}"
        raise unreadable_error(source, [Problem("--hosts", message)], "a pattern like 'gpu*'")
    if excluded:
        hosts_by_shape = group_by(excluded, lambda host: re.sub(r"\d+", "#", host))
        words = ", ".join(fold(some) or shape for shape, some in hosts_by_shape.items())
        left_out = f"{counted(len(excluded), 'host')} left out, no GPU nodes by name (--hosts)"
        file.notes.append(f"{left_out}: {words}")
    count = most_common(len(guids) for host, guids in hosts.items() if host not in excluded)
    small = [host for host, guids in hosts.items() if host not in excluded and 2 * len(guids) <= count > 1]
    if small:
        left_out = f"{counted(len(small), 'host')} with half the adapters or fewer left out"
        file.notes.append(f"{left_out}: {', '.join(small[:5])}")
    nodes = {host: guids for host, guids in hosts.items() if host not in (*excluded, *small)}
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
        raise unreadable_error(source, problems, "names of hosts and switches come from their descriptions")
    return file


def _other_hosts(hosts: list[str], pattern: str | None) -> list[str]:
    """Hosts that are not GPU nodes, by the user's pattern of GPU nodes or else by usual host names."""
    if pattern is not None:
        return [host for host in hosts if not fnmatchcase(host, pattern)]
    gpu_nodes = [host for host in hosts if _GPU_NODE.search(host.lower())]
    gpu_nodes = gpu_nodes or [host for host in hosts if not _SERVICE.match(host.lower())] or hosts
    return [host for host in hosts if host not in gpu_nodes]


Devices = dict[str, tuple[str, str]]
"""Kind (Switch, Ca or Rt) and description of each device, by GUID."""
Cables = dict[tuple[str, str, float], int]
"""Number of cables by GUIDs of both ends and Gb/s."""


def _devices_and_cables(text: str, source: str) -> tuple[Devices, Cables, list[Problem]]:
    """Parse `ibnetdiscover` output into devices, cables, and a problem for each line that cannot be read."""
    devices, problems, guid = Devices(), list[Problem](), ""
    ends: dict[tuple[str, int], tuple[tuple[str, int], float]] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if match := _BLOCK.match(line):
            guid = match[2]
            devices[guid] = match[1], match[3]
        elif line.startswith("["):
            port = _PORT.match(line)
            lane = port and _LANES.get(port[5])
            if port is None or lane is None or not guid:
                message = f"width and speed of a port cannot be read ({', '.join(_LANES)}), like `4xNDR`"
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
    """Name of each device by GUID: `host.nic0`, `host.nic1` ... for a host's adapters in order of their
    descriptions, and the description for a switch."""

    def ordered(guids: Iterable[str]) -> list[str]:
        """GUIDs sorted by the description of their device."""
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


MAX_BYTES = 32_000_000
"""Largest file that is read; `ibnetdiscover` prints some megabytes of 5,000 GPUs."""
_REQUIRED = COLUMNS[:3]
_HEADER_FACT = re.compile(r"#\s*(gpu|name)\s*[:=]\s*(\S[^,]*?)\s*,*$", re.ASCII)
_HINT = "from,to,bandwidth and, where you know, latency,count,kind: `node0.nic0,leaf0,400 Gb/s,2.5 us,1,infiniband`"
Row = tuple[str, dict[str, str]]
"""Place, and the values of a link by column."""


def read_links(path: str | Path, statement: UserStatement | None = None) -> LinkFile:
    """Read the links of a cluster from a table, a YAML or JSON file, or saved output of `ibnetdiscover` or
    `nvidia-smi topo -m`. Raises InputError with all problems and their lines if it cannot be read."""
    name, statement = str(path), statement or UserStatement()
    text = read_text(path, most_bytes=MAX_BYTES)
    if re.search(r"^(Switch|Ca)\s+\d+\s+\"", text, re.MULTILINE):
        file, used = from_ibnetdiscover(text, name, statement), {"intra_node", "hosts", "gpus"}
    elif re.search(r"^\s*GPU0\s+X\s", plain := re.sub(r"\x1b\[[0-9;]*m", "", text), re.MULTILINE):
        file, used = from_topo(plain, name, statement), {"nodes"}
    else:
        file, used = _listed_links(text, name), set()
    unused = (key for key, value in statement._asdict().items() if key not in used and value is not None)
    file.notes += [f"what you say of `{key}` is not used: {name} says it, or cannot use it" for key in unused]
    return file


def _listed_links(text: str, name: str) -> LinkFile:
    """Parse the links in a table (CSV) or in a YAML or JSON document. Raises InputError."""
    file, problems = LinkFile(), list[Problem]()
    rows = _document_rows if name.endswith((".json", ".yaml", ".yml")) else _table_rows
    for place, row in rows(text, name, file, problems):
        if missing := [Problem(place, f"it has no `{key}`") for key in ("from", "to") if not row.get(key)]:
            problems += missing
        else:
            file.links += read_link(row, place, problems)
        if len(file.links) > MOST_LINKS:
            raise unreadable_error(name, [Problem(place, f"these are more than {MOST_LINKS:,} links")], _HINT)
    if not file.links and not problems:
        problems = [Problem(name, "it lists no link")]
    if problems:
        raise unreadable_error(name, problems, f"a link has {_HINT}")
    return file


def _unknown(names: Iterable[str], place: str, noun: str) -> Iterator[Problem]:
    """Yield a problem for each of the given names that is not a column (field) of a link."""
    for name in names:
        if name not in COLUMNS:
            message = f"`{printable(name, 40)}` is no {noun} of a link{did_you_mean(name, COLUMNS)}"
            yield Problem(place, message)


def _table_rows(text: str, source: str, file: LinkFile, problems: list[Problem]) -> Iterator[Row]:
    """Yield the rows of a CSV table of links; problems with a row are added to `problems`. Lines that begin
    with `#` are comments; `# gpu: h100-sxm` names the GPU."""
    heading: list[str] = []
    for number, line in enumerate(text.splitlines(), start=1):
        place = f"{source}:{number}"
        if match := _HEADER_FACT.match(line):
            file.facts[match[1]] = match[2]
        if not line.strip(" ,;\t") or line.lstrip().startswith("#"):
            continue
        # commas of `[0,2]` part none
        joined = re.sub(r"\[[\d,-]+\]", lambda match: match[0].replace(",", "\0"), line)
        try:
            row = next(csv.reader([joined], strict=True))
        except (csv.Error, StopIteration) as error:
            problems.append(Problem(place, f"cannot be read: {error}"))
            continue
        cells = [cell.strip().replace("\0", ",") for cell in row]
        if heading and len(_REQUIRED) <= len(cells) <= len(heading):
            yield place, dict(zip(heading, cells, strict=False))
        elif heading:
            message = f"it has {counted(len(cells), 'value')}, its heading {len(heading)}"
            problems.append(Problem(place, message))
        else:
            heading = [cell.lower() for cell in cells]
            missing = [name for name in _REQUIRED if name not in heading]
            problems += _unknown(heading, place, "column")
            problems += [Problem(place, f"it has no column `{name}`") for name in missing]
            if len(set(heading)) < len(heading):
                problems.append(Problem(place, "a column is there twice"))
            if problems:
                return


def _document_rows(text: str, source: str, file: LinkFile, problems: list[Problem]) -> Iterator[Row]:
    """Yield the links listed in a YAML or JSON document; problems with an entry are added to `problems`. The
    document is `{"gpu": ..., "name": ..., "links": [{"from": ..., "to": ..., "bandwidth": ...}]}`."""
    document = parse_yaml(text, source=source)
    value = document.value if isinstance(document.value, dict) else {}
    if not isinstance(value.get("links"), list):
        example = '{"links": [{"from": "node0.nic0", "to": "leaf0", ...}]}'
        problems.append(Problem(source, f"it has no list `links`: {example}"))
        return
    file.facts |= {key: value[key] for key in ("gpu", "name") if isinstance(value.get(key), str)}
    problems += document.problems.values()
    unknown = [key for key in value if key not in ("gpu", "name", "links")]
    problems += [Problem(document.where((key,)), "unknown field") for key in unknown]
    for number, row in enumerate(value["links"]):
        place = document.where(("links", number))
        if isinstance(row, dict):
            problems += _unknown(row, place, "field")
            yield place, {key: str(given) for key, given in row.items() if given is not None}
        else:
            problems.append(Problem(place, "a link is a group of `field: value` pairs"))


@dataclass(kw_only=True)
class Linked(ClusterDraft):
    """Draft of a cluster file that is made from a file of links; its remarks are deviations from a regular
    network."""

    fabric: Fabric
    flag: str = "--from-links"


def draft_of_links(file: LinkFile, source: str, gpu: str, name: str) -> Linked:
    """Create the draft of a cluster from the links of a file. Raises InputError where its links are no
    cluster."""
    fabric = fabric_of_links(file.links, source)
    fields = {"kind": "cluster", "name": name, "gpu": gpu, "gpus_per_node": fabric.gpus_per_node}
    fields |= {"nodes": len(fabric.nodes), **_links(fabric)}
    fields |= {"source": f"links of {printable(source, limit=60)}", "graph": write_lines(file.links)}
    assumed, notes = tuple(file.assumed), (*file.notes, *fabric.notes)
    remarks = tuple(f"odd: {one}" for one in fabric.odd)
    return Linked(source=source, fabric=fabric, fields=fields, assumed=assumed, notes=notes, remarks=remarks)


def _links(fabric: Fabric) -> dict[str, Any]:
    """Cluster file fields of a fabric's levels: `intra_node`, `inter_node` and `rails`, or a list of levels
    if there are more."""
    levels, per_node, size = fabric.levels, fabric.gpus_per_node, 1
    links: list[dict[str, Any]] = []
    for level in levels:
        rate, latency = exact_rate(level.bandwidth, level.kind), f"{level.latency * 1e6:.9g} us"
        links.append({"kind": level.kind, "bandwidth": rate, "latency": latency})
    if levels[0].name == "node" and len(levels) <= 2:
        rails = {"rails": per_node // levels[1].sharers} if levels[1:] else {}
        return {"links": dict(zip(("intra_node", "inter_node"), links, strict=False))} | rails
    for at, level in enumerate(levels):
        joined: dict[str, Any] = {}
        if level.name == "node" and not level.network:
            size, joined = per_node, {"nodes": 1}
        elif level is not levels[-1]:
            size *= max(2, round(most_common(Counter(level.domain.tolist()).values()) / size))
            joined = {"nodes": size // per_node} if level.network else {"gpus": size}
        sharers = {"sharers": level.sharers} if level.network and level.opens and level.sharers > 1 else {}
        links[at] = {"name": level.name} | joined | links[at] | sharers
    return {"links": links}
