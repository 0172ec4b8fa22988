"""Levels of a cluster's links: GPUs in order of rank, actual and typical bandwidth of each level, deviations.

Groups of ranks get a bandwidth on a graph of links, given as a share of the levels' usual bandwidth.

All groups of an axis send at once. A ring leaves a domain by the adapters of its members there, an equal part by each,
and by the k fastest of them where that gives more: NCCL looks for the most channels times their rate
(nccl/src/graph/search.cc, `ncclTopoCompareGraphs`). Each adapter's part goes up by the switch it is plugged into; from
one rail to another data goes over the node's own links (PXN). The fullest bundle of cables sets the pace of the slowest
group, and that group the price. In an all-to-all every member sends to every other by its own adapter; a hand-over
loads the adapters of both its ends.

The same counts on the usual bundles give the usual rate, so that a share is exactly 1 where nothing is odd.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import NamedTuple, TypeVar

import numpy as np

from cost_models.arrays import Array, Bools, Ints, group_by
from cost_models.specs.choices import LinkKind
from cost_models.specs.graph import Link, natural
from cost_models.units import counted, format_bandwidth

Number = TypeVar("Number", int, float)

CLOSE = 1e-9
"""Relative difference up to which two rates are one."""


def most_common(values: Iterable[Number]) -> Number:
    """Most frequent number; if several are equally frequent, the largest."""
    counts = Counter(values)
    return max(counts, key=lambda value: (counts[value], value))


@dataclass(frozen=True, kw_only=True)
class FabricLevel:
    """Level of a cluster's links: typical bandwidth and latency, and the actual cables."""

    name: str
    kind: LinkKind
    network: bool
    opens: bool
    """Whether GPUs or their adapters are plugged into the level, instead of switches of the level inside it."""
    bandwidth: float
    """Usual bytes/s of a GPU out of a domain of the level inside, while all GPUs of that domain send."""
    latency: float
    """Usual seconds from a GPU over the switches of this level to another."""
    sharers: int
    """Number of GPUs behind one adapter, if the level opens a network."""
    inner: Ints
    """Domain of the level inside to which each GPU belongs, (GPUs,)."""
    domain: Ints
    """Domain of this level to which each GPU belongs, (GPUs,)."""
    top: Ints
    """Domain of the outermost level of the same medium to which each GPU belongs, (GPUs,)."""
    end: Ints
    """End by which each GPU's data leaves, (GPUs,): its adapter, or inside a node the GPU itself."""
    bundle: Ints
    """Bundle of cables that data from each end passes, (E,); -1 if it passes none."""
    capacity: Array
    """Bytes/s of each bundle of cables, (B,)."""
    cables: tuple[tuple[tuple[str, str], ...], ...]
    """Pairs of devices that each bundle joins, the lower device first, (B,)."""
    seconds: Array
    """Seconds from a GPU by each end up to the switches of the level and down to another end, (E,)."""

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Distinct GPU counts of the domains (groups of GPUs) that the level joins, largest first."""
        return tuple(sorted(set(np.unique(self.domain, return_counts=True)[1].tolist()), reverse=True))

    @cached_property
    def even(self) -> bool:
        """Whether the domains (groups of GPUs) of the level are runs of consecutive ranks of equal length."""
        size = int(np.argmax(self.domain != self.domain[0])) or len(self.domain)
        start = np.arange(len(self.domain)) // size * size
        return self.sizes == (size,) and bool((self.domain == self.domain[start]).all())

    @cached_property
    def odd(self) -> bool:
        """Whether some cables of the level differ from its typical bandwidth per GPU or from its typical
        latency."""
        bundle = self.bundle[self.end]
        rates = np.bincount(bundle[bundle >= 0], minlength=len(self.capacity)) * self.bandwidth
        slow = np.ptp(self.seconds) > CLOSE * self.latency
        return bool(slow or (np.abs(self.capacity - rates) > CLOSE * self.capacity).any())


@dataclass(frozen=True, slots=True, eq=False)
class Fabric:
    """Links of a cluster as levels, from inside the nodes to between them, with deviations from a regular network."""

    nodes: tuple[str, ...]
    """Names of the nodes, in order of rank."""
    gpus: tuple[str, ...]
    """Names of the GPUs of the first node, then of the second, and so on."""
    levels: tuple[FabricLevel, ...]
    """Levels of links, from the GPUs outwards."""
    odd: tuple[str, ...]
    """Deviations from the regular network, in words."""
    notes: tuple[str, ...]
    """Parts of the file that were left out."""

    @property
    def gpus_per_node(self) -> int:
        """Number of GPUs in each node."""
        return len(self.gpus) // len(self.nodes)


def odd_links(links: Sequence[Link], levels: Sequence[FabricLevel], nodes: Sequence[str]) -> Iterator[str]:
    """Yield a sentence (no full stop) for each cable, switch, node or level that differs from comparable
    parts of the cluster."""
    for level in levels:
        yield from _odd_cables(level, defaultdict(list, group_by(links, lambda link: frozenset(link[:2]))))
        if level.network and len(level.sizes) > 1:
            per = len(level.domain) // len(nodes)
            largest_first = sorted(Counter(Counter(level.domain.tolist()).values()).items(), reverse=True)
            sizes = ", ".join(f"{counted(n, 'domain')} of {size // per}" for size, n in largest_first)
            yield f"the {level.name} level joins unequal numbers of nodes: {sizes}"
    if network := next((level for level in levels if level.network), None):
        adapters = [len(set(row)) for row in network.end.reshape(len(nodes), -1).tolist()]
        for name, count in zip(nodes, adapters, strict=True):
            if count != most_common(adapters):
                yield f"{name} has {counted(count, 'adapter')} where others have {most_common(adapters)}"


def _odd_cables(level: FabricLevel, wires: Mapping[frozenset[str], Sequence[Link]]) -> Iterator[str]:
    """Yield a sentence for each cable with an unusual rate, and for each bundle with an unusual number of
    cables, compared with the majority in the level. `wires` are the links between two devices."""
    bundles = [[(pair, link) for pair in pairs for link in wires[frozenset(pair)]] for pairs in level.cables]
    if not (all_links := [link for bundle in bundles for _, link in bundle]):
        return
    rate = most_common(link.bandwidth for link in all_links for _ in range(link.cables))
    number = most_common(sum(link.cables for _, link in bundle) for bundle in bundles)
    for bundle in bundles:
        count = sum(link.cables for _, link in bundle)
        for pair, link in bundle:
            if abs(link.bandwidth - rate) > CLOSE * rate:
                siblings, whose = ([one for _, one in bundle], "its") if count > 2 else (all_links, "the")
                like = sum(one.cables for one in siblings if one.bandwidth == rate)
                has = f"{pair[0]}-{pair[1]} has {_rate_words(link.bandwidth, level)}"
                yield f"{has} where {whose} {like} siblings have {_rate_words(rate, level)}"
        if level.network and count != number:
            lower = min((pair[0] for pair, _ in bundle), key=natural)
            yield f"{lower} has {counted(count, 'cable')} to the {level.name} where others have {number}"


def _rate_words(rate: float, level: FabricLevel) -> str:
    """Text of a bandwidth, in bits per second for networks."""
    return f"{rate * 8 / 1e9:.6g} Gb/s" if level.network else format_bandwidth(rate)


_DENSE = 32
"""Largest ratio of value range to value count for which a table counts faster than sorting."""


@dataclass(frozen=True, slots=True)
class Share:
    """Bandwidth that the slowest rank group gets, by communication pattern, as shares of a level's usual
    bandwidth. Further fields say where the groups' members are."""

    ring: Array | float = 1.0
    """Share of the bandwidth of rings and trees."""
    exchange: Array | float = 1.0
    """Share of the bandwidth of all-to-all."""
    pair: Array | float = 1.0
    """Share of the bandwidth of transfers to the next member of the group."""
    delay: Array | float = 1.0
    """Mean latency of a hop in the farthest group, relative to the usual latency."""
    members: Array | float = 0.0
    """Minimum number of members in a domain of the level; 0 if arithmetic over equal domains gives it."""
    spanned: Array | float = 0.0
    """Maximum number of domains that a group spans; 0 as in `members`."""
    meets: Array | float = 0.0
    """Whether neighbours share a domain of this level and none of the level inside: 1 no, 2 yes; 0 as in `members`."""

    def packing(self, equal: tuple[Ints, Ints]) -> tuple[Ints, Ints]:
        """Minimum number of a group's members in one domain, and maximum number of domains that a group
        spans. Unknown values are taken from `equal`, which holds for domains of equal size."""
        members = np.where(self.members, self.members, equal[0])
        return members.astype(np.int64), np.where(self.spanned, self.spanned, equal[1]).astype(np.int64)

    def neighbours_meet(self, equal: Bools) -> Bools:
        """Whether consecutive ranks of a group communicate over a link level. Unknown values are taken from
        `equal`, which holds for domains of equal size."""
        return np.where(self.meets, np.equal(self.meets, 2), equal)


