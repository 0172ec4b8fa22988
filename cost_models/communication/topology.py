"""Link levels of a cluster, and the links and bandwidth that the groups of ranks of each parallel axis use.

**Levels** are counted from the GPUs outwards: node and network, leaf switches and spine. A level joins the
domains of the level inside it (GPUs, nodes, the nodes under a leaf switch) into larger ones. Its `bandwidth`
is that of one GPU on the way out of the inner domain while all GPUs of that domain send.

Levels of one medium are a tree: traffic to the spine also passes the leaf. If the medium changes, a GPU has a
separate way out: traffic to the network does not pass the links between the node's own GPUs.

Prices are arithmetic over levels. `link_graph` has GPUs, adapters and switches one by one: tests compare the
arithmetic with the maximum flow out of every domain.

**Groups.** Ranks fill nodes in order. A layout's `order` names the mesh axes from neighbouring ranks
outwards; the default is Megatron's (megatron/core/parallel_state.py, "tp-cp-ep-dp-pp"):

    rank = ((pp_rank · dp + dp_rank) · cp + cp_rank) · tp + tp_rank

A tensor-parallel group is tp neighbours in any order; the stride of another axis's groups is the product of
the degrees inside it. Gradients are summed over context and data together, dp · cp ranks; hybrid sharding
cuts these, counted in order of rank, into runs of `shard` ranks. If the pipeline is between context and data
they are several runs.

Among the tp · cp · dp ranks of a stage, counted in order of rank, experts have separate groups: etp
neighbours share an expert, ep groups of stride etp exchange tokens, and the remaining factor, of stride etp ·
ep, holds the same experts.

This determines the members of a group on each node, the nodes that it spans, and the bandwidth that N groups
get on the links of a cluster with a graph (`cost_models.fabric`). A group is a run of ranks a stride apart,
or several equal runs an outer stride apart: if a pipeline is between the axes of a stage (`tp-cp-pp-dp`), the
ranks of one stage are such pieces, pp pieces apart.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from cost_models.arrays import Array, Bools, Ints
from cost_models.axes.columns import LayoutColumns, first_of_each, over_distinct
from cost_models.errors import InputError
from cost_models.fabric.fabric import FULL_SHARE, Share, shares
from cost_models.specs.cluster import ClusterSpec, LevelSpec, LinkLevels, LinkSpec
from cost_models.specs.hardware import HardwareProfile

if TYPE_CHECKING:
    import networkx

    from cost_models.fabric.fabric import Fabric


class Level(LevelSpec):
    """Links of one level of a cluster, such as NVLink in a node or the network. A domain of the level joins
    `gpus` neighbouring GPUs (None: all). `sharers` GPUs share a link, and each can use all of it while the
    others are silent (None: all GPUs of the inner domain)."""

    network: bool
    """Whether the links are between nodes."""
    opens: bool
    """Whether GPUs attach directly to the level, as the innermost level of its medium (NVLink or network)."""

    def efficiency(self, profile: HardwareProfile) -> float:
        """Fraction of the links' nominal bandwidth that collectives reach on the level."""
        return profile.network_efficiency if self.network else profile.link_efficiency


