"""What groups get on the explicit graph of a cluster: every link, every group of the axis at once."""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import pairwise, permutations

import numpy as np

from cost_models.communication.topology import Level, levels_of, link_graph
from cost_models.specs.cluster import ClusterSpec

Listed = np.ndarray[tuple[int, int], np.dtype[np.int64]]
"""(groups, members): global ranks."""


def domain(levels: tuple[Level, ...], at: int, gpu: int) -> int:
    """Which domain of a level a GPU is in; below the first level, itself."""
    if at < 0:
        return gpu
    capacity = levels[at].gpus
    return 0 if capacity is None else gpu // capacity


def turn(levels: tuple[Level, ...], one: int, other: int) -> int:
    """The level at which the path between two GPUs turns: the first with both in one domain."""
    return next(at for at in range(len(levels)) if domain(levels, at, one) == domain(levels, at, other))


def passed(levels: tuple[Level, ...], at: int) -> range:
    """The levels whose links a path that turns at a level passes on its way up: those of the medium."""
    first = at
    while not levels[first].opens:
        first -= 1
    return range(first, at + 1)


def ring_rate(cluster: ClusterSpec, groups: Listed) -> float:
    """Bytes/s of each ring while there is one through every group, ranks in order: the first edge that is full.

    A group leaves a domain by the links of all its members there, in equal parts: one ring for each of them.
    """
    levels = levels_of(cluster)
    load: dict[tuple[str, str], float] = defaultdict(float)
    for group in groups.tolist():
        for (at, inner), hops in _leaving(levels, group).items():
            members = [gpu for gpu in group if domain(levels, at - 1, gpu) == inner]
            for gpu in members:
                load[_edge(levels, at, gpu)] += hops / len(members)
    graph = link_graph(cluster, sorted(groups.reshape(-1).tolist()))
    return min((graph.edges[edge]["bandwidth"] / flow for edge, flow in load.items()), default=np.inf)


def hand_over_rate(cluster: ClusterSpec, groups: Listed) -> float:
    """Bytes/s of the slowest transfer while every member sends to the next: the first edge that is full, for each."""
    levels = levels_of(cluster)
    graph = link_graph(cluster, sorted(groups.reshape(-1).tolist()))
    paths = [
        [_edge(levels, at, one) for at in passed(levels, turn(levels, one, other))]
        for group in groups.tolist()
        for one, other in pairwise(group)
    ]
    load = Counter(edge for path in paths for edge in path)
    return min(
        (graph.edges[edge]["bandwidth"] / load[edge] for path in paths for edge in path), default=np.inf
    )


def all_to_all_rate(cluster: ClusterSpec, groups: Listed) -> float:
    """Bytes/s from each member to each other while all of them send: the first edge that is full."""
    levels = levels_of(cluster)
    graph = link_graph(cluster, sorted(groups.reshape(-1).tolist()))
    load = Counter(
        _edge(levels, at, one)
        for group in groups.tolist()
        for one, other in permutations(group, 2)
        for at in passed(levels, turn(levels, one, other))
    )
    return min((graph.edges[edge]["bandwidth"] / flow for edge, flow in load.items()), default=np.inf)


def _leaving(levels: tuple[Level, ...], group: list[int]) -> Counter[tuple[int, int]]:
    """(level, domain of the level inside) → times that a ring goes out of that domain by the links of the level."""
    count: Counter[tuple[int, int]] = Counter()
    for one, other in zip(group, group[1:] + group[:1], strict=True):
        if one != other:
            at = turn(levels, one, other)
            count.update((level, domain(levels, level - 1, one)) for level in passed(levels, at))
    return count


def _edge(levels: tuple[Level, ...], at: int, gpu: int) -> tuple[str, str]:
    """The edge by which a GPU's bytes go up to a level."""
    level, switch = levels[at], f"{levels[at].name}{domain(levels, at, gpu)}"
    if not level.opens:
        return f"{levels[at - 1].name}{domain(levels, at - 1, gpu)}", switch
    sharers = level.sharers or 1
    if level.network or sharers > 1:
        return f"{level.name}.adapter{gpu // sharers}", switch
    return f"gpu{gpu}", switch
