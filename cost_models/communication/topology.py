"""Where the ranks of every parallel group sit in a cluster, and so which links the group has.

Global rank = ((pp_rank · dp + dp_rank) · cp + cp_rank) · tp + tp_rank, and ranks fill nodes in order: a
tensor-parallel group is tp neighbours, a context-parallel group has stride tp, a data-parallel group stride
cp · tp, a pipeline stride dp · cp · tp. Gradients are summed over context and data together, dp · cp ranks of
stride tp; hybrid sharding cuts these into runs of `shard` ranks.

Of the tp · cp · dp ranks of a stage the experts of a mixture take their own order: etp neighbours share an expert,
ep groups of stride etp trade tokens, and what remains, of stride etp · ep, holds the same experts.

This is the order of Megatron (megatron/core/parallel_state.py, "tp-cp-ep-dp-pp").
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from cost_models.specs.cluster import ClusterSpec
from cost_models.specs.columns import Ints, LayoutColumns

if TYPE_CHECKING:
    import networkx

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Groups:
    """The groups of one axis: columns (N,) of the least favourable group; bytes/s and seconds."""

    size: Ints
    ranks_per_node: Ints
    """Members that any node of the group holds at least."""
    nodes: Ints
    """Nodes the group spans at most."""
    meets_inside: npt.NDArray[np.bool_]
    """Neighbours in the group may share a node, so a ring meets the node's links."""
    intra_bandwidth: Array
    """Of one rank, inside its node."""
    inter_bandwidth: Array
    """Of all members in one node together, out of it: their share of the node's network."""
    intra_latency: Array
    inter_latency: Array

    @property
    def crosses_nodes(self) -> npt.NDArray[np.bool_]:
        """(N,): some members are on other nodes than others."""
        return self.nodes > 1

    @property
    def bandwidth(self) -> Array:
        """(N,) bytes/s of the slowest link that a ring through the group meets."""
        return self.ring_bandwidth(1.0, 1.0)

    def ring_bandwidth(self, link_efficiency: float, network_efficiency: float) -> Array:
        """(N,) bytes/s of the slowest link, each class at the share of it that collectives reach."""
        inside = np.where(self.meets_inside, self.intra_bandwidth * link_efficiency, np.inf)
        across = np.where(self.crosses_nodes, self.inter_bandwidth * network_efficiency, np.inf)
        return np.minimum(inside, across)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaGroups:
    """The ranks that hold the same parameters, and how hybrid sharding cuts them up."""

    every: Groups
    """All of them: gradients are summed over these."""
    shard: Groups
    """Those that ZeRO shards over."""
    copies: Groups
    """Those that hold the same shard; of size 1 where ZeRO shards over all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AxisGroups:
    """Groups of the mesh axes; consecutive members of a `pp` group exchange stage boundaries."""

    tp: Groups
    cp: Groups
    pp: Groups
    data: ReplicaGroups
    """Over data and context parallelism together."""
    ep: Groups
    """Ranks that hold different experts of one block and trade tokens for them."""
    etp: Groups
    """Ranks that hold parts of the same experts."""
    experts: ReplicaGroups
    """Ranks that hold the same experts."""

    @property
    def dp(self) -> Groups:
        """The ranks whose gradients are summed: dp × cp of them."""
        return self.data.every


def axis_groups(cluster: ClusterSpec, columns: LayoutColumns) -> AxisGroups:
    """The links of every parallel group of N layouts at once.

    Layouts must fit the cluster: on a cluster of one node none may be larger than it.
    """
    ones = np.ones(len(columns), dtype=np.int64)
    world, replicas = columns.ranks, columns.replicas
    tp = _groups(cluster, columns.tp, ones, world)
    data = _replica_groups(cluster, replicas, columns.tp, columns.shard, world)
    etp, experts = tp, data  # as the rest, unless there are degrees of their own
    if ((columns.ep > 1) | (columns.etp != columns.tp)).any():
        etp = _groups(cluster, columns.etp, ones, world)
        stride, copies = columns.etp * columns.ep, columns.expert_replicas
        experts = _replica_groups(cluster, copies, stride, columns.expert_shard, world)
    return AxisGroups(
        tp=tp,
        cp=_groups(cluster, columns.cp, columns.tp, world),
        pp=_groups(cluster, columns.pp, columns.tp * replicas, world),
        data=data,
        ep=_groups(cluster, columns.ep, columns.etp, world),
        etp=etp,
        experts=experts,
    )


def _replica_groups(
    cluster: ClusterSpec, size: Ints, stride: Ints, shard: Ints, world: Ints
) -> ReplicaGroups:
    """Groups of `size` ranks, and their runs of `shard`."""
    every = _groups(cluster, size, stride, world)
    if (shard == size).all():
        ones = np.ones(len(size), dtype=np.int64)
        return ReplicaGroups(every=every, shard=every, copies=_groups(cluster, ones, ones, world))
    return ReplicaGroups(
        every=every,
        shard=_groups(cluster, shard, stride, world),
        copies=_groups(cluster, size // shard, stride * shard, world),
    )


def _groups(cluster: ClusterSpec, size: Ints, stride: Ints, world: Ints) -> Groups:
    """Groups of `size` ranks, `stride` apart, among `world` ranks."""
    ranks_per_node, nodes = _packing(size, stride, cluster.gpus_per_node, world)
    intra = cluster.links.intra_node
    inter = cluster.links.inter_node
    if inter is None:
        assert (nodes == 1).all(), f"a layout has more ranks than the one node of {cluster.name}"
        inter = intra  # never met
    _, leaves = _packing(size, stride, cluster.gpus_per_node * _nodes_per_leaf(cluster), world)
    fraction: Array = np.where(leaves > 1, 1.0 / cluster.oversubscription, 1.0)
    everywhere = np.ones(len(size))
    return Groups(
        size=size,
        ranks_per_node=ranks_per_node,
        nodes=nodes,
        meets_inside=(nodes == 1) | (stride < cluster.gpus_per_node),
        intra_bandwidth=intra.bandwidth * everywhere,
        inter_bandwidth=inter.bandwidth * fraction * ranks_per_node,
        intra_latency=intra.latency * everywhere,
        inter_latency=inter.latency * everywhere,
    )


def _nodes_per_leaf(cluster: ClusterSpec) -> int:
    """Leaves nobody described hold one node each where the spine is slower, so that none escapes it."""
    return cluster.nodes_per_leaf or (1 if cluster.oversubscription > 1 else cluster.nodes)


def _packing(size: Ints, stride: Ints, capacity: int, world: Ints) -> tuple[Ints, Ints]:
    """Members that each node of a group holds at least, nodes it spans at most; a node has `capacity` ranks.

    Where the stride divides the node, a node has `slots` = capacity / stride places for a group, and groups
    lie end to end along these places. A node border then cuts a group at a multiple of gcd(size, slots),
    which is all of it when the two divide evenly. Where the stride does not divide the node, one member to
    a node is the least there can be.
    """
    slots = np.where(capacity % stride == 0, capacity // stride, 1)
    together = np.gcd(size, slots)
    spanned = 1 - (together - size) // slots  # 1 + ceil((size − together) / slots)
    fits = world <= capacity
    return np.where(fits, size, together), np.where(fits, 1, spanned)


def topology_graph(cluster: ClusterSpec, max_nodes: int = 16) -> networkx.Graph[str]:
    """The first `max_nodes` nodes as a graph: GPUs, node switches, network adapters, leaves, spine.

    Vertices have `kind` and, inside a node, `node`; edges have `bandwidth` (bytes/s, one direction) and
    `latency` (seconds), half a link's latency on each side of a switch. For display and tests: pricing is
    arithmetic.
    """
    import networkx

    graph: networkx.Graph[str] = networkx.Graph(name=cluster.name)
    for node in range(min(cluster.nodes, max_nodes)):
        _add_node(graph, cluster, node)
    leaves = [vertex for vertex, data in graph.nodes(data=True) if data["kind"] == "leaf"]
    inter = cluster.links.inter_node
    if inter is not None and len(leaves) > 1:
        graph.add_node("spine", kind="spine")
        node_bandwidth = cluster.gpus_per_node * inter.bandwidth
        uplink = _nodes_per_leaf(cluster) * node_bandwidth / cluster.oversubscription
        for leaf in leaves:
            graph.add_edge(leaf, "spine", bandwidth=uplink, latency=inter.latency / 2)
    return graph


def _add_node(graph: networkx.Graph[str], cluster: ClusterSpec, node: int) -> None:
    """One node's GPUs around its switch, and its adapters to the leaf, each serving its share of the GPUs."""
    intra, inter = cluster.links.intra_node, cluster.links.inter_node
    switch = f"node{node}"
    graph.add_node(switch, kind="switch", node=node)
    gpus = [f"{switch}.gpu{index}" for index in range(cluster.gpus_per_node)]
    for gpu in gpus:
        graph.add_node(gpu, kind="gpu", node=node)
        graph.add_edge(gpu, switch, bandwidth=intra.bandwidth, latency=intra.latency / 2)
    if inter is None:
        return
    rails = cluster.rails or cluster.gpus_per_node
    leaf = f"leaf{node // _nodes_per_leaf(cluster)}"
    graph.add_node(leaf, kind="leaf")
    bandwidth = inter.bandwidth * len(gpus) / rails
    for rail in range(rails):
        graph.add_node(f"{switch}.nic{rail}", kind="adapter", node=node)
        graph.add_edge(f"{switch}.nic{rail}", leaf, bandwidth=bandwidth, latency=inter.latency / 2)
    for index, gpu in enumerate(gpus):
        first = index * rails // len(gpus)
        for rail in range(first, max(first + 1, (index + 1) * rails // len(gpus))):
            graph.add_edge(gpu, f"{switch}.nic{rail}", bandwidth=bandwidth, latency=0.0)
