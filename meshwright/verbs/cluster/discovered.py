"""What a machine says of itself, as a cluster."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cost_models.base import MAX_GPUS
from cost_models.discovery.discover import ClusterDraft, Discovery
from cost_models.discovery.links import EXAMPLE, parse_links
from cost_models.errors import InputError
from cost_models.files.local import Machine
from cost_models.files.whole import write_whole
from cost_models.specs.cluster import ClusterSpec
from cost_models.units import counted
from meshwright.render.tables import Table, table
from meshwright.render.words import wrapped
from meshwright.verbs.cluster import DiscoverOptions
from meshwright.verbs.contract.answer import AnswerBase


def discover_machine(options: DiscoverOptions) -> Discovered:
    """Ask a machine what it is. Raises InputError, HostError."""
    nodes, stated = nodes_and_links(options.nodes, options.links)
    found = Discovered(seen=Discovery(options.machine or Machine(), nodes, options.name, stated))
    if found.complete:
        _ = found.cluster  # what would be refused as a file is refused here
    return found


def nodes_and_links(
    nodes: int | None, links: Mapping[str, str] | None
) -> tuple[int | None, dict[str, dict[str, Any]]]:
    """What is said of a cluster beside what is found. Raises InputError."""
    if nodes is not None and not 1 <= nodes <= MAX_GPUS:
        raise InputError(f"--nodes: a cluster of {nodes:,} nodes cannot be")
    return nodes, parse_links([f"{place}={text}" for place, text in (links or {}).items()])


class ClusterFile(AnswerBase):
    """A cluster that was found, and the file of it."""

    @property
    @abstractmethod
    def _draft(self) -> ClusterDraft:
        """Fields of the file, with assumptions and notes."""

    @property
    def yaml(self) -> str:
        """Text of the cluster file."""
        return self._draft.yaml

    @property
    def cluster(self) -> ClusterSpec:
        """Cluster of the file. Raises InputError with every place that is open."""
        return self._draft.cluster

    def save(self, path: str | Path) -> None:
        """Write the cluster file; with open places too, which `plan` refuses."""
        write_whole(Path(path), self.yaml)


@dataclass(frozen=True, kw_only=True, repr=False)
class Discovered(ClusterFile):
    """A machine as it describes itself."""

    seen: Discovery

    @property
    def complete(self) -> bool:
        """Whether nothing is open, so that a plan can be made for it."""
        return not self.seen.open

    @property
    def _draft(self) -> ClusterDraft:
        """Fields of the file, with assumptions and notes."""
        return self.seen

    @property
    def rows(self) -> list[dict[str, Any]]:
        """A row for each fact that was found."""
        return [one._asdict() for one in self.seen.facts]

    def document(self) -> dict[str, Any]:
        return {
            "complete": self.complete,
            "cluster": self.seen.fields,
            "found": self.rows,
            "assumptions": list(self.seen.assumed),
            "open": dict(self.seen.open),
            "notes": list(self.seen.notes),
        }

    @property
    def text(self) -> tuple[str | Table, ...]:
        cells = [list(one) for one in self.seen.facts]
        lines: list[str | Table] = [table(["", "value", "said by"], cells, words=("value", "said by"))]
        if self.seen.open:
            lines += ["", f"Open, as nothing here says it ({counted(len(self.seen.open), 'place')}):"]
            lines += [wrapped(f"  {place}: {why}", indent="    ") for place, why in self.seen.open.items()]
            if any(place.startswith("links.") for place in self.seen.open):
                lines.append(f"  say a link with --link {EXAMPLE}")
        return tuple(lines)
