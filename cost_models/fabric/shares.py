"""What groups of ranks get on a graph of links, as shares of what its levels usually give.

All groups of an axis send at once. A ring leaves a domain by the adapters of its members there, an equal part by each,
and by the k fastest of them where that gives more: NCCL looks for the most channels times their rate
(nccl/src/graph/search.cc, `ncclTopoCompareGraphs`). Each adapter's part goes up by the switch it is plugged into; from
one rail to another data goes over the node's own links (PXN). The fullest bundle of cables sets the pace of the slowest
group, and that group the price. In an all-to-all every member sends to every other by its own adapter; a hand-over
loads the adapters of both its ends.

The same counts on the usual bundles give the usual rate, so that a share is exactly 1 where nothing is odd.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from cost_models.arrays import Array, Bools, Ints
from cost_models.fabric.fabric import CLOSE, Fabric, FabricLevel

_DENSE = 32
"""Values that span no more than so many times their number are counted in a table, which is faster than sorting."""


@dataclass(frozen=True, slots=True)
class Share:
    """What the slowest group of a pattern, or of N of them, gets of one level, 1 as usual; where its members are."""

    ring: Array | float = 1.0
    """Of the bandwidth of rings and trees."""
    exchange: Array | float = 1.0
    """Of the bandwidth of all-to-all."""
    pair: Array | float = 1.0
    """Of the bandwidth of hand-overs to the next member."""
    delay: Array | float = 1.0
    """Latency of a hop, on average over the farthest group."""
    held: Array | float = 0.0
    """Members in a domain of the level, at least; 0 where arithmetic over equal domains says it."""
    spanned: Array | float = 0.0
    """Domains that a group spans, at most; 0 as before."""
    meets: Array | float = 0.0
    """Whether neighbours share a domain of this level and none of the level inside: 1 no, 2 yes; 0 as before."""

    def packing(self, equal: tuple[Ints, Ints]) -> tuple[Ints, Ints]:
        """Members held at least and domains spanned at most, given what they are where all domains are equal."""
        held, spanned = (
            np.where(own, own, known) for own, known in zip((self.held, self.spanned), equal, strict=True)
        )
        return held.astype(np.int64), spanned.astype(np.int64)

    def meeting(self, equal: Bools) -> Bools:
        """Whether neighbours meet on this level, given the same for equal domains."""
        return np.where(self.meets, np.equal(self.meets, 2), equal)


AS_USUAL = Share()


def shares(fabric: Fabric, size: int, step: int, piece: int, stages: int, world: int) -> tuple[Share, ...]:
    """For each level the shares of groups of `size` ranks, `step` apart as a stage counts them, where a stage owns runs
    of `piece` ranks, one in every `stages` of them, among `world` ranks."""
    key = size, step, piece, stages, world
    if key not in fabric.known:
        fabric.known[key] = _shares(fabric, *key)
    found: tuple[Share, ...] = fabric.known[key]
    return found


def listed(size: int, step: int, piece: int, stages: int, world: int) -> Ints:
    """(groups, size): the ranks of every group."""
    place = np.arange(world // stages)
    ranks = np.arange(stages)[:, None] * piece + place // piece * (piece * stages) + place % piece
    return np.ascontiguousarray(ranks.reshape(-1, size, step).swapaxes(1, 2).reshape(-1, size))


def _shares(fabric: Fabric, size: int, step: int, piece: int, stages: int, world: int) -> tuple[Share, ...]:
    if size == 1 or world > len(fabric.gpus):  # a cluster that somebody made larger has the usual everywhere
        return (AS_USUAL,) * len(fabric.levels)
    flows: _Flows | None = None
    found: list[Share] = []
    slowed, was_even = np.inf, True
    for at, level in enumerate(fabric.levels):
        slowed = np.inf if level.opens else slowed
        uneven, was_even = not (level.even and was_even), level.even
        if not (level.odd or uneven or slowed < np.inf):
            found.append(AS_USUAL)
            continue
        flows = flows or _Flows(listed(size, step, piece, stages, world))
        share, rate = flows.share(level, _views(fabric, at), slowed)
        slowed = min(slowed, rate) if np.less(share.ring, 1) else slowed
        found.append(flows.placed(level, share) if uneven else share)
    return tuple(found)


class _View(NamedTuple):
    """A level's bundles, as they are or as they usually are."""

    end: Ints
    """(GPUs,) end of each GPU."""
    bundle: Ints
    """(E,) bundle of each end; -1: none."""
    capacity: Array
    """(B,) bytes/s of each bundle."""
    domain: Ints
    """(E,) domain of the level inside."""
    node: Ints
    """(E,) domain out of which the end is the way."""
    rate: Array
    """(E,) bytes/s of the end itself."""


def _views(fabric: Fabric, at: int) -> tuple[_View, _View]:
    """A level's bundles as they are, and as they usually are; made once."""
    if at not in fabric.known:
        level = fabric.levels[at]
        opening = next(fabric.levels[k] for k in range(at, -1, -1) if fabric.levels[k].opens)
        domain, node = np.zeros((2, len(level.bundle)), dtype=np.int64)
        domain[level.end], node[level.end] = level.inner, opening.inner
        rate: Array = np.append(opening.capacity, np.inf)[opening.bundle]
        few = slice(None, None, opening.sharers)
        end = np.arange(len(level.end)) // opening.sharers
        bundle = end if level.opens else level.inner
        capacity: Array = np.bincount(bundle) * np.float64(level.bandwidth)
        usual = _View(
            end, bundle[few], capacity, level.inner[few], opening.inner[few], np.ones(len(bundle[few]))
        )
        fabric.known[at] = _View(level.end, level.bundle, level.capacity, domain, node, rate), usual
    found: tuple[_View, _View] = fabric.known[at]
    return found


