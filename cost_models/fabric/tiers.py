"""The levels of a graph of links: who hangs on the same switches is one domain, and domains again on the next switches.

Bottom up, domains that share more than half of their switches are joined, with these switches. Where no two do (meshes,
rings, dragonflies), the Gomory-Hu tree of the graph with each domain drawn together (Gomory & Hu 1961) says between
which the minimum cut is greatest, and these are joined. What a domain has on the way out is the minimum cut between it
and the switches of the next tier; domains that are alike are drawn together first, so that the graph has few vertices.

A switch divides what it forwards evenly among equally short ways, whatever their rates (ECMP; balanced routes of a
subnet manager): a bundle of cables carries as much as its slowest times their number.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from cost_models.arrays import Ints

if TYPE_CHECKING:
    import networkx
    from networkx.utils import UnionFind

    Links = networkx.Graph[str]

_MOST_CUTS = 600
"""Most vertices for a Gomory-Hu tree; larger graphs are joined at once, and domains have all their cables."""


class Joint(NamedTuple):
    """One merge step of domains (sets of linked devices), with the switches that each merged domain absorbs."""

    joined: dict[int, int]
    """Domain → the domain it becomes part of."""
    absorbed: dict[str, int]
    """Free switch → the domain that takes it in."""
    direct: bool = False
    """Domains are linked with one another, not over switches that they share."""


@dataclass(slots=True, eq=False)
class Bundle:
    """Cables from some devices of a domain to the next switches, with capacity in bytes/s and latency in seconds."""

    capacity: float
    """Bytes/s of an even share of its cables, at most the bytes/s that arrive from below."""
    latency: float
    """Seconds of the slowest of its cables."""
    cables: tuple[tuple[str, str], ...]
    """Pairs of devices, the lower first."""
    reached: frozenset[str]


class Tier(NamedTuple):
    """One level of a link graph, at which smaller domains merge into larger ones."""

    inner: Ints
    """For each unit the domain that is left."""
    domain: Ints
    """For each unit the domain that is reached."""
    bundles: Mapping[str, Bundle | None]
    """For each end the cables on its way out; None where it is there already."""
    seconds: Mapping[str, float]
    """Latency from each end up to the switches of the tier."""
    cuts: Mapping[int, float]
    """Inner domain → minimum cut, bytes/s, between it and the rest of its own domain."""
    switches: tuple[str, ...]
    """Switches that join the inner domains."""


def tiers_of(graph: Links, units: Sequence[Sequence[str]], arriving: Mapping[str, float]) -> list[Tier]:
    """Find the levels of a link graph at which units (GPUs, or the adapters of a node) merge, as far as links
    join them.

    Edges have `capacity` of all cables, `cables`, `rate` of the slowest, `latency`; `arriving` is what comes to each
    end, bytes/s.
    """
    climb = _Climb(graph, units, arriving)
    tiers: list[Tier] = []
    while len(set(inner := climb.inner)) > 1:
        joint = climb.under_same_switches()
        joint = joint if joint.absorbed else climb.across_greatest_cuts()
        if len(set(joint.joined.values())) == len(joint.joined) and not joint.absorbed:
            break
        cuts, bundles = climb.cuts(joint), climb.rise(joint)
        if len(set(climb.inner)) < len(set(inner)):
            domains = np.array(inner), np.array(climb.inner)
            tiers.append(Tier(*domains, bundles, dict(climb.seconds), cuts, tuple(joint.absorbed)))
    return tiers


class _Climb:
    """State of the bottom-up merging of domains in a link graph."""

    def __init__(self, graph: Links, units: Sequence[Sequence[str]], arriving: Mapping[str, float]) -> None:
        self.inner = list(range(len(units)))
        """Unit → domain."""
        self.unit = {end: index for index, ends in enumerate(units) for end in ends}
        self.graph = graph.copy()
        self.graph.add_nodes_from(self.unit)
        while dead_ends := [one for one, links in self.graph.degree if links < 2 and one not in self.unit]:
            self.graph.remove_nodes_from(dead_ends)
        self.domain = dict(self.unit)
        """Vertex → domain; free switches are in none."""
        self.at = {end: frozenset([end]) for end in self.unit}
        """End → switches reached from it."""
        self.arriving = dict(arriving)
        self.seconds = dict.fromkeys(self.unit, 0.0)

    def under_same_switches(self) -> Joint:
        """Find domains to merge because they share more than half of their switches, and the domain that absorbs
        each switch."""
        from networkx.utils import UnionFind

        near: dict[int, set[str]] = {domain: set() for domain in self.inner}
        for vertex, domain in self.domain.items():
            near[domain].update(one for one in self.graph[vertex] if one not in self.domain)
        first: dict[frozenset[str], int] = {}
        sharing: dict[str, list[frozenset[str]]] = defaultdict(list)
        union = UnionFind(near)
        for domain, switches_near in near.items():
            if switches_near:
                union.union(domain, first.setdefault(frozenset(switches_near), domain))
        for switches in first:
            for switch in switches:
                sharing[switch].append(switches)
        for sets in sharing.values():
            for smaller, larger in combinations(sets, 2):
                if 2 * len(smaller & larger) > len(smaller | larger):
                    union.union(first[smaller], first[larger])
        joined = _first_members(union, near)
        absorbed = {}
        for switch in (vertex for vertex in self.graph if vertex not in self.domain):
            total: dict[int, float] = defaultdict(float)
            for neighbour, edge in self.graph[switch].items():
                if neighbour in self.domain:
                    total[joined[self.domain[neighbour]]] += edge["capacity"]
            heaviest = max(total, key=lambda domain: total[domain], default=0)
            if 2 * total[heaviest] > sum(total.values()):
                absorbed[switch] = heaviest
        return Joint(joined, absorbed)

    def across_greatest_cuts(self) -> Joint:
        """Find, in each connected part, the domains to merge because the minimum cut between them is greatest, by
        a Gomory-Hu tree."""
        import networkx
        from networkx.utils import UnionFind

        quotient = _contracted(self.graph, self.domain)
        union = UnionFind([*self.inner, *quotient])
        for part in map(quotient.subgraph, networkx.connected_components(quotient)):
            is_small = len(part) <= _MOST_CUTS
            tree = networkx.gomory_hu_tree(part) if is_small else networkx.minimum_spanning_tree(part)
            smallest_cut = 0.0
            edges = tree.edges(data="weight", default=1.0)
            for first, second, cut in sorted(edges, key=lambda edge: -edge[2]):
                if cut < smallest_cut * (1 - 1e-9):
                    break
                union.union(first, second)
                members = sum(isinstance(one, int) and union[one] == union[first] for one in part)
                smallest_cut = smallest_cut or cut * (members > 1)
        joined = _first_members(union, dict.fromkeys(self.inner))
        target = {union[domain]: member for domain, member in joined.items()}
        free = (vertex for vertex in quotient if isinstance(vertex, str))
        absorbed = {switch: target[union[switch]] for switch in free if union[switch] in target}
        return Joint(joined, absorbed, direct=True)

    def cuts(self, joint: Joint) -> dict[int, float]:
        """Map each domain to the minimum cut in bytes/s between it and the switches that absorb it, an equal part of
        the cut of all domains that are alike; where domains are linked directly, to the capacity of all its
        cables."""
        import networkx

        outside: dict[str, Any] = dict.fromkeys(self.graph, "beyond")
        outside |= {switch: ("switches", target) for switch, target in joint.absorbed.items()}
        contracted = _contracted(self.graph, outside | self.domain)
        contracted.add_nodes_from(joint.joined)
        capacities = {one: sum(edge["capacity"] for edge in contracted[one].values()) for one in joint.joined}
        alike: dict[tuple[int, float], list[int]] = defaultdict(list)
        for domain, target in joint.joined.items():
            alike[target, capacities[domain]].append(domain)
        kinds = {vertex: (joint.joined[domain], capacities[domain]) for vertex, domain in self.domain.items()}
        classes = _contracted(self.graph, outside | kinds)
        if joint.direct or len(classes) > _MOST_CUTS:
            return capacities
        for kind, domains in alike.items():
            switches = "switches", kind[0]
            if kind in classes and switches in classes and networkx.has_path(classes, kind, switches):
                cut = networkx.minimum_cut_value(classes, kind, switches)
                capacities |= dict.fromkeys(domains, cut / len(domains))
        return capacities

    def rise(self, joint: Joint) -> dict[str, Bundle | None]:
        """Move every endpoint up to the switches of the merged domain, and return the cable bundle that each
        endpoint passes on the way."""
        new_domain = {vertex: joint.joined[domain] for vertex, domain in self.domain.items()} | joint.absorbed
        members: dict[int, list[str]] = defaultdict(list)
        for vertex, domain in self.domain.items():
            members[domain].append(vertex)
        ends: dict[tuple[int, frozenset[str]], list[str]] = defaultdict(list)
        for end, index in self.unit.items():
            domain = self.inner[index]
            ends[domain, frozenset(members[domain]) if joint.direct else self.at[end]].append(end)
        bundles: dict[str, Bundle | None] = {}
        best: dict[int, Bundle] = {}
        for (domain, source), bundle_ends in ends.items():
            bundle = self._bundle(source, domain, new_domain, direct=joint.direct)
            if bundle is not None:
                bundle.capacity = min(bundle.capacity, sum(self.arriving[end] for end in bundle_ends))
                best[domain] = max(bundle, best.get(domain, bundle), key=lambda candidate: candidate.capacity)
            bundles |= dict.fromkeys(bundle_ends, bundle)
        # a switch without a way out has that of another, over the node's links
        bundles = {end: bundle or best.get(self.inner[self.unit[end]]) for end, bundle in bundles.items()}
        count = Counter(bundles.values())
        for end, bundle in bundles.items():
            if bundle is not None:
                self.at[end] = bundle.reached
                self.seconds[end] += bundle.latency
                self.arriving[end] = bundle.capacity / count[bundle]
        self.domain, self.inner = new_domain, [joint.joined[domain] for domain in self.inner]
        return bundles

    def _bundle(
        self, source: frozenset[str], domain: int, joined: dict[str, int], direct: bool
    ) -> Bundle | None:
        """Cables from the devices `source` out of their domain; None where there are none."""
        cables, latency, total = [], 0.0, 0.0
        number, rate = Counter[str](), defaultdict[str, float](lambda: inf)
        for vertex in sorted(source):
            for neighbour, edge in self.graph[vertex].items():
                if self.domain.get(neighbour) != domain and joined.get(neighbour) == joined[vertex]:
                    number[vertex] += edge["cables"]
                    rate[vertex] = min(rate[vertex], edge["rate"])
                    total += edge["capacity"]
                    # from one domain right to another there is no switch at which a path turns
                    latency = max(latency, edge["latency"] / (2 if neighbour in self.domain else 1))
                    cables.append((vertex, neighbour))
        if not cables:
            return None
        capacity = total if direct else len(number) * min(number[vertex] * rate[vertex] for vertex in number)
        return Bundle(capacity, latency, tuple(cables), frozenset(neighbour for _, neighbour in cables))


def _contracted(graph: Links, into: Mapping[str, Any]) -> networkx.Graph[Any]:
    """Graph with vertices merged as `into` maps them; capacities of edges between the same two are added up."""
    import networkx

    capacity: dict[tuple[Any, Any], float] = defaultdict(float)
    for first, second, edge in graph.edges(data=True):
        a, b = into.get(first, first), into.get(second, second)
        if a != b:
            capacity[(b, a) if (b, a) in capacity else (a, b)] += edge["capacity"]
    quotient: networkx.Graph[Any] = networkx.Graph()
    quotient.add_edges_from((a, b, {"capacity": total}) for (a, b), total in capacity.items())
    return quotient


def _first_members(union: UnionFind[Any], members: Iterable[int]) -> dict[int, int]:
    """Map each member of a union-find structure to the first listed member of its set."""
    first: dict[Any, int] = {}
    return {member: first.setdefault(union[member], member) for member in members}
