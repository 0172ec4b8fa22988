"""A cluster file of the machine at hand: what its driver, kernel and scheduler say, what is assumed, what is open.

As in every cluster file that is drafted, what is assumed and open stands in it as comments."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import yaml

from cost_models.base import POOL_NAME
from cost_models.discovery.host import SeenGpu, job_nodes, positive_integer, read_gpus, read_host
from cost_models.discovery.links import (
    EXAMPLE,
    UNKNOWN,
    Fields,
    LinkReading,
    between_nodes,
    inside_node,
    read_nccl_topology,
    read_topology,
    sharing_host_link,
)
from cost_models.documents import printable
from cost_models.files import catalog
from cost_models.files.catalog import GPU_BY_NAME, validate
from cost_models.files.local import LOCAL, Machine
from cost_models.files.reading import parse_yaml
from cost_models.specs.cluster import ClusterSpec
from cost_models.units import counted, format_bandwidth, format_bytes

PlaceLinks = Mapping[str, Fields]
"""Place of a link in a cluster file → fields that a person states."""
_WATTS = 1.0
"""Watts within which two power limits are one."""
_INTRA, _INTER = "links.intra_node", "links.inter_node"


class Fact(NamedTuple):
    """One detected property of a machine, with field name, value, and the source that reported the value."""

    what: str
    value: str
    said_by: str


@dataclass(kw_only=True)
class ClusterDraft:
    """Fields of a cluster file, with assumptions and notes."""

    source: str
    """Name of the machine or file, in messages."""
    flag: str
    """Flag of `meshwright cluster` that makes it."""
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
        """Validated cluster, parsed from the text of the file. Raises InputError with every place that is open."""
        return validate(parse_yaml(self.yaml, source=self.source), ClusterSpec, GPU_BY_NAME)


class Discovery(ClusterDraft):
    """Cluster file of a machine, with sources and fields left for the user: GPUs, host, number of nodes and links.
    Links that the user states replace detected ones."""

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
        topology, names = read_topology(machine), [f"GPU{gpu.index}" for gpu in self.gpus]
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
        """Places of the cluster file that are unknown → why."""
        unknown_links = {at: link for at, link in self.links.items() if UNKNOWN in link.fields.values()}
        self.open |= {at: link.why_open for at, link in unknown_links.items()}
        fields = self._cluster_fields(name)
        self.facts = tuple(self._facts(fields))
        assumed, notes = tuple(self._assumed()), tuple(self._notes())
        remarks = tuple(f"OPEN {place}: {reason}" for place, reason in self.open.items())
        origin = {"source": "the machine", "flag": "--discover"}
        super().__init__(**origin, fields=fields, assumed=assumed, notes=notes, remarks=remarks)

    def _cluster_fields(self, name: str | None) -> Fields:
        """Fields of the cluster file, in order."""
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
        """Yield every detected property of the cluster file with the source that reported it."""
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
        """Yield remarks on failed commands and on hardware that the cluster file leaves out."""
        yield from dict.fromkeys(self.machine.unsaid)
        slurm_gpus = positive_integer(self.machine.environment.get("SLURM_GPUS_ON_NODE", ""))
        if slurm_gpus and slurm_gpus != len(self.gpus):
            given = f"SLURM gives this job {slurm_gpus} GPUs of this node"
            yield f"{given}, the driver shows {len(self.gpus)}: the file has these"
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
    """Fields of a GPU missing from the catalogue, with `unknown` for values that only a datasheet has."""
    name = re.sub(r"[^A-Za-z0-9]+", "-", gpu.name.removeprefix("NVIDIA ")).strip("-").lower()
    fields: Fields = {"name": name or "gpu", "reported_as": [gpu.name]}
    fields["memory"] = f"{gpu.memory_mib:.0f} MiB" if gpu.memory_mib else UNKNOWN
    fields |= {"memory_bandwidth": UNKNOWN, "peak": {"bf16": UNKNOWN}}
    fields |= {"host_bandwidth": format_bandwidth(gpu.pcie)} if gpu.pcie else {}
    return fields | ({"tdp_watts": round(gpu.watts)} if gpu.watts else {})
