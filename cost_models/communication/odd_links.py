"""What N groups get of the links of a cluster that has a graph of them (`cost_models.fabric`)."""

from __future__ import annotations

from dataclasses import astuple
from typing import TYPE_CHECKING

import numpy as np

from cost_models.arrays import Ints
from cost_models.axes.distinct import first_of_each
from cost_models.communication.levels import levels_of
from cost_models.communication.packing import Runs
from cost_models.errors import InputError
from cost_models.fabric.shares import AS_USUAL, Share, shares
from cost_models.specs.cluster import ClusterSpec

if TYPE_CHECKING:
    from cost_models.fabric.fabric import Fabric


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