class _Flows:
    """Groups of ranks, and what they send."""

    def __init__(self, groups: Ints) -> None:
        self._groups = groups
        self._rank = groups.reshape(-1)
        self._group = np.repeat(np.arange(len(groups)), groups.shape[1])

    def share(self, level: FabricLevel, views: tuple[_View, _View], slowed: float) -> tuple[Share, float]:
        """The shares of a level, and bytes/s of a ring; rings get no more than `slowed` on their way there."""
        inside, reached = self._together(level.inner), self._together(level.top)
        passing = reached > inside
        if not passing.any():
            return AS_USUAL, np.inf
        group, rank, others = (
            self._group[passing],
            self._rank[passing],
            (reached - inside)[passing].astype(np.float64),
        )
        one, other = self._groups[:, :-1].reshape(-1), self._groups[:, 1:].reshape(-1)
        over = (level.inner[one] != level.inner[other]) & (level.top[one] == level.top[other])
        rings, exchanges, pairs = list[float](), list[float](), list[float]()
        for view in views:
            rings.append(min(self._ring(view, group, rank), np.inf if rings else slowed))
            exchanges.append(_fullest(view, view.end[rank], others))
            pairs.append(
                min(_fullest(view, view.end[ranks[over]], np.ones(over.sum())) for ranks in (one, other))
            )
        mean = np.bincount(group, level.seconds[level.end[rank]]) / np.maximum(1, np.bincount(group))
        share = Share(
            ring=_ratio(*rings),
            exchange=_ratio(*exchanges),
            pair=_ratio(*pairs),
            delay=_ratio(mean.max(), level.latency),
        )
        return share, rings[0]

    def placed(self, level: FabricLevel, share: Share) -> Share:
        """With the places of members, where domains differ in size."""
        own, inner = level.own[self._groups], level.inner[self._groups]
        meet = (own == np.roll(own, -1, axis=1)) & (inner != np.roll(inner, -1, axis=1))
        changes = np.diff(np.sort(own, axis=1), axis=1) > 0
        return replace(
            share,
            held=int(self._together(level.own).min()),
            spanned=1 + int(changes.sum(axis=1).max()),
            meets=1 + int(meet.any()),
        )

    def _together(self, domain: Ints) -> Ints:
        """For each member how many of its group are in its domain."""
        size = int(domain.max()) + 1
        return _alike(self._group * size + domain[self._rank], len(self._groups) * size)

    def _ring(self, view: _View, group: Ints, rank: Ints) -> float:
        """Bytes/s of every ring at once, given the members that send out of their domains."""
        size = len(view.bundle)
        used = np.sort(group * size + view.end[rank])
        used = used[np.diff(used, prepend=-1) > 0]
        group, end = used // size, used % size
        kept = _most_channels(group * (int(view.node.max()) + 1) + view.node[end], view.rate[end])
        kept &= view.bundle[end] >= 0
        group, end, size = group[kept], end[kept], int(view.domain.max()) + 1
        return _fullest(view, end, 1 / _alike(group * size + view.domain[end], len(self._groups) * size))


def _alike(keys: Ints, size: int) -> Ints:
    """For each of some keys below `size` how many are the same."""
    if size <= _DENSE * len(keys):
        return np.bincount(keys, minlength=1)[keys]
    _, index, count = np.unique(keys, return_inverse=True, return_counts=True)
    return count[index.reshape(-1)]


def _most_channels(way: Ints, rate: Array) -> Bools:
    """Which ends of every way out are used: as many of the fastest as give the most together at one rate."""
    if not len(rate) or (rate == rate[0]).all():
        return np.ones(len(rate), dtype=np.bool_)
    order = np.lexsort((-rate, way))
    start = np.flatnonzero(np.diff(way[order], prepend=-1))
    count = np.diff(start, append=len(order))
    place = np.arange(len(order)) - np.repeat(start, count) + 1
    together = place * np.where(np.isinf(rate), 0.0, rate)[order]
    most = np.repeat(np.maximum.reduceat(together, start), count)
    last = np.maximum.reduceat(np.where(together >= most * (1 - CLOSE), place, 0), start)
    kept = np.zeros(len(order), dtype=np.bool_)
    kept[order] = place <= np.repeat(last, count)
    return kept


def _fullest(view: _View, end: Ints, load: Array) -> float:
    """Bytes/s for one unit of load on the fullest bundle, where ends carry so much each."""
    bundle = view.bundle[end]
    there = bundle >= 0
    total = np.bincount(bundle[there], load[there], len(view.capacity))
    return float(
        np.divide(view.capacity, total, out=np.full(len(total), np.inf), where=total > 0).min(initial=np.inf)
    )


def _ratio(found: float, usual: float) -> float:
    """The share, exactly 1 but for rounding."""
    share = found / usual if np.isfinite(found) and np.isfinite(usual) else 1.0
    return 1.0 if abs(share - 1) < CLOSE else float(share)