def levels_of(cluster: ClusterSpec) -> tuple[Level, ...]:
    """Link levels of a cluster, from the GPUs outwards; the last level joins all GPUs of the cluster."""
    links, per_node = cluster.links, cluster.gpus_per_node
    if isinstance(links, LinkLevels):  # levels as given in the file
        inside = len(links.inside)
        sizes = [one.gpus or (one.nodes and one.nodes * per_node) for one in links.root]
        return tuple(
            link_level(one.name, one, size, network=at >= inside, opens=links.opens(at), sharers=one.sharers)
            for at, (one, size) in enumerate(zip(links.root, sizes, strict=True))
        )
    node = link_level("node", links.intra_node, per_node, network=False)
    if links.inter_node is None:
        return (node,)
    levels, spreads = [node], cluster.oversubscription != 1
    name, building, farther = "spine" if spreads else "network", None, []
    if cluster.buildings is not None:
        name, building = "building", cluster.buildings.nodes * per_node
        farther = [link_level("campus", cluster.buildings.link, None, network=True, opens=False)]
    sharers = max(1, per_node // (cluster.rails or per_node))
    if spreads:  # undescribed leaves hold one node each, so all traffic passes the spine
        leaf = per_node * (cluster.nodes_per_leaf or 1)
        levels.append(link_level("leaf", links.inter_node, leaf, network=True, sharers=sharers))
    links_between = links.inter_node.faster(1.0 / cluster.oversubscription)
    levels.append(link_level(name, links_between, building, network=True, opens=not spreads, sharers=sharers))
    return (*levels, *farther)


def link_level(
    name: str,
    link: LinkSpec,
    gpus: int | None,
    *,
    network: bool,
    opens: bool = True,
    sharers: int | None = None,
) -> Level:
    """Create a link level that has domains of `gpus` GPUs (None: all) and the bandwidth and latency of
    `link`."""
    fields = dict(link) | {"name": name, "gpus": gpus, "nodes": None, "network": network, "opens": opens}
    return Level.model_construct(**fields | {"sharers": (sharers or 1) if opens else None})


def used_levels(cluster: ClusterSpec) -> tuple[Level, ...]:
    """Link levels that a cluster uses, from the GPUs outwards, up to the first that joins all its GPUs."""
    levels = levels_of(cluster)
    enough = (at for at, level in enumerate(levels) if (level.gpus or cluster.num_gpus) >= cluster.num_gpus)
    return levels[: next(enough, len(levels) - 1) + 1]


def with_one_level(cluster: ClusterSpec, at: int) -> ClusterSpec:
    """Copy of a cluster in which only the bandwidth of link level `at` costs time: all latencies are zero,
    all other bandwidths infinite."""
    levels, per_node = list[LevelSpec](), cluster.gpus_per_node
    for index, level in enumerate(levels_of(cluster)):
        gpus = None if level.network or level.gpus == per_node else level.gpus
        size = {"gpus": gpus, "nodes": level.gpus and (level.gpus // per_node or None)}
        speed = {"bandwidth": level.bandwidth if index == at else math.inf, "latency": 0.0}
        levels.append(level.model_copy(update=size | speed))
    return cluster.model_copy(update={"links": LinkLevels.model_construct((*levels,))})


def link_graph(cluster: ClusterSpec, gpus: Iterable[int] | None = None) -> networkx.Graph[str]:
    """Graph of GPUs, adapters and switches with all links of the GPUs `gpus` (None: all), up to the level
    that joins them.

    Vertices have `kind` (gpu, adapter, switch), `level`, its index, and `index`, their number from the left.
    Edges have `level`, `bandwidth` (bytes/s, one direction) and `latency`: those from a GPU up to the switch
    where a path turns and down again sum to the latency of that level.
    """
    import networkx

    graph: networkx.Graph[str] = networkx.Graph(name=cluster.name)
    levels = levels_of(cluster)
    for gpu in range(cluster.num_gpus) if gpus is None else gpus:
        graph.add_node(f"gpu{gpu}", kind="gpu", level=-1, index=gpu)
        domains = [0 if level.gpus is None else gpu // level.gpus for level in levels]
        switches = [f"{level.name}{domain}" for level, domain in zip(levels, domains, strict=True)]
        for at, (level, switch) in enumerate(zip(levels, switches, strict=True)):
            graph.add_node(switch, kind="switch", level=at, index=domains[at])
            device, size, latency = f"gpu{gpu}", level.sharers or 1, level.latency
            if not level.opens:  # the switch of the level inside, with all its GPUs
                inner = levels[at - 1]
                device, size = switches[at - 1], min(inner.gpus or cluster.num_gpus, cluster.num_gpus)
                latency -= inner.latency
            elif level.network or size > 1:  # GPUs have adapters on the network, or share them
                device = f"{level.name}.adapter{gpu // size}"
                graph.add_node(device, kind="adapter", level=at, index=gpu // size)
                graph.add_edge(f"gpu{gpu}", device, level=at, bandwidth=size * level.bandwidth, latency=0.0)
            graph.add_edge(device, switch, level=at, bandwidth=size * level.bandwidth, latency=latency / 2)
    return graph


class Runs(NamedTuple):
    """Ranks of N communication groups, described as equally spaced runs of ranks, (N,) each. A group is
    `pieces` runs of `length` ranks that are `stride` apart; the runs begin `outer` ranks apart."""

    length: Ints
    stride: Ints
    pieces: Ints
    outer: Ints


def runs_of_stage(size: Ints, stride: Ints, piece: Ints, stages: Ints, world: Ints) -> Runs:
    """Ranks of communication groups within one pipeline stage as `Runs`: each group as one or more runs of
    equally spaced ranks. Each group has `size` members that are `stride` apart in the numbering of the
    stage's ranks.

    A stage owns runs of `piece` neighbouring ranks, one in every piece · stages. Groups tile the stage's
    ranks. A group within a piece, or with equal parts of complete pieces, is represented exactly; for any
    other group only its shortest part is, and its parts are assumed to share no node (`outer` is the world).
    """
    inside = (piece * stages == world) | (piece % (stride * size) == 0)
    outside = ~inside & (stride % piece == 0)
    places = np.where(piece % stride == 0, piece // stride, 1)
    across = ~inside & ~outside & (piece % stride == 0) & (size % places == 0)
    part = np.where(inside | outside, size, np.gcd(size, places))
    stride, outer = np.where(outside, stride * stages, stride), np.where(across, piece * stages, world)
    return Runs(length=part, stride=stride, pieces=size // part, outer=outer)


def pack_runs(runs: Runs, capacity: int, world: Ints) -> tuple[Ints, Ints]:
    """Fewest members that a group has on a node, and most nodes that a group spans, (N,) each, if nodes have
    `capacity` ranks. Only nodes that the group touches count.

    Groups tile the world, so a piece that lies in one node is a slot for the groups outside: what holds for single runs
    (`_pack_single_runs`) holds for the pieces of a group. Where a node border cuts the pieces, they share no node.
    """
    members, nodes = _pack_single_runs(runs.length, runs.stride, capacity)
    if (runs.pieces > 1).any():
        pieces_held, pieces_spanned = _pack_single_runs(runs.pieces, runs.outer, capacity)
        aligned = capacity % runs.outer == 0  # pieces are aligned to the outer stride, and so in one node
        several = runs.pieces > 1
        members = np.where(several & aligned, runs.length * pieces_held, members)
        nodes = np.where(several, np.where(aligned, pieces_spanned, nodes * runs.pieces), nodes)
    fits = world <= capacity
    return np.where(fits, runs.length * runs.pieces, members), np.where(fits, 1, nodes)


def crosses_border(runs: Runs, inner: int, outer: int, world: Ints) -> Bools:
    """Whether neighbours in a group can be in two inner domains of one outer domain, (N,). Inner domains have
    `inner` ranks, outer domains `outer` ranks.

    Neighbours in a run are if a border of an inner domain cuts the run. The last of a run and the first of
    the next are unless each run begins with separate domains; for runs that are not placed this is unknown.
    """
    _, spanned = _pack_single_runs(runs.length, runs.stride, inner)
    separate = (runs.pieces == 1) | ((runs.outer % outer == 0) & (runs.outer < world))
    return np.asarray((runs.stride < outer) & ((spanned > 1) | ~separate))


def _pack_single_runs(size: Ints, stride: Ints, capacity: int) -> tuple[Ints, Ints]:
    """Fewest members on a node that a group touches, and most nodes that a group spans, (N,) each, for groups
    of ranks at one stride.

    If the stride divides the node, a node has `slots` = capacity / stride places for a group, and groups lie
    end to end along these places. A node border then cuts a group at a multiple of gcd(size, slots), which is
    all of it if the two divide evenly. If the stride does not divide the node, the minimum is one member per
    node.
    """
    slots = np.where(capacity % stride == 0, capacity // stride, 1)
    members = np.gcd(size, slots)
    return members, 1 - (members - size) // slots  # 1 + ceil((size − together) / slots)


def link_shares(cluster: ClusterSpec, places: Sequence[Ints]) -> list[Share]:
    """For each level of a cluster's graph of links, the shares of its bandwidth that N kinds of rank groups get,
    (N,) each, or scalars where all are full. Equal groups are computed once. The columns of `places` are the
    arguments of `fabric.shares`.

    Raises:
        InputError: `links` and `graph` of the cluster do not have the same levels.
    """
    fabric = fabric_of(cluster)
    if cluster.nodes > 1 and cluster.gpus_per_node != fabric.gpus_per_node:  # nodes unlike the graph's
        return [FULL_SHARE] * len(fabric.levels)
    columns = np.broadcast_arrays(*places)
    first, kind = first_of_each(columns)
    rows = zip(*(column[first].tolist() for column in columns), strict=True)
    full_share = astuple(FULL_SHARE)
    kinds = [[astuple(share) for share in shares(fabric, *row)] for row in rows]
    table = np.array(kinds, dtype=np.float64).reshape(len(kinds), len(fabric.levels), len(full_share))
    if (table == np.array(full_share)).all():
        return [FULL_SHARE] * len(fabric.levels)
    return [Share(*table[kind, at].T) for at in range(len(fabric.levels))]


def fabric_of(cluster: ClusterSpec) -> Fabric:
    """Build the graph of links from the `graph` lines of a cluster. Raises InputError if its `links` have
    other levels."""
    from cost_models.fabric.tiers import fabric_of_lines

    fabric, levels = fabric_of_lines(cluster.graph), levels_of(cluster)
    if len(levels) != len(fabric.levels):
        names = ", ".join(level.name for level in fabric.levels)
        raise InputError(
            f"`links` of `{cluster.name}` are {len(levels)} levels, its `graph` has {len(fabric.levels)}: {names}",
            hint="write both anew: meshwright cluster --from-links FILE -o cluster.yaml",
        )
    return fabric


class Reach(NamedTuple):
    """How the groups of one parallel axis use one level of links, (N,) each: numbers of the group with the
    worst position."""

    level: Level
    peers: Ints
    """Minimum number of group members in one inner domain, which share the links out of that domain. 1 if the
    inner domain is a GPU."""
    domains: Ints
    """Maximum number of inner domains (such as nodes) that the group spans."""
    members: Ints
    """Minimum number of group members in one domain of this level."""
    reached: Ints
    """Minimum number of group members in one domain of the outermost level of the same medium (NVLink or
    network)."""
    behind: Ints
    """Number of members that share one link in point-to-point transfers. Only one of them at a time sends to
    a member behind another link."""
    meets: Bools
    """Whether neighbours in the group can communicate over this level. They then share a domain of it, but no
    inner domain."""
    share: Share = FULL_SHARE
    """Fraction of link bandwidth that the slowest group gets on a cluster with a link graph. 1 without a
    graph."""

    @property
    def bandwidth(self) -> Array:
        """Bandwidth out of one inner domain for the group's ring, while all groups send, bytes/s (N,)."""
        return np.float64(self.level.bandwidth) * self.peers * self.share.ring

    @property
    def latency(self) -> Array | float:
        """Mean latency in seconds of one hop of a ring on this level, (N,) or one number."""
        return self.level.latency * self.share.delay


class Groups(NamedTuple):
    """Size, number of nodes and link use of the groups of one parallel axis, (N,) each. They are those of the
    group with the worst position."""

    size: Ints
    ranks_per_node: Ints
    """Minimum number of group members on a node that the group touches."""
    nodes: Ints
    """Maximum number of nodes that the group spans."""
    reach: tuple[Reach, ...]
    """Use of each level of links, from the GPUs outwards."""

    def ring_bandwidth(self, profile: HardwareProfile | None = None) -> Array:
        """Bandwidth of the slowest link of a ring through the group, bytes/s (N,). The measured efficiencies
        of links are those of `profile`; None stands for nominal bandwidths."""
        slowest = np.full(len(self.size), np.inf)
        for at in self.reach:
            rate = at.bandwidth * (at.level.efficiency(profile) if profile else 1.0)
            slowest = np.minimum(slowest, np.where(at.meets, rate, np.inf))
        return slowest


class ReplicaGroups(NamedTuple):
    """Groups of ranks with the same parameters, and their subgroups under hybrid sharding."""

    replicas: Groups
    """Groups of all ranks with the same parameters, over which gradients are summed."""
    shard: Groups
    """Groups of ranks over which ZeRO shards."""
    copies: Groups
    """Groups of ranks with the same shard; of size 1 if ZeRO shards over all replicas."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshGroups:
    """Groups of ranks along each model-parallel axis: all axes but those of replicas. Neighbours in a `pp`
    group exchange activations."""

    tp: Groups
    cp: Groups
    pp: Groups
    ep: Groups
    """Groups of ranks with different experts of a block, which exchange tokens."""
    etp: Groups
    """Groups of ranks that each hold a part of the same experts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AxisGroups(MeshGroups):
    """Groups of ranks along all parallel axes, including the ranks that hold the same parameters."""

    data: ReplicaGroups
    """Groups of dp × cp ranks with the same parameters outside experts."""
    experts: ReplicaGroups
    """Groups of ranks with the same experts."""

    @property
    def dp(self) -> Groups:
        """Groups of dp × cp ranks over which gradients are summed."""
        return self.data.replicas


def axis_groups(cluster: ClusterSpec, columns: LayoutColumns) -> AxisGroups:
    """Groups of ranks along every axis of N layouts, with the links that they use.

    Layouts must fit the cluster: on a cluster of one node none may be larger than it.
    """
    names = ("tp", "cp", "pp", "dp", "ep", "etp", "shard", "order")
    return over_distinct(columns, names, lambda rows: _axis_groups(cluster, rows))


def _axis_groups(cluster: ClusterSpec, x: LayoutColumns) -> AxisGroups:
    """Groups of ranks along every axis of N layouts, computed for each row."""
    world, piece, units = x.ranks, x.stride("pp"), np.ones(len(x), dtype=np.int64)

    def in_stage(size: Ints, stride: Ints) -> Groups:
        """Groups of `size` ranks within a stage, `stride` apart in the numbering of the stage's ranks."""
        return _groups(cluster, size, stride, piece, x.pp, world)

    def replicas(size: Ints, stride: Ints, shard: Ints) -> ReplicaGroups:
        """Groups of `size` ranks with the same parameters, split into subgroups of `shard` ranks over which
        ZeRO shards."""
        group = in_stage(size, stride)
        if (shard == size).all():
            return ReplicaGroups(replicas=group, shard=group, copies=in_stage(units, units))
        copies = in_stage(size // shard, stride * shard)
        return ReplicaGroups(replicas=group, shard=in_stage(shard, stride), copies=copies)

    tp, data = in_stage(x.tp, units), replicas(x.replicas, x.tp, x.shard)
    etp, experts = tp, data  # as the rest, unless there are degrees of their own
    if ((x.ep > 1) | (x.etp != x.tp)).any():
        etp = in_stage(x.etp, units)
        experts = replicas(x.expert_replicas, x.etp * x.ep, x.expert_shard)
    cp = _groups(cluster, x.cp, x.stride("cp"), world, units, world)
    pp = _groups(cluster, x.pp, piece, world, units, world)
    ep = in_stage(x.ep, x.etp)
    return AxisGroups(tp=tp, cp=cp, pp=pp, data=data, ep=ep, etp=etp, experts=experts)


def _groups(cluster: ClusterSpec, size: Ints, stride: Ints, piece: Ints, stages: Ints, world: Ints) -> Groups:
    """Groups of `size` ranks that are `stride` apart in the numbering of a pipeline stage's ranks. A stage
    owns runs of `piece` neighbouring ranks; the runs begin piece · stages apart."""
    runs, levels = runs_of_stage(size, stride, piece, stages, world), levels_of(cluster)
    units = np.broadcast_to(np.int64(1), world.shape)
    packed = [(size, units) if level.gpus is None else pack_runs(runs, level.gpus, world) for level in levels]
    if cluster.graph:
        level_shares = link_shares(cluster, (size, stride, piece, stages, world))
        packed = [share.packing(pair) for pair, share in zip(packed, level_shares, strict=True)]
    else:
        level_shares = [_mesh_share(level, sizes) for level, (sizes, _) in zip(levels, packed, strict=True)]
    ranks_per_node, nodes = packed[sum(not level.network for level in levels) - 1]
    fits = levels[-1].network or (nodes == 1).all()
    assert fits, f"a layout has more ranks than the node of {cluster.name}"
    reach: list[Reach] = []
    peers, domains, inner = units, size, 1
    for index, (level, (sizes, spanned), share) in enumerate(zip(levels, packed, level_shares, strict=True)):
        meets = spanned == 1
        if level.gpus and inner:
            meets = meets | crosses_border(runs, inner, level.gpus, world)
        if index:
            meets = share.neighbours_meet(meets) & (domains > 1)
        farther = (other for other in range(index + 1, len(levels)) if levels[other].opens)
        outermost = next(farther, len(levels)) - 1  # the last level of the same medium
        behind = peers if level.sharers is None else units
        if level.sharers and level.sharers > 1:
            behind = pack_runs(runs, level.sharers, world)[0]
        reached = packed[outermost][0]
        reach.append(Reach(level, peers, domains, sizes, reached, behind, meets, share))
        peers, domains, inner = sizes, spanned, level.gpus or 0
    return Groups(size, ranks_per_node, nodes, tuple(reach))


def _mesh_share(level: Level, members: Ints) -> Share:
    """Fraction of a level's bandwidth that groups get in a full mesh of links, where they use only the links
    between their members. A domain has `members` of them; pipeline neighbours have one link."""
    if not level.mesh or level.gpus is None:
        return FULL_SHARE
    links = max(1, level.gpus - 1)
    among = np.maximum(1, members - 1) / links
    return Share(ring=among, exchange=among, pair=1.0 / links)


def group_of(cluster: ClusterSpec, size: int, stride: int = 1) -> Groups:
    """Single group of `size` ranks that are `stride` apart, in a job on all GPUs of the cluster."""
    length, strides, world, unit = np.array([[size], [stride], [cluster.num_gpus], [1]], dtype=np.int64)
    return _groups(cluster, length, strides, world, unit, world)


def pairs_over(link: LinkSpec, rows: int) -> Groups:
    """Create `rows` equal groups, each of two ranks on different nodes that are joined by `link` alone."""
    unit, two = (np.broadcast_to(np.int64(count), (rows,)) for count in (1, 2))
    level = link_level("between", link, None, network=True)
    reach = Reach(level, peers=unit, domains=two, members=two, reached=two, behind=unit, meets=two > 1)
    return Groups(size=two, ranks_per_node=unit, nodes=two, reach=(reach,))
