"""What a collective takes: start-up + latency · hops + bytes / bandwidth, or what was measured.

Bandwidth terms are those of a ring, which no algorithm can beat for large messages (Patarasuk & Yuan 2009):
every rank sends (n − 1)/n of the tensor to reduce-scatter or all-gather it, twice that to all-reduce it.
Its slowest link sets the pace; NCCL runs one such ring through every adapter of a node, so a group has the
adapters of all its members in a node.

Latency terms follow NCCL's own tuning model (nccl/src/graph/tuning.cc): a ring pays every hop, once around
for a gather or scatter and twice for an all-reduce, a tree a chain inside the node and log2(nodes) hops
across, up and down. NCCL has trees for all-reduce only. An all-to-all is n − 1 pairwise exchanges (Thakur
et al. 2005).

Left out: in-network reduction (SHARP), small-message protocols, contention with compute. A measured curve
in the profile replaces the formula where operation, group size and number of nodes match. A message is the
full, unsharded tensor in bytes, (N,) or a number; results are (N,) seconds, exactly 0 for a group of one
and for an empty message.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt

from cost_models.communication.topology import Groups
from cost_models.curves import curve_seconds
from cost_models.specs.hardware import HardwareProfile

Array = npt.NDArray[np.float64]
Operation = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "p2p"]


def all_reduce_seconds(message_bytes: npt.ArrayLike, groups: Groups, profile: HardwareProfile) -> Array:
    """Every rank ends with the sum: 2 (n − 1)/n of the message; ring or tree, the quicker."""
    chain_hops = -(-groups.size // groups.nodes) - 1
    tree_hops = np.ceil(np.log2(groups.nodes))
    tree_latency = chain_hops * groups.intra_latency + tree_hops * groups.inter_latency
    latency = 2 * np.minimum(_once_around_seconds(groups), tree_latency)
    formula = latency + 2 * _ring_transfer_seconds(message_bytes, groups, profile)
    return _seconds("all_reduce", message_bytes, formula, groups, profile)


def all_gather_seconds(message_bytes: npt.ArrayLike, groups: Groups, profile: HardwareProfile) -> Array:
    """Every rank starts with 1/n and ends with all: (n − 1)/n of the message over the slowest link."""
    formula = _once_around_seconds(groups) + _ring_transfer_seconds(message_bytes, groups, profile)
    return _seconds("all_gather", message_bytes, formula, groups, profile)


def reduce_scatter_seconds(message_bytes: npt.ArrayLike, groups: Groups, profile: HardwareProfile) -> Array:
    """Every rank ends with 1/n of the sum: (n − 1)/n of the message over the slowest link."""
    formula = _once_around_seconds(groups) + _ring_transfer_seconds(message_bytes, groups, profile)
    return _seconds("reduce_scatter", message_bytes, formula, groups, profile)


def all_to_all_seconds(message_bytes: npt.ArrayLike, groups: Groups, profile: HardwareProfile) -> Array:
    """Each rank holds 1/n of the message and sends 1/n of that to each, on all links at once."""
    pair_bytes = _float(message_bytes) / groups.size**2
    near = groups.ranks_per_node - 1
    far = groups.size - groups.ranks_per_node
    near_seconds = near * pair_bytes / (groups.intra_bandwidth * profile.link_efficiency)
    node_bytes = groups.ranks_per_node * far * pair_bytes
    far_seconds = node_bytes / (groups.inter_bandwidth * profile.network_efficiency)
    latency = near * groups.intra_latency + far * groups.inter_latency
    return _seconds(
        "all_to_all", message_bytes, latency + np.maximum(near_seconds, far_seconds), groups, profile
    )


def point_to_point_seconds(message_bytes: npt.ArrayLike, groups: Groups, profile: HardwareProfile) -> Array:
    """One rank sends the message to the next member, at the worst boundary of the group.

    Every rank sends at the same time, so across nodes each has its own share of the network only.
    """
    message = _float(message_bytes)
    share = groups.inter_bandwidth / groups.ranks_per_node * profile.network_efficiency
    inside = groups.intra_latency + message / (groups.intra_bandwidth * profile.link_efficiency)
    across = groups.inter_latency + message / share
    slowest = np.maximum(
        np.where(groups.meets_inside, inside, 0.0), np.where(groups.crosses_nodes, across, 0.0)
    )
    return _seconds("p2p", message_bytes, slowest, groups, profile)


def _once_around_seconds(groups: Groups) -> Array:
    """Latency of the n − 1 hops of a ring, of which as many as it has nodes are between nodes."""
    hops = groups.size - 1
    across = np.where(groups.crosses_nodes, np.minimum(groups.nodes, hops), 0)
    return across * groups.inter_latency + (hops - across) * groups.intra_latency


def _ring_transfer_seconds(message_bytes: npt.ArrayLike, groups: Groups, profile: HardwareProfile) -> Array:
    """(n − 1)/n of the message over the slowest link of the ring."""
    bandwidth = groups.ring_bandwidth(profile.link_efficiency, profile.network_efficiency)
    return (groups.size - 1) / groups.size * _float(message_bytes) / bandwidth


def _seconds(
    operation: Operation,
    message_bytes: npt.ArrayLike,
    formula: Array,
    groups: Groups,
    profile: HardwareProfile,
) -> Array:
    """The formula with its start-up, a measured curve where one matches, 0 where there is nothing to do."""
    message = _float(message_bytes)
    seconds = formula + profile.collective_seconds
    size, nodes = groups.size, groups.nodes
    if operation == "p2p":  # a boundary has two ends, however many stages the pipeline has
        size, nodes = np.minimum(size, 2), np.minimum(nodes, 2)
    for curve in profile.collectives:
        if curve.operation == operation:
            matches = (size == curve.group_size) & (nodes == curve.nodes)
            seconds = np.where(matches, curve_seconds(curve.points, message), seconds)
    return np.where((groups.size > 1) & (message > 0), seconds, 0.0)


def _float(message_bytes: npt.ArrayLike) -> Array:
    return np.asarray(message_bytes, dtype=np.float64)
