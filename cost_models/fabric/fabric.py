"""A cluster's links taken apart: GPUs in order of rank, levels as they are and as they usually are, what is odd."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import numpy as np

from cost_models.arrays import Array, Ints
from cost_models.specs.choices import LinkKind
from cost_models.specs.graph import Link, natural
from cost_models.units import counted, format_bandwidth

Number = TypeVar("Number", int, float)

CLOSE = 1e-9
"""Relative difference up to which two rates are one."""


def most_common(values: Iterable[Number]) -> Number:
    """Most frequent of some numbers; among equally frequent ones the largest."""
    counts = Counter(values)
    return max(counts, key=lambda value: (counts[value], value))


@dataclass(frozen=True, kw_only=True)
class FabricLevel:
    """One level of a cluster's links, with typical bandwidth and latency and the actual cables."""

    name: str
    kind: LinkKind
    network: bool
    opens: bool
    """GPUs or their adapters are plugged into it, not the switches of the level inside it."""
    bandwidth: float
    """Usual bytes/s of a GPU on the way out of a domain of the level inside while all of that send."""
    latency: float
    """Usual seconds from a GPU over the switches of this level to another."""
    sharers: int
    """GPUs behind one adapter, where the level opens a network."""
    inner: Ints
    """(GPUs,) domain of the level inside."""
    domain: Ints
    """(GPUs,) domain of this level."""
    top: Ints
    """(GPUs,) domain of the outermost level of its medium."""
    end: Ints
    """(GPUs,) the end by which a GPU's data leaves: its adapter, inside a node the GPU itself."""
    bundle: Ints
    """(E,) for each end the cables that it passes; -1: none, it is there already."""
    capacity: Array
    """(B,) bytes/s of each bundle of cables."""
    cables: tuple[tuple[tuple[str, str], ...], ...]
    """(B,) the pairs of devices in each bundle, the lower first."""
    seconds: Array
    """(E,) seconds from a GPU by this end up to the switches of the level, and down again at an equal one."""

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Distinct GPU counts of the domains (groups of GPUs) that one link level joins, largest first."""
        return tuple(sorted(set(np.unique(self.domain, return_counts=True)[1].tolist()), reverse=True))

    @cached_property
    def even(self) -> bool:
        """Whether the domains (groups of GPUs) of a link level are runs of consecutive ranks of equal length."""
        size = int(np.argmax(self.domain != self.domain[0])) or len(self.domain)
        start = np.arange(len(self.domain)) // size * size
        return self.sizes == (size,) and bool((self.domain == self.domain[start]).all())

    @cached_property
    def odd(self) -> bool:
        """Whether some cable bundle of the level differs from the typical bandwidth per GPU or latency."""
        bundle = self.bundle[self.end]
        rates = np.bincount(bundle[bundle >= 0], minlength=len(self.capacity)) * self.bandwidth
        slow = np.ptp(self.seconds) > CLOSE * self.latency
        return bool(slow or (np.abs(self.capacity - rates) > CLOSE * self.capacity).any())


@dataclass(frozen=True, slots=True, eq=False)
class Fabric:
    """Links of a cluster as levels, from inside the nodes to between them, with deviations from a regular network."""

    nodes: tuple[str, ...]
    """In order of rank."""
    gpus: tuple[str, ...]
    """GPUs of the first node, then of the second ..."""
    levels: tuple[FabricLevel, ...]
    """From the GPUs outwards."""
    odd: tuple[str, ...]
    """Deviations from the regular network, in words."""
    notes: tuple[str, ...]
    """Parts of the file that were left out."""

    @property
    def gpus_per_node(self) -> int:
        """Number of GPUs in each node."""
        return len(self.gpus) // len(self.nodes)


def odd_links(links: Sequence[Link], levels: Sequence[FabricLevel], nodes: Sequence[str]) -> Iterator[str]:
    """Yield a sentence (no full stop) per cable, switch, node or level that differs from comparable ones in the
    cluster."""
    wires: dict[frozenset[str], list[Link]] = defaultdict(list)
    for link in links:
        wires[frozenset(link[:2])].append(link)
    for level in levels:
        yield from _odd_cables(level, wires)
        if level.network and len(level.sizes) > 1:
            per = len(level.domain) // len(nodes)
            largest_first = sorted(Counter(Counter(level.domain.tolist()).values()).items(), reverse=True)
            sizes = ", ".join(f"{counted(n, 'domain')} of {size // per}" for size, n in largest_first)
            yield f"the {level.name} level joins unequal numbers of nodes: {sizes}"
    if network := next((level for level in levels if level.network), None):
        adapters = [len(set(row)) for row in network.end.reshape(len(nodes), -1).tolist()]
        for name, count in zip(nodes, adapters, strict=True):
            if count != most_common(adapters):
                yield f"{name} has {counted(count, 'adapter')} where others have {most_common(adapters)}"


def _odd_cables(level: FabricLevel, wires: Mapping[frozenset[str], Sequence[Link]]) -> Iterator[str]:
    """Yield a sentence per cable with an unusual rate, and per bundle with an unusual number of cables, compared
    with most of the level. `wires` are the links between two devices."""
    bundles = [[(pair, link) for pair in pairs for link in wires[frozenset(pair)]] for pairs in level.cables]
    if not (all_links := [link for bundle in bundles for _, link in bundle]):
        return
    rate = most_common(link.bandwidth for link in all_links for _ in range(link.cables))
    number = most_common(sum(link.cables for _, link in bundle) for bundle in bundles)
    for bundle in bundles:
        count = sum(link.cables for _, link in bundle)
        for pair, link in bundle:
            if abs(link.bandwidth - rate) > CLOSE * rate:
                siblings, whose = ([one for _, one in bundle], "its") if count > 2 else (all_links, "the")
                like = sum(one.cables for one in siblings if one.bandwidth == rate)
                has = f"{pair[0]}-{pair[1]} has {_rate_words(link.bandwidth, level)}"
                yield f"{has} where {whose} {like} siblings have {_rate_words(rate, level)}"
        if level.network and count != number:
            lower = min((pair[0] for pair, _ in bundle), key=natural)
            yield f"{lower} has {counted(count, 'cable')} to the {level.name} where others have {number}"


def _rate_words(rate: float, level: FabricLevel) -> str:
    return f"{rate * 8 / 1e9:.6g} Gb/s" if level.network else format_bandwidth(rate)
