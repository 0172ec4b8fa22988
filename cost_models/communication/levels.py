"""The levels of a cluster's links, from the GPUs outwards: node and network, leaf switches and spine.

A level joins the domains of the level inside it (a GPU, a node, the nodes under a leaf switch) to one of its own. Its
`bandwidth` is what one GPU has on the way out of the inner domain while all GPUs of that domain send.

Levels of one medium are a tree: what goes to the spine passes the leaf. Where the medium changes, a GPU has another way
out: what goes to the network does not pass the links between the node's own GPUs.

Prices are arithmetic over levels. `link_graph` has GPUs, adapters and switches one by one: pictures show it, and tests
compare the arithmetic with the maximum flow out of every domain.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cost_models.specs.cluster import ClusterSpec, LevelSpec, LinkLevels, LinkSpec

if TYPE_CHECKING:
    import networkx


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """The links of one level."""

    name: str
    kind: str
    gpus: int | None
    """GPUs of one of its domains, neighbours in rank; None: it joins all."""
    bandwidth: float
    """Bytes/s of one GPU, one direction."""
    latency: float
    """Seconds of one hop."""
    sharers: int | None
    """GPUs that share one link, which each has alone when the others send nothing on it; None: the inner domain."""
    network: bool
    """Between nodes."""
    opens: bool
    """The level nearest the GPUs of its medium: they are plugged into it, not its switches."""
    mesh: bool = False
    """Whether the bandwidth is the sum of one link to each other GPU of the domain."""


def levels_of(cluster: ClusterSpec) -> tuple[Level, ...]:
    """From the inside out; the last joins all GPUs of the cluster."""
    if isinstance(cluster.links, LinkLevels):  # levels as they are written
        return tuple(
            link_level(
                one.name,
                one,
                one.gpus or (one.nodes and one.nodes * cluster.gpus_per_node),
                network=one in cluster.links.network,
                opens=cluster.links.opens(at),
                sharers=one.sharers or 1,
            )
            for at, one in enumerate(cluster.links.root)
        )
    between, leaf = cluster.links.inter_node, cluster.nodes_per_leaf
    node = link_level("node", cluster.links.intra_node, cluster.gpus_per_node)
    if between is None:
        return (node,)
    sharers = max(1, cluster.gpus_per_node // (cluster.rails or cluster.gpus_per_node))
    each: int | None = None
    farther: tuple[Level, ...] = ()
    name = ""
    if cluster.buildings is not None:
        each, name = cluster.buildings.nodes * cluster.gpus_per_node, "building"
        farther = (link_level("campus", cluster.buildings.link, None, network=True, opens=False),)
    if cluster.oversubscription == 1:
        return node, link_level(name or "network", between, each, network=True, sharers=sharers), *farther
    # leaves that nobody described hold one node each, so that none escapes the spine
    below = link_level("leaf", between, cluster.gpus_per_node * (leaf or 1), network=True, sharers=sharers)
    spine = between.faster(1.0 / cluster.oversubscription)
    return node, below, link_level(name or "spine", spine, each, network=True, opens=False), *farther


def link_level(
    name: str,
    link: LinkSpec,
    gpus: int | None,
    *,
    network: bool = False,
    opens: bool = True,
    sharers: int = 1,
) -> Level:
    """Level with the rates of a link that joins domains of `gpus` GPUs (None: all)."""
    return Level(
        name=name,
        kind=link.kind,
        gpus=gpus,
        bandwidth=link.bandwidth,
        latency=link.latency,
        sharers=sharers if opens else None,
        network=network,
        opens=opens,
        mesh=link.mesh,
    )


def met_levels(cluster: ClusterSpec) -> tuple[Level, ...]:
    """The levels that the cluster's GPUs meet: those up to the first that holds all of them."""
    levels = levels_of(cluster)
    enough = (at for at, level in enumerate(levels) if (level.gpus or cluster.num_gpus) >= cluster.num_gpus)
    return levels[: next(enough, len(levels) - 1) + 1]


def only(cluster: ClusterSpec, at: int) -> ClusterSpec:
    """The cluster where only the links of one level take time, and these no latency."""
    levels = levels_of(cluster)
    root = tuple(
        LevelSpec.model_construct(
            name=level.name,
            kind=level.kind,
            bandwidth=level.bandwidth if index == at else math.inf,
            latency=0.0,
            gpus=None if level.network or level.gpus == cluster.gpus_per_node else level.gpus,
            nodes=level.gpus and (level.gpus // cluster.gpus_per_node or None),
            sharers=level.sharers,
            mesh=level.mesh,
        )
        for index, level in enumerate(levels)
    )
    update = {
        "links": LinkLevels.model_construct(root),
        "oversubscription": 1.0,
        "nodes_per_leaf": None,
        "buildings": None,
    }
    return cluster.model_copy(update=update)


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
    """Index of the level's domain that holds a GPU."""
    return 0 if level.gpus is None else gpu // level.gpus


def _switch(level: Level, gpu: int) -> str:
    return f"{level.name}{_domain(level, gpu)}"
