"""A cluster file of the machine at hand: what its driver, kernel and scheduler say, what is assumed, what is open."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from cost_models.base import POOL_NAME
from cost_models.discovery.gpus import SeenGpu, known_gpu, read_gpus, told
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
    Between,
    NcclTopology,
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


class Found(NamedTuple):
    """One fact, and who says it."""

    what: str
    value: str
    said_by: str


@dataclass(frozen=True, kw_only=True)
class Discovery:
    """What a machine says of itself, as a cluster file; nothing in it is a guess."""

    fields: Fields
    """The cluster file; `unknown` stands where somebody has to say."""
    found: tuple[Found, ...]
    assumed: tuple[str, ...]
    open: Mapping[str, str]
    """Places that are unknown → why."""
    notes: tuple[str, ...]


def discover(
    machine: Machine | None = None,
    *,
    nodes: int | None = None,
    name: str | None = None,
    said: Mapping[str, Fields] | None = None,
) -> Discovery:
    """Ask the machine (default: this one).

    Args:
        nodes: nodes of the cluster; None: those of the SLURM job, else one.
        name: of the cluster; None: SLURM's, else `here`.
        said: links that a person says, by `intra_node` and `inter_node`: they count, whatever adapters say.

    Raises:
        HostError: there is no GPU, they are sliced, or of several kinds.
    """
    machine = machine or ThisMachine()
    gpus = read_gpus(machine)
    known, topology, host = known_gpu(gpus[0]), read_topology(machine), read_host(machine)
    names = [f"GPU{gpu.index}" for gpu in gpus]
    asked = _Asked(
        machine=machine,
        gpus=gpus,
        known=known,
        topology=topology,
        nccl=read_nccl_topology(machine),
        host=host,
        inside=inside_node(gpus, topology),
        nodes=nodes or job_nodes(machine) or 1,
        said=dict(said or {}),
    )
    between = between_nodes(machine, topology, asked.nccl, names)
    fields = {
        "kind": "cluster",
        "name": name or _own_name(machine),
        "gpu": known.name if known else _unknown_gpu(gpus[0]),
        "gpus_per_node": len(gpus),
        "nodes": asked.nodes,
        "links": _links(asked, between),
        **_of_host(asked),
    }
    if between.rails and fields["links"] == {"intra_node": asked.inside.node, "inter_node": between.fields}:
        fields["rails"] = between.rails
    fields["source"] = "this machine, as its driver and kernel report it"
    return Discovery(
        fields=fields,
        found=tuple(_found(asked, between, fields)),
        assumed=tuple(_assumed(asked, between, fields)),
        open=_open(asked, between, fields),
        notes=tuple(_notes(asked, between)),
    )


@dataclass(frozen=True, kw_only=True)
class _Asked:
    """The machine's answers."""

    machine: Machine
    gpus: tuple[SeenGpu, ...]
    known: GpuSpec | None
    topology: Topology
    nccl: NcclTopology | None
    host: Host
    inside: Inside
    nodes: int
    said: Mapping[str, Fields]

    @property
    def shared(self) -> int | None:
        """GPUs that share a link to host memory."""
        if self.nccl is not None and self.nccl.switches:
            return max(self.nccl.switches)
        return sharing_host_link(self.topology, [f"GPU{gpu.index}" for gpu in self.gpus])


def _own_name(machine: Machine) -> str:
    """SLURM's name of the cluster, else `here`."""
    given = machine.environment.get("SLURM_CLUSTER_NAME", "")
    return given if re.fullmatch(POOL_NAME, given) else "here"


def _unknown_gpu(gpu: SeenGpu) -> Fields:
    """A GPU that the catalogue lacks: what the driver knows of it, and what a datasheet has to say."""
    name = re.sub(r"[^A-Za-z0-9]+", "-", gpu.name.removeprefix("NVIDIA ")).strip("-").lower()
    fields: Fields = {"name": name or "gpu", "reported_as": [gpu.name]}
    fields["memory"] = f"{gpu.memory_mib:.0f} MiB" if gpu.memory_mib else UNKNOWN
    fields |= {"memory_bandwidth": UNKNOWN, "peak": {"bf16": UNKNOWN}}
    if gpu.pcie:
        fields["host_bandwidth"] = format_bandwidth(gpu.pcie)
    if gpu.watts:
        fields["tdp_watts"] = round(gpu.watts)
    return fields


def _links(asked: _Asked, between: Between) -> Any:
    """`intra_node` and `inter_node`, or levels where bridges join a part of a node."""
    node = asked.said.get("intra_node") or asked.inside.node
    outer = asked.said.get("inter_node") or between.fields
    if outer is None and asked.nodes > 1:
        outer = dict.fromkeys(("kind", "bandwidth", "latency"), UNKNOWN)
    if asked.inside.group is None or "intra_node" in asked.said:
        return {"intra_node": node} | ({"inter_node": outer} if outer else {})
    levels = [
        {"name": "bridge", "gpus": asked.inside.group_size} | asked.inside.group,
        {"name": "node", "nodes": 1} | node,
    ]
    if outer is None:
        return levels
    each = len(asked.gpus) // (between.rails or len(asked.gpus))
    shared = {"sharers": each} if outer is between.fields and each > 1 and len(asked.gpus) % each == 0 else {}
    return [*levels, {"name": "network"} | outer | shared]


