"""A cluster file of the machine at hand: what its driver, kernel and scheduler say, what is assumed, what is open."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from cost_models.base import POOL_NAME
from cost_models.discovery.gpus import SeenGpu, gpu_summary, known_gpu, read_gpus
from cost_models.discovery.links import (
    UNKNOWN,
    Fields,
    Inside,
    Topology,
    inside_node,
    read_topology,
    sharing_host_link,
)
from cost_models.discovery.machine import Host, Machine, ThisMachine, job_gpus, job_nodes, read_host
from cost_models.discovery.network import (
    EXAMPLE,
    NcclTopology,
    NetworkLink,
    between_nodes,
    read_nccl_topology,
)
from cost_models.files import catalog
from cost_models.files.local import LOCAL
from cost_models.specs.cluster import GpuSpec
from cost_models.units import counted, format_bandwidth, format_bytes

_WATTS = 1.0
"""Watts within which two power limits are one."""
_INTRA, _INTER = "links.intra_node", "links.inter_node"


class Fact(NamedTuple):
    """One detected property of a machine, with field name, value, and the source that reported the value."""

    what: str
    value: str
    said_by: str


@dataclass(frozen=True, kw_only=True)
class Discovery:
    """Cluster file fields detected on a machine, with sources, assumptions and fields left for the user."""

    fields: Fields
    """The cluster file; `unknown` marks values the user must state."""
    facts: tuple[Fact, ...]
    assumed: tuple[str, ...]
    open: Mapping[str, str]
    """Places that are unknown → why."""
    notes: tuple[str, ...]


def discover(
    machine: Machine | None = None,
    *,
    nodes: int | None = None,
    name: str | None = None,
    stated: Mapping[str, Fields] | None = None,
) -> Discovery:
    """Detect the fields of a cluster file from the driver, kernel and scheduler of a machine, by default this
    one.

    Args:
        nodes: nodes of the cluster; None: those of the SLURM job, else one.
        name: of the cluster; None: SLURM's, else `here`.
        stated: links that a person says, by `intra_node` and `inter_node`: they count, whatever adapters say.

    Raises:
        HostError: there is no GPU, they are sliced, or of several kinds.
    """
    machine = machine or ThisMachine()
    gpus = read_gpus(machine)
    catalogued, topology, host = known_gpu(gpus[0]), read_topology(machine), read_host(machine)
    names = [f"GPU{gpu.index}" for gpu in gpus]
    readings = _MachineReadings(
        machine=machine,
        gpus=gpus,
        catalogued=catalogued,
        topology=topology,
        nccl=read_nccl_topology(machine),
        host=host,
        inside=inside_node(gpus, topology),
        nodes=nodes or job_nodes(machine) or 1,
        stated=dict(stated or {}),
    )
    network = between_nodes(machine, topology, readings.nccl, names)
    fields = {
        "kind": "cluster",
        "name": name or _cluster_name(machine),
        "gpu": catalogued.name if catalogued else _unknown_gpu(gpus[0]),
        "gpus_per_node": len(gpus),
        "nodes": readings.nodes,
        "links": _links(readings, network),
        **_of_host(readings),
    }
    if network.rails and fields["links"] == {
        "intra_node": readings.inside.node,
        "inter_node": network.fields,
    }:
        fields["rails"] = network.rails
    fields["source"] = "this machine, as its driver and kernel report it"
    return Discovery(
        fields=fields,
        facts=tuple(_facts(readings, network, fields)),
        assumed=tuple(_assumed(readings, network, fields)),
        open=_open(readings, network, fields),
        notes=tuple(_notes(readings, network)),
    )


@dataclass(frozen=True, kw_only=True)
class _MachineReadings:
    """GPUs, topology, host and node count read from a machine, and links stated by the user."""

    machine: Machine
    gpus: tuple[SeenGpu, ...]
    catalogued: GpuSpec | None
    topology: Topology
    nccl: NcclTopology | None
    host: Host
    inside: Inside
    nodes: int
    stated: Mapping[str, Fields]

    @property
    def shared(self) -> int | None:
        """Number of GPUs that share a link to host memory; None if unknown."""
        if self.nccl is not None and self.nccl.switches:
            return max(self.nccl.switches)
        return sharing_host_link(self.topology, [f"GPU{gpu.index}" for gpu in self.gpus])


def _cluster_name(machine: Machine) -> str:
    """Cluster name reported by SLURM, else `here`."""
    slurm_name = machine.environment.get("SLURM_CLUSTER_NAME", "")
    return slurm_name if re.fullmatch(POOL_NAME, slurm_name) else "here"


def _unknown_gpu(gpu: SeenGpu) -> Fields:
    """Fields of a GPU missing from the catalogue, with `unknown` for values that only a datasheet has."""
    name = re.sub(r"[^A-Za-z0-9]+", "-", gpu.name.removeprefix("NVIDIA ")).strip("-").lower()
    fields: Fields = {"name": name or "gpu", "reported_as": [gpu.name]}
    fields["memory"] = f"{gpu.memory_mib:.0f} MiB" if gpu.memory_mib else UNKNOWN
    fields |= {"memory_bandwidth": UNKNOWN, "peak": {"bf16": UNKNOWN}}
    if gpu.pcie:
        fields["host_bandwidth"] = format_bandwidth(gpu.pcie)
    if gpu.watts:
        fields["tdp_watts"] = round(gpu.watts)
    return fields


def _links(readings: _MachineReadings, network: NetworkLink) -> Any:
    """Value of `links` in the cluster file as `intra_node` and `inter_node`, or a list of levels if NVLink
    bridges join only parts of a node."""
    node = readings.stated.get("intra_node") or readings.inside.node
    outer = readings.stated.get("inter_node") or network.fields
    if outer is None and readings.nodes > 1:
        outer = dict.fromkeys(("kind", "bandwidth", "latency"), UNKNOWN)
    if readings.inside.group is None or "intra_node" in readings.stated:
        return {"intra_node": node} | ({"inter_node": outer} if outer else {})
    levels = [
        {"name": "bridge", "gpus": readings.inside.group_size} | readings.inside.group,
        {"name": "node", "nodes": 1} | node,
    ]
    if outer is None:
        return levels
    sharers = len(readings.gpus) // (network.rails or len(readings.gpus))
    shared = (
        {"sharers": sharers}
        if outer is network.fields and sharers > 1 and len(readings.gpus) % sharers == 0
        else {}
    )
    return [*levels, {"name": "network"} | outer | shared]


def _of_host(readings: _MachineReadings) -> Fields:
    fields: Fields = {}
    if readings.host.memory:
        fields["host_memory"] = f"{readings.host.memory / 2**30:.0f} GiB"
    if readings.host.cores:
        fields["host_cores"] = readings.host.cores
    if (shared := readings.shared) and shared > 1:
        fields["gpus_per_host_link"] = shared
    watts, board = (
        min(gpu.watts for gpu in readings.gpus),
        readings.catalogued and readings.catalogued.tdp_watts,
    )
    if watts and board and abs(watts - board) > _WATTS:
        fields["gpu_watts"] = round(watts)
    return fields


def _facts(readings: _MachineReadings, network: NetworkLink, fields: Fields) -> Iterator[Fact]:
    """Yield every detected property of the cluster file with the source that reported it."""
    yield Fact(
        "gpu",
        readings.catalogued.name if readings.catalogued else readings.gpus[0].name,
        gpu_summary(readings.gpus),
    )
    yield Fact("gpus_per_node", str(len(readings.gpus)), "nvidia-smi")
    yield Fact("nodes", str(readings.nodes), _who_counts(readings))
    witness_of = {
        _INTRA: "you" if "intra_node" in readings.stated else f"nvidia-smi: {readings.inside.witness}",
        _INTER: "you" if "inter_node" in readings.stated else network.witness,
    }
    for place, link in _places(fields["links"]).items():
        if link["kind"] != UNKNOWN:
            witness = witness_of.get(place, f"nvidia-smi: {readings.inside.witness}")
            yield Fact(place, f"{link['kind']} {link['bandwidth']}", witness)
    for field, witness in (
        ("host_memory", readings.host.memory_said),
        ("host_cores", f"lscpu: {readings.host.processor}".rstrip(": ")),
        (
            "gpus_per_host_link",
            readings.nccl.file if readings.nccl and readings.nccl.switches else "nvidia-smi topo -m",
        ),
        ("gpu_watts", "nvidia-smi"),
    ):
        if field in fields:
            yield Fact(field, str(fields[field]), witness)


def _who_counts(readings: _MachineReadings) -> str:
    if job_nodes(readings.machine) == readings.nodes:
        return "SLURM_JOB_NUM_NODES"
    return "you" if readings.nodes > 1 else "one is seen"


def _places(links: Any) -> dict[str, Fields]:
    """Map each place in the cluster file, such as `links.intra_node`, to the fields of its link."""
    if isinstance(links, dict):
        return {f"links.{name}": one for name, one in links.items()}
    places = ["links[0]", _INTRA, _INTER]
    return dict(zip(places, links, strict=False))


def _assumed(readings: _MachineReadings, network: NetworkLink, fields: Fields) -> Iterator[str]:
    for place, link in _places(fields["links"]).items():
        if link["kind"] != UNKNOWN and place.removeprefix("links.") not in readings.stated:
            yield f"{place}: latency {link['latency']}, usual of {link['kind']} (no driver says it)"
    if "intra_node" not in readings.stated:
        yield from readings.inside.assumed
    if "inter_node" not in readings.stated:
        yield from network.assumed
    if readings.shared is None and len(readings.gpus) > 1:
        yield "every GPU has a link of its own to host memory (NVLinks hide PCIe switches in `topo -m`)"


def _open(readings: _MachineReadings, network: NetworkLink, fields: Fields) -> dict[str, str]:
    """Map each place of the cluster file that the user must fill in to the reason why it is unknown."""
    places: dict[str, str] = {}
    if readings.catalogued is None:
        places["gpu"] = (
            f"`{readings.gpus[0].name}` is not in the catalogue: its datasheet has `memory_bandwidth` and dense `peak`"
        )
    for place, link in _places(fields["links"]).items():
        if UNKNOWN in link.values():
            reason = network.why_open if place == _INTER else "the driver does not say what one link carries"
            places[place] = reason
    return places


def _notes(readings: _MachineReadings, network: NetworkLink) -> Iterator[str]:
    """Yield remarks on failed commands and on hardware that the cluster file leaves out."""
    yield from dict.fromkeys(readings.machine.unsaid)
    slurm_gpus = job_gpus(readings.machine)
    if slurm_gpus and slurm_gpus != len(readings.gpus):
        yield (
            f"SLURM gives this job {slurm_gpus} GPUs of this node, the driver shows {len(readings.gpus)}:"
            " the file has these"
        )
    if readings.inside.order and readings.inside.group is not None:
        order = ",".join(map(str, readings.inside.order))
        yield f"bridges do not join neighbours; number GPUs by them: CUDA_VISIBLE_DEVICES={order}"
    if rack := _rack(readings):
        yield rack
    if readings.nodes == 1 and network.fields is None and "inter_node" not in readings.stated:
        yield f"no link between nodes is known ({network.why_open}); several need one: --link {EXAMPLE}"
    if readings.host.numa_nodes and readings.host.numa_nodes > 1:
        yield f"{readings.host.numa_nodes} NUMA nodes: bind each rank to the one of its GPU (`nvidia-smi topo -m`)"
    if readings.host.drives:
        size = format_bytes(sum(size for _, size in readings.host.drives))
        models = ", ".join(dict.fromkeys(model for model, _ in readings.host.drives))
        yield (
            f"{counted(len(readings.host.drives), 'drive')} of {size} ({models}): to use them write"
            f" `drive: {{capacity: {size}, read: ..., write: ...}}` with rates you measured"
        )
    yield "not known without an administrator: `host_memory_bandwidth`, which counts where a plan offloads"


def _rack(readings: _MachineReadings) -> str:
    """Remark that NVLink may join several nodes if the catalogue has a rack of the same GPU, else an empty text."""
    if readings.catalogued is None or readings.inside.node["kind"] != "nvswitch":
        return ""
    of_gpu = (catalog.load_cluster(name) for name in catalog.names("clusters") if name != LOCAL)
    same_gpu = [one for one in of_gpu if one.gpu.name == readings.catalogued.name]
    if not same_gpu or min(one.gpus_per_node for one in same_gpu) <= len(readings.gpus):
        return ""
    return (
        f"NVLink of {readings.catalogued.name} joins nodes of a rack, which one does not show;"
        " the catalogue has whole racks: " + ", ".join(one.name for one in same_gpu)
    )
