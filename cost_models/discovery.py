"""Draft of a cluster file for this machine, from the output of its driver, kernel and scheduler, with assumed
and unknown values marked.

The host: the GPUs that the driver lists and which of the catalogue's they are, memory, cores and drives, and what a
scheduler leaves a job of them.

Links of a node: between its GPUs (NVLinks, the matrix of `nvidia-smi topo -m`), and to other nodes, as far as a node
shows them (adapters, NCCL's topology file); what a person says of links, and what of them is not known.

Rates of adapters are the kernel's, or those of the file that clouds ship for their machines, which also says which GPUs
share a PCIe switch.

As in every cluster file that is drafted, what is assumed and open stands in it as comments.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations, permutations, takewhile
from typing import Any, NamedTuple

import yaml

from cost_models.base import MAX_GPUS, POOL_NAME
from cost_models.documents import printable
from cost_models.errors import HostError, InputError, Problem, did_you_mean
from cost_models.files import catalog
from cost_models.files.catalog import GPU_BY_NAME, validate
from cost_models.files.local import LOCAL, Machine
from cost_models.files.reading import parse_yaml
from cost_models.specs.cluster import ClusterSpec
from cost_models.units import (
    GIB,
    MIB,
    counted,
    format_bandwidth,
    format_bytes,
    parse_bandwidth,
    parse_seconds,
)

_FIELDS = ("index", "name", "memory.total", "power.limit", "pcie.link.gen.max", "pcie.link.width.max")
_MIG = "mig.mode.current"
_VISIBLE = "CUDA_VISIBLE_DEVICES"
_LANE_BYTES = 0.25e9
"""Bytes/s of one lane of PCIe 1.0; each generation doubles it (with the usual rounding: 32 GB/s for 4.0 x16)."""
_LINE = re.compile(r"^\s*Link \d+:\s*([\d.]+) GB/s", re.ASCII)
_PAYLOAD = {26.562: 25.0, 25.781: 25.0, 53.125: 50.0}
"""GB/s of a link in datasheets, without encoding bits, by the GB/s that the driver reports, with them:
NVLink 2 has 64 of 66 bits for data, NVLink 4 and 5 spend 1 of 17 on forward error correction."""


@dataclass(frozen=True, slots=True)
class SeenGpu:
    """Properties of one GPU as the NVIDIA driver reports them; 0 for values that it does not report."""

    index: int
    name: str
    memory_mib: float
    watts: float
    pcie: float
    """Bandwidth of the PCIe link in bytes/s in one direction: the lower of GPU's and slot's."""
    nvlinks: tuple[float, ...] = ()
    """Bandwidth of each active NVLink in bytes/s in one direction."""


def read_gpus(machine: Machine) -> tuple[SeenGpu, ...]:
    """Read the GPUs that a job can use from the NVIDIA driver. Raises HostError if there is none, if they are
    sliced (MIG), or of several kinds."""
    rows = _rows(machine)
    if not rows:
        hint = "ask on a node that has some (`srun meshwright cluster --discover`)"
        hint += "; this CPU is cluster `local`"
        problems = [Problem("", what) for what in machine.unsaid]
        raise HostError("no GPU on this machine", problems=problems, hint=hint)
    if any(row[-1] == "Enabled" for row in rows):
        sliced = "the GPUs are split into MIG slices, between which there are no links to train over"
        raise HostError(sliced, hint="`nvidia-smi -mig 0` makes them whole again (needs an administrator)")
    links = _nvlinks(machine)
    gpus = tuple(_gpu(row, links) for row in _visible(machine, rows))
    if len(kinds := list(dict.fromkeys(gpu.name for gpu in gpus))) > 1:
        indices = ",".join(str(gpu.index) for gpu in gpus if gpu.name == kinds[0])
        hint = f"choose with {_VISIBLE}: `{_VISIBLE}={indices} meshwright cluster --discover`"
        raise HostError(f"a node has one kind of GPU, this one {len(kinds)}: {', '.join(kinds)}", hint=hint)
    return gpus


def _rows(machine: Machine) -> list[list[str]]:
    """Table of the GPUs from `nvidia-smi`, a list of text cells per GPU; columns unknown to older drivers are
    empty."""
    for fields in ((*_FIELDS, _MIG), _FIELDS[:3]):
        output = machine.run("nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits")
        rows = [[cell.strip() for cell in line.split(",")] for line in (output or "").splitlines()]
        if rows := [row for row in rows if len(row) == len(fields) and row[0].isdecimal()]:
            return [row + [""] * (len(_FIELDS) + 1 - len(row)) for row in rows]
    return []


def _visible(machine: Machine, rows: list[list[str]]) -> list[list[str]]:
    """Rows of the GPUs in `CUDA_VISIBLE_DEVICES`, in that order; all rows if the variable is unset or has
    anything but GPU indices."""
    indices = machine.environment.get(_VISIBLE, "").replace(" ", "").split(",")
    by_index = {row[0]: row for row in rows}
    if indices == [""] or len(set(indices)) < len(indices):
        return rows
    if set(indices) <= set(by_index):
        return [by_index[index] for index in indices]
    index_text = printable(",".join(indices), limit=60)
    machine.unsaid.append(f"{_VISIBLE}=`{index_text}` does not number GPUs: all {len(rows)} count")
    return rows


def _gpu(row: list[str], links: dict[int, tuple[float, ...]]) -> SeenGpu:
    """Convert a row of the driver's table, with the GPU's NVLinks, into a GPU."""
    index, name = int(row[0]), printable(row[1], limit=80)
    memory, watts, generation, width = map(_number, row[2:6])
    pcie = width * 2 ** (generation - 1) * _LANE_BYTES if generation else 0.0
    return SeenGpu(index, name, memory, watts, pcie, links.get(index, ()))


def _number(text: str) -> float:
    """Parse a number printed by the driver; 0 for `[N/A]` and other text."""
    return float(text) if re.fullmatch(r"\d{1,9}(\.\d{1,9})?", text, re.ASCII) else 0.0


def _nvlinks(machine: Machine) -> dict[int, tuple[float, ...]]:
    """Bandwidths of each GPU's active NVLinks in bytes/s, by GPU index; empty on boards without NVLink."""
    problem_count = len(machine.unsaid)
    output = machine.run("nvidia-smi", "nvlink", "--status") or ""
    del machine.unsaid[problem_count:]
    links: dict[int, tuple[float, ...]] = {}
    gpu = -1
    for line in output.splitlines():
        if heading := re.match(r"GPU (\d+):", line, re.ASCII):
            gpu = int(heading[1])
        elif link := _LINE.match(line):
            rate = float(link[1])
            links[gpu] = (*links.get(gpu, ()), _PAYLOAD.get(rate, rate) * 1e9)
    return links


