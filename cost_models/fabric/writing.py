"""A fabric as a cluster file: its levels as they usually are, and every link."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from cost_models.documents import printable
from cost_models.fabric.assembling import fabric_of_links
from cost_models.fabric.fabric import Fabric, FabricLevel, usual
from cost_models.fabric.tools import LinkFile
from cost_models.files.catalog import gpu_fields
from cost_models.files.parsing import validate
from cost_models.files.yaml_text import parse_yaml
from cost_models.specs.cluster import ClusterSpec
from cost_models.specs.graph import exact_rate, write_lines


@dataclass(frozen=True, kw_only=True)
class Linked:
    """A cluster as a file of its links has it."""

    source: str
    """Name of the file."""
    fabric: Fabric
    fields: dict[str, Any]
    """The cluster file."""
    assumed: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def yaml(self) -> str:
        """The cluster file's text; what is odd stands in it as comments."""
        told = [f"odd: {one}" for one in self.fabric.odd] + [f"assumed: {one}" for one in self.assumed]
        comments = "".join(
            f"# {printable(line)}\n" for line in [*told, *(f"note: {one}" for one in self.notes)]
        )
        body = dict(self.fields)
        graph = "".join(f"- {line}\n" for line in body.pop("graph"))
        head = yaml.safe_dump(body, sort_keys=False, default_flow_style=None, width=120)
        return f"# Written by `meshwright cluster --from-links`\n{comments}{head}graph:\n{graph}"

    @property
    def cluster(self) -> ClusterSpec:
        """The cluster."""
        return validate(parse_yaml(self.yaml, source=self.source), ClusterSpec, replace={"gpu": gpu_fields})


def linked(found: LinkFile, source: str, gpu: str, name: str) -> Linked:
    """The cluster of a file of links. Raises InputError where its links are no cluster."""
    fabric = fabric_of_links(found.links, source)
    fields: dict[str, Any] = {
        "kind": "cluster",
        "name": name,
        "gpu": gpu,
        "gpus_per_node": fabric.gpus_per_node,
    }
    fields |= {
        "nodes": len(fabric.nodes),
        **_links(fabric),
        "source": f"links of {printable(source, limit=60)}",
    }
    return Linked(
        source=source,
        fabric=fabric,
        fields=fields | {"graph": write_lines(found.links)},
        assumed=tuple(found.assumed),
        notes=(*found.notes, *fabric.notes),
    )


def _links(fabric: Fabric) -> dict[str, Any]:
    """`intra_node`, `inter_node` and `rails`, or a list of levels where there are more."""
    levels = fabric.levels
    if levels[0].name == "node" and len(levels) <= 2:
        links = {
            place: _link(level) for place, level in zip(("intra_node", "inter_node"), levels, strict=False)
        }
        rails = [fabric.gpus_per_node // level.sharers for level in levels[1:]]
        return {"links": links} | ({"rails": rails[0]} if rails else {})
    listed: list[dict[str, Any]] = []
    size = 1
    for at, level in enumerate(levels):
        entry: dict[str, Any] = {"name": level.name}
        if level.name == "node" and not level.network:
            size = fabric.gpus_per_node
            entry["nodes"] = 1
        elif at < len(levels) - 1:
            size = _nesting(level, size)
            entry |= {"nodes": size // fabric.gpus_per_node} if level.network else {"gpus": size}
        shared = level.network and level.opens and level.sharers > 1
        listed.append(entry | _link(level) | ({"sharers": level.sharers} if shared else {}))
    return {"links": listed}


def _nesting(level: FabricLevel, inner: int) -> int:
    """GPUs of most of a level's domains, as a multiple of those of the level inside."""
    size = usual(Counter(level.own.tolist()).values())
    return max(2, round(size / inner)) * inner


def _link(level: FabricLevel) -> dict[str, str]:
    rate = exact_rate(level.bandwidth, level.kind)
    return {"kind": level.kind, "bandwidth": rate, "latency": f"{level.latency * 1e6:.9g} us"}


def network_levels(levels: Sequence[FabricLevel]) -> list[tuple[FabricLevel, float]]:
    """Levels between nodes with their oversubscription: the bandwidth of the nearest over theirs."""
    network = [level for level in levels if level.network]
    return [(level, network[0].bandwidth / level.bandwidth) for level in network]