FULL_SHARE = Share()


@lru_cache(maxsize=2**16)
def shares(fabric: Fabric, size: int, step: int, piece: int, stages: int, world: int) -> tuple[Share, ...]:
    """Bandwidth of rank groups on each link level, as shares of the level's usual bandwidth. Groups have
    `size` ranks, `step` apart in a stage's own numbering; of `world` ranks in runs of `piece`, a stage owns
    one run in every `stages`."""
    if size == 1 or world > len(fabric.gpus):  # a cluster that somebody made larger has the usual everywhere
        return (FULL_SHARE,) * len(fabric.levels)
    flows: _Flows | None = None
    level_shares: list[Share] = []
    slowed, was_even = np.inf, True
    for at, level in enumerate(fabric.levels):
        slowed = np.inf if level.opens else slowed
        uneven, was_even = not (level.even and was_even), level.even
        if not (level.odd or uneven or slowed < np.inf):
            level_shares.append(FULL_SHARE)
            continue
        flows = flows or _Flows(group_ranks(size, step, piece, stages, world))
        share, rate = flows.share(level, _views(fabric, at), slowed)
        slowed = min(slowed, rate) if np.less(share.ring, 1) else slowed
        level_shares.append(flows.with_places(level, share) if uneven else share)
    return tuple(level_shares)


