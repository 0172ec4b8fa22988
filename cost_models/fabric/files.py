"""Files of links: those that say the links of a cluster one by one (a table in CSV, JSON, or what a tool printed, see
`tools`), and a fabric as a cluster file, its levels as they usually are and every link.
"""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import yaml

from cost_models.documents import printable
from cost_models.errors import Problem, did_you_mean
from cost_models.fabric.assembling import fabric_of_links
from cost_models.fabric.fabric import Fabric, FabricLevel, most_common
from cost_models.fabric.tools import LinkFile, UserStatement, from_ibnetdiscover, from_topo, unreadable
from cost_models.files.catalog import gpu_fields
from cost_models.files.parsing import validate
from cost_models.files.reading import read_text
from cost_models.files.yaml_text import parse_yaml
from cost_models.specs.cluster import ClusterSpec
from cost_models.specs.graph import MOST_LINKS, exact_rate, read_link, write_lines
from cost_models.units import counted

MAX_BYTES = 32_000_000
"""Largest file that is read; `ibnetdiscover` prints some megabytes of 5,000 GPUs."""
_COLUMNS = ("from", "to", "bandwidth", "latency", "count", "kind")
_REQUIRED = _COLUMNS[:3]
_HEADER_FACT = re.compile(r"#\s*(gpu|name)\s*[:=]\s*(\S[^,]*?)\s*,*$", re.ASCII)
_HINT = "from,to,bandwidth and, where you know, latency,count,kind: `node0.nic0,leaf0,400 Gb/s,2.5 us,1,infiniband`"
Row = tuple[str, Mapping[str, str] | Problem]
"""Place, and the values of a link or the problem with them."""


def read_links(path: str | Path, statement: UserStatement | None = None) -> LinkFile:
    """Read the links of a cluster from a table, a YAML or JSON file, or saved output of `ibnetdiscover` or
    `nvidia-smi topo -m`. Raises InputError: it cannot be read; all problems at once, with their lines."""
    name, statement = str(path), statement or UserStatement()
    text = read_text(path, most_bytes=MAX_BYTES)
    if re.search(r"^(Switch|Ca)\s+\d+\s+\"", text, re.MULTILINE):
        file, used = from_ibnetdiscover(text, name, statement), {"intra_node", "hosts", "gpus"}
    elif re.search(r"^\s*GPU0\s+X\s", plain := re.sub(r"\x1b\[[0-9;]*m", "", text), re.MULTILINE):
        file, used = from_topo(plain, name, statement), {"nodes"}
    else:
        file, used = _listed_links(text, name), set()
    for part in fields(statement):
        if part.name not in used and getattr(statement, part.name) is not None:
            file.notes.append(f"what you say of `{part.name}` is not used: {name} says it, or cannot use it")
    return file


def _listed_links(text: str, name: str) -> LinkFile:
    """Parse the links in a table (CSV) or in a YAML or JSON document. Raises InputError."""
    file = LinkFile()
    rows = _document_rows if name.endswith((".json", ".yaml", ".yml")) else _table_rows
    problems: list[Problem] = []
    for place, row in rows(text, name, file):
        if isinstance(row, Problem):
            problems.append(row)
            continue
        problems += [Problem(place, f"it has no `{key}`") for key in _REQUIRED[:2] if not row.get(key)]
        if all(row.get(key) for key in _REQUIRED[:2]):
            links, link_problems = read_link(*(row.get(column, "") for column in _COLUMNS), place=place)
            file.links += links
            problems += link_problems
        if len(file.links) > MOST_LINKS:
            raise unreadable(name, [Problem(place, f"these are more than {MOST_LINKS:,} links")], _HINT)
    if not file.links and not problems:
        problems = [Problem(name, "it lists no link")]
    if problems:
        raise unreadable(name, problems, f"a link has {_HINT}")
    return file


def _unknown(names: Sequence[str], place: str, noun: str) -> list[Problem]:
    messages = [
        f"`{printable(name, 40)}` is no {noun} of a link{did_you_mean(name, _COLUMNS)}"
        for name in names
        if name not in _COLUMNS
    ]
    return [Problem(place, one) for one in messages]


def _table_rows(text: str, source: str, file: LinkFile) -> Iterator[Row]:
    """Yield the rows of a CSV table of links, or the problem with a row. Lines that begin with `#` are comments;
    `# gpu: h100-sxm` names the GPU."""
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
            cells = [
                cell.strip().replace("\0", ",") for cell in next(csv.reader(io.StringIO(joined), strict=True))
            ]
        except (csv.Error, StopIteration) as error:
            yield place, Problem(place, f"cannot be read: {error}")
            continue
        if heading and len(_REQUIRED) <= len(cells) <= len(heading):
            yield place, dict(zip(heading, cells, strict=False))
        elif heading:
            yield place, Problem(place, f"it has {counted(len(cells), 'value')}, its heading {len(heading)}")
        else:
            heading = [cell.lower() for cell in cells]
            problems = _unknown(heading, place, "column")
            problems += [
                Problem(place, f"it has no column `{name}`") for name in _REQUIRED if name not in heading
            ]
            problems += [Problem(place, "a column is there twice")] * (len(set(heading)) < len(heading))
            yield from ((place, problem) for problem in problems)
            if problems:
                return