_LIMIT, _ALLOCATED = "/sys/fs/cgroup/memory.max", "SLURM_MEM_PER_NODE"
_CPU_COUNTS = ("Socket(s)", "Core(s) per socket", "Cluster(s)", "Core(s) per cluster", "NUMA node(s)")
_LISTING = ("lsblk", "--json", "--bytes", "--nodeps", "--output", "NAME,TYPE,SIZE,ROTA,TRAN,MODEL")


class Host(NamedTuple):
    """CPU, memory and solid-state drives of one host; 0 for values that no source reports."""

    memory: float
    """Usable memory in bytes."""
    memory_source: str
    cores: int
    numa_nodes: int
    processor: str
    drives: tuple[tuple[str, float], ...]
    """Model and size in bytes of each solid-state drive."""


def read_host(machine: Machine) -> Host:
    """Read cores, memory and drives of this host from the kernel; memory is limited to the job's allocation."""
    memory, source = _memory(machine)
    lines = (line.partition(":") for line in (machine.run("lscpu") or "").splitlines())
    cpu = {name.strip(): value.strip() for name, colon, value in lines if colon}
    counts = [positive_integer(cpu.get(name, "")) for name in _CPU_COUNTS]
    sockets, per_socket, clusters, per_cluster, numa_nodes = counts
    cores, processor = sockets * per_socket or clusters * per_cluster, cpu.get("Model name", "")
    return Host(memory, source, cores, numa_nodes, processor, drives=_drives(machine))