def group_ranks(size: int, step: int, piece: int, stages: int, world: int) -> Ints:
    """Ranks of every communication group, as an array (groups, size)."""
    place = np.arange(world // stages)
    ranks = np.arange(stages)[:, None] * piece + place // piece * (piece * stages) + place % piece
    return np.ascontiguousarray(ranks.reshape(-1, size, step).swapaxes(1, 2).reshape(-1, size))


class _View(NamedTuple):
    """Cables of one level: either the actual ones, or typical ones to compare these with."""

    end: Ints
    """End (adapter, or GPU) of each GPU, (GPUs,)."""
    bundle: Ints
    """Bundle of each end, (E,); -1 for none."""
    capacity: Array
    """Bytes/s of each bundle, (B,)."""
    domain: Ints
    """Domain of the level inside to which each end belongs, (E,)."""
    node: Ints
    """Domain that each end leads out of, (E,)."""
    rate: Array
    """Bytes/s of each end itself, (E,)."""


@lru_cache(maxsize=2**7)
def _views(fabric: Fabric, at: int) -> tuple[_View, _View]:
    """Actual and typical bundles of cables of level `at`, cached."""
    level, opening = fabric.levels[at], [one for one in fabric.levels[: at + 1] if one.opens][-1]
    domain, node = np.zeros((2, len(level.bundle)), dtype=np.int64)
    domain[level.end], node[level.end] = level.inner, opening.inner
    rate: Array = np.append(opening.capacity, np.inf)[opening.bundle]
    end = np.arange(len(level.end)) // opening.sharers
    bundle = end if level.opens else level.inner
    capacity: Array = np.bincount(bundle) * np.float64(level.bandwidth)
    first = slice(None, None, opening.sharers)  # GPU of each end
    places = level.inner[first], opening.inner[first]
    typical = _View(end, bundle[first], capacity, *places, np.ones(len(places[0])))
    return _View(level.end, level.bundle, level.capacity, domain, node, rate), typical


class _Flows:
    """Rank groups that communicate at the same time, and the rates that their traffic gets on a level of
    links."""

    def __init__(self, groups: Ints) -> None:
        self._groups = groups
        self._rank = groups.reshape(-1)
        self._group = np.repeat(np.arange(len(groups)), groups.shape[1])

    def share(self, level: FabricLevel, views: tuple[_View, _View], slowed: float) -> tuple[Share, float]:
        """Shares of a level's bandwidth that the slowest group gets, and the bytes/s of its ring. The ring
        reaches at most `slowed`, its bytes/s on nearer levels."""
        inside, reached = self._members_in_domain(level.inner), self._members_in_domain(level.top)
        passing = reached > inside
        if not passing.any():
            return FULL_SHARE, np.inf
        group, rank = self._group[passing], self._rank[passing]
        farther_members = (reached - inside)[passing].astype(np.float64)
        first, second = self._groups[:, :-1].reshape(-1), self._groups[:, 1:].reshape(-1)
        over = (level.inner[first] != level.inner[second]) & (level.top[first] == level.top[second])
        ring, usual_ring = (self._ring(view, group, rank) for view in views)
        ring = min(ring, slowed)
        exchange = _ratio(*(_fullest(view, view.end[rank], farther_members) for view in views))
        weights, sides = np.ones(over.sum()), (first[over], second[over])
        pair = _ratio(*(min(_fullest(view, view.end[ranks], weights) for ranks in sides) for view in views))
        mean = np.bincount(group, level.seconds[level.end[rank]]) / np.maximum(1, np.bincount(group))
        return Share(_ratio(ring, usual_ring), exchange, pair, _ratio(mean.max(), level.latency)), ring

    def with_places(self, level: FabricLevel, share: Share) -> Share:
        """Copy of `share` with new fields `members`, `spanned` and `meets`, for levels whose domains differ
        in size. They are counted from the domains in which the members of each group lie."""
        domains, inner = level.domain[self._groups], level.inner[self._groups]
        meet = (domains == np.roll(domains, -1, axis=1)) & (inner != np.roll(inner, -1, axis=1))
        changes = np.diff(np.sort(domains, axis=1), axis=1) > 0
        members = int(self._members_in_domain(level.domain).min())
        spanned = 1 + int(changes.sum(axis=1).max())
        return replace(share, members=members, spanned=spanned, meets=1 + int(meet.any()))

    def _members_in_domain(self, domain: Ints) -> Ints:
        """Number of members of the own group in the same domain, for each rank of each group."""
        size = int(domain.max()) + 1
        return _equal_keys(self._group * size + domain[self._rank], len(self._groups) * size)

    def _ring(self, view: _View, group: Ints, rank: Ints) -> float:
        """Bytes/s that each group's ring reaches if all rings run at once. `group` and `rank` list the
        members that send out of their domains."""
        size = len(view.bundle)
        used = np.sort(group * size + view.end[rank])
        used = used[np.diff(used, prepend=-1) > 0]
        group, end = used // size, used % size
        used_ends = _most_channels(group * (int(view.node.max()) + 1) + view.node[end], view.rate[end])
        used_ends &= view.bundle[end] >= 0
        group, end, size = group[used_ends], end[used_ends], int(view.domain.max()) + 1
        return _fullest(view, end, 1 / _equal_keys(group * size + view.domain[end], len(self._groups) * size))


def _equal_keys(keys: Ints, size: int) -> Ints:
    """For each entry of `keys`, the number of entries equal to it, itself included. Keys are integers below
    `size`."""
    if size <= _DENSE * len(keys):
        return np.bincount(keys, minlength=1)[keys]
    _, index, count = np.unique(keys, return_inverse=True, return_counts=True)
    return count[index.reshape(-1)]


def _most_channels(way: Ints, rate: Array) -> Bools:
    """Mask of the ends (GPUs or adapters) that NCCL uses, chosen separately for each way out of a domain.
    They are the k fastest, where k gives the largest sum if all run at the rate of the slowest."""
    if not len(rate) or (rate == rate[0]).all():
        return np.ones(len(rate), dtype=np.bool_)
    order = np.lexsort((-rate, way))
    start = np.flatnonzero(np.diff(way[order], prepend=-1))
    count = np.diff(start, append=len(order))
    place = np.arange(len(order)) - np.repeat(start, count) + 1
    channel_rates = place * np.where(np.isinf(rate), 0.0, rate)[order]
    best = np.repeat(np.maximum.reduceat(channel_rates, start), count)
    last = np.maximum.reduceat(np.where(channel_rates >= best * (1 - CLOSE), place, 0), start)
    used = np.zeros(len(order), dtype=np.bool_)
    used[order] = place <= np.repeat(last, count)
    return used


def _fullest(view: _View, end: Ints, load: Array) -> float:
    """Bytes/s per unit of load on the most loaded bundle of cables. Each end `end[i]` puts the load `load[i]`
    on its bundle."""
    bundle = view.bundle[end]
    carried = bundle >= 0
    total = np.bincount(bundle[carried], load[carried], len(view.capacity))
    used = total > 0
    return float((view.capacity[used] / total[used]).min(initial=np.inf))


def _ratio(actual: float, typical: float) -> float:
    """Ratio of actual to typical bandwidth; exactly 1 if they differ by rounding alone, or if either is
    infinite."""
    share = actual / typical if np.isfinite(actual) and np.isfinite(typical) else 1.0
    return 1.0 if abs(share - 1) < CLOSE else float(share)
