"""Where the ranks of every parallel group sit in a cluster, and so which links the group has.

Ranks fill nodes in order. A layout's `order` names the mesh axes from neighbouring ranks outwards; the default is
Megatron's (megatron/core/parallel_state.py, "tp-cp-ep-dp-pp"):

    rank = ((pp_rank · dp + dp_rank) · cp + cp_rank) · tp + tp_rank

A tensor-parallel group is tp neighbours in any order; the groups of another axis have the stride of what lies inside
it. Gradients are summed over context and data together, dp · cp ranks; hybrid sharding cuts these, counted in order of
rank, into runs of `shard` ranks. Where the pipeline lies between context and data they are several runs.

Of the tp · cp · dp ranks of a stage, counted in order of rank, the experts of a mixture take their own: etp neighbours
share an expert, ep groups of stride etp trade tokens, and what remains, of stride etp · ep, holds the same experts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from cost_models.axes.columns import Ints, LayoutColumns
from cost_models.axes.distinct import over_distinct
from cost_models.axes.order import ranks_inside
from cost_models.communication.packing import Runs, packing, runs_of_stage
from cost_models.specs.cluster import ClusterSpec

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
class MeshGroups:
    """Ranks that work on one microbatch; consecutive members of a `pp` group exchange stage boundaries."""

    tp: Groups
    cp: Groups
    pp: Groups
    ep: Groups
    """Ranks that hold different experts of one block and trade tokens for them."""
    etp: Groups
    """Ranks that hold parts of the same experts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AxisGroups(MeshGroups):
    """Groups of all axes, with the ranks that hold the same parameters."""

    data: ReplicaGroups
    """Over data and context parallelism together."""
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
    names = ("tp", "cp", "pp", "dp", "ep", "etp", "shard", "order")
    return over_distinct(columns, names, lambda rows: _axis_groups(cluster, rows))


def _axis_groups(cluster: ClusterSpec, columns: LayoutColumns) -> AxisGroups:
    x, world = columns, columns.ranks
    seats = _Seats(cluster, columns)
    ones = np.ones(len(columns), dtype=np.int64)
    tp = seats.groups(x.tp, ones)
    data = seats.replicas(x.replicas, x.tp, x.shard)
    etp, experts = tp, data  # as the rest, unless there are degrees of their own
    if ((x.ep > 1) | (x.etp != x.tp)).any():
        etp = seats.groups(x.etp, ones)
        experts = seats.replicas(x.expert_replicas, x.etp * x.ep, x.expert_shard)

    def axis(name: str, degree: Ints) -> Groups:
        stride = ranks_inside(name, x.order, x.tp, x.cp, x.dp, x.pp)
        return _groups(cluster, Runs.single(degree, stride), world)

    return AxisGroups(
        tp=tp,
        cp=axis("cp", x.cp),
        pp=axis("pp", x.pp),
        data=data,
        ep=seats.groups(x.ep, x.etp),
        etp=etp,
        experts=experts,
    )


class _Seats:
    """The ranks of one stage, of N layouts at once."""

    def __init__(self, cluster: ClusterSpec, columns: LayoutColumns) -> None:
        x = columns
        self._cluster, self._world, self._stages = cluster, x.ranks, x.pp
        self._piece = ranks_inside("pp", x.order, x.tp, x.cp, x.dp, x.pp)

    def groups(self, size: Ints, stride: Ints) -> Groups:
        """Groups of `size` ranks, `stride` apart as the stage counts them."""
        runs = runs_of_stage(size, stride, self._piece, self._stages, self._world)
        return _groups(self._cluster, runs, self._world)

    def replicas(self, size: Ints, stride: Ints, shard: Ints) -> ReplicaGroups:
        """Groups of `size` ranks, and their runs of `shard`."""
        every = self.groups(size, stride)
        if (shard == size).all():
            ones = np.ones(len(size), dtype=np.int64)
            return ReplicaGroups(every=every, shard=every, copies=self.groups(ones, ones))
        return ReplicaGroups(
            every=every,
            shard=self.groups(shard, stride),
            copies=self.groups(size // shard, stride * shard),
        )


def _groups(cluster: ClusterSpec, runs: Runs, world: Ints) -> Groups:
    """The links of groups among `world` ranks."""
    ranks_per_node, nodes = packing(runs, cluster.gpus_per_node, world)
    intra = cluster.links.intra_node
    inter = cluster.links.inter_node
    if inter is None:
        assert (nodes == 1).all(), f"a layout has more ranks than the one node of {cluster.name}"
        inter = intra  # never met
    _, leaves = packing(runs, cluster.gpus_per_node * _nodes_per_leaf(cluster), world)
    fraction: Array = np.where(leaves > 1, 1.0 / cluster.oversubscription, 1.0)

    def everywhere(value: float) -> Array:
        return np.broadcast_to(np.float64(value), world.shape)

    return Groups(
        size=runs.size,
        ranks_per_node=ranks_per_node,
        nodes=nodes,
        meets_inside=(nodes == 1) | (runs.stride < cluster.gpus_per_node),
        intra_bandwidth=everywhere(intra.bandwidth),
        inter_bandwidth=inter.bandwidth * fraction * ranks_per_node,
        intra_latency=everywhere(intra.latency),
        inter_latency=everywhere(inter.latency),
    )


def _nodes_per_leaf(cluster: ClusterSpec) -> int:
    """Leaves nobody described hold one node each where the spine is slower, so that none escapes it."""
    return cluster.nodes_per_leaf or (1 if cluster.oversubscription > 1 else cluster.nodes)


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