def job_nodes(machine: Machine) -> int:
    """Number of nodes of the SLURM job in which this process runs; 0 outside a job."""
    for name in ("SLURM_JOB_NUM_NODES", "SLURM_NNODES"):
        if text := machine.environment.get(name, ""):
            if 0 < (nodes := positive_integer(text)) <= MAX_GPUS:
                return nodes
            machine.unsaid.append(f"{name} is no number of nodes")
    return 0


def _memory(machine: Machine) -> tuple[float, str]:
    """Usable host memory in bytes, in whole GiB, and its source. It is the smallest of physical memory,
    container limit and SLURM allocation."""
    physical = re.search(r"^MemTotal:\s+(\d{1,15}) kB", machine.read("/proc/meminfo") or "", re.M | re.A)
    if physical is None:
        machine.unsaid.append("/proc/meminfo does not say how much memory there is")
    limits = {"/proc/meminfo": float(physical[1]) * 1024 if physical else 0.0}
    limits[_LIMIT] = float(positive_integer((machine.read(_LIMIT) or "").strip(), max_digits=18))
    limits[_ALLOCATED] = positive_integer(machine.environment.get(_ALLOCATED, "")) * MIB
    smallest, source = min(((size, source) for source, size in limits.items() if size), default=(0.0, ""))
    return max(1.0, smallest // GIB) * GIB if source else 0.0, source


def _drives(machine: Machine) -> tuple[tuple[str, float], ...]:
    """Model and size in bytes of each NVMe drive."""
    try:
        listed = json.loads(machine.run(*_LISTING) or "{}").get("blockdevices", [])
        disks = (one for one in listed if one["type"] == "disk")
        solid_state = (one for one in disks if str(one["rota"]).lower() in ("false", "0"))
        drives = (one for one in solid_state if one["tran"] == "nvme")
        return tuple((str(one["model"] or one["name"]).strip(), float(one["size"])) for one in drives)
    except (ValueError, KeyError, TypeError, AttributeError):
        machine.unsaid.append("`lsblk` prints no list of drives that could be read")
        return ()


def positive_integer(text: str, max_digits: int = 9) -> int:
    """Parse a positive integer of at most `max_digits` digits; 0 for any other text."""
    return int(text) if re.fullmatch(rf"[1-9]\d{{0,{max_digits - 1}}}", text, re.ASCII) else 0


_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_NVLINKS = re.compile(r"NV(\d{1,3})", re.ASCII)
_CELL = re.compile(r"X|PIX|PXB|PHB|NODE|SYS|NV\d{1,3}", re.ASCII)
_DEVICE = re.compile(r"(GPU|NIC|mlx|bnxt|rdmap|ibp|roce|hfi|irdma)\S*", re.ASCII)
_LEGEND = re.compile(r"^\s*(NIC\d+):\s*(\S+)\s*$", re.ASCII)
NEAR = ("PIX", "PXB")
"""Connection types through PCIe switches only, under one host bridge."""


class Topology(dict[tuple[str, str], str]):
    """Connection matrix of `nvidia-smi topo -m`, by pair of device names (`GPU0`, `mlx5_0`). Its values are
    types of connection: NV12, PIX, PXB, PHB, NODE or SYS."""

    def path(self, first: str, second: str) -> str:
        """Connection type between two devices in the driver's notation (`NV12`, `PIX`, `SYS`); empty if unknown."""
        return self.get((first, second)) or self.get((second, first)) or ""

    def nvlinks(self, first: str, second: str) -> int:
        """Number of NVLinks between two GPUs, or from a GPU to the switches between them; 0 if there are
        none."""
        match = _NVLINKS.fullmatch(self.path(first, second))
        return int(match[1]) if match else 0

    def near(self, name: str) -> set[str]:
        """Devices that are connected to a device through PCIe switches only."""
        return {pair[1 - pair.index(name)] for pair, way in self.items() if name in pair and way in NEAR}


def groups_of(devices: Sequence[str], linked: Iterable[tuple[str, str]]) -> list[list[str]]:
    """Connected components of `devices` in the graph with the edges `linked`, each in the order of `devices`."""
    import networkx

    graph: networkx.Graph[str] = networkx.Graph()
    graph.add_nodes_from(devices)
    graph.add_edges_from(linked)
    return [sorted(group, key=devices.index) for group in networkx.connected_components(graph)]


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
"""Usual latency of one hop of a medium, as in the catalogue's clusters; no driver reports it."""
MOST_NVLINKS = 18
"""Maximum number of NVLinks of a GPU (Hopper, Blackwell): a row of the matrix with more shows a switch."""
Fields = dict[str, Any]


@dataclass(kw_only=True)
class LinkReading:
    """Link for a cluster file, detected or stated by the user, with its source and the reason why values are
    unknown."""

    fields: Fields = field(default_factory=dict)
    """Kind, bandwidth and latency; empty if nothing is known."""
    source: str = ""
    """Source that reports the link."""
    why_open: str = "the driver does not say what one link carries"
    """Reason why a value is unknown, or all are."""
    rails: int = 0
    """Number of adapters per node, if the link is a network."""
    assumed: list[str] = field(default_factory=list)


class NodeLinks(NamedTuple):
    """Links between the GPUs of one node."""

    node: LinkReading
    """The link between any two GPUs."""
    group: LinkReading | None = None
    """The link between GPUs of one NVLink bridge, where a bridge joins only part of the node."""
    group_size: int = 1
    order: tuple[int, ...] = ()
    """GPU indices sorted by bridge; empty if bridges join neighbours."""


def link(kind: str, bandwidth: float) -> Fields:
    """Fields of a link in a cluster file, with the usual latency of its kind; a bandwidth of 0 becomes
    `unknown`."""
    rate = format_bandwidth(bandwidth) if bandwidth else UNKNOWN
    return {"kind": kind, "bandwidth": rate, "latency": USUAL_LATENCY[kind]}


def inside_node(gpus: Sequence[SeenGpu], topology: Topology) -> NodeLinks:
    """Detect how the GPUs of a node are linked: by NVLink all together, by NVLink in groups, or by PCIe only."""
    names = [f"GPU{gpu.index}" for gpu in gpus]
    counts = {(one, other): topology.nvlinks(one, other) for one, other in permutations(names, 2)}
    groups = groups_of(names, (pair for pair, count in counts.items() if count))
    row = {one: sum(counts[one, other] for other in names if other != one) for one in names}
    # of links that are up, those to the GPUs that the matrix shows
    rows_and_gpus = zip(row.values(), gpus, strict=True)
    rate = min(sum(gpu.nvlinks) * number / (len(gpu.nvlinks) or 1) for number, gpu in rows_and_gpus)
    if len(groups) == 1 < len(names):
        return NodeLinks(_over_nvlink(gpus, set(counts.values()), min(row.values()), rate))
    node, sizes = _through_host(gpus, topology, names), {len(group) for group in groups}
    if len(groups) == len(names):
        return NodeLinks(node)
    if len(sizes) > 1:
        joined = ", ".join("+".join(group) for group in groups if len(group) > 1)
        unequal = f"NVLinks that join a part of the GPUs ({joined}) are left out: groups differ in size"
        node.assumed.append(unequal)
        return NodeLinks(node)
    size, by_bridge = sizes.pop(), [one for group in groups for one in group]
    node.source = f"nvidia-smi: NVLink inside {counted(len(groups), 'group')} of {size}, PCIe between"
    bridge = LinkReading(fields=link("nvlink", rate), source=node.source)
    order = [] if by_bridge == names else [gpus[names.index(one)].index for one in by_bridge]
    return NodeLinks(node, bridge, size, tuple(order))


def _over_nvlink(gpus: Sequence[SeenGpu], counts: set[int], fewest: int, rate: float) -> LinkReading:
    """Link of a node whose GPUs all reach each other over NVLinks: through switches, directly, or in several
    hops. `counts` are the numbers of NVLinks between pairs of GPUs; `fewest` is the smallest number of
    NVLinks from a GPU to all others, which carry at least `rate` bytes/s."""
    max_links = max(counts)
    if len(counts) == 1 and len(gpus) > 2 and (fewest > MOST_NVLINKS or len(gpus[0].nvlinks) == max_links):
        fields = link("nvswitch", min(sum(gpu.nvlinks) for gpu in gpus))
        return LinkReading(fields=fields, source=f"nvidia-smi: NV{max_links} between all GPUs")
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
    """Largest number of GPUs under one PCIe switch, which share its link to the host; None if the matrix does
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
    """Bandwidth in bytes/s in one direction."""


def read_rdma(machine: Machine) -> list[Adapter]:
    """Read the RDMA adapters with an active port; the rate is summed over active ports."""
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
    """Whether the value `selection` of `NCCL_IB_HCA` selects an adapter. `^` excludes, `=` requires full
    names instead of prefixes, and ports follow a colon."""
    excludes, exact = selection[:1] == "^", "=" in selection[:2]
    listed = [one.partition(":")[0] for one in selection.lstrip("^=").split(",")]
    return any(name == one if exact else name.startswith(one) for one in listed if one) != excludes


_FILE = "NCCL_TOPO_FILE"
_GPU, _GRAPHICS, _SWITCH = "0x0302", "0x0300", "0x0604"
"""First digits of PCI classes: 3D controllers, displays, bridges."""


class NcclTopology(NamedTuple):
    """Contents of an NCCL topology file: the number of GPUs under each PCIe switch, and the network adapters;
    empty without a file."""

    file: str = ""
    switches: tuple[int, ...] = ()
    """Number of GPUs under each PCIe switch next to the host."""
    adapters: tuple[Adapter, ...] = ()


def read_nccl_topology(machine: Machine) -> NcclTopology:
    """Read the NCCL topology file named by `NCCL_TOPO_FILE`; empty if it is unset or unreadable."""
    file = machine.environment.get(_FILE, "")
    if not file:
        return NcclTopology()
    from xml.etree import ElementTree

    text = machine.read(file)
    if text is None:
        reason = "cannot be read"
    elif "<!" in re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL):  # no entities, which may grow without end
        reason = "is not plain XML"
    else:
        try:
            root = ElementTree.fromstring(text)
        except ElementTree.ParseError as error:
            reason = f"is not XML: {error}"
        else:
            counts, adapters = list[int](), list[Adapter]()
            for device in root.findall(".//cpu/pci"):
                parts = [(inner.find("gpu"), inner.get("class", "")) for inner in device.iter("pci")]
                count = sum(gpu is not None or kind.startswith((_GPU, _GRAPHICS)) for gpu, kind in parts)
                if device.get("class", "").startswith(_SWITCH) and count:
                    counts.append(count)
            for net in root.iter("net"):  # files that NCCL dumps have rates, in Mb/s
                name = net.get("name", "net")
                if megabits := positive_integer(net.get("speed", ""), max_digits=8):
                    kind = "infiniband" if name.startswith(("mlx", "ib")) else "ethernet"
                    adapters.append(Adapter(name, kind, megabits * 1e6 / 8))
            return NcclTopology(file, tuple(counts), tuple(adapters))
    machine.unsaid.append(f"{_FILE}: `{file}` {reason}")
    return NcclTopology()


PLACES = ("intra_node", "inter_node")
EXAMPLE = "inter_node=infiniband,400Gb/s,5us"


def between_nodes(machine: Machine, topology: Topology, nccl: NcclTopology, gpus: list[str]) -> LinkReading:
    """Detect the network link of a node, with each GPU's share of the rate of the adapters for training.
    These are the adapters in `NCCL_IB_HCA`, else those under the GPUs' PCIe switches, else all."""
    rdma, witness = read_rdma(machine), _RDMA
    if not rdma:
        rdma, witness = list(nccl.adapters), nccl.file
    if rdma and (selection := machine.environment.get(_CHOICE, "")):
        selected = [one for one in rdma if _is_selected(one.name, selection)]
        return _network_link(selected, f"those of {_CHOICE}", len(gpus), witness)
    if rdma:
        near = {device for gpu in gpus for device in topology.near(gpu)}
        near_adapters = [one for one in rdma if one.name in near] or rdma
        which = "those beside the GPUs" if len(near_adapters) < len(rdma) else ""
        return _network_link(near_adapters, which, len(gpus), witness)
    wired = read_ethernet(machine)
    if len(wired) == 1:
        return _network_link(wired, "", len(gpus), "/sys/class/net")
    if not wired:
        return LinkReading(why_open="no adapter says at what rate it sends")
    rates = ", ".join(f"{one.name} {format_bandwidth(one.rate)}" for one in wired)
    which = f"which of {counted(len(wired), 'interface')} carry training is not known"
    return LinkReading(why_open=f"{which}: {rates}")


def _network_link(adapters: Sequence[Adapter], selection: str, gpus: int, witness: str) -> LinkReading:
    """Network link with the total rate of the adapters divided evenly among `gpus` GPUs."""
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
    """Parse a link such as `infiniband,400Gb/s,5us` (latency optional) into fields of a cluster file. Raises
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
    """Parse links that the user states, such as `inter_node=infiniband,400Gb/s`, into fields of links in a
    cluster file, by the name before `=`. Raises InputError."""
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
    """Error for a link in `--link` that cannot be parsed."""
    return InputError("a link cannot be read", problems=[Problem("--link", message)], hint=hint)


PlaceLinks = Mapping[str, Fields]
"""Fields of links that the user states, by place in a cluster file."""
_WATTS = 1.0
"""Difference in watts up to which two power limits are equal."""
_INTRA, _INTER = "links.intra_node", "links.inter_node"


class Fact(NamedTuple):
    """One detected property of a machine: field name, value, and the source that reported it."""

    what: str
    value: str
    said_by: str


@dataclass(kw_only=True)
class ClusterDraft:
    """Fields of a cluster file, with assumptions and notes for its comments."""

    source: str
    """Name of the machine or file, in messages."""
    flag: str
    """Flag of `meshwright cluster` that writes the file."""
    fields: dict[str, Any]
    """The cluster file; `unknown` marks values the user must state."""
    assumed: tuple[str, ...]
    notes: tuple[str, ...]
    remarks: tuple[str, ...]
    """Comments at the head of the file, before assumptions and notes."""

    @property
    def yaml(self) -> str:
        """Text of the YAML cluster file, with remarks, assumptions and notes as comments."""
        body = dict(self.fields)
        graph = "".join(f"- {line}\n" for line in body.pop("graph", ()))
        listed = [*(f"assumed: {one}" for one in self.assumed), *(f"note: {one}" for one in self.notes)]
        comments = "".join(f"# {printable(line)}\n" for line in (*self.remarks, *listed))
        head = yaml.safe_dump(body, sort_keys=False, default_flow_style=None, width=120)
        head += f"graph:\n{graph}" if graph else ""
        return f"# Written by `meshwright cluster {self.flag}`\n{comments}{head}"

    @property
    def cluster(self) -> ClusterSpec:
        """Cluster spec of the file after validation. Raises InputError with every field that is unknown."""
        return validate(parse_yaml(self.yaml, source=self.source), ClusterSpec, GPU_BY_NAME)


class Discovery(ClusterDraft):
    """Draft of a cluster file for this machine: GPUs, host, number of nodes and links, with the source of
    each value. Links that the user states replace detected ones."""

    def __init__(
        self,
        machine: Machine,
        nodes: int | None = None,
        name: str | None = None,
        links: PlaceLinks | None = None,
    ) -> None:
        """Detect the fields of a cluster file from the driver, kernel and scheduler of a machine.

        Args:
            nodes: nodes of the cluster; None: those of the SLURM job, else one.
            name: of the cluster; None: SLURM's, else `here`.
            links: links that a person says, by `intra_node` and `inter_node`: they count, whatever adapters say.

        Raises:
            HostError: there is no GPU, they are sliced, or of several kinds.
        """
        self.machine = machine
        self.gpus = read_gpus(machine)
        specs, self.host = map(catalog.load_gpu, catalog.names("gpus")), read_host(machine)
        self.gpu_spec = next((gpu for gpu in specs if self.gpus[0].name in gpu.reported_as), None)
        """Catalogue entry of the GPU with the name that the driver reports; None if the catalogue has none."""
        names = [f"GPU{gpu.index}" for gpu in self.gpus]
        topology = parse_topology(machine.run("nvidia-smi", "topo", "-m") or "")
        self.nccl = read_nccl_topology(machine)
        self.inside = inside_node(self.gpus, topology)
        self.network = between_nodes(machine, topology, self.nccl, names)
        self.nodes = nodes or job_nodes(machine) or 1
        self.sharing = max(self.nccl.switches) if self.nccl.switches else sharing_host_link(topology, names)
        """Number of GPUs that share a link to host memory; None if unknown."""
        stated = {place: LinkReading(fields=fields, source="you") for place, fields in (links or {}).items()}
        self.links = {_INTRA: stated.get("intra_node", self.inside.node)}
        """Link at each place of the cluster file, those between GPUs first."""
        if self.inside.group and "intra_node" not in stated:
            self.links = {"links[0]": self.inside.group} | self.links
        outer = stated.get("inter_node", self.network)
        if outer.fields or self.nodes > 1:
            unknown = dict.fromkeys(("kind", "bandwidth", "latency"), UNKNOWN)
            self.links[_INTER] = replace(outer, fields=outer.fields or unknown)
        gpu = f"`{self.gpus[0].name}` is not in the catalogue: its datasheet has `memory_bandwidth` and dense `peak`"
        self.open = {} if self.gpu_spec else {"gpu": gpu}
        """Reason why each unknown place of the cluster file is unknown, by place."""
        unknown_links = {at: link for at, link in self.links.items() if UNKNOWN in link.fields.values()}
        self.open |= {at: link.why_open for at, link in unknown_links.items()}
        fields = self._cluster_fields(name)
        self.facts = tuple(self._facts(fields))
        assumed, notes = tuple(self._assumed()), tuple(self._notes())
        remarks = tuple(f"OPEN {place}: {reason}" for place, reason in self.open.items())
        comments = {"assumed": assumed, "notes": notes, "remarks": remarks}
        super().__init__(source="the machine", flag="--discover", fields=fields, **comments)

    def _cluster_fields(self, name: str | None) -> Fields:
        """Fields of the cluster file, in their order."""
        slurm_name = self.machine.environment.get("SLURM_CLUSTER_NAME", "")
        name = name or (slurm_name if re.fullmatch(POOL_NAME, slurm_name) else "here")
        links, rails = {place: link.fields for place, link in self.links.items()}, self.network.rails
        gpu = self.gpu_spec.name if self.gpu_spec else _unknown_gpu(self.gpus[0])
        fields: Fields = {"kind": "cluster", "name": name, "gpu": gpu, "gpus_per_node": len(self.gpus)}
        fields["nodes"] = self.nodes
        fields["links"] = {at.removeprefix("links."): link for at, link in links.items()}
        if "links[0]" in links:  # bridges join only parts of a node
            levels: list[Fields] = [{"name": "bridge", "gpus": self.inside.group_size} | links["links[0]"]]
            levels += [{"name": "node", "nodes": 1} | links[_INTRA]]
            if _INTER in links:
                sharers = len(self.gpus) // (rails or len(self.gpus))
                even = sharers > 1 and len(self.gpus) % sharers == 0
                shared = {"sharers": sharers} if even and self.links[_INTER].source != "you" else {}
                levels += [{"name": "network"} | links[_INTER] | shared]
            fields["links"] = levels
        watts, board = min(gpu.watts for gpu in self.gpus), self.gpu_spec and self.gpu_spec.tdp_watts
        memory = f"{self.host.memory / 2**30:.0f} GiB" if self.host.memory else ""
        optional: Fields = {"host_memory": memory, "host_cores": self.host.cores}
        optional["gpus_per_host_link"] = self.sharing if self.sharing != 1 else 0
        optional["gpu_watts"] = round(watts) if watts and board and abs(watts - board) > _WATTS else 0
        as_seen = links == {_INTRA: self.inside.node.fields, _INTER: self.network.fields}
        fields |= {field: value for field, value in optional.items() if value}
        fields |= {"rails": rails} if rails and as_seen else {}
        return fields | {"source": "this machine, as its driver and kernel report it"}

    def _facts(self, fields: Fields) -> Iterator[Fact]:
        """Yield every detected property in the cluster file with the source that reported it."""
        gpu = self.gpu_spec.name if self.gpu_spec else self.gpus[0].name
        yield Fact("gpu", gpu, f"nvidia-smi: {counted(len(self.gpus), 'GPU')}, {self.gpus[0].name}")
        yield Fact("gpus_per_node", str(len(self.gpus)), "nvidia-smi")
        node_source = "you" if self.nodes > 1 else "one is seen"
        if job_nodes(self.machine) == self.nodes:
            node_source = "SLURM_JOB_NUM_NODES"
        yield Fact("nodes", str(self.nodes), node_source)
        for place, link in self.links.items():
            if link.fields["kind"] != UNKNOWN:
                yield Fact(place, f"{link.fields['kind']} {link.fields['bandwidth']}", link.source)
        cores = f"lscpu: {self.host.processor}".rstrip(": ")
        shared = self.nccl.file if self.nccl.switches else "nvidia-smi topo -m"
        sources = {"host_memory": self.host.memory_source, "host_cores": cores, "gpus_per_host_link": shared}
        sources["gpu_watts"] = "nvidia-smi"
        yield from (Fact(name, str(fields[name]), sources[name]) for name in sources if name in fields)

    def _assumed(self) -> Iterator[str]:
        """Yield a sentence for each value of the cluster file that no driver reports."""
        for place, link in self.links.items():
            kind = link.fields["kind"]
            if kind != UNKNOWN and link.source != "you":
                yield f"{place}: latency {link.fields['latency']}, usual of {kind} (no driver says it)"
        for link in self.links.values():
            yield from link.assumed
        if self.sharing is None and len(self.gpus) > 1:
            yield "every GPU has a link of its own to host memory (NVLinks hide PCIe switches in `topo -m`)"

    def _notes(self) -> Iterator[str]:
        """Yield remarks on failed commands and on hardware that the cluster file does not mention."""
        yield from dict.fromkeys(self.machine.unsaid)
        slurm_gpus = positive_integer(self.machine.environment.get("SLURM_GPUS_ON_NODE", ""))
        if slurm_gpus and slurm_gpus != len(self.gpus):
            job_gpus = f"SLURM gives this job {slurm_gpus} GPUs of this node"
            yield f"{job_gpus}, the driver shows {len(self.gpus)}: the file has these"
        if self.inside.order:
            order = ",".join(map(str, self.inside.order))
            yield f"bridges do not join neighbours; number GPUs by them: CUDA_VISIBLE_DEVICES={order}"
        if self.gpu_spec and self.inside.node.fields["kind"] == "nvswitch":
            of_gpu = (catalog.load_cluster(name) for name in catalog.names("clusters") if name != LOCAL)
            same_gpu = [one for one in of_gpu if one.gpu.name == self.gpu_spec.name]
            if same_gpu and min(one.gpus_per_node for one in same_gpu) > len(self.gpus):
                racks = ", ".join(one.name for one in same_gpu)
                joins = f"NVLink of {self.gpu_spec.name} joins nodes of a rack, which one does not show"
                yield f"{joins}; the catalogue has whole racks: {racks}"
        if _INTER not in self.links:
            yield f"no link between nodes is known ({self.network.why_open}); several need one: --link {EXAMPLE}"
        if self.host.numa_nodes > 1:
            yield f"{self.host.numa_nodes} NUMA nodes: bind each rank to the one of its GPU (`nvidia-smi topo -m`)"
        if self.host.drives:
            size = format_bytes(sum(size for _, size in self.host.drives))
            models = ", ".join(dict.fromkeys(model for model, _ in self.host.drives))
            example = f"`drive: {{capacity: {size}, read: ..., write: ...}}` with rates you measured"
            yield f"{counted(len(self.host.drives), 'drive')} of {size} ({models}): to use them write {example}"
        yield "not known without an administrator: `host_memory_bandwidth`, which counts where a plan offloads"


def _unknown_gpu(gpu: SeenGpu) -> Fields:
    """Fields of a GPU that the catalogue lacks, with `unknown` for values that only a datasheet has."""
    name = re.sub(r"[^A-Za-z0-9]+", "-", gpu.name.removeprefix("NVIDIA ")).strip("-").lower()
    fields: Fields = {"name": name or "gpu", "reported_as": [gpu.name]}
    fields["memory"] = f"{gpu.memory_mib:.0f} MiB" if gpu.memory_mib else UNKNOWN
    fields |= {"memory_bandwidth": UNKNOWN, "peak": {"bf16": UNKNOWN}}
    fields |= {"host_bandwidth": format_bandwidth(gpu.pcie)} if gpu.pcie else {}
    return fields | ({"tdp_watts": round(gpu.watts)} if gpu.watts else {})
