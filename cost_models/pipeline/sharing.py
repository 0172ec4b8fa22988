"""How many microbatches of a step each replica takes where replicas are not equally fast.

A step ends when the slowest replica does, so microbatches go one by one to the replica that would finish its own
soonest. No other way to share them ends sooner: each replica can finish so many before any given moment, and this way
uses up all that finish before the last one. Replicas of one pool are alike, so what is searched for is one number a
pool, the most that a replica of it takes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

Finish = Callable[[int], float]
"""Microbatches of a replica → seconds after which it has done them; never less for more."""


def shared(
    finish: Sequence[Finish], replicas: Sequence[int], microbatches: int, least: int = 1
) -> tuple[tuple[int, ...], ...]:
    """For each pool the microbatches of each of its replicas, `least` at least.

    `finish` and `replicas`, which says how many there are, are by pool; of equal finishes the first pool's goes first.
    """
    assert microbatches >= least * sum(replicas), "every replica takes some"
    ends = [cache(own) for own in finish]
    most = _guess(ends, replicas, microbatches, least)
    pools = range(len(replicas))

    def next_end(pool: int) -> tuple[float, int]:
        return ends[pool](most[pool] + 1), pool

    def last_end(pool: int) -> tuple[float, int]:
        return ends[pool](most[pool]), pool

    while True:
        spare = sum(map(_times, most, replicas)) - microbatches
        above = [pool for pool in pools if most[pool] > least]
        slowest = max(above, key=last_end, default=None)
        soonest = min(pools, key=next_end)
        if spare < 0:
            most[soonest] += 1
        elif slowest is not None and (
            spare >= replicas[slowest] or (soonest != slowest and last_end(slowest) > next_end(soonest))
        ):
            most[slowest] -= 1
        else:
            break
    fewer = [spare if pool == slowest else 0 for pool in pools]
    return tuple(
        (most[pool],) * (replicas[pool] - fewer[pool]) + (most[pool] - 1,) * fewer[pool] for pool in pools
    )


def _times(one: int, other: int) -> int:
    return one * other


def _guess(ends: Sequence[Finish], replicas: Sequence[int], microbatches: int, least: int) -> list[int]:
    """Where to begin: as if every microbatch took as long as the last of the mean number do."""
    mean = max(least, microbatches // sum(replicas))
    rates = [1 / max(1e-12, end(mean + 1) - end(mean)) for end in ends]
    starts = [end(mean) - mean / rate for end, rate in zip(ends, rates, strict=True)]
    together = sum(count * rate for count, rate in zip(replicas, rates, strict=True))
    before = sum(n * rate * start for n, rate, start in zip(replicas, rates, starts, strict=True))
    moment = (microbatches + before) / together
    found = [int((moment - start) * rate) for start, rate in zip(starts, rates, strict=True)]
    return [min(max(least, own), microbatches) for own in found]
