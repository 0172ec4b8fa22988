"""Coefficients of whole replicas of the model in several pools: each pool's are of its own GPUs, links and profile.

A replica lies in one pool with its tensor, context, pipeline and expert ranks, so a microbatch never leaves it.
Replicas meet once a step: gradients are summed over all of them, over the links inside a pool and `between` pools.

- Each pool sees the other pools as buildings of its own size, `between` being the link from one to another; where its
  own network is slower, that is what gets out of it.
- What follows the last backward pass is that of the pool where it takes longest, coefficient by coefficient: a
  collective ends when its slowest member does, and the next step begins when the last rank is done.
- Stragglers are counted over all nodes of the job.

Microbatches go one by one to the replica that would finish its own soonest, as a step ends when the slowest replica
does. No other way to share them ends sooner: each replica can finish so many before any given moment, and this way
uses up all that finish before the last one. Replicas of one pool are alike, so what is searched for is one number a
pool, the most that a replica of it takes.

Leaves out that a replica of one microbatch adds up no gradients: times are those of a replica's mean number.

Shape legend: N layouts, K pools.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial

import numpy as np

from cost_models.arrays import Array, Ints
from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import Layout
from cost_models.errors import InputError
from cost_models.memory.device import memory_limit
from cost_models.pipeline.pipeline import Pipeline
from cost_models.pipeline.stage_costs import StageCosts, costs_of
from cost_models.pipeline.terms.kinds import stage_terms
from cost_models.pipeline.time_pieces import Term, Terms, total
from cost_models.question import MixedQuestion, Question
from cost_models.schedules.registry import legal
from cost_models.specs.links import BuildingsSpec, LevelSpec, LinkLevels, LinkSpec

Finish = Callable[[int], float]
"""Microbatches of a replica → seconds after which it has done them; never less for more."""

ONCE_A_STEP = (
    *("layer_sync", "embedding_sync", "head_sync", "rank_sync"),
    *("layer_optimizer", "embedding_optimizer", "head_optimizer", "rank_optimizer", "step_overhead"),
)
"""Coefficients of what all replicas do together, or wait for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaTerms:
    """The coefficients of N layouts in one pool."""

    terms: Terms
    limit: Array
    """(N,) bytes that a device's peak may reach."""

    @property
    def costs(self) -> StageCosts:
        """Each coefficient summed over its parts."""
        return costs_of(self.terms, self.limit)


def replica_terms(question: MixedQuestion, columns: LayoutColumns) -> tuple[ReplicaTerms, ...]:
    """Price N layouts of which whole replicas lie in every pool. What happens once a step takes as long in every pool
    as in the slowest.

    Raises:
        InputError: a GPU has no rate for the training precision.
    """
    pools = [among_replicas(pool, question) for pool in question.pools]
    each = [stage_terms(pool, columns) for pool in pools]
    once = {name: _longest([terms[name] for terms in each]) for name in ONCE_A_STEP}
    return tuple(
        ReplicaTerms(terms=terms | once, limit=memory_limit(pool, columns))
        for terms, pool in zip(each, pools, strict=True)
    )


