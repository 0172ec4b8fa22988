"""Seconds of a collective operation, by a formula (start-up + latency · hops + bytes / bandwidth) or by a
measured curve.

Bandwidth terms are those of a ring, which no algorithm can beat for large messages (Patarasuk & Yuan 2009):
every rank sends (n − 1)/n of the tensor to reduce-scatter or all-gather it, twice that to all-reduce it. The
slowest link sets the pace; NCCL runs one such ring through every adapter of a node, so a group has the
adapters of all its members in a node.

Latency terms follow NCCL's tuning model (nccl/src/graph/tuning.cc): a ring pays every hop, once around for a
gather or scatter and twice for an all-reduce, a tree a chain inside the node and log2(nodes) hops across, up
and down. NCCL has trees for all-reduce only. An all-to-all is n − 1 pairwise exchanges (Thakur et al. 2005).

As a rate this is B∞ · S / (S + S½), NCCL's bandwidth by message size: half of B∞ is reached if the bytes take
as long as start-up and latency, at S½ = B∞ · (start-up + latency · hops), which grows with the ring. The
slowdown by stragglers is `jitter_per_doubling`.

Leaves out in-network reduction (SHARP), small-message protocols, contention with compute. A measured curve in
the profile replaces the formula if operation, group size and number of nodes match. A message is the full,
unsharded tensor in bytes, (N,) or a number; results are (N,) seconds, exactly 0 for a group of one and for an
empty message.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from cost_models.arrays import Array
from cost_models.communication.topology import Groups
from cost_models.specs.hardware import HardwareProfile, curve_seconds

Operation = Literal["all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all", "fan_out", "p2p"]

_CHUNK = 2.0**19
"""Bytes that an NCCL channel forwards at a time in a broadcast: one of NCCL_STEPS = 8 parts of its buffer of
4 MiB (NCCL_BUFFSIZE; nccl/src/include/collectives.h, BROADCAST_CHUNKSTEPS)."""


def all_reduce_seconds(message_bytes: npt.ArrayLike, groups: Groups, profile: HardwareProfile) -> Array:
    """Seconds of an all-reduce: 2 (n − 1)/n of the message over the slowest link, by ring or tree, whichever
    has less latency."""
    latency = 2 * np.minimum(_once_around_seconds(groups), _tree_seconds(groups))
    formula = latency + 2 * _ring_transfer_seconds(message_bytes, groups, profile)
    return _measured_or_formula_seconds("all_reduce", message_bytes, formula, groups, profile)


def all_gather_seconds(message_bytes: npt.ArrayLike, groups: Groups, profile: HardwareProfile) -> Array:
    """Seconds of an all-gather: every rank starts with 1/n of the message, and (n − 1)/n passes the slowest
    link."""
    formula = _once_around_seconds(groups) + _ring_transfer_seconds(message_bytes, groups, profile)
    return _measured_or_formula_seconds("all_gather", message_bytes, formula, groups, profile)


def reduce_scatter_seconds(message_bytes: npt.ArrayLike, groups: Groups, profile: HardwareProfile) -> Array:
    """Seconds of a reduce-scatter: every rank ends with 1/n of the sum, and (n − 1)/n of the message passes
    the slowest link."""
    formula = _once_around_seconds(groups) + _ring_transfer_seconds(message_bytes, groups, profile)
    return _measured_or_formula_seconds("reduce_scatter", message_bytes, formula, groups, profile)


def broadcast_seconds(message_bytes: npt.ArrayLike, groups: Groups, profile: HardwareProfile) -> Array:
    """Seconds of a broadcast: one rank sends the complete message to all others along a chain, as NCCL
    broadcasts over rings only.

    A rank hands on a channel's chunk when it has all of it, so the last rank begins as many chunks later as
    there are hops. There is a channel for each adapter of a node.
    """
    transfer = _as_floats(message_bytes) / groups.ring_bandwidth(profile)
    formula = _once_around_seconds(groups) + _fill_seconds(groups, profile) + transfer
    return _measured_or_formula_seconds("broadcast", message_bytes, formula, groups, profile)


def all_to_all_seconds(message_bytes: npt.ArrayLike, groups: Groups, profile: HardwareProfile) -> Array:
    """Seconds of an all-to-all: each rank has 1/n of the message and sends 1/n of that to each rank, on all
    links at once.

    Members of a domain send out of it to all others that the same medium reaches.
    """
    pair_bytes = _as_floats(message_bytes) / groups.size**2
    latency, slowest = np.zeros(len(groups.size)), np.zeros(len(groups.size))
    for at in groups.reach:
        latency = latency + (at.members - at.peers) * at.latency
        domain_bytes = at.peers * (at.reached - at.peers) * pair_bytes
        bandwidth = np.float64(at.level.bandwidth) * at.peers * at.share.exchange
        slowest = np.maximum(slowest, domain_bytes / (bandwidth * at.level.efficiency(profile)))
    return _measured_or_formula_seconds("all_to_all", message_bytes, latency + slowest, groups, profile)


def fan_out_seconds(rank_bytes: Array, node_bytes: Array, groups: Groups, profile: HardwareProfile) -> Array:
    """Seconds of a fan-out, in which each rank sends pieces of its data to several other ranks; between nodes
    each piece is sent once, then forwarded inside the node.

    `rank_bytes` are a rank's bytes for all members of its group, with a piece for each; `node_bytes` its
    bytes for all nodes. One kernel does both at once, so the slower sets the pace (DeepEP's internode
    kernels).
    """
    latency, slowest = np.zeros(len(groups.size)), np.zeros(len(groups.size))
    for at in groups.reach:
        message = node_bytes if at.level.network else rank_bytes
        leaving = message * (at.reached - at.peers) / at.reached
        latency = latency + np.where(at.members > at.peers, at.latency, 0.0)
        bandwidth = at.level.bandwidth * at.share.exchange
        slowest = np.maximum(slowest, leaving / (bandwidth * at.level.efficiency(profile)))
    return _measured_or_formula_seconds("fan_out", rank_bytes, latency + slowest, groups, profile)


def point_to_point_seconds(message_bytes: npt.ArrayLike, groups: Groups, profile: HardwareProfile) -> Array:
    """Seconds of a transfer in which every rank sends a message to the next member of its group, over the
    slowest link between such neighbours.

    Every rank sends at the same time, so each has only its own share of a link, plus the shares of the
    members behind the same link that hand on to one another.
    """
    message = _as_floats(message_bytes)
    slowest, share = np.zeros(len(groups.size)), np.full(len(groups.size), np.inf)
    for at in groups.reach:
        rate = np.float64(at.level.bandwidth) * at.peers / at.peers * at.behind * at.share.pair
        share = rate if at.level.opens else np.minimum(share, rate)
        seconds = at.latency + message / (share * at.level.efficiency(profile))
        slowest = np.maximum(slowest, np.where(at.meets, seconds, 0.0))
    return _measured_or_formula_seconds("p2p", message_bytes, slowest, groups, profile)


def _once_around_seconds(groups: Groups) -> Array:
    """Latency in seconds of the n − 1 hops of a ring. The ring leaves each domain of the group (such as a
    node) once."""
    hops = groups.size - 1
    leaving = [np.where(at.domains > 1, np.minimum(at.domains, hops), 0) for at in groups.reach[1:]]
    return _hops_seconds([hops, *leaving], [at.latency for at in groups.reach])


def _fill_seconds(groups: Groups, profile: HardwareProfile) -> Array:
    """Seconds until the first chunk reaches the last rank of a broadcast chain. Each hop takes the seconds
    for one chunk of every channel."""
    adapters = np.maximum(1.0, groups.ranks_per_node / max(at.level.sharers or 1 for at in groups.reach))
    leaving = [groups.size - 1, *(np.where(at.domains > 1, at.domains - 1, 0) for at in groups.reach[1:])]
    chunks = [adapters * _CHUNK / (at.bandwidth * at.level.efficiency(profile)) for at in groups.reach]
    return _hops_seconds(leaving, chunks)


def _tree_seconds(groups: Groups) -> Array:
    """Latency in seconds of the hops up a reduction tree: a chain inside the node and log2(domains) levels
    across nodes."""
    inside = [at for at in groups.reach if not at.level.network]
    across = [at for at in groups.reach if at.level.network]
    chain = [-(-at.domains // groups.nodes) - 1 for at in inside]
    tree = [np.ceil(np.log2(at.domains)) for at in across]
    seconds = _hops_seconds(chain, [at.latency for at in inside])
    return seconds + _hops_seconds(tree, [at.latency for at in across])


def _hops_seconds(leaving: Sequence[npt.NDArray[Any]], hop_seconds: Sequence[Array | float]) -> Array:
    """Latency in seconds of all hops of a ring or tree. `leaving` has the number of hops that leave a domain
    of each level, `hop_seconds` the seconds of one such hop."""
    levels = zip(hop_seconds, leaving, [*leaving, 0][1:], strict=True)
    return sum(((hops - farther) * cost for cost, hops, farther in levels), start=np.zeros(1))


def _ring_transfer_seconds(message_bytes: npt.ArrayLike, groups: Groups, profile: HardwareProfile) -> Array:
    """Seconds to move (n − 1)/n of the message over the slowest link of the ring."""
    return (groups.size - 1) / groups.size * _as_floats(message_bytes) / groups.ring_bandwidth(profile)


def _measured_or_formula_seconds(
    operation: Operation, sent_bytes: npt.ArrayLike, formula: Array, groups: Groups, profile: HardwareProfile
) -> Array:
    """Seconds of a collective, (N,), by a measured curve for this size of group, else by `formula` plus
    start-up; 0 for an empty message."""
    message = _as_floats(sent_bytes)
    seconds = formula + profile.collective_seconds
    size, nodes = groups.size, groups.nodes
    if operation == "p2p":  # a boundary has two ends, however many stages the pipeline has
        size, nodes = np.minimum(size, 2), np.minimum(nodes, 2)
    for curve in profile.collectives:
        if curve.operation == operation:
            matches = (size == curve.group_size) & (nodes == curve.nodes)
            seconds = np.where(matches, curve_seconds(curve.points, message), seconds)
    return np.where((groups.size > 1) & (message > 0), seconds, 0.0)


def _as_floats(message_bytes: npt.ArrayLike) -> Array:
    """Bytes of messages as an array of floats."""
    return np.asarray(message_bytes, dtype=np.float64)
