"""A discovery as the YAML of a cluster file: what is assumed and open stands in it as comments."""

from __future__ import annotations

from collections.abc import Iterator

import yaml

from cost_models.discovery.discover import Discovery
from cost_models.documents import printable
from cost_models.files.catalog import gpu_fields
from cost_models.files.parsing import validate
from cost_models.files.yaml_text import parse_yaml
from cost_models.specs.cluster import ClusterSpec


def as_yaml(discovery: Discovery) -> str:
    """Text of the YAML cluster file for a discovery, with assumptions and unknown fields as comments."""
    comments = "".join(f"# {printable(line)}\n" for line in _comments(discovery))
    body = yaml.safe_dump(dict(discovery.fields), sort_keys=False, default_flow_style=None, width=120)
    return f"# Written by `meshwright cluster --discover`\n{comments}{body}"


def as_cluster(discovery: Discovery) -> ClusterSpec:
    """Validate a discovery's fields as a cluster. Raises InputError with every place that is open."""
    document = parse_yaml(as_yaml(discovery), source="the machine")
    return validate(document, ClusterSpec, replace={"gpu": gpu_fields})


def _comments(discovery: Discovery) -> Iterator[str]:
    for place, reason in discovery.open.items():
        yield f"OPEN {place}: {reason}"
    for assumption in discovery.assumed:
        yield f"assumed: {assumption}"
    for note in discovery.notes:
        yield f"note: {note}"
