"""How the members of a group of ranks spread over nodes: how many each node holds, how many nodes a group spans.

A group is a run of ranks a stride apart, or equal runs an outer stride apart: where a pipeline sits between the axes of
a stage (`tp-cp-pp-dp`), the ranks of one stage are such pieces, pp pieces apart.

What N groups get of the links of a cluster that has a graph of them (`cost_models.fabric`).
"""

from __future__ import annotations

from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING

import numpy as np

from cost_models.arrays import Bools, Ints
from cost_models.axes.columns import first_of_each
from cost_models.communication.levels import levels_of
from cost_models.errors import InputError
from cost_models.fabric.shares import AS_USUAL, Share, shares
from cost_models.specs.cluster import ClusterSpec

if TYPE_CHECKING:
    from cost_models.fabric.fabric import Fabric


@dataclass(frozen=True, slots=True, kw_only=True)
class Runs:
    """N groups, each (N,): `pieces` runs of `length` ranks `stride` apart; the runs begin `outer` ranks apart.

    `step`, `piece` and `stages` say exactly where members are: `step` apart as a stage counts its ranks, of which it
    owns runs of `piece`, one in every `stages` of them.
    """

    length: Ints
    stride: Ints
    pieces: Ints
    outer: Ints
    step: Ints
    piece: Ints
    stages: Ints

    @classmethod
    def single(cls, length: Ints, stride: Ints, world: Ints) -> Runs:
        """One run among `world` ranks."""
        ones = np.ones_like(length)
        return cls(
            length=length, stride=stride, pieces=ones, outer=ones, step=stride, piece=world, stages=ones
        )

    @property
    def size(self) -> Ints:
        """Members of a group."""
        return self.length * self.pieces


def runs_of_stage(size: Ints, stride: Ints, piece: Ints, stages: Ints, world: Ints) -> Runs:
    """Groups among the ranks of one stage, `size` members that are `stride` apart as the stage counts its ranks.

    A stage owns runs of `piece` neighbouring ranks, one in every piece · stages. Groups tile the stage's ranks. A group
    that a piece holds, or that takes equal parts of whole pieces, is known exactly; of another only what its shortest
    part is: those parts are then taken to share no node (`outer` is the world).
    """
    inside = (piece * stages == world) | (piece % (stride * size) == 0)
    beyond = ~inside & (stride % piece == 0)
    places = np.where(piece % stride == 0, piece // stride, 1)
    across = ~inside & ~beyond & (piece % stride == 0) & (size % places == 0)
    part = np.where(inside | beyond, size, np.gcd(size, places))
    return Runs(
        length=part,
        stride=np.where(beyond, stride * stages, stride),
        pieces=size // part,
        outer=np.where(across, piece * stages, world),
        step=stride,
        piece=piece,
        stages=stages,
    )


def packing(runs: Runs, capacity: int, world: Ints) -> tuple[Ints, Ints]:
    """Members that each node of a group holds at least, nodes it spans at most; a node has `capacity` ranks.

    Groups tile the world, so a piece that lies in one node is a slot for the groups outside: what holds for single runs
    (`_single`) holds for the pieces of a group. Where a node border cuts the pieces, they share no node.
    """
    members, nodes = _single(runs.length, runs.stride, capacity)
    if (runs.pieces > 1).any():
        pieces_held, pieces_spanned = _single(runs.pieces, runs.outer, capacity)
        whole = capacity % runs.outer == 0  # pieces are aligned to the outer stride, and so in one node
        several = runs.pieces > 1
        members = np.where(several & whole, runs.length * pieces_held, members)
        nodes = np.where(several, np.where(whole, pieces_spanned, nodes * runs.pieces), nodes)
    fits = world <= capacity
    return np.where(fits, runs.size, members), np.where(fits, 1, nodes)


def crosses(runs: Runs, inner: int, outer: int, world: Ints) -> Bools:
    """(N,): neighbours in a group may lie in one domain of `outer` ranks, and in two of the `inner` ranks inside it.

    Neighbours in a run do where a border of an inner domain cuts the run. The last of a run and the first of the next
    do unless each run begins with domains of its own; of runs that nobody placed this is not known.
    """
    _, spanned = _single(runs.length, runs.stride, inner)
    apart = (runs.pieces == 1) | ((runs.outer % outer == 0) & (runs.outer < world))
    cut: Bools = (runs.stride < outer) & ((spanned > 1) | ~apart)
    return cut


def _single(size: Ints, stride: Ints, capacity: int) -> tuple[Ints, Ints]:
    """Members that each node holds at least of a run, and nodes it spans at most.

    Where the stride divides the node, a node has `slots` = capacity / stride places for a group, and groups lie end to
    end along these places. A node border then cuts a group at a multiple of gcd(size, slots), which is all of it when
    the two divide evenly. Where the stride does not divide the node, one member to a node is the least there can be.
    """
    slots = np.where(capacity % stride == 0, capacity // stride, 1)
    together = np.gcd(size, slots)
    return together, 1 - (together - size) // slots  # 1 + ceil((size − together) / slots)


def link_shares(cluster: ClusterSpec, runs: Runs, world: Ints) -> list[Share]:
    """For each level columns (N,) of what groups get of it, the same groups counted once.

    Raises:
        InputError: `links` and `graph` of the cluster do not have the same levels.
    """
    fabric = fabric_of(cluster)
    if cluster.nodes > 1 and cluster.gpus_per_node != fabric.gpus_per_node:  # somebody asks about other nodes
        return [AS_USUAL] * len(fabric.levels)
    columns = [
        np.broadcast_to(one, world.shape) for one in (runs.size, runs.step, runs.piece, runs.stages, world)
    ]
    first, kind = first_of_each(columns)
    rows = zip(*(column[first].tolist() for column in columns), strict=True)
    usual = astuple(AS_USUAL)
    found = [[astuple(share) for share in shares(fabric, *row)] for row in rows]
    table = np.array(found, dtype=np.float64).reshape(len(found), len(fabric.levels), len(usual))
    if (table == np.array(usual)).all():
        return [AS_USUAL] * len(fabric.levels)
    return [Share(*table[kind, at].T) for at in range(len(fabric.levels))]


def fabric_of(cluster: ClusterSpec) -> Fabric:
    """The fabric of a cluster that has a graph. Raises InputError where its `links` have other levels."""
    from cost_models.fabric.assembling import fabric_of_lines

    fabric, levels = fabric_of_lines(cluster.graph), levels_of(cluster)
    if len(levels) != len(fabric.levels):
        told = ", ".join(level.name for level in fabric.levels)
        raise InputError(
            f"`links` of `{cluster.name}` are {len(levels)} levels, its `graph` has {len(fabric.levels)}: {told}",
            hint="write both anew: meshwright cluster --from-links FILE -o cluster.yaml",
        )
    return fabric