def _of_host(asked: _Asked) -> Fields:
    fields: Fields = {}
    if asked.host.memory:
        fields["host_memory"] = f"{asked.host.memory / 2**30:.0f} GiB"
    if asked.host.cores:
        fields["host_cores"] = asked.host.cores
    if (shared := asked.shared) and shared > 1:
        fields["gpus_per_host_link"] = shared
    watts, board = min(gpu.watts for gpu in asked.gpus), asked.known and asked.known.tdp_watts
    if watts and board and abs(watts - board) > _WATTS:
        fields["gpu_watts"] = round(watts)
    return fields


def _found(asked: _Asked, between: Between, fields: Fields) -> Iterator[Found]:
    """Every fact of the file, with its witness."""
    yield Found("gpu", asked.known.name if asked.known else asked.gpus[0].name, told(asked.gpus))
    yield Found("gpus_per_node", str(len(asked.gpus)), "nvidia-smi")
    yield Found("nodes", str(asked.nodes), _who_counts(asked))
    told_by = {
        _INTRA: "you" if "intra_node" in asked.said else f"nvidia-smi: {asked.inside.said}",
        _INTER: "you" if "inter_node" in asked.said else between.said,
    }
    for place, link in _places(fields["links"]).items():
        if link["kind"] != UNKNOWN:
            said = told_by.get(place, f"nvidia-smi: {asked.inside.said}")
            yield Found(place, f"{link['kind']} {link['bandwidth']}", said)
    for field, said in (
        ("host_memory", asked.host.memory_said),
        ("host_cores", f"lscpu: {asked.host.processor}".rstrip(": ")),
        (
            "gpus_per_host_link",
            asked.nccl.file if asked.nccl and asked.nccl.switches else "nvidia-smi topo -m",
        ),
        ("gpu_watts", "nvidia-smi"),
    ):
        if field in fields:
            yield Found(field, str(fields[field]), said)


def _who_counts(asked: _Asked) -> str:
    if job_nodes(asked.machine) == asked.nodes:
        return "SLURM_JOB_NUM_NODES"
    return "you" if asked.nodes > 1 else "one is seen"


def _places(links: Any) -> dict[str, Fields]:
    """Place in the file → its link."""
    if isinstance(links, dict):
        return {f"links.{name}": one for name, one in links.items()}
    places = ["links[0]", _INTRA, _INTER]
    return dict(zip(places, links, strict=False))


def _assumed(asked: _Asked, between: Between, fields: Fields) -> Iterator[str]:
    for place, link in _places(fields["links"]).items():
        if link["kind"] != UNKNOWN and place.removeprefix("links.") not in asked.said:
            yield f"{place}: latency {link['latency']}, usual of {link['kind']} (no driver says it)"
    if "intra_node" not in asked.said:
        yield from asked.inside.assumed
    if "inter_node" not in asked.said:
        yield from between.assumed
    if asked.shared is None and len(asked.gpus) > 1:
        yield "every GPU has a link of its own to host memory (NVLinks hide PCIe switches in `topo -m`)"


def _open(asked: _Asked, between: Between, fields: Fields) -> dict[str, str]:
    """Places that somebody has to fill in, and why."""
    places: dict[str, str] = {}
    if asked.known is None:
        places["gpu"] = (
            f"`{asked.gpus[0].name}` is not in the catalogue: its datasheet has `memory_bandwidth` and dense `peak`"
        )
    for place, link in _places(fields["links"]).items():
        if UNKNOWN in link.values():
            why = between.why_open if place == _INTER else "the driver does not say what one link carries"
            places[place] = why
    return places


def _notes(asked: _Asked, between: Between) -> Iterator[str]:
    """What else to know: what could not be asked, and what the file leaves out."""
    yield from dict.fromkeys(asked.machine.unsaid)
    given = job_gpus(asked.machine)
    if given and given != len(asked.gpus):
        yield f"SLURM gives this job {given} GPUs of this node, the driver shows {len(asked.gpus)}: the file has these"
    if asked.inside.order and asked.inside.group is not None:
        order = ",".join(map(str, asked.inside.order))
        yield f"bridges do not join neighbours; number GPUs by them: CUDA_VISIBLE_DEVICES={order}"
    if rack := _rack(asked):
        yield rack
    if asked.nodes == 1 and between.fields is None and "inter_node" not in asked.said:
        yield f"no link between nodes is known ({between.why_open}); several need one: --link {EXAMPLE}"
    if asked.host.numa_nodes and asked.host.numa_nodes > 1:
        yield f"{asked.host.numa_nodes} NUMA nodes: bind each rank to the one of its GPU (`nvidia-smi topo -m`)"
    if asked.host.drives:
        size = format_bytes(sum(size for _, size in asked.host.drives))
        models = ", ".join(dict.fromkeys(model for model, _ in asked.host.drives))
        yield (
            f"{counted(len(asked.host.drives), 'drive')} of {size} ({models}): to use them write"
            f" `drive: {{capacity: {size}, read: ..., write: ...}}` with rates you measured"
        )
    yield "not known without an administrator: `host_memory_bandwidth`, which counts where a plan offloads"


def _rack(asked: _Asked) -> str:
    """That NVLink reaches beyond this node, where the catalogue has a larger one of the same GPU and link."""
    if asked.known is None or asked.inside.node["kind"] != "nvswitch":
        return ""
    of_gpu = (catalog.load_cluster(name) for name in catalog.names("clusters") if name != LOCAL)
    mine = [one for one in of_gpu if one.gpu.name == asked.known.name]
    if not mine or min(one.gpus_per_node for one in mine) <= len(asked.gpus):
        return ""
    return (
        f"NVLink of {asked.known.name} joins nodes of a rack, which one does not show; the catalogue has whole racks: "
        + ", ".join(one.name for one in mine)
    )
