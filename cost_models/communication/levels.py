"""The levels of a cluster's links, from the GPUs outwards: node and network, leaf switches and spine.

A level joins the domains of the level inside it (a GPU, a node, the nodes under a leaf switch) to one of its own. Its
`bandwidth` is what one GPU has on the way out of the inner domain while all GPUs of that domain send.

Levels of one medium are a tree: what goes to the spine passes the leaf. Where the medium changes, a GPU has another way
out: what goes to the network does not pass the links between the node's own GPUs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from cost_models.specs.cluster import ClusterSpec
from cost_models.specs.links import LevelSpec, LinkLevels, LinkSpec


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


def levels_of(cluster: ClusterSpec) -> tuple[Level, ...]:
    """From the inside out; the last joins all GPUs of the cluster."""
    if isinstance(cluster.links, LinkLevels):
        return _described(cluster.links, cluster.gpus_per_node)
    between, leaf = cluster.links.inter_node, cluster.nodes_per_leaf
    node = _level("node", cluster.links.intra_node, cluster.gpus_per_node)
    if between is None:
        return (node,)
    sharers = max(1, cluster.gpus_per_node // (cluster.rails or cluster.gpus_per_node))
    each: int | None = None
    farther: tuple[Level, ...] = ()
    name = ""
    if cluster.buildings is not None:
        each, name = cluster.buildings.nodes * cluster.gpus_per_node, "building"
        farther = (_level("campus", cluster.buildings.link, None, network=True, opens=False),)
    if cluster.oversubscription == 1:
        return node, _level(name or "network", between, each, network=True, sharers=sharers), *farther
    # leaves that nobody described hold one node each, so that none escapes the spine
    below = _level("leaf", between, cluster.gpus_per_node * (leaf or 1), network=True, sharers=sharers)
    spine = between.faster(1.0 / cluster.oversubscription)
    return node, below, _level(name or "spine", spine, each, network=True, opens=False), *farther


def _described(links: LinkLevels, gpus_per_node: int) -> tuple[Level, ...]:
    """Levels as they are written."""
    return tuple(
        _level(
            one.name,
            one,
            one.gpus or (one.nodes and one.nodes * gpus_per_node),
            network=one in links.network,
            opens=links.opens(at),
            sharers=one.sharers or 1,
        )
        for at, one in enumerate(links.root)
    )


def _level(
    name: str,
    link: LinkSpec,
    gpus: int | None,
    *,
    network: bool = False,
    opens: bool = True,
    sharers: int = 1,
) -> Level:
    return Level(
        name=name,
        kind=link.kind,
        gpus=gpus,
        bandwidth=link.bandwidth,
        latency=link.latency,
        sharers=sharers if opens else None,
        network=network,
        opens=opens,
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
