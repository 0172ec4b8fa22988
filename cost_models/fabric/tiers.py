"""Levels of a cluster's network, found from its graph of links: devices on the same switches form a domain,
and domains on the next switches a larger domain.

From the bottom up, domains that share more than half of their switches are merged, together with these switches. If no
two do (meshes, rings, dragonflies), each domain is contracted to one vertex; the Gomory-Hu tree of this graph (Gomory &
Hu 1961) shows between which domains the minimum cut is greatest, and these are merged. The bandwidth out of a domain is
the minimum cut between the domain and the switches of the next level. Domains that are alike are contracted first, so
that the graph has few vertices.

A switch divides traffic evenly among equally short paths, whatever their rates (ECMP; balanced routes of a subnet
manager): a bundle of cables carries the rate of its slowest cable times their number.

A fabric has first the levels inside the nodes, medium by medium, then the levels between the nodes. The data of a GPU
leaves its node by the nearest adapter, or by the least used of several.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import combinations
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from cost_models.arrays import Ints, group_by
from cost_models.discovery import USUAL_LATENCY
from cost_models.errors import InputError, Problem, first_few
from cost_models.fabric.fabric import Fabric, FabricLevel, most_common, odd_links
from cost_models.specs.graph import MOST_DEVICES, Link, device_kind, natural, node_of, read_lines
from cost_models.units import counted, parse_seconds, rounded

if TYPE_CHECKING:
    import networkx
    from networkx.utils import UnionFind

    Links = networkx.Graph[str]

_DIGITS = 12
"""Significant digits of usual rates and latencies, which removes floating-point noise."""
_MOST_CUTS = 600
"""Maximum number of vertices for a Gomory-Hu tree; all domains of a larger graph are merged at once."""


class Joint(NamedTuple):
    """One merge of domains (sets of linked devices) into larger domains: the new domain of each old domain,
    and of each switch between them."""

    joined: dict[int, int]
    """Number of the merged domain, by domain."""
    absorbed: dict[str, int]
    """Domain that a switch belongs to after the merge, for each switch that belonged to none."""
    direct: bool = False
    """Whether domains are linked with one another instead of through shared switches."""


@dataclass(slots=True, eq=False)
class Bundle:
    """Cables from some devices of a domain to the next switches, with total capacity in bytes/s and latency
    in seconds."""

    capacity: float
    """Bytes/s that the cables carry if traffic is divided evenly, at most the bytes/s that arrive from below."""
    latency: float
    """Latency of the slowest cable in seconds."""
    cables: tuple[tuple[str, str], ...]
    """Pairs of devices, the lower first."""
    reached: frozenset[str]


class Tier(NamedTuple):
    """One level of a link graph: domains before and after the merge, and the cables between them."""

    inner: Ints
    """Domain of each unit (GPU or node) below this level, (units,)."""
    domain: Ints
    """Domain of each unit at this level, (units,)."""
    bundles: Mapping[str, Bundle | None]
    """Cables from each end (GPU or adapter) to this level's switches; None if there are none on the way."""
    seconds: Mapping[str, float]
    """Latency from each end up to the switches of the tier."""
    cuts: Mapping[int, float]
    """Minimum cut between an inner domain and the rest of its domain, bytes/s, by inner domain."""
    switches: tuple[str, ...]
    """Switches that join the inner domains."""


