"""Bandwidth of a GPU's share of its node's network, from a table's words: bits or bytes, per GPU or per node."""

from __future__ import annotations

import re

_RATE = r"(?P<rate>\d+(?:\.\d+)?)\s*(?P<scale>[gGtT])"
_UNIT = r"(?P<unit>[bB](?:(?:it|yte)s?)?)"
_RAILS = re.compile(rf"(?P<rails>\d+)\s*[x×]\s*{_RATE}\s*{_UNIT}?")
_SPEED = re.compile(rf"{_RATE}\s*-?{_UNIT}(?:ps|/s|it/s|E\b|(?<=it)|(?<=its))(?!\s*memory)", re.IGNORECASE)
_GENERATION = re.compile(
    r"(?:(?P<rails>\d+)\s*[x×]\s*)?[hnx]dr[- ]?(?P<rate>100|200|400|800)\b(?!\s*[gt]b)", re.IGNORECASE
)
"""Pattern of InfiniBand by generation and Gb/s, as in `8x NDR400`."""
_OMNI_PATH = re.compile(r"(?P<rails>\d+)\s*[x×]\s*omni", re.IGNORECASE)
_OMNI_PATH_BITS = 100e9
_BUS = re.compile(
    r"nv(?:link|switch)[^,;+]*?\d+(?:\.\d+)?\s*[GT]B/s|\d+(?:\.\d+)?\s*[GT]B/s[^,;+]*?nv(?:link|switch)",
    re.IGNORECASE,
)
"""Words for the links inside a node."""
_OTHER_NETWORK = re.compile(
    r"manage|mgmt|\bbmc\b|out[- ]of[- ]band|storage|front[- ]?end|in[- ]band", re.IGNORECASE
)
_ADAPTER = re.compile(
    r"connectx|\bcx-?\d|infiniband|\bib\b|roce|ethernet|\bhca|\bnics?\b|[hnex]dr|efa|slingshot|omni",
    re.IGNORECASE,
)
"""Words for an adapter of the network, which may itself be said to sit on PCIe."""
_EACH = re.compile(r"(per|a|/)\s*(gpu|device|chip|accelerator|gcd)|per-gpu", re.IGNORECASE)
_ONE_ADAPTER = re.compile(r"ethernet|gbe\b|\btcp", re.IGNORECASE)
_ONE_ADAPTER_BITS = 101e9
_ADAPTER_BITS = 401e9
"""Bits/s of the fastest adapter in the tables: a higher figure is a whole node's."""


def network_bits(words: str, per_node: int) -> float | None:
    """Bits/s of one GPU's share of its node's network; None where the words do not say.

    A rate that one adapter can have is a GPU's, unless the words say node or it is the instance's (EFA) or the only
    one of its box (Ethernet up to 100 Gb/s).
    """
    if match := _OMNI_PATH.search(words):
        return int(match["rails"]) * _OMNI_PATH_BITS / per_node
    outside = _computing(_BUS.sub("", words))
    if several := [int(match["rails"]) * _bits(match) for match in _RAILS.finditer(outside)]:
        return max(several) / per_node
    if match := _SPEED.search(outside):
        bits = _bits(match)
        if _EACH.search(outside):
            return bits
        shared = re.search(r"node|instance|\befa\b", outside, re.IGNORECASE)
        alone = _ONE_ADAPTER.search(outside) and bits < _ONE_ADAPTER_BITS
        return bits / per_node if shared or alone or bits > _ADAPTER_BITS else bits
    if match := _GENERATION.search(outside):
        bits = float(match["rate"]) * 1e9
        return bits * int(match["rails"]) / per_node if match["rails"] else bits
    return None


def adapters(words: str) -> int | None:
    """Network adapters of a node, where the words count them: `4x100Gb RoCE per node`."""
    match = _RAILS.search(_BUS.sub("", words))
    return int(match["rails"]) if match else None


def _computing(words: str) -> str:
    """The words without those for networks that carry no collectives: management, storage, the host's own bus."""
    parts = re.split(r"([,;+()])", words)
    return "".join(part for part in parts if not _OTHER_NETWORK.search(part) and not _is_bus(part))


def _is_bus(words: str) -> bool:
    return "pcie" in words.lower() and not _ADAPTER.search(words)


def _bits(match: re.Match[str]) -> float:
    """A rate in bits/s: `GB` and `Gbyte` are bytes; `Gb`, `Gbit`, `GbE` and a bare `G` are bits."""
    unit = match["unit"] or "b"
    in_bytes = unit == "B" or unit.lower().startswith("byte")
    return float(match["rate"]) * (1e12 if match["scale"] in "tT" else 1e9) * (8 if in_bytes else 1)
