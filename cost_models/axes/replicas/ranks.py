"""How many microbatches of a step each replica takes where replicas are not equally fast.

A step ends when the slowest replica does, so microbatches go one by one to the replica that would finish its own
soonest. No other way to share them ends sooner: each replica can finish so many before any given moment, and this way
uses up all that finish before the last one. Replicas of one pool are alike, so what is searched for is one number a
pool, the most that a replica of it takes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial

import numpy as np

from cost_models.arrays import Ints
from cost_models.axes.axis import Price
from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import Layout
from cost_models.axes.replicas.price import (
    among_replicas,
    counted_replicas,
    fewest_microbatches,
    replica_terms,
    require_full_pools,
    with_microbatches,
)
from cost_models.estimate import PoolReplicas
from cost_models.pipeline.pipeline import Pipeline
from cost_models.pipeline.placed import PricedRanks, place
from cost_models.pipeline.stage_costs import add_up
from cost_models.pipeline.terms.memory_terms import memory_terms
from cost_models.question import MixedQuestion, Question
from cost_models.schedules import shortened

Finish = Callable[[int], float]
"""Microbatches of a replica → seconds after which it has done them; never less for more."""


def price_replicas(question: Question, layout: Layout) -> PricedRanks | None:
    """The pipeline of each pool's replicas with the most microbatches, of which the slowest sets the pace; None of
    layouts without them.

    Raises:
        InputError: the replicas do not fill the pools, or there are too few microbatches for all.
    """
    if not (isinstance(question, MixedQuestion) and layout.replicas):
        return None
    require_full_pools(question, layout)
    placed = place(layout, question)
    layout, columns = placed.layout, LayoutColumns.of([placed.layout])
    terms = replica_terms(question, columns)
    taken = shares(question, layout, [placed.pipeline(own.costs) for own in terms], placed.blocks)
    pools: list[PricedRanks] = []
    for pool, own, microbatches in zip(question.pools, terms, taken, strict=True):
        most = max(microbatches)
        memories = memory_terms(with_microbatches(among_replicas(pool, question), layout, most), columns)
        table = shortened(layout.schedule, layout.pp, layout.vpp, most, any_engine=placed.any_engine)
        there = replace(placed, table=table)
        pipeline = there.pipeline(add_up(own.times, memories, own.limit))
        pools.append(PricedRanks(placed=there, pipeline=pipeline, times=own.times, memories=memories))
    seconds = [float(one.pipeline.step_seconds(placed.blocks)) for one in pools]
    replicas = tuple(
        PoolReplicas(
            pool=name,
            microbatches=microbatches,
            step_seconds=step,
            rank_memory=one.memory(),
            memory_limit=one.limits[0],
        )
        for name, microbatches, step, one in zip(question.names, taken, seconds, pools, strict=True)
    )
    return replace(pools[int(np.argmax(seconds))], replicas=replicas)


def shares(
    question: MixedQuestion, layout: Layout, pipelines: Sequence[Pipeline], blocks_SP: Ints
) -> tuple[tuple[int, ...], ...]:
    """For each pool the microbatches of each of its replicas, so that the slowest ends as soon as it can."""

    def finish(pipeline: Pipeline, microbatches: int) -> float:
        return float(replace(pipeline, microbatches=microbatches).step_seconds(blocks_SP))

    together = question.training.global_batch // layout.mbs
    ends = [partial(finish, one) for one in pipelines]
    return shared(ends, counted_replicas(question, layout), together, fewest_microbatches(layout))


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


PRICE = Price(ranks=price_replicas)
