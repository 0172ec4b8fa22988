"""The links of a cluster as a graph: GPUs, adapters and switches, with the bandwidth of every edge.

Prices are arithmetic over levels; the graph is what that arithmetic must agree with (max-flow out of every domain), and
what pictures show.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from cost_models.communication.levels import Level, levels_of
from cost_models.specs.cluster import ClusterSpec

if TYPE_CHECKING:
    import networkx


def link_graph(cluster: ClusterSpec, gpus: Iterable[int] | None = None) -> networkx.Graph[str]:
    """All links of some GPUs (default: of all) up to where these meet.

    Vertices have `kind` (gpu, adapter, switch), `level`, the index of theirs, and `index`, their number from the left.
    Edges have `level`, `bandwidth` (bytes/s, one direction) and `latency`: those from a GPU up to the
    switch where a path turns and down again sum to the latency of that level.
    """
    import networkx

    graph: networkx.Graph[str] = networkx.Graph(name=cluster.name)
    levels = levels_of(cluster)
    for gpu in range(cluster.num_gpus) if gpus is None else gpus:
        graph.add_node(f"gpu{gpu}", kind="gpu", level=-1, index=gpu)
        for at, level in enumerate(levels):
            inner = None if level.opens else levels[at - 1]
            switch = _switch(levels[at], gpu)
            graph.add_node(switch, kind="switch", level=at, index=_domain(level, gpu))
            half = (level.latency - (inner.latency if inner else 0.0)) / 2
            if inner is None:
                _plug(graph, gpu, switch, at, level, half)
            else:
                size = min(inner.gpus or cluster.num_gpus, cluster.num_gpus)
                below = _switch(inner, gpu)
                graph.add_edge(below, switch, level=at, bandwidth=size * level.bandwidth, latency=half)
    return graph


def _plug(graph: networkx.Graph[str], gpu: int, switch: str, at: int, level: Level, latency: float) -> None:
    """A GPU's own link to the nearest switch of a medium, or the adapter that it shares; the network has adapters."""
    sharers = level.sharers or 1
    bandwidth = sharers * level.bandwidth
    if not level.network and sharers == 1:
        graph.add_edge(f"gpu{gpu}", switch, level=at, bandwidth=bandwidth, latency=latency)
        return
    adapter = f"{level.name}.adapter{gpu // sharers}"
    graph.add_node(adapter, kind="adapter", level=at, index=gpu // sharers)
    graph.add_edge(adapter, switch, level=at, bandwidth=bandwidth, latency=latency)
    graph.add_edge(f"gpu{gpu}", adapter, level=at, bandwidth=bandwidth, latency=0.0)


def _domain(level: Level, gpu: int) -> int:
    """Which domain of the level a GPU is in."""
    return 0 if level.gpus is None else gpu // level.gpus


def _switch(level: Level, gpu: int) -> str:
    return f"{level.name}{_domain(level, gpu)}"
