"""From links to a fabric: the levels inside the nodes, of one medium after another, and those between the nodes."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import inf
from typing import TYPE_CHECKING

import numpy as np

from cost_models.arrays import Ints
from cost_models.discovery.links import USUAL_LATENCY
from cost_models.errors import InputError, Problem, first_of
from cost_models.fabric.fabric import Fabric, FabricLevel, most_common, odd_links
from cost_models.fabric.graph import graph_of, nearest, within_node
from cost_models.fabric.tiers import Bundle, Tier, tiers_of
from cost_models.specs.graph import Link, device_kind, natural, node_of, read_lines
from cost_models.units import counted, parse_seconds

if TYPE_CHECKING:
    import networkx

    Links = networkx.Graph[str]

_INSIDE = (("nvlink", "nvswitch", "xgmi"), ("pcie", "shared-memory"))
"""Media inside a node, from the GPUs outwards."""
_MOST_GPUS = 50_000


@lru_cache(maxsize=8)
def fabric_of_lines(lines: tuple[str, ...]) -> Fabric:
    """Build the fabric (link levels of a cluster) from the lines of a cluster file's `graph`. Raises InputError
    with whatever is wrong with it."""
    links, problems = read_lines(lines)
    if problems:
        raise InputError("the graph of links cannot be read", problems=first_of(problems))
    return fabric_of_links(links, "graph")


def fabric_of_links(links: Sequence[Link], source: str) -> Fabric:
    """Build the fabric (link levels of a cluster) from a list of links; `source` is the file's name.

    Raises:
        InputError: a link is said twice, nodes have different numbers of GPUs, or GPUs are not connected.
    """
    gpus = sorted({name for link in links for name in link[:2] if device_kind(name) == "gpu"}, key=natural)
    by_node: dict[str, list[str]] = defaultdict(list)
    for name in gpus:
        by_node[node_of(name)].append(name)
    fabric = _Assembly(links=links, source=source, gpus=gpus, nodes=list(by_node))
    if not gpus or len(gpus) > _MOST_GPUS:
        message = (
            f"it has {len(gpus):,} GPUs; {_MOST_GPUS:,} are the most" if gpus else "no device of it is a GPU"
        )
        raise fabric.file_error([message], "GPUs are named like `node0.gpu0`")
    if repeated := list(_repeated_links(links)):
        raise fabric.file_error(
            repeated, "parallel cables are one line with their number (`x2`, or a column `count`)"
        )
    count = most_common(map(len, by_node.values()))
    uneven = [
        f"{node} has {counted(len(some), 'GPU')}, other nodes have {count}"
        for node, some in by_node.items()
        if len(some) != count
    ]
    if uneven:
        raise fabric.file_error(uneven, "every node of a cluster has as many GPUs; leave the others out")
    return fabric.assembled()


def _repeated_links(links: Sequence[Link]) -> Iterator[Problem]:
    seen: dict[tuple[frozenset[str], float], Link] = {}
    for link in links:
        earlier = seen.setdefault((frozenset(link[:2]), link.bandwidth), link)
        if earlier is not link:
            yield Problem(
                link.where, f"`{link.one}` -- `{link.other}` is said twice, first at {earlier.where}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Assembly:
    """Links, GPUs and nodes of a cluster from which a fabric's levels are built."""

    links: Sequence[Link]
    source: str
    gpus: Sequence[str]
    nodes: Sequence[str]

    def file_error(self, problems: Iterable[str | Problem], hint: str) -> InputError:
        """Error for a file of links that describes no cluster; a message that begins with a node's name gets the
        line of the node's first link."""
        first = {node_of(name): link.where for link in reversed(self.links) for name in link[:2]}
        placed_problems = [
            one if isinstance(one, Problem) else Problem(first.get(one.partition(" ")[0], self.source), one)
            for one in problems
        ]
        return InputError(
            f"{self.source} is no graph of a cluster", problems=first_of(placed_problems), hint=hint
        )

    def assembled(self) -> Fabric:
        """Build the fabric, with the levels inside the nodes before those between nodes."""
        inside, cables = self._node_levels(), [link for link in self.links if not within_node(link)]
        network = self._network_levels(cables) if len(self.nodes) > 1 else []
        levels = [*inside, *network]
        hosts = {node_of(name) for link in cables for name in link[:2]} - {"", *self.nodes}
        adapters = len(
            {
                name
                for link in cables
                for name in link[:2]
                if node_of(name) in hosts and device_kind(name) == "nic"
            }
        )
        return Fabric(
            nodes=tuple(self.nodes),
            gpus=tuple(self.gpus),
            levels=tuple(levels),
            odd=tuple(odd_links(self.links, levels, self.nodes)),
            notes=(f"{counted(adapters, 'adapter')} of hosts without GPUs left out",) if adapters else (),
        )

    @property
    def _per_node(self) -> int:
        return len(self.gpus) // len(self.nodes)

    def _node_levels(self) -> list[FabricLevel]:
        """Build the levels inside the nodes, one medium after another until all GPUs of each node are joined."""
        themselves = np.arange(len(self.gpus))
        node, inner = themselves // self._per_node * self._per_node, themselves
        levels: list[FabricLevel] = []
        for kinds in _INSIDE:
            if levels and levels[-1].name == "node":
                break
            links = [link for link in self.links if link.kind in kinds and within_node(link)]
            medium = _Medium(links=links, ends=self.gpus, end=themselves, network=False)
            tiers = tiers_of(graph_of(links), [[gpu] for gpu in self.gpus], dict.fromkeys(self.gpus, inf))
            names = [
                "node" if (np.array(tier.domain) == node).all() else f"group{at or ''}"
                for at, tier in enumerate(tiers)
            ]
            levels += medium.levels(tiers, names, inner, themselves)
            inner = levels[-1].domain if levels else inner
        if self._per_node == 1:
            levels = [self._single_gpu_level(themselves)]
        elif not levels or levels[-1].name != "node":
            incomplete = sorted(
                {self.nodes[at // self._per_node] for at in np.flatnonzero(inner != node).tolist()},
                key=natural,
            )
            hint = "say their links: `node[0-3].gpu[0-7] -- node[0-3].nvswitch 450 GB/s`"
            raise self.file_error(
                [f"{one} has GPUs that are not connected inside it" for one in incomplete], hint
            )
        return levels

    def _single_gpu_level(self, gpus: Ints) -> FabricLevel:
        """Build the node level of a cluster whose nodes have one GPU, at the rate of the widest link of any GPU."""
        widest = max(
            (link for link in self.links if "gpu" in map(device_kind, link[:2])),
            key=lambda link: link.bandwidth,
        )
        kind = widest.kind if within_node(widest) else "pcie"
        seconds, none = parse_seconds(USUAL_LATENCY[kind]), np.full(len(gpus), -1)
        return FabricLevel(
            name="node", kind=kind, network=False, opens=True, bandwidth=widest.bandwidth, latency=seconds, sharers=1,
            inner=gpus, domain=gpus, top=gpus, end=gpus, bundle=none, capacity=np.zeros(0), cables=(),
            seconds=np.full(len(gpus), seconds),
        )  # fmt: skip

    def _network_levels(self, cables: Sequence[Link]) -> list[FabricLevel]:
        """Build the levels between nodes; their endpoints are adapters with a cable, or GPUs cabled directly."""
        network = graph_of(cables)
        by_node: dict[str, list[str]] = {node: [] for node in self.nodes}
        for name in sorted(network, key=natural):
            if node_of(name) in by_node:
                by_node[node_of(name)].append(name)
            elif device_kind(name) != "switch":
                network.remove_node(name)
        if lonely := [node for node, found in by_node.items() if not found]:
            problems = (f"{node} has no cable to a switch or another node" for node in lonely)
            raise self.file_error(problems, "link its adapters: `node0.nic0 -- leaf0 400 Gb/s`")
        end_of_gpu, arriving, replacement = nearest(
            graph_of(filter(within_node, self.links)), self.gpus, by_node
        )
        cables = [
            link._replace(
                one=replacement.get(link.one, link.one), other=replacement.get(link.other, link.other)
            )
            for link in cables
        ]
        network = graph_of(cables).subgraph(
            {*arriving, *(name for name in network if node_of(name) not in by_node)}
        )
        number = {name: at for at, name in enumerate(arriving)}
        end = np.array([number[name] for name in end_of_gpu])
        units = [[name for name in by_node[node] if name in arriving] for node in self.nodes]
        tiers = tiers_of(network, units, arriving)
        if len(parts := set(tiers[-1].domain) if tiers else set(range(len(self.nodes)))) > 1:
            first = " and ".join(f"`{self.nodes[at]}`" for at in sorted(parts)[:8])
            message = f"{self.nodes[max(parts)]} is not connected with all others: {len(parts)} parts, those of {first}"
            raise self.file_error([message], "a cable or a switch between them is missing")
        medium = _Medium(links=cables, ends=list(arriving), end=end, network=True)
        names = [_name(tier.switches) for tier in tiers]
        names = [name if name not in names[:at] else f"{name}{at + 1}" for at, name in enumerate(names)]
        node = np.arange(len(self.gpus)) // self._per_node
        return medium.levels(tiers, names, node, node)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Medium:
    """Links of one medium (such as PCIe), and the endpoint (GPU or adapter) through which each GPU uses the
    medium."""

    links: Sequence[Link]
    ends: Sequence[str]
    end: Ints
    network: bool

    def levels(
        self, tiers: Sequence[Tier], names: Sequence[str], inner: Ints, unit: Ints
    ) -> list[FabricLevel]:
        """Build the link levels of a medium above the GPU groups `inner` that another medium joins; `unit` is
        (GPUs,), the unit of each GPU."""
        levels: list[FabricLevel] = []
        for tier, name in zip(tiers, names, strict=True):
            domain_of_gpu = np.array(tier.domain)[unit]
            domains, nested = len(np.unique(inner)), len(np.unique(inner * len(inner) + domain_of_gpu))
            if (
                nested == domains > len(np.unique(domain_of_gpu))
            ):  # else it joins nothing that another medium has not
                levels.append(self._level(tier, name, inner, unit, levels))
                inner = domain_of_gpu
        return [replace(level, top=inner) for level in levels]

    def _level(
        self, tier: Tier, name: str, inner: Ints, unit: Ints, lower_levels: Sequence[FabricLevel]
    ) -> FabricLevel:
        bundles = list(dict.fromkeys(bundle for bundle in tier.bundles.values() if bundle is not None))
        number: dict[Bundle | None, int] = {None: -1} | {bundle: at for at, bundle in enumerate(bundles)}
        bundle = np.array([number[tier.bundles[end]] for end in self.ends], dtype=np.int64)
        capacity = np.array([one.capacity for one in bundles])
        seconds = 2 * np.array([tier.seconds[end] for end in self.ends])
        domain_of_gpu = np.array(tier.domain)[unit]
        ways = np.bincount(inner, minlength=len(inner)).astype(np.float64)
        rates: list[float] = []
        out: dict[int, float] = defaultdict(float)
        for at, domain in {
            int(tier.inner[at]): int(domain) for at, domain in zip(unit, inner, strict=True)
        }.items():
            out[domain] += tier.cuts[at]
        used = np.unique(inner * len(self.ends) + self.end)
        through = np.unique(used // len(self.ends) * (len(bundles) + 1) + bundle[used % len(self.ends)] + 1)
        carried = np.bincount(
            through // (len(bundles) + 1), np.append(0.0, capacity)[through % (len(bundles) + 1)], len(inner)
        )
        for domain, cut in out.items():
            rate = min(cut, carried[domain]) / ways[domain]
            if rate:  # else it is there already
                rates += [_rounded(min(rate, lower_levels[-1].bandwidth) if lower_levels else rate)] * int(
                    ways[domain]
                )
        per_end = most_common(np.unique(self.end, return_counts=True)[1].tolist())
        return FabricLevel(
            name=name,
            kind=Counter(link.kind for link in self.links).most_common(1)[0][0],
            network=self.network,
            opens=not lower_levels,
            bandwidth=most_common(rates),
            latency=most_common(_rounded(one) for one in seconds.tolist()),
            sharers=per_end if self.network and not lower_levels else 1,
            inner=inner,
            domain=domain_of_gpu,
            top=domain_of_gpu,
            end=self.end,
            bundle=bundle,
            capacity=capacity,
            cables=tuple(one.cables for one in bundles),
            seconds=seconds,
        )


def _rounded(rate: float) -> float:
    """A number rounded to 12 significant digits, which removes floating-point noise."""
    return float(f"{rate:.12g}")


def _name(switches: Sequence[str]) -> str:
    """Name of a level from the common letters of its switches' names, or `network` where these differ."""
    stems = {"".join(filter(str.isalpha, name.rpartition(".")[2])) for name in switches}
    return stems.pop() if len(stems) == 1 else "network"
