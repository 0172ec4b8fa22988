"""Answers of `cluster`: a machine as it describes itself, or a graph of links with its levels and odd links."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from cost_models.base import MAX_GPUS
from cost_models.communication.topology import group_of
from cost_models.discovery import EXAMPLE, ClusterDraft, Discovery, parse_links
from cost_models.errors import InputError
from cost_models.fabric.files import Linked, UserStatement, draft_of_links, read_links
from cost_models.files import catalog
from cost_models.files.local import Machine
from cost_models.files.whole import write_whole
from cost_models.flags import as_keywords
from cost_models.specs.cluster import ClusterSpec
from cost_models.units import counted, format_bandwidth, format_seconds, grouped
from meshwright.render.tables import Table, table, table_of
from meshwright.render.words import wrapped
from meshwright.terminal.answers import SavedAnswer
from meshwright.verbs.cluster import DiscoverOptions, LinksOptions


@as_keywords(DiscoverOptions)
def discover(options: DiscoverOptions) -> Discovered:
    """Describe this machine as a node of a cluster: GPUs, links, host and adapters as driver, kernel and scheduler
    report them.

    Raises:
        InputError: a link, the name or the number of nodes cannot be.
        HostError: there is no GPU here, they are split into slices, or of several kinds.
    """
    nodes, stated = nodes_and_links(options.nodes, options.links)
    machine = options.machine or Machine()
    machine_seen = Discovered(draft=Discovery(machine, nodes, options.name, stated))
    if machine_seen.complete:
        _ = machine_seen.cluster  # what would be refused as a file is refused here
    return machine_seen


def nodes_and_links(
    nodes: int | None, links: Mapping[str, str] | None
) -> tuple[int | None, dict[str, dict[str, Any]]]:
    """Read the nodes and links that a user states about a cluster. Raises InputError."""
    if nodes is not None and not 1 <= nodes <= MAX_GPUS:
        raise InputError(f"--nodes: a cluster of {nodes:,} nodes cannot be")
    return nodes, parse_links([f"{place}={text}" for place, text in (links or {}).items()])


class ClusterFile(SavedAnswer):
    """Base class of answers of `cluster`: a cluster, and its file."""

    suggestion = "meshwright plan MODEL {path} ..."
    draft: ClusterDraft
    """Fields of the cluster file, with assumptions and notes."""

    @property
    def yaml(self) -> str:
        """Text of the cluster file."""
        return self.draft.yaml

    @property
    def cluster(self) -> ClusterSpec:
        """Cluster of the file. Raises InputError listing the fields that are open."""
        return self.draft.cluster

    def save(self, path: str | Path) -> None:
        """Write the cluster file, even with open fields, which `plan` refuses."""
        write_whole(Path(path), self.yaml)


class Discovered(ClusterFile):
    """Answer of `cluster --discover`: this machine as its driver, kernel and scheduler describe it."""

    draft: Discovery

    @property
    def complete(self) -> bool:
        """Whether no field is open, so that a plan can be made for the cluster."""
        return not self.draft.open

    fits = complete  # for the exit code

    def next_commands(self, path: Path) -> str:
        """Commands to suggest for the cluster file at `path`, or a request to fill in open fields."""
        return super().next_commands(path) if self.complete else f"fill in `unknown` in {path}"

    def csv_rows(self) -> list[dict[str, Any]]:
        """Row for each fact that was found."""
        return [one._asdict() for one in self.draft.facts]

    def document(self) -> dict[str, Any]:
        """JSON document: cluster, facts, open fields, assumptions and notes."""
        seen = {"complete": self.complete, "cluster": self.draft.fields, "found": self.rows}
        notes = {"open": dict(self.draft.open), "notes": list(self.draft.notes)}
        return seen | {"assumptions": list(self.draft.assumed)} | notes

    def view(self) -> tuple[str | Table, ...]:
        """Text: the table of facts with their sources, and open fields."""
        cells = [list(one) for one in self.draft.facts]
        lines: list[str | Table] = [table(["", "value", "said by"], cells, words=("value", "said by"))]
        if self.draft.open:
            lines += ["", f"Open, as nothing here says it ({counted(len(self.draft.open), 'place')}):"]
            lines += [wrapped(f"  {place}: {why}", indent="    ") for place, why in self.draft.open.items()]
            if any(place.startswith("links.") for place in self.draft.open):
                lines.append(f"  say a link with --link {EXAMPLE}")
        return tuple(lines)


_MOST_ODD = 12
"""Largest number of odd links that are printed; JSON has all."""


@as_keywords(LinksOptions)
def cluster_from_links(options: LinksOptions) -> LinkedCluster:
    """Derive a cluster from a file of links: network levels, bandwidth of GPU groups, and odd links (unlike others of
    their level).

    Raises:
        InputError: the file cannot be read or is no cluster, or the GPU is not known; all problems at once.
    """
    file = options.file
    nodes, fields = nodes_and_links(options.nodes, options.links)
    statement = UserStatement(nodes=nodes, hosts=options.hosts, gpus=options.gpus_per_node, **fields)
    links = read_links(file, statement)
    gpu = options.gpu or links.facts.get("gpu")
    if gpu is None:
        hint = "--gpu h100-sxm, or a line `# gpu: h100-sxm`"
        raise InputError(f"`{file}` does not say which GPU it is", hint=hint)
    catalog.load_gpu(gpu)
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", Path(file).stem).strip("-._")[:50]
    name = options.name or links.facts.get("name") or stem or "links"
    answer = LinkedCluster(draft=draft_of_links(links, str(file), gpu, name))
    _ = answer.cluster  # what would be refused as a file is refused here
    return answer


class LinkedCluster(ClusterFile):
    """Answer of `cluster --from-links`: a cluster derived from a graph of its links."""

    draft: Linked

    def csv_rows(self) -> list[dict[str, Any]]:
        """Row for each network level. Columns: `level`, `kind`, `gpus` (numbers of GPUs under its switches),
        `bandwidth` of a GPU (bytes/s), `oversubscription`, `latency` (s)."""
        levels = self.draft.fabric.levels
        innermost = next((level.bandwidth for level in levels if level.network), 0.0)
        return [
            {"level": level.name, "kind": level.kind, "gpus": list(level.sizes), "bandwidth": level.bandwidth}
            | {"oversubscription": innermost / level.bandwidth if level.network else 1.0}
            | {"latency": level.latency}
            for level in levels
        ]

    @property
    def groups(self) -> list[dict[str, Any]]:
        """Row for each kind of GPU group (such as all GPUs of a node): ring bandwidth of its slowest group, with and
        without odd links. Columns: `group`, `gpus`, `ring` (bytes/s) with odd links, `usual` (bytes/s) without."""
        cluster, gpus = self.cluster, self.cluster.num_gpus
        regular = cluster.model_copy(update={"graph": ()})
        kinds = [("all GPUs of a node", cluster.gpus_per_node, 1)] * (cluster.gpus_per_node > 1)
        for inner, level in pairwise(self.draft.fabric.levels):
            if level.network and inner.even:
                stride = inner.sizes[0]
                kinds.append((f"one GPU of each {inner.name}", gpus // stride, stride))
        kinds += [("all GPUs", gpus, 1)] * (cluster.nodes > 1)
        rows = []
        for name, size, stride in kinds:
            rates = [group_of(one, size, stride).ring_bandwidth()[0] for one in (cluster, regular)]
            ring, usual = map(float, rates)
            rows.append({"group": name, "gpus": size, "ring": ring, "usual": usual})
        return rows

    def document(self) -> dict[str, Any]:
        """JSON document: cluster, levels, groups, odd links, assumptions and notes."""
        fields = {"cluster": self.draft.fields, "levels": self.rows, "groups": self.groups}
        notes = {"assumptions": list(self.draft.assumed), "notes": list(self.draft.notes)}
        return fields | {"odd": list(self.draft.fabric.odd)} | notes

    def view(self) -> tuple[str | Table, ...]:
        """Text: tables of network levels and of rings over groups, and odd links."""
        fabric, rows, rings = self.draft.fabric, self.rows, self.groups
        nodes, gpus = counted(len(fabric.nodes), "node"), counted(fabric.gpus_per_node, "GPU")
        pairs = zip(fabric.levels, rows, strict=True)
        shares = [level.network * f"{row['oversubscription']:.3g}:1" for level, row in pairs]
        levels = {
            "level": [row["level"] for row in rows],
            "links": [row["kind"] for row in rows],
            "GPUs": [" or ".join(map(grouped, row["gpus"])) for row in rows],
            "a GPU": [format_bandwidth(row["bandwidth"]) for row in rows],
            "oversubscribed": shares,
            "latency": [format_seconds(row["latency"]) for row in rows],
        }
        groups = {
            "ring over": [row["group"] for row in rings],
            "GPUs": [grouped(row["gpus"]) for row in rings],
            "slowest": [format_bandwidth(row["ring"]) for row in rings],
            "usual": [format_bandwidth(row["usual"]) for row in rings],
        }
        lines: list[str | Table] = [f"{nodes} of {gpus}, {self.draft.fields['gpu']}", ""]
        lines += [table_of(levels, names=["level", "links"]), "", table_of(groups, names=["ring over"])]
        if fabric.odd:
            lines += ["", f"Odd ({grouped(len(fabric.odd))}):"]
            lines += [wrapped(f"  {one}", indent="    ") for one in fabric.odd[:_MOST_ODD]]
            remainder = len(fabric.odd) - _MOST_ODD
            lines += [f"  and {grouped(remainder)} more"] if remainder > 0 else []
        return tuple(lines)