def replicas_in(question: MixedQuestion, layout: Layout) -> tuple[int, ...]:
    """Replicas that each pool holds, all of its GPUs in use."""
    size = layout.tp * layout.cp * layout.pp
    return tuple(pool.cluster.num_gpus // size for pool in question.pools)


def in_pools(question: MixedQuestion, layout: Layout) -> Layout:
    """The layout with as many replicas as there is room for, pools following one another as in the cluster."""
    held = replicas_in(question, layout)
    pools = tuple(name for name, count in zip(question.names, held, strict=True) for _ in range(count))
    return layout.model_copy(update={"replicas": pools, "dp": len(pools)})


def fewest_microbatches(layout: Layout) -> int:
    """Microbatches that a replica takes at least, so that its schedule can run."""
    several = range(1, layout.pp + 1)
    return next(n for n in several if legal(layout.schedule, layout.pp, layout.vpp, n) is None)


def require_full_pools(question: MixedQuestion, layout: Layout) -> None:
    """Nothing for replicas that fill the pools and all have a microbatch.

    Raises:
        InputError: they do not, or there are too few microbatches for all.
    """
    replicas, held = counted_replicas(question, layout), replicas_in(question, layout)
    if replicas != held:
        raise InputError(
            f"`{layout}` has {replicas} replicas in pools {question.names}; their GPUs hold {held}"
        )
    together, rest = divmod(question.training.global_batch, layout.mbs)
    least = fewest_microbatches(layout)
    if rest or together < least * layout.dp:
        raise InputError(
            f"`{layout}` has {together} microbatches of {question.training.global_batch} sequences for {layout.dp}"
            f" replicas, each of which takes {least} or more"
        )


def counted_replicas(question: MixedQuestion, layout: Layout) -> tuple[int, ...]:
    """Replicas that the layout puts in each pool."""
    return tuple(layout.replicas.count(name) for name in question.names)


def among_replicas(pool: Question, question: MixedQuestion) -> Question:
    """A pool's question where the other pools' GPUs stand behind the link between pools.

    Collectives that were measured between its nodes do not speak of that link.
    """
    curves = tuple(one for one in pool.hardware.collectives if one.nodes == 1 or one.operation == "p2p")
    hardware = pool.hardware.model_copy(update={"collectives": curves})
    cluster, between = pool.cluster, question.mixed.link
    update: dict[str, object] = {"nodes": -(-question.mixed.num_gpus // cluster.gpus_per_node)}
    links, one_leaf = cluster.links, cluster.nodes <= (cluster.nodes_per_leaf or 0)
    if links.inter_node is None:
        update["links"] = links.with_inter_node(between)
    elif isinstance(links, LinkLevels):  # and one level more that joins it with others
        *inner, last = links.under(cluster.nodes).root
        farther = _slower(between, last)
        level = LevelSpec.model_construct(
            name="between", kind=farther.kind, bandwidth=farther.bandwidth, latency=farther.latency
        )
        own_level = last.model_copy(update={"nodes": cluster.nodes})
        update["links"] = LinkLevels.model_construct((*inner, own_level, level))
    else:
        if one_leaf:  # that holds the pool
            update |= {"oversubscription": 1.0, "nodes_per_leaf": None}
        own = cluster.buildings if cluster.buildings and cluster.buildings.nodes < cluster.nodes else None
        oversubscription = 1.0 if one_leaf else cluster.oversubscription
        inside = own.link if own else links.inter_node.faster(1 / oversubscription)
        nodes = own.nodes if own else cluster.nodes
        update["buildings"] = BuildingsSpec(nodes=nodes, link=_slower(between, inside))
    return replace(pool, cluster=cluster.model_copy(update=update), hardware=hardware)


def with_microbatches(question: Question, layout: Layout, microbatches: int) -> Question:
    """The question with the batch in which every replica of a layout takes so many."""
    batch = microbatches * layout.mbs * layout.dp
    return replace(question, training=question.training.model_copy(update={"global_batch": batch}))


def _slower(between: LinkSpec, inside: LinkSpec) -> LinkSpec:
    """The link between pools at no more than what gets out of one."""
    least = min(between.bandwidth, inside.bandwidth)
    return between.model_copy(update={"bandwidth": least})


def _longest(terms: Sequence[Term]) -> Term:
    """Of K terms the one that takes longest, layout by layout."""
    which_N = np.stack([total(term) for term in terms]).argmax(axis=0)
    parts = dict.fromkeys(part for term in terms for part in term)
    none = np.zeros(len(which_N))
    return {
        part: np.choose(which_N, [np.broadcast_to(term.get(part, none), none.shape) for term in terms])
        for part in parts
    }


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
        spare = sum(each * count for each, count in zip(most, replicas, strict=True)) - microbatches
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
