"""A cluster file that was read from a machine or from its links: what is assumed and open stands in it as comments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from cost_models.documents import printable
from cost_models.files.catalog import GPU_BY_NAME, validate
from cost_models.files.reading import parse_yaml
from cost_models.specs.cluster import ClusterSpec


@dataclass(frozen=True, kw_only=True)
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

    @property
    def remarks(self) -> Sequence[str]:
        """Comments at the head of the file, before assumptions and notes."""
        return ()

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
