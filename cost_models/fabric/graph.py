"""Links as a graph, and by which adapter the data of a GPU leaves its node: the nearest, of several the least used."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from math import inf
from typing import TYPE_CHECKING

from cost_models.discovery.links import USUAL_LATENCY
from cost_models.specs.graph import Link, device_kind, natural, node_of
from cost_models.units import parse_seconds

if TYPE_CHECKING:
    import networkx

    Links = networkx.Graph[str]


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


def nearest(
    inside: Links, gpus: Sequence[str], ends: Mapping[str, Sequence[str]]
) -> tuple[list[str], dict[str, float], dict[str, str]]:
    """Assign each GPU the network adapter that the fewest links separate from the GPU. Returns for each GPU the
    end (adapter) that is the fewest links away, of several one with the fewest GPUs; bytes/s that come to each
    end in use; and idle adapter → the end in use that it stands beside, where a GPU has several adapters.

    Where nobody says how the GPUs of a node reach its adapters, these are dealt out in order.
    """
    end_of_gpu: list[str] = []
    gpus_of_end, width = Counter[str](), dict[str, float]()
    nearest: dict[str, dict[str, float]] = {}
    per_node = len(gpus) // len(ends)
    for at, gpu in enumerate(gpus):
        node_ends = ends[node_of(gpu)]
        first, last = (turn * len(node_ends) // per_node for turn in (at % per_node, at % per_node + 1))
        dealt = node_ends[first : max(last, first + 1)]
        nearest[gpu] = _reached(inside, gpu, set(node_ends)) or dict.fromkeys(dealt, inf)
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


def _reached(graph: Links, gpu: str, ends: set[str]) -> dict[str, float]:
    """Map the endpoints nearest to a GPU to the bandwidth of the widest shortest path to each, bytes/s."""
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
    """Default latency of a link in seconds for the kind of link. Between two ends that from GPU to GPU, half of
    it from an end to a switch, else 0."""
    kinds = [device_kind(name) for name in link[:2]]
    if kinds.count("switch") == 2 or (within_node(link) and "nic" in kinds):
        return 0.0
    return parse_seconds(USUAL_LATENCY[link.kind]) / (2 if "switch" in kinds else 1)