def tiers_of(graph: Links, units: Sequence[Sequence[str]], arriving: Mapping[str, float]) -> list[Tier]:
    """Find the levels of a link graph at which units (GPUs, or the adapters of a node) merge into domains,
    from the innermost outwards.

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
        cuts, bundles = climb.cuts(joint), climb.move_up(joint)
        if len(set(climb.inner)) < len(set(inner)):
            domains = np.array(inner), np.array(climb.inner)
            tiers.append(Tier(*domains, bundles, dict(climb.seconds), cuts, tuple(joint.absorbed)))
    return tiers


class _Climb:
    """State of merging the domains of a link graph from the bottom up."""

    def __init__(self, graph: Links, units: Sequence[Sequence[str]], arriving: Mapping[str, float]) -> None:
        self.inner = list(range(len(units)))
        """Present domain of each unit."""
        self.unit = {end: index for index, ends in enumerate(units) for end in ends}
        self.graph = graph.copy()
        self.graph.add_nodes_from(self.unit)
        while dead_ends := [one for one, links in self.graph.degree if links < 2 and one not in self.unit]:
            self.graph.remove_nodes_from(dead_ends)
        self.domain = dict(self.unit)
        """Present domain of each vertex; switches that no domain includes so far are missing."""
        self.at = {end: frozenset([end]) for end in self.unit}
        """Devices that each end (GPU or adapter) has reached."""
        self.arriving = dict(arriving)
        self.seconds = dict.fromkeys(self.unit, 0.0)

    def under_same_switches(self) -> Joint:
        """Find which domains to merge because they share more than half of their switches, and which domain
        absorbs each switch."""
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
        """Find which domains to merge because the minimum cut between them is the greatest in their connected
        part, by a Gomory-Hu tree."""
        import networkx
        from networkx.utils import UnionFind

        quotient = _contract(self.graph, self.domain)
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
        """Minimum cut in bytes/s between each domain and the switches absorbed into its new domain, by
        domain. Domains that are alike divide the cut of all of them evenly. Domains that are linked directly
        have the capacity of all their cables."""
        import networkx

        outside: dict[str, Any] = dict.fromkeys(self.graph, "beyond")
        outside |= {switch: ("switches", target) for switch, target in joint.absorbed.items()}
        contracted = _contract(self.graph, outside | self.domain)
        contracted.add_nodes_from(joint.joined)
        capacities = {one: sum(edge["capacity"] for edge in contracted[one].values()) for one in joint.joined}
        kinds = {domain: (target, capacities[domain]) for domain, target in joint.joined.items()}
        kind_of_vertex = {vertex: kinds[domain] for vertex, domain in self.domain.items()}
        classes = _contract(self.graph, outside | kind_of_vertex)
        if joint.direct or len(classes) > _MOST_CUTS:
            return capacities
        for kind, domains in group_by(kinds, kinds.__getitem__).items():
            switches = "switches", kind[0]
            if kind in classes and switches in classes and networkx.has_path(classes, kind, switches):
                cut = networkx.minimum_cut_value(classes, kind, switches)
                capacities |= dict.fromkeys(domains, cut / len(domains))
        return capacities

    def move_up(self, joint: Joint) -> dict[str, Bundle | None]:
        """Move every end (GPU or adapter) up to the switches of its merged domain. The bundle of cables that
        each end passes on the way is returned."""
        new_domain = {vertex: joint.joined[domain] for vertex, domain in self.domain.items()} | joint.absorbed
        members = group_by(self.domain, self.domain.__getitem__)

        def source_of(end: str) -> tuple[int, frozenset[str]]:
            """Domain of an end, and the devices of that domain from which the end's cables lead out."""
            domain = self.inner[self.unit[end]]
            return domain, frozenset(members[domain]) if joint.direct else self.at[end]

        bundles: dict[str, Bundle | None] = {}
        best: dict[int, Bundle] = {}
        for (domain, source), bundle_ends in group_by(self.unit, source_of).items():
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
        """Bundle of the cables that lead from the devices `source` out of their domain; None if there are
        none."""
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


def _contract(graph: Links, into: Mapping[str, Any]) -> networkx.Graph[Any]:
    """Graph with vertices merged as `into` maps them; the capacities of parallel edges are added up."""
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
    """Representative of each member of a union-find structure: the member of the same set that is listed
    first."""
    first: dict[Any, int] = {}
    return {member: first.setdefault(union[member], member) for member in members}


