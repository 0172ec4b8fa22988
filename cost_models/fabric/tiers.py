"""The levels of a graph of links: who hangs on the same switches is one domain, and domains again on the next switches.

Bottom up, domains that share more than half of their switches are joined, with these switches. Where no two do (meshes,
rings, dragonflies), the Gomory-Hu tree of the graph with each domain drawn together (Gomory & Hu 1961) says between
which the minimum cut is greatest, and these are joined. What a domain has on the way out is the minimum cut between it
and the switches of the next tier; domains that are alike are drawn together first, so that the tree has few vertices.

A switch divides what it forwards evenly among equally short ways, whatever their rates (ECMP; balanced routes of a
subnet manager): a bundle of cables carries as much as its slowest times their number.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from math import inf
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import networkx

    Links = networkx.Graph[str]

_MOST_CUTS = 600
"""Vertices of which a Gomory-Hu tree is made; larger graphs are joined at once, and domains have all their cables."""
Joined = tuple[dict[int, int], dict[str, int]]
"""Domain → the one it becomes part of; free switch → the domain that takes it in."""


@dataclass(slots=True, eq=False)
class Bundle:
    """The cables by which some devices of a domain reach the next switches."""

    capacity: float
    """Bytes/s that it carries, shared out evenly, and no more than what comes up to it."""
    latency: float
    """Seconds of the slowest of its cables."""
    cables: tuple[tuple[str, str], ...]
    """Pairs of devices, the lower first."""
    reached: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tier:
    """One level: domains of units are joined to larger ones."""

    inner: tuple[int, ...]
    """For each unit the domain that is left."""
    own: tuple[int, ...]
    """For each unit the domain that is reached."""
    bundles: Mapping[str, Bundle | None]
    """For each end the cables on its way out; None where it is there already."""
    seconds: Mapping[str, float]
    """Latency from each end up to the switches of the tier."""
    cuts: Mapping[int, float]
    """Inner domain → minimum cut, bytes/s, between it and the rest of its own domain."""
    switches: tuple[str, ...]
    """Switches that join them."""


def tiers_of(graph: Links, units: Sequence[Sequence[str]], arriving: Mapping[str, float]) -> list[Tier]:
    """The levels by which units (some ends each: GPUs, or adapters of a node) are joined, as far as links join them.

    Edges have `capacity` of all cables, `cables`, `rate` of the slowest, `latency`; `arriving` is what comes to each
    end, bytes/s.
    """
    climb = _Climb(graph, units, arriving)
    inner, found = list(range(len(units))), []
    while len(set(inner)) > 1:
        joined, absorbed = climb.under_same_switches(inner)
        if direct := not absorbed:
            joined, absorbed = climb.across_greatest_cuts(inner)
        if len(set(joined.values())) == len(joined) and not absorbed:
            break
        cuts = climb.cuts(joined, absorbed, direct=direct)
        bundles = climb.rise(inner, joined, absorbed, direct=direct)
        own = [joined[domain] for domain in inner]
        if len(set(own)) < len(set(inner)):
            seconds = dict(climb.seconds)
            found.append(
                Tier(
                    inner=tuple(inner),
                    own=tuple(own),
                    bundles=bundles,
                    seconds=seconds,
                    cuts=cuts,
                    switches=(*absorbed,),
                )
            )
        inner = own
    return found


class _Climb:
    """How far the joining has come."""

    def __init__(self, graph: Links, units: Sequence[Sequence[str]], arriving: Mapping[str, float]) -> None:
        self.unit = {end: index for index, ends in enumerate(units) for end in ends}
        self.graph = graph.copy()
        while dead_ends := [one for one, links in self.graph.degree if links < 2 and one not in self.unit]:
            self.graph.remove_nodes_from(dead_ends)
        self.domain = dict(self.unit)
        """Vertex → domain; free switches are in none."""
        self.at = {end: frozenset([end]) for end in self.unit}
        """End → switches that it has reached."""
        self.arriving = dict(arriving)
        self.seconds = dict.fromkeys(self.unit, 0.0)

    def under_same_switches(self, inner: Sequence[int]) -> Joined:
        """Domains that share more than half of their switches, with every switch most of whose links lead into one."""
        near: dict[int, set[str]] = {domain: set() for domain in inner}
        below: dict[str, dict[int, float]] = defaultdict(lambda: defaultdict(float))
        for vertex, domain in self.domain.items():
            for other, edge in self.graph[vertex].items() if vertex in self.graph else ():
                if other not in self.domain:
                    near[domain].add(other)
                    below[other][domain] += edge["capacity"]
        alike: dict[frozenset[str], list[int]] = defaultdict(list)
        for domain, own in near.items():
            if own:
                alike[frozenset(own)].append(domain)
        union = _Union([*alike, *near])
        sharing: dict[str, list[frozenset[str]]] = defaultdict(list)
        for switches, domains in alike.items():
            for domain in domains:
                union.join(switches, domain)
            for switch in switches:
                sharing[switch].append(switches)
        for sets in sharing.values():
            for first, second in combinations(sets, 2):
                if 2 * len(first & second) > len(first | second):
                    union.join(first, second)
        joined = union.first(near)
        absorbed = {}
        for switch, weights in below.items():
            total: dict[int, float] = defaultdict(float)
            for domain, capacity in weights.items():
                total[joined[domain]] += capacity
            most = max(total, key=lambda domain: total[domain])
            if 2 * total[most] > sum(total.values()):
                absorbed[switch] = most
        return joined, absorbed

    def across_greatest_cuts(self, inner: Sequence[int]) -> Joined:
        """In each connected part the domains between which the minimum cut is greatest, by its Gomory-Hu tree."""
        import networkx

        quotient = _drawn_together(self.graph, self.domain)
        union = _Union([*dict.fromkeys(inner), *quotient])
        for part in networkx.connected_components(quotient):
            if sum(isinstance(vertex, int) for vertex in part) < 2:
                continue
            few = len(part) <= _MOST_CUTS
            tree = (
                networkx.gomory_hu_tree(quotient.subgraph(part))
                if few
                else networkx.minimum_spanning_tree(quotient.subgraph(part))
            )
            least = 0.0
            for one, other, cut in sorted(tree.edges(data="weight", default=1.0), key=lambda edge: -edge[2]):
                if cut < least * (1 - 1e-9):
                    break
                union.join(one, other)
                if (
                    not least
                    and sum(isinstance(vertex, int) and union.of(vertex) == union.of(one) for vertex in part)
                    > 1
                ):
                    least = cut
        joined = union.first(dict.fromkeys(inner))
        roots = {union.of(domain): target for domain, target in joined.items()}
        free = (vertex for vertex in quotient if isinstance(vertex, str))
        return joined, {switch: roots[union.of(switch)] for switch in free if union.of(switch) in roots}

    def cuts(
        self, joined: Mapping[int, int], absorbed: Mapping[str, int], *, direct: bool
    ) -> dict[int, float]:
        """Domain → minimum cut between it and the switches that take it in."""
        import networkx

        into: dict[str, Hashable] = {
            vertex: ("beyond", 0) for vertex in self.graph if vertex not in self.domain
        }
        into |= {switch: ("switches", target) for switch, target in absorbed.items()}
        quotient = _drawn_together(self.graph, {**into, **self.domain})
        found = {
            one: sum(edge["capacity"] for edge in quotient[one].values()) if one in quotient else 0.0
            for one in joined
        }
        alike: dict[Any, list[int]] = defaultdict(list)
        for domain, target in joined.items():
            alike[("switches", target), found[domain]].append(domain)
        classes = {domain: ("class", key) for key, domains in alike.items() for domain in domains}
        quotient = _drawn_together(
            self.graph, {**into, **{vertex: classes[own] for vertex, own in self.domain.items()}}
        )
        if direct or len(quotient) > _MOST_CUTS:
            return found
        tree: networkx.Graph[Any] = networkx.Graph()
        for part in networkx.connected_components(quotient):
            own = (
                networkx.gomory_hu_tree(quotient.subgraph(part)) if len(part) > 1 else quotient.subgraph(part)
            )
            tree.add_weighted_edges_from(own.edges(data="weight"))
        for key, domains in alike.items():
            if key[0] in tree and ("class", key) in tree and networkx.has_path(tree, ("class", key), key[0]):
                path = networkx.shortest_path(tree, ("class", key), key[0])
                cut = min(tree.edges[edge]["weight"] for edge in pairwise(path))
                found |= dict.fromkeys(domains, cut / len(domains))
        return found

    def rise(
        self, inner: Sequence[int], joined: Mapping[int, int], absorbed: Mapping[str, int], *, direct: bool
    ) -> dict[str, Bundle | None]:
        """The bundle of every end on its way to the domain that its own becomes part of; ends move on to switches."""
        whole = {vertex: joined[domain] for vertex, domain in self.domain.items()} | dict(absorbed)
        members: dict[int, list[str]] = defaultdict(list)
        for vertex, domain in self.domain.items():
            members[domain].append(vertex)
        ends: dict[tuple[int, frozenset[str]], list[str]] = defaultdict(list)
        for end, index in self.unit.items():
            ends[inner[index], frozenset(members[inner[index]]) if direct else self.at[end]].append(end)
        bundles: dict[str, Bundle | None] = {}
        best: dict[int, Bundle] = {}
        for (domain, source), some in ends.items():
            bundle = self._bundle(source, domain, whole, direct=direct)
            if bundle is not None:
                bundle.capacity = min(bundle.capacity, sum(self.arriving[end] for end in some))
                best[domain] = max(bundle, best.get(domain, bundle), key=lambda one: one.capacity)
            bundles |= dict.fromkeys(some, bundle)
        count: dict[Bundle, int] = defaultdict(int)
        for (
            end,
            bundle,
        ) in bundles.items():  # a switch without a way out has that of another, over the node's links
            bundles[end] = bundle or best.get(inner[self.unit[end]])
            if (way := bundles[end]) is not None:
                count[way] += 1
        for end, bundle in bundles.items():
            if bundle is not None:
                self.at[end] = bundle.reached
                self.seconds[end] += bundle.latency
                self.arriving[end] = bundle.capacity / count[bundle]
        self.domain = whole
        return bundles

    def _bundle(
        self, source: frozenset[str], domain: int, whole: Mapping[str, int], *, direct: bool
    ) -> Bundle | None:
        """The cables from some devices out of their domain; None where there are none."""
        each, cables, latency, total = [], [], 0.0, 0.0
        for vertex in sorted(source):
            number, rate = 0, inf
            for other, edge in self.graph[vertex].items() if vertex in self.graph else ():
                if self.domain.get(other) != domain and whole.get(other) == whole[vertex]:
                    number, rate, total = (
                        number + edge["cables"],
                        min(rate, edge["rate"]),
                        total + edge["capacity"],
                    )
                    # from one domain right to another there is no switch at which a path turns
                    latency = max(latency, edge["latency"] / (2 if other in self.domain else 1))
                    cables.append((vertex, other))
            if number:
                each.append(number * rate)
        if not each:
            return None
        capacity = total if direct else len(each) * min(each)
        return Bundle(capacity, latency, tuple(cables), frozenset(other for _, other in cables))


def _drawn_together(graph: Links, into: Mapping[str, Hashable]) -> networkx.Graph[Any]:
    """The graph with some vertices drawn together; capacities of edges between the same two are added up."""
    import networkx

    capacity: dict[tuple[Any, Any], float] = defaultdict(float)
    for one, other, edge in graph.edges(data=True):
        a, b = into.get(one, one), into.get(other, other)
        if a != b:
            capacity[(b, a) if (b, a) in capacity else (a, b)] += edge["capacity"]
    quotient: networkx.Graph[Any] = networkx.Graph()
    quotient.add_edges_from((a, b, {"capacity": total}) for (a, b), total in capacity.items())
    return quotient


class _Union:
    """Sets that are joined."""

    def __init__(self, members: Sequence[Any]) -> None:
        self._root: dict[Any, Any] = {member: member for member in members}

    def of(self, member: Any) -> Any:
        """The one that stands for its set."""
        while self._root[member] != member:
            self._root[member] = self._root[self._root[member]]
            member = self._root[member]
        return member

    def join(self, one: Any, other: Any) -> None:
        """Make two sets one."""
        self._root[self.of(other)] = self.of(one)

    def first(self, members: Mapping[int, Any]) -> dict[int, int]:
        """Member → the first of those in its set."""
        first: dict[Any, int] = {}
        return {member: first.setdefault(self.of(member), member) for member in members}
