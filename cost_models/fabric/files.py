"""Files of links: those that say the links of a cluster one by one (a table in CSV, JSON, or what a tool printed, see
`tools`), and a fabric as a cluster file, its levels as they usually are and every link.
"""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from cost_models.discovery.discover import ClusterDraft
from cost_models.documents import printable
from cost_models.errors import Problem, did_you_mean
from cost_models.fabric.assembling import fabric_of_links
from cost_models.fabric.fabric import Fabric, most_common
from cost_models.fabric.tools import LinkFile, UserStatement, from_ibnetdiscover, from_topo, unreadable
from cost_models.files.reading import parse_yaml, read_text
from cost_models.specs.graph import COLUMNS, MOST_LINKS, exact_rate, read_link, write_lines
from cost_models.units import counted

MAX_BYTES = 32_000_000
"""Largest file that is read; `ibnetdiscover` prints some megabytes of 5,000 GPUs."""
_REQUIRED = COLUMNS[:3]
_HEADER_FACT = re.compile(r"#\s*(gpu|name)\s*[:=]\s*(\S[^,]*?)\s*,*$", re.ASCII)
_HINT = "from,to,bandwidth and, where you know, latency,count,kind: `node0.nic0,leaf0,400 Gb/s,2.5 us,1,infiniband`"
Row = tuple[str, dict[str, str]]
"""Place, and the values of a link by column."""


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
    file, problems = LinkFile(), list[Problem]()
    rows = _document_rows if name.endswith((".json", ".yaml", ".yml")) else _table_rows
    for place, row in rows(text, name, file, problems):
        if missing := [Problem(place, f"it has no `{key}`") for key in ("from", "to") if not row.get(key)]:
            problems += missing
        else:
            file.links += read_link(row, place, problems)
        if len(file.links) > MOST_LINKS:
            raise unreadable(name, [Problem(place, f"these are more than {MOST_LINKS:,} links")], _HINT)
    if not file.links and not problems:
        problems = [Problem(name, "it lists no link")]
    if problems:
        raise unreadable(name, problems, f"a link has {_HINT}")
    return file


def _unknown(names: Iterable[str], place: str, noun: str) -> list[Problem]:
    unknown = [name for name in names if name not in COLUMNS]
    messages = (
        f"`{printable(name, 40)}` is no {noun} of a link{did_you_mean(name, COLUMNS)}" for name in unknown
    )
    return [Problem(place, message) for message in messages]


def _table_rows(text: str, source: str, file: LinkFile, problems: list[Problem]) -> Iterator[Row]:
    """Yield the rows of a CSV table of links, and add problems with a row to `problems`. Lines that begin with `#` are
    comments; `# gpu: h100-sxm` names the GPU."""
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
            row = next(csv.reader(io.StringIO(joined), strict=True))
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
    """Yield the links listed in a YAML or JSON document, and add problems with an entry to `problems`. The document is
    `{"gpu": ..., "name": ..., "links": [{"from": ..., "to": ..., "bandwidth": ...}]}`."""
    document = parse_yaml(text, source=source)
    value = document.value if isinstance(document.value, dict) else {}
    if not isinstance(value.get("links"), list):
        example = '{"links": [{"from": "node0.nic0", "to": "leaf0", ...}]}'
        problems.append(Problem(source, f"it has no list `links`: {example}"))
        return
    facts = {key: value[key] for key in value if key in ("gpu", "name")}
    file.facts |= {key: name for key, name in facts.items() if isinstance(name, str)}
    problems += document.problems.values()
    unknown = value.keys() - facts.keys() - {"links"}
    problems += [Problem(document.where((key,)), "unknown field") for key in value if key in unknown]
    for number, row in enumerate(value["links"]):
        place = document.where(("links", number))
        if isinstance(row, dict):
            problems += _unknown(row, place, "field")
            yield place, {key: str(given) for key, given in row.items() if given is not None}
        else:
            problems.append(Problem(place, "a link is a group of `field: value` pairs"))


@dataclass(kw_only=True)
class Linked(ClusterDraft):
    """A cluster built from a file of links, whose remarks are deviations from a regular network."""

    fabric: Fabric


def linked(file: LinkFile, source: str, gpu: str, name: str) -> Linked:
    """Build a cluster from the links of a file. Raises InputError where its links are no cluster."""
    fabric = fabric_of_links(file.links, source)
    head = {"kind": "cluster", "name": name, "gpu": gpu, "gpus_per_node": fabric.gpus_per_node}
    head |= {"nodes": len(fabric.nodes), **_links(fabric)}
    return Linked(
        source=source,
        flag="--from-links",
        fabric=fabric,
        fields=head | {"source": f"links of {printable(source, limit=60)}", "graph": write_lines(file.links)},
        assumed=tuple(file.assumed),
        notes=(*file.notes, *fabric.notes),
        remarks=tuple(f"odd: {one}" for one in fabric.odd),
    )


def _links(fabric: Fabric) -> dict[str, Any]:
    """Cluster file fields for a fabric's levels, as `intra_node`, `inter_node` and `rails`, or as a list of more
    levels."""
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