def within_node(link: Link) -> bool:
    """Whether both devices of a link are in the same node."""
    return node_of(link.one) == node_of(link.other) != ""


def graph_of(links: Iterable[Link]) -> Links:
    """Build a networkx graph of links, with parallel cables merged into one edge. An edge has the total
    `capacity`, the number of `cables`, the `rate` of the slowest, and the highest `latency`."""
    import networkx

    graph: Links = networkx.Graph()
    new = {"capacity": 0.0, "cables": 0, "rate": inf, "latency": 0.0}
    for link in links:
        edge = graph.get_edge_data(link.one, link.other, new)
        seconds = _usual_latency(link) if link.latency is None else link.latency
        cables, capacity = edge["cables"] + link.cables, edge["capacity"] + link.cables * link.bandwidth
        rate, latency = min(edge["rate"], link.bandwidth), max(edge["latency"], seconds)
        graph.add_edge(link.one, link.other, capacity=capacity, cables=cables, rate=rate, latency=latency)
    return graph


EndsInUse = tuple[list[str], dict[str, float], dict[str, str]]
"""End (adapter) of each GPU; bytes/s that reach each end in use; and for each idle adapter the end in use beside it,
where a GPU has several adapters."""


def assign_adapters(inside: Links, gpus: Sequence[str], ends: Mapping[str, Sequence[str]]) -> EndsInUse:
    """Assign each GPU the network adapter that is the fewest links away; of several such adapters, the one
    with the fewest GPUs.

    If no link says how the GPUs of a node reach its adapters, they are assigned in order.
    """
    end_of_gpu: list[str] = []
    gpus_of_end, width = Counter[str](), dict[str, float]()
    nearest: dict[str, dict[str, float]] = {}
    per_node = len(gpus) // len(ends)
    for at, gpu in enumerate(gpus):
        node_ends = ends[node_of(gpu)]
        first, last = (turn * len(node_ends) // per_node for turn in (at % per_node, at % per_node + 1))
        dealt = node_ends[first : max(last, first + 1)]
        nearest[gpu] = _bandwidth_to_ends(inside, gpu, set(node_ends)) or dict.fromkeys(dealt, inf)
        end = min(nearest[gpu], key=lambda candidate: (gpus_of_end[candidate], natural(candidate)))
        gpus_of_end[end] += 1
        width[end] = width.get(end, 0.0) + nearest[gpu][end]
        end_of_gpu.append(end)
    idle: dict[str, list[tuple[str, float]]] = defaultdict(list)
    for gpu, end in zip(gpus, end_of_gpu, strict=True):
        for idle_end, rate in nearest[gpu].items():
            if idle_end not in gpus_of_end:
                idle[idle_end].append((end, rate))
    replacement, helped = dict[str, str](), Counter[str]()
    for idle_end, near in idle.items():
        end, rate = min(near, key=lambda candidate: helped[candidate[0]])
        helped[end] += 1
        width[end] += rate
        replacement[idle_end] = end
    return end_of_gpu, width, replacement


def _bandwidth_to_ends(graph: Links, gpu: str, ends: set[str]) -> dict[str, float]:
    """Bandwidth in bytes/s from a GPU to each of its nearest ends (adapters), by end, on the widest of the
    shortest paths."""
    border, seen = {gpu: inf}, {gpu}
    while border:
        if reached := {end: rate for end, rate in border.items() if end in ends}:
            return reached
        farther: dict[str, float] = {}
        for vertex, rate in border.items():
            through = vertex in graph and device_kind(vertex) != "nic"
            for neighbour, edge in graph[vertex].items() if through else ():
                if neighbour not in seen:
                    farther[neighbour] = max(farther.get(neighbour, 0.0), min(rate, edge["capacity"]))
        seen |= farther.keys()
        border = farther
    return {}


def _usual_latency(link: Link) -> float:
    """Default latency in seconds of a link. It is the usual latency of the link's kind from GPU to GPU, half
    of it between a device and a switch, 0 between switches and from an adapter to its node."""
    kinds = [device_kind(name) for name in link[:2]]
    if kinds.count("switch") == 2 or (within_node(link) and "nic" in kinds):
        return 0.0
    return parse_seconds(USUAL_LATENCY[link.kind]) / (2 if "switch" in kinds else 1)


_INSIDE = (("nvlink", "nvswitch", "xgmi"), ("pcie", "shared-memory"))
"""Media inside a node, from the GPUs outwards."""
_NAMES = "GPUs are named like `node0.gpu0`"


@lru_cache(maxsize=8)
def fabric_of_lines(lines: tuple[str, ...]) -> Fabric:
    """Build the fabric (link levels of a cluster) from the lines of a cluster file's `graph`. Raises
    InputError with every problem."""
    links, problems = read_lines(lines)
    if problems:
        raise InputError("the graph of links cannot be read", problems=first_few(problems))
    return fabric_of_links(links, "graph")


def fabric_of_links(links: Sequence[Link], source: str) -> Fabric:
    """Build the fabric (link levels of a cluster) from a list of links; `source` is the file's name.

    Raises:
        InputError: a link is said twice, nodes have different numbers of GPUs, or GPUs are not connected.
    """
    gpus = sorted({name for link in links for name in link[:2] if device_kind(name) == "gpu"}, key=natural)
    gpus_of_node = Counter(map(node_of, gpus))
    places = {node_of(name): link.where for link in reversed(links) for name in link[:2]}
    cluster = _Cluster(links=links, source=source, gpus=gpus, nodes=list(gpus_of_node), places=places)
    if not 0 < len(gpus) <= MOST_DEVICES:
        size_error = f"it has {len(gpus):,} GPUs; {MOST_DEVICES:,} are the most"
        cluster.refuse([Problem(source, size_error if gpus else "no device of it is a GPU")], _NAMES)
    seen: dict[tuple[frozenset[str], float], Link] = {}
    firsts = [(link, seen.setdefault((frozenset(link[:2]), link.bandwidth), link)) for link in links]
    twice = [(link, f"is said twice, first at {first.where}") for link, first in firsts if first is not link]
    problems = [Problem(link.where, f"`{link.one}` -- `{link.other}` {what}") for link, what in twice]
    cluster.refuse(problems, "parallel cables are one line with their number (`x2`, or a column `count`)")
    usual_number = most_common(gpus_of_node.values())
    odd = {node: f"{node} has {counted(n, 'GPU')}" for node, n in gpus_of_node.items() if n != usual_number}
    unequal = [Problem(places[node], f"{has}, other nodes have {usual_number}") for node, has in odd.items()]
    cluster.refuse(unequal, "every node of a cluster has as many GPUs; leave the others out")
    cables = [link for link in links if not within_node(link)]
    levels = [*cluster.node_levels(), *(cluster.network_levels(cables) if len(gpus_of_node) > 1 else ())]
    adapters = {name for link in cables for name in link[:2] if device_kind(name) == "nic"}
    strangers = sum(node_of(name) not in gpus_of_node for name in adapters)
    notes = (f"{counted(strangers, 'adapter')} of hosts without GPUs left out",) if strangers else ()
    odd_words = tuple(odd_links(links, levels, cluster.nodes))
    return Fabric(tuple(gpus_of_node), tuple(gpus), tuple(levels), odd=odd_words, notes=notes)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cluster:
    """Links, GPUs and nodes of a cluster from which a fabric's levels are built."""

    links: Sequence[Link]
    source: str
    gpus: Sequence[str]
    nodes: Sequence[str]
    places: Mapping[str, str]
    """Line of the first link of each node, by node."""

    def refuse_nodes(self, nodes: Iterable[str], complaint: str, hint: str) -> None:
        """Raise InputError if `nodes` is not empty; each node's problem reads "NODE `complaint`"."""
        self.refuse([Problem(self.places[node], f"{node} {complaint}") for node in nodes], hint)

    def refuse(self, problems: Sequence[Problem], hint: str) -> None:
        """Raise InputError with the problems of a file of links, if there are any."""
        if listed := first_few(problems):
            raise InputError(f"{self.source} is no graph of a cluster", problems=listed, hint=hint)

    @property
    def node(self) -> Ints:
        """Index of each GPU's node, (GPUs,)."""
        return np.arange(len(self.gpus)) // (len(self.gpus) // len(self.nodes))

    def node_levels(self) -> list[FabricLevel]:
        """Build the levels inside the nodes, medium by medium, until all GPUs of each node are joined."""
        themselves, first_gpu = np.arange(len(self.gpus)), np.searchsorted(self.node, self.node)
        if len(self.gpus) == len(self.nodes):
            return [self._single_gpu_level(themselves)]
        inner = themselves
        levels: list[FabricLevel] = []
        for kinds in _INSIDE:
            links = [link for link in self.links if link.kind in kinds and within_node(link)]
            tiers = tiers_of(graph_of(links), [[gpu] for gpu in self.gpus], dict.fromkeys(self.gpus, inf))
            is_node = [bool((tier.domain == first_gpu).all()) for tier in tiers]
            names = ["node" if joined else f"group{at or ''}" for at, joined in enumerate(is_node)]
            levels += self._levels(dict(zip(names, tiers, strict=True)), links, self.gpus, themselves, inner)
            inner = levels[-1].domain if levels else inner
            if levels and levels[-1].name == "node":
                return levels
        split_nodes = dict.fromkeys(self.nodes[at] for at in self.node[inner != first_gpu].tolist())
        hint = "say their links: `node[0-3].gpu[0-7] -- node[0-3].nvswitch 450 GB/s`"
        self.refuse_nodes(split_nodes, "has GPUs that are not connected inside it", hint)
        return levels

    def _single_gpu_level(self, gpus: Ints) -> FabricLevel:
        """Build the node level of a cluster with one GPU per node, at the rate of the widest link of any GPU."""
        links = [link for link in self.links if "gpu" in map(device_kind, link[:2])]
        widest = max(links, key=lambda link: link.bandwidth)
        kind = widest.kind if within_node(widest) else "pcie"
        seconds, none = parse_seconds(USUAL_LATENCY[kind]), np.full(len(gpus), -1)
        return FabricLevel(
            name="node", kind=kind, network=False, opens=True, bandwidth=widest.bandwidth, latency=seconds, sharers=1,
            inner=gpus, domain=gpus, top=gpus, end=gpus, bundle=none, capacity=np.zeros(0), cables=(),
            seconds=np.full(len(gpus), seconds),
        )  # fmt: skip

    def network_levels(self, cables: Sequence[Link]) -> list[FabricLevel]:
        """Build the levels between nodes. The ends of these levels are adapters with a cable, or GPUs cabled
        directly."""
        by_node, other_devices = {node: list[str]() for node in self.nodes}, list[str]()
        devices = sorted({name for link in cables for name in link[:2]}, key=natural)
        for name in devices:
            by_node.get(node_of(name), other_devices).append(name)
        lonely = [node for node, names in by_node.items() if not names]
        hint = "link its adapters: `node0.nic0 -- leaf0 400 Gb/s`"
        self.refuse_nodes(lonely, "has no cable to a switch or another node", hint)
        inside = graph_of(filter(within_node, self.links))
        end_of_gpu, arriving, replacement = assign_adapters(inside, self.gpus, by_node)
        end_beside = dict(zip(devices, devices, strict=True)) | replacement
        cables = [link._replace(one=end_beside[link.one], other=end_beside[link.other]) for link in cables]
        number = {name: at for at, name in enumerate(arriving)}
        end = np.array([number[name] for name in end_of_gpu])
        units = [[name for name in by_node[node] if name in arriving] for node in self.nodes]
        switches = [name for name in other_devices if device_kind(name) == "switch"]
        tiers = tiers_of(graph_of(cables).subgraph({*arriving, *switches}), units, arriving)
        parts = np.unique(tiers[-1].domain if tiers else range(len(self.nodes)))
        if len(parts) > 1:
            first = " and ".join(f"`{self.nodes[at]}`" for at in parts[:8])
            last = self.nodes[parts[-1]]
            message = f"{last} is not connected with all others: {len(parts)} parts, those of {first}"
            self.refuse([Problem(self.places[last], message)], "a cable or a switch between them is missing")
        tier_of_name: dict[str, Tier] = {}
        for at, tier in enumerate(tiers, start=1):
            stems = {"".join(filter(str.isalpha, name.rpartition(".")[2])) for name in tier.switches}
            name = stems.pop() if len(stems) == 1 else "network"
            tier_of_name[f"{name}{at}" if name in tier_of_name else name] = tier
        return self._levels(tier_of_name, cables, list(arriving), end, self.node)

    def _levels(
        self, tiers: Mapping[str, Tier], links: Sequence[Link], ends: Sequence[str], end: Ints, inner: Ints
    ) -> list[FabricLevel]:
        """Build the fabric levels of one medium (such as PCIe) above the groups `inner` of GPUs that another
        medium joins. `end` is the index into `ends` of the end by which each GPU uses the medium, (GPUs,)."""
        network = any(not within_node(link) for link in links)
        unit = self.node if network else np.arange(len(self.gpus))
        levels: list[FabricLevel] = []
        sharers = most_common(np.unique(end, return_counts=True)[1].tolist()) if network else 1
        for name, tier in tiers.items():
            domain_of_gpu = tier.domain[unit]
            domains, nested = len(np.unique(inner)), len(_pairs(inner, domain_of_gpu)[0])
            if not nested == domains > len(np.unique(domain_of_gpu)):
                continue  # it joins nothing that another medium has not
            bundles = list(dict.fromkeys(bundle for bundle in tier.bundles.values() if bundle is not None))
            number: dict[Bundle | None, int] = {None: -1} | {bundle: at for at, bundle in enumerate(bundles)}
            bundle = np.array([number[tier.bundles[one]] for one in ends], dtype=np.int64)
            capacity = np.array([one.capacity for one in bundles])
            seconds = 2 * np.array([tier.seconds[one] for one in ends])
            inside, lower = _pairs(inner, tier.inner[unit])
            out = np.bincount(inside, [tier.cuts[one] for one in lower.tolist()], len(inner))
            inside, passed = _pairs(inner, bundle[end])
            carried = np.bincount(inside, np.append(capacity, 0.0)[passed], len(inner))
            widest = levels[-1].bandwidth if levels else inf
            rates = (np.minimum(out, carried)[inner] / np.bincount(inner)[inner]).tolist()
            of_gpus = {"inner": inner, "domain": domain_of_gpu, "top": domain_of_gpu, "end": end}
            level = FabricLevel(
                name=name,
                kind=Counter(link.kind for link in links).most_common(1)[0][0],
                network=network,
                opens=not levels,
                bandwidth=most_common(rounded(min(rate, widest), _DIGITS) for rate in rates if rate),
                latency=most_common(rounded(one, _DIGITS) for one in seconds.tolist()),
                sharers=1 if levels else sharers,
                **of_gpus,
                bundle=bundle,
                capacity=capacity,
                cables=tuple(one.cables for one in bundles),
                seconds=seconds,
            )
            levels.append(level)
            inner = domain_of_gpu
        return [replace(level, top=inner) for level in levels]


def _pairs(first: Ints, second: Ints) -> tuple[Ints, Ints]:
    """Distinct pairs (first, second) of the elements of two arrays (N,), sorted, as two arrays."""
    pairs = np.unique(np.stack((first, second)), axis=1)
    return pairs[0], pairs[1]