def _document_rows(text: str, source: str, file: LinkFile) -> Iterator[Row]:
    """Yield the links listed in a YAML or JSON document, or the problem with an entry. The document is `{"gpu":
    ..., "name": ..., "links": [{"from": ..., "to": ..., "bandwidth": ...}]}`."""
    document = parse_yaml(text, source=source)
    value = document.value if isinstance(document.value, dict) else {}
    if not isinstance(value.get("links"), list):
        yield (
            source,
            Problem(
                source, 'it has no list `links`: {"links": [{"from": "node0.nic0", "to": "leaf0", ...}]}'
            ),
        )
        return
    file.facts |= {key: value[key] for key in ("gpu", "name") if isinstance(value.get(key), str)}
    yield from ((source, problem) for problem in document.problems.values())
    yield from (
        (source, Problem(document.where((key,)), "unknown field"))
        for key in value
        if key not in ("gpu", "name", "links")
    )
    for number, row in enumerate(value["links"]):
        place = document.where(("links", number))
        if not isinstance(row, dict):
            yield place, Problem(place, "a link is a group of `field: value` pairs")
            continue
        yield from ((place, problem) for problem in _unknown(list(row), place, "field"))
        yield place, {key: str(given) for key, given in row.items() if given is not None}


@dataclass(frozen=True, kw_only=True)
class Linked:
    """A cluster built from a file of links, with assumptions and notes."""

    source: str
    """Name of the file."""
    fabric: Fabric
    fields: dict[str, Any]
    """The cluster file."""
    assumed: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def yaml(self) -> str:
        """Text of the YAML cluster file, with deviations from a regular network as comments."""
        remarks = [f"odd: {one}" for one in self.fabric.odd] + [f"assumed: {one}" for one in self.assumed]
        comments = "".join(
            f"# {printable(line)}\n" for line in [*remarks, *(f"note: {one}" for one in self.notes)]
        )
        body = dict(self.fields)
        graph = "".join(f"- {line}\n" for line in body.pop("graph"))
        head = yaml.safe_dump(body, sort_keys=False, default_flow_style=None, width=120)
        return f"# Written by `meshwright cluster --from-links`\n{comments}{head}graph:\n{graph}"

    @property
    def cluster(self) -> ClusterSpec:
        """Validated cluster specification parsed from the cluster file's text."""
        return validate(parse_yaml(self.yaml, source=self.source), ClusterSpec, replace={"gpu": gpu_fields})


def linked(file: LinkFile, source: str, gpu: str, name: str) -> Linked:
    """Build a cluster from the links of a file. Raises InputError where its links are no cluster."""
    fabric = fabric_of_links(file.links, source)
    cluster_fields: dict[str, Any] = {
        "kind": "cluster",
        "name": name,
        "gpu": gpu,
        "gpus_per_node": fabric.gpus_per_node,
    }
    cluster_fields |= {
        "nodes": len(fabric.nodes),
        **_links(fabric),
        "source": f"links of {printable(source, limit=60)}",
    }
    return Linked(
        source=source,
        fabric=fabric,
        fields=cluster_fields | {"graph": write_lines(file.links)},
        assumed=tuple(file.assumed),
        notes=(*file.notes, *fabric.notes),
    )


def _links(fabric: Fabric) -> dict[str, Any]:
    """Cluster file fields for a fabric's levels, as `intra_node`, `inter_node` and `rails`, or as a list of more
    levels."""
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
    """Most common number of GPUs in a link level's domains, rounded to a multiple of `inner`, the size on the
    level inside."""
    size = most_common(Counter(level.domain.tolist()).values())
    return max(2, round(size / inner)) * inner


def _link(level: FabricLevel) -> dict[str, str]:
    rate = exact_rate(level.bandwidth, level.kind)
    return {"kind": level.kind, "bandwidth": rate, "latency": f"{level.latency * 1e6:.9g} us"}


def network_levels(levels: Sequence[FabricLevel]) -> list[tuple[FabricLevel, float]]:
    """Levels between nodes, each with the oversubscription ratio, which is the innermost network level's
    bandwidth over that of the level."""
    network = [level for level in levels if level.network]
    return [(level, network[0].bandwidth / level.bandwidth) for level in network]
