"""The answer of `cluster --from-links`: the levels of a graph of links, what groups get on it, and what is odd."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from cost_models.communication.topology import group_of
from cost_models.discovery.discover import ClusterDraft
from cost_models.errors import InputError
from cost_models.fabric.files import Linked, UserStatement, linked, read_links
from cost_models.files import catalog
from cost_models.units import counted, format_bandwidth, format_seconds, grouped
from meshwright.render.tables import Table, table
from meshwright.render.words import wrapped
from meshwright.verbs.cluster import LinksOptions
from meshwright.verbs.cluster.discovered import ClusterFile, nodes_and_links

_MOST_ODD = 12
"""Odd links that are printed; the file has all."""


def linked_cluster(options: LinksOptions) -> LinkedCluster:
    """Read a file of links. Raises InputError."""
    file = options.file
    nodes, said = nodes_and_links(options.nodes, options.links)
    found = read_links(
        file, UserStatement(nodes=nodes, hosts=options.hosts, gpus=options.gpus_per_node, **said)
    )
    gpu = options.gpu or found.facts.get("gpu")
    if gpu is None:
        raise InputError(
            f"`{file}` does not say which GPU it is", hint="--gpu h100-sxm, or a line `# gpu: h100-sxm`"
        )
    catalog.load_gpu(gpu)
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", Path(file).stem).strip("-._")[:50]
    answer = LinkedCluster(
        found=linked(found, str(file), gpu, options.name or found.facts.get("name") or stem or "links")
    )
    _ = answer.cluster  # what would be refused as a file is refused here
    return answer


@dataclass(frozen=True, kw_only=True, repr=False)
class LinkedCluster(ClusterFile):
    """A cluster as a graph of its links."""

    found: Linked

    @property
    def _draft(self) -> ClusterDraft:
        """Fields of the file, with assumptions and notes."""
        return self.found

    @property
    def rows(self) -> list[dict[str, Any]]:
        """A row for each level: `level`, `kind`, `gpus` (sizes of its domains), `bandwidth` of a GPU (bytes/s),
        `oversubscription`, `latency` (s)."""
        levels = self.found.fabric.levels
        innermost = next((level.bandwidth for level in levels if level.network), 0.0)
        return [
            {
                "level": level.name,
                "kind": level.kind,
                "gpus": list(level.sizes),
                "bandwidth": level.bandwidth,
                "oversubscription": innermost / level.bandwidth if level.network else 1.0,
                "latency": level.latency,
            }
            for level in levels
        ]

    @property
    def groups(self) -> list[dict[str, Any]]:
        """A row for each kind of group: `group`, `gpus`, bytes/s of its `ring` on the slowest, and where nothing is odd
        (`usual`)."""
        return list(self._groups())

    def _groups(self) -> Iterator[dict[str, Any]]:
        cluster, levels = self.cluster, self.found.fabric.levels
        regular = cluster.model_copy(update={"graph": ()})
        kinds = [("all GPUs of a node", cluster.gpus_per_node, 1)] * (cluster.gpus_per_node > 1)
        for inner, level in pairwise(levels):
            if level.network and inner.even:
                kinds.append(
                    (f"one GPU of each {inner.name}", cluster.num_gpus // inner.sizes[0], inner.sizes[0])
                )
        for told, size, stride in [*kinds, *[("all GPUs", cluster.num_gpus, 1)] * (cluster.nodes > 1)]:
            ring, usual = (
                float(group_of(one, size, stride).ring_bandwidth()[0]) for one in (cluster, regular)
            )
            yield {"group": told, "gpus": size, "ring": ring, "usual": usual}

    def document(self) -> dict[str, Any]:
        return {
            "cluster": self.found.fields,
            "levels": self.rows,
            "groups": self.groups,
            "odd": list(self.found.fabric.odd),
            "assumptions": list(self.found.assumed),
            "notes": list(self.found.notes),
        }

    @property
    def text(self) -> tuple[str | Table, ...]:
        fabric = self.found.fabric
        nodes, gpus = counted(len(fabric.nodes), "node"), counted(fabric.gpus_per_node, "GPU")
        levels = [
            [
                row["level"],
                row["kind"],
                " or ".join(map(grouped, row["gpus"])),
                format_bandwidth(row["bandwidth"]),
                f"{row['oversubscription']:.3g}:1" if level.network else "",
                format_seconds(row["latency"]),
            ]
            for row, level in zip(self.rows, fabric.levels, strict=True)
        ]
        groups = [
            [
                row["group"],
                grouped(row["gpus"]),
                format_bandwidth(row["ring"]),
                format_bandwidth(row["usual"]),
            ]
            for row in self.groups
        ]
        lines: list[str | Table] = [f"{nodes} of {gpus}, {self.found.fields['gpu']}", ""]
        lines.append(
            table(
                ["level", "links", "GPUs", "a GPU", "oversubscribed", "latency"],
                levels,
                names=["level", "links"],
            )
        )
        lines += ["", table(["ring over", "GPUs", "slowest", "usual"], groups, names=["ring over"])]
        if fabric.odd:
            more = len(fabric.odd) - _MOST_ODD
            lines += ["", f"Odd ({grouped(len(fabric.odd))}):"]
            lines += [wrapped(f"  {one}", indent="    ") for one in fabric.odd[:_MOST_ODD]]
            lines += [f"  and {grouped(more)} more"] if more > 0 else []
        return tuple(lines)
