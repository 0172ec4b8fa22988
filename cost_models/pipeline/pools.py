"""Cost coefficients on a cluster of several pools (groups of equal GPUs), for one pipeline whose ranks lie in
different pools, or for replicas that each lie within one pool.

**Ranks in pools.** Every rank has the coefficients of its pool: those of the same degrees on the pool's GPUs,
links and profile. Four terms depend on other pools:

- A transfer between two ranks takes the time of their boundary: within a pool the pool's own, across pools
  that of `between` at the slower of both ends. A stack that blocks its sender pays each boundary on its own rank;
  otherwise every boundary waits as long as the slowest, as in a pipeline on one cluster.
- The gradients of tied embeddings cross from the first rank's pool to the last one's.
- Stragglers are counted over all nodes of the job.
- The fixed time of a step is that of the slowest pool.

**Replicas in pools.** A replica lies in one pool with its tensor, context, pipeline and expert ranks, so a
microbatch never leaves it. Replicas synchronise once a step: gradients are summed over all of them, over the
links inside a pool and `between` pools.

- Each pool sees the other pools as buildings of its own size, with `between` as the link from one to another, or the
  pool's own network if that is slower.
- Work after the last backward pass takes as long as in the slowest pool, coefficient by coefficient: a
  collective ends with its slowest member, and the next step begins when the last rank is done.
- Stragglers are counted over all nodes of the job.

Microbatches are assigned one by one to the replica that would finish its own soonest, as a step ends with the
slowest replica. No other assignment ends sooner: each replica can finish a certain number before any given
moment, and this one uses all of them before the last microbatch. Replicas of one pool are alike, so the
search is for one number per pool, the maximum that a replica of it takes.

Leaves out that a replica with a single microbatch adds up no gradients: times are those of a replica's mean
number.

Shape legend: N layouts, K pools, R pipeline ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import permutations
from typing import TypeVar

import numpy as np

from cost_models.arrays import Array, Bools, Ints
from cost_models.axes.columns import LayoutColumns, is_overlapped
from cost_models.axes.layout import Layout
from cost_models.communication.by_axis import boundary_seconds
from cost_models.communication.topology import axis_groups, pairs_over
from cost_models.errors import InputError
from cost_models.pipeline.pipeline import Pipeline
from cost_models.pipeline.seconds import (
    Term,
    Terms,
    jitter_share,
    sum_of_parts,
    tied_reduce_seconds,
    with_jitter,
)
from cost_models.pipeline.stage_costs import (
    COLUMNS,
    SECONDS,
    StageCosts,
    costs_of,
    join_terms,
    memory_terms,
    stage_costs,
    stage_terms,
    terms_by_kind,
    terms_by_sort,
)
from cost_models.question import Question
from cost_models.schedules.registry import QUEUES
from cost_models.specs.cluster import BuildingsSpec, LevelSpec, LinkLevels, LinkSpec

Size = TypeVar("Size", int, Ints)
Shares = tuple[tuple[int, ...], ...]
"""Number of microbatches of each replica in each pool."""


@dataclass(frozen=True, slots=True)
class PoolTerms:
    """Cost coefficients of N layouts in each of K pools of GPUs, and the seconds of transfers between ranks."""

    priced: tuple[Terms, ...]
    """Cost coefficients in each pool, without transfers between ranks. All pools have the fixed step time of
    the slowest pool."""
    costs: tuple[StageCosts, ...]
    """Coefficients of `priced` in each pool, each summed over its parts."""
    transfers: Array
    """Seconds to send a stage's output from a rank in one pool to the next rank in another pool, or in the
    same, (K, K, N)."""
    tied: Array
    """Seconds to add the gradients of tied embedding and output matrix between two pools, (K, K, N)."""
    slowdown: Array
    """Relative slowdown by stragglers in each pool, as `seconds.jitter_share` computes, (K, N)."""
    blocking: Bools
    """Whether a pipeline rank waits until its transfer to the next rank ends, (N,)."""


def pool_terms(question: Question, columns: LayoutColumns) -> PoolTerms:
    """Cost coefficients in every pool for N layouts whose pipeline ranks (`pp`) lie in several pools.

    Raises:
        InputError: a GPU has no rate for the training precision.
    """
    enlarged = [_with_all_nodes(pool, question) for pool in question.pools]
    by_pool = [_without_transfers(stage_terms(pool, columns), pool, columns) for pool in enlarged]
    # the fixed time of a step is that of the pool where it takes longest
    overheads = [terms["step_overhead"] for terms in by_pool]
    overhead = max(overheads, key=lambda term: float(sum_of_parts(term).max()))
    priced = tuple(terms | {"step_overhead": overhead} for terms in by_pool)
    transfers, tied = _transfers(question, enlarged, columns)
    slowdown = np.stack([jitter_share(pool, columns) for pool in enlarged])
    blocking = ~is_overlapped(columns, "pp", default=question.stack.overlap_pipeline_sends)
    return PoolTerms(priced, tuple(map(costs_of, priced)), transfers, tied, slowdown, blocking)


def pool_capacities(question: Question, size: Size) -> tuple[Size, ...]:
    """Number of pipeline ranks or replicas, of `size` GPUs each, for which each pool has room."""
    return tuple(pool.cluster.num_gpus // size for pool in question.pools)


def terms_of_each(question: Question, layouts: Sequence[Layout]) -> list[Terms]:
    """Cost coefficients of the pipeline ranks of each layout, computed together. Rows are pipeline ranks. On
    one pool a single row serves all ranks, with blocks by sort (kind and recompute policy); on several pools
    each rank has its own row, with mean blocks."""
    if not layouts:
        return []
    columns, rows = LayoutColumns.of(layouts), range(len(layouts))
    if question.has_pools:
        terms = pool_terms(question, columns)
        pools = [np.array([question.pool_names.index(name) for name in layout.pools]) for layout in layouts]
        return [rank_terms(terms, np.array([row]), pools[row]) for row in rows]
    sorts = terms_by_sort(terms_by_kind(question, columns)).items()
    return [
        {name: {part: value[row : row + 1] for part, value in term.items()} for name, term in sorts}
        for row in rows
    ]


def costs_of_ranks(question: Question, layout: Layout) -> StageCosts:
    """Stage costs of one layout, in a single row for all pipeline ranks or, in several pools of GPUs, in one
    row per rank."""
    if not question.has_pools:
        return stage_costs(question, LayoutColumns.of([layout]))
    return costs_of(terms_of_each(question, [layout])[0])


def with_pools(question: Question, layout: Layout) -> Layout:
    """Layout with a pool of GPUs assigned to each pipeline rank. Unless it names pools already, its ranks fill
    the pools in the cluster's order.

    Raises:
        InputError: the ranks do not fill the pools.
    """
    if layout.pools_field or not question.has_pools:
        return layout
    size = layout.tp * layout.data_ranks
    ranks = _pool_names(question, pool_capacities(question, size))
    if len(ranks) != layout.pp:
        raise InputError(f"`{layout}` has {layout.pp} ranks of {size} GPUs; the pools hold {len(ranks)}")
    return layout.model_copy(update={"pools": ranks})


def _pool_names(question: Question, counts: Iterable[int]) -> tuple[str, ...]:
    """Name of the pool of each rank or replica: each pool's name repeated as often as `counts` says."""
    return tuple(name for name, count in zip(question.pool_names, counts, strict=True) for _ in range(count))


def rank_terms(terms: PoolTerms, rows: Ints, pool_R: Ints) -> Terms:
    """Cost coefficients of the R pipeline ranks of each of the n layouts `rows`, in n · R rows, one layout
    after another. Rank r lies in pool `pool_R[r]`."""
    pools, on_ranks = terms.priced, partial(_on_ranks, rows=rows, pool_R=pool_R)
    ranks = {name: join_terms([pool[name] for pool in pools], on_ranks) for name in pools[0]}
    for name, (seconds_Rn, slowdown_Rn) in _transfer_terms(terms, rows, pool_R).items():
        seconds, noise = seconds_Rn.T.reshape(-1), (seconds_Rn * slowdown_Rn).T.reshape(-1)
        term = ranks[name]
        ranks[name] = {**term, "pp_comm": term["pp_comm"] + seconds, "jitter": term["jitter"] + noise}
    return ranks


def rank_costs(terms: PoolTerms, rows: Ints, pool_R: Ints) -> StageCosts:
    """Stage costs of the R pipeline ranks of each of the n layouts `rows`, in n · R rows. They are the
    coefficients of `rank_terms`, summed over their parts."""
    columns = {name: _on_ranks([getattr(one, name) for one in terms.costs], rows, pool_R) for name in COLUMNS}
    for name, (seconds_Rn, slowdown_Rn) in _transfer_terms(terms, rows, pool_R).items():
        columns[name] = columns[name] + (seconds_Rn * (1 + slowdown_Rn)).T.reshape(-1)
    return StageCosts(**columns, kinds=())


def _transfer_terms(terms: PoolTerms, rows: Ints, pool_R: Ints) -> dict[str, tuple[Array, Array]]:
    """Seconds of each rank's transfers, and their relative slowdown by stragglers, (R, n) each, by name of
    the cost coefficient that includes them."""
    ranks, waits_n = len(pool_R), terms.blocking[rows]

    def between_pools(seconds: Array, sender: Ints, receiver: Ints) -> tuple[Array, Array]:
        """Seconds of transfers from the pools `sender` to the pools `receiver`, and the larger slowdown of
        the two, (R, n) each."""
        slower = np.maximum(terms.slowdown[sender[:, None], rows], terms.slowdown[receiver[:, None], rows])
        return seconds[sender[:, None], receiver[:, None], rows], slower

    delay_Bn, slower_Bn = between_pools(terms.transfers, pool_R[:-1], pool_R[1:])
    tied = between_pools(terms.tied, pool_R[:1].repeat(ranks), pool_R[-1:].repeat(ranks))
    onward = np.minimum(np.arange(ranks), ranks - 2)
    back = np.maximum(np.arange(ranks) - 1, 0)
    slowest_n = np.argmax(delay_Bn * (1 + slower_Bn), axis=0)
    everywhere = np.broadcast_to(slowest_n, (ranks, len(rows)))
    p2p = tuple(np.take_along_axis(one, everywhere, axis=0) for one in (delay_Bn, slower_Bn))
    return {
        "embedding_sync": tied,
        "head_sync": tied,
        "stage_forward": (np.where(waits_n, delay_Bn[onward], 0.0), slower_Bn[onward]),
        "stage_backward": (np.where(waits_n, delay_Bn[back], 0.0), slower_Bn[back]),
        "p2p": (np.where(waits_n, 0.0, p2p[0]), p2p[1]),
    }


def _with_all_nodes(pool: Question, question: Question) -> Question:
    """Copy of the question about one pool with as many nodes as all pools have together, so that the layout's
    degrees fit.

    Groups of one rank stay as they are: each lies inside the pool, under its own leaf switches.
    """
    cluster, links = pool.cluster, pool.cluster.links
    if links.inter_node is None:
        links = links.with_inter_node(question.pool_link)
    elif isinstance(links, LinkLevels):
        links = links.levels_for(cluster.nodes)
    update: dict[str, object] = {"links": links}
    update["nodes"] = -(-question.cluster.num_gpus // cluster.gpus_per_node)
    if cluster.nodes <= (cluster.nodes_per_leaf or 0):
        update["oversubscription"] = 1.0  # all nodes are under one leaf, which no group leaves
    if cluster.buildings is not None and cluster.nodes <= cluster.buildings.nodes:
        update["buildings"] = None  # and in one building
    return pool.updated("cluster", **update)


def _without_transfers(terms: Terms, pool: Question, columns: LayoutColumns) -> Terms:
    """Copy of the cost `terms` without the seconds of transfers between pipeline ranks."""
    slowdown = jitter_share(pool, columns)

    def without_pp(term: Term) -> Term:
        """Term without pipeline transfers."""
        other_parts = {part: value for part, value in term.items() if part not in ("pp_comm", "jitter")}
        return with_jitter({**other_parts, "pp_comm": np.zeros(len(columns))}, slowdown)

    names = ("stage_forward", "stage_backward", "p2p", "embedding_sync", "head_sync")
    return terms | {name: without_pp(terms[name]) for name in names}


def _transfers(question: Question, enlarged: list[Question], columns: LayoutColumns) -> tuple[Array, Array]:
    """Seconds to send a stage's output, and to add the gradients of the tied embedding and output matrix,
    between every two pools, (K, K, N) each."""
    count = len(enlarged)
    boundary, tied = np.zeros((2, count, count, len(columns)))
    ranks = pool_capacities(question, columns.tp * columns.replicas)
    for k, pool in enumerate(question.pools):
        pool_columns = replace(columns, pp=ranks[k])
        boundary[k, k] = boundary_seconds(pool, pool_columns, axis_groups(pool.cluster, pool_columns))
    across, ends = pairs_over(question.pool_link, len(columns)), []
    for pool in enlarged:  # measured transfers are of the pool's own network, and not of the link between
        collectives = tuple(curve for curve in pool.hardware.collectives if curve.operation != "p2p")
        unmeasured = pool.updated("hardware", collectives=collectives)
        groups = replace(axis_groups(pool.cluster, columns), pp=across)
        send_seconds = boundary_seconds(unmeasured, columns, groups)
        ends.append((send_seconds, tied_reduce_seconds(unmeasured, columns, across)))
    for first, second in permutations(range(count), 2):
        boundary[first, second], tied[first, second] = map(np.maximum, ends[first], ends[second])
    return boundary, tied


def _on_ranks(values: list[Array], rows: Ints, pool_R: Ints) -> Array:
    """Values of one cost coefficient on each of R ranks of n layouts, in n · R rows. `values` has those of
    each pool of GPUs, (N,) or (N, P)."""
    value_nR = np.stack([value[rows] for value in values], axis=1)[:, pool_R]
    return value_nR.reshape(-1, *value_nR.shape[2:])


Finish = Callable[[int], float]
"""Function from a replica's number of microbatches to the seconds until the last is done, which never
decreases."""

ONCE_A_STEP = tuple(name for name in SECONDS if name.endswith(("_sync", "_optimizer", "_overhead")))
"""Names of the cost coefficients of work once a step, which all replicas do together or wait for."""


def replica_terms(question: Question, columns: LayoutColumns) -> list[Terms]:
    """Cost coefficients of N layouts in each pool, for replicas that each lie in one pool. Work that is done
    once a step takes as long in every pool as in the slowest.

    Raises:
        InputError: a GPU has no rate for the training precision.
    """
    terms_by_pool = [stage_terms(among_replicas(pool, question), columns) for pool in question.pools]
    once = {name: _longest_terms([terms[name] for terms in terms_by_pool]) for name in ONCE_A_STEP}
    return [terms | once for terms in terms_by_pool]


def in_pools(question: Question, layout: Layout) -> Layout:
    """Copy of the layout with the largest number of replicas (`dp`) for which the pools have GPUs, and with
    the pool of each replica. Replicas fill the pools in the cluster's order."""
    pools = _pool_names(question, pool_capacities(question, layout.tp * layout.cp * layout.pp))
    return layout.model_copy(update={"replicas": pools, "dp": len(pools)})


def fewest_microbatches(layout: Layout) -> int:
    """Minimum number of microbatches with which a replica can run the layout's schedule."""
    return 1 if layout.schedule in QUEUES else layout.pp


def require_full_pools(question: Question, layout: Layout) -> None:
    """Raise InputError unless the layout's replicas fill all pools and each replica gets the schedule's
    minimum number of microbatches.

    Raises:
        InputError: they do not, or there are too few microbatches for all.
    """
    replicas, names = replicas_by_pool(question, layout), question.pool_names
    capacity = pool_capacities(question, layout.tp * layout.cp * layout.pp)
    if replicas != capacity:
        raise InputError(f"`{layout}` has {replicas} replicas in pools {names}; their GPUs hold {capacity}")
    microbatches, remainder = divmod(question.training.global_batch, layout.mbs)
    minimum = fewest_microbatches(layout)
    if remainder or microbatches < minimum * layout.dp:
        raise InputError(
            f"`{layout}` has {microbatches} microbatches of {question.training.global_batch} sequences for {layout.dp}"
            f" replicas, each of which takes {minimum} or more"
        )


def replicas_by_pool(question: Question, layout: Layout) -> tuple[int, ...]:
    """Number of the layout's replicas in each pool."""
    return tuple(layout.replicas.count(name) for name in question.pool_names)


def among_replicas(pool: Question, question: Question) -> Question:
    """Copy of the question about one pool in which the cluster also has the GPUs of all other pools. Those
    are reached over the link between pools.

    Collectives measured between its nodes are not used for that link.
    """
    curves = tuple(one for one in pool.hardware.collectives if one.nodes == 1 or one.operation == "p2p")
    cluster, pool_link, enlarged = pool.cluster, question.pool_link, _with_all_nodes(pool, question)
    inter_node, links, update = cluster.links.inter_node, enlarged.cluster.links, dict[str, object]()
    if inter_node is not None and isinstance(links, LinkLevels):  # one level more that joins it with others
        *inner, last = links.root
        farther = _slower_link(pool_link, last)
        level = LevelSpec.model_construct(**dict(farther), name="between")
        own_level = last.model_copy(update={"nodes": cluster.nodes})
        update["links"] = LinkLevels.model_construct((*inner, own_level, level))
    elif inter_node is not None:
        buildings = enlarged.cluster.buildings
        inside = buildings.link if buildings else inter_node.faster(1 / enlarged.cluster.oversubscription)
        nodes = buildings.nodes if buildings else cluster.nodes
        update["buildings"] = BuildingsSpec(nodes=nodes, link=_slower_link(pool_link, inside))
        if cluster.nodes <= (cluster.nodes_per_leaf or 0):
            update["nodes_per_leaf"] = None  # of the one leaf that holds the pool
    return enlarged.updated("cluster", **update).updated("hardware", collectives=curves)


def with_microbatches(question: Question, layout: Layout, microbatches: int) -> Question:
    """Copy of the question with the global batch at which every replica of the layout processes
    `microbatches` microbatches."""
    return question.updated("training", global_batch=microbatches * layout.mbs * layout.dp)


def replica_memory(question: Question, pool: int, layout: Layout, microbatches: int) -> Terms:
    """Memory coefficients, in bytes, of a replica in pool number `pool` that processes `microbatches`
    microbatches per step."""
    inside = among_replicas(question.pools[pool], question)
    return memory_terms(with_microbatches(inside, layout, microbatches), LayoutColumns.of([layout]))


def _slower_link(pool_link: LinkSpec, pool_network: LinkSpec) -> LinkSpec:
    """Copy of the link between pools, `pool_link`, with no more bandwidth than a pool's own network has."""
    return pool_link.model_copy(update={"bandwidth": min(pool_link.bandwidth, pool_network.bandwidth)})


def _longest_terms(terms: Sequence[Term]) -> Term:
    """Cost term of N layouts, for each layout the one among the terms of K pools whose parts have the largest
    sum."""
    which_N = np.stack([sum_of_parts(term) for term in terms]).argmax(axis=0)
    return join_terms(terms, lambda values: np.choose(which_N, values))


def shares(question: Question, layout: Layout, pipelines: Sequence[Pipeline], blocks_SP: Ints) -> Shares:
    """Number of microbatches of each replica in each pool, chosen so that the slowest replica ends as early
    as possible."""

    def finish(pipeline: Pipeline, microbatches: int) -> float:
        """Step seconds of a replica in a pool with the given number of microbatches."""
        return float(replace(pipeline, microbatches=microbatches).step_seconds(blocks_SP))

    total_microbatches = question.training.global_batch // layout.mbs
    ends = [partial(finish, one) for one in pipelines]
    return divide_microbatches(
        ends, replicas_by_pool(question, layout), total_microbatches, fewest_microbatches(layout)
    )


def divide_microbatches(
    finish: Sequence[Finish], replicas: Sequence[int], microbatches: int, minimum: int = 1
) -> Shares:
    """Divide `microbatches` among the replicas of each pool, at least `minimum` each, so that the slowest
    replica ends as early as possible.

    `finish` and the numbers of `replicas` are given for each pool; of equal finishes the first pool's goes
    first.
    """
    assert microbatches >= minimum * sum(replicas), "every replica takes some"
    ends = [cache(own) for own in finish]
    counts = _guess(ends, replicas, microbatches, minimum)
    pools = range(len(replicas))

    def end(pool: int, added: int = 0) -> tuple[float, int]:
        """Pair of the time at which a replica of `pool` ends, with `added` more microbatches than now, and
        `pool` itself."""
        return ends[pool](counts[pool] + added), pool

    while True:
        spare = sum(each * count for each, count in zip(counts, replicas, strict=True)) - microbatches
        reducible = [pool for pool in pools if counts[pool] > minimum]
        slowest = max(reducible, key=end, default=None)
        soonest = min(pools, key=lambda pool: end(pool, 1))
        late = slowest is not None and soonest != slowest and end(slowest) > end(soonest, 1)
        if spare < 0:
            counts[soonest] += 1
        elif slowest is not None and (late or spare >= replicas[slowest]):
            counts[slowest] -= 1
        else:
            break
    fewer = [spare if pool == slowest else 0 for pool in pools]
    parts = zip(counts, replicas, fewer, strict=True)
    return tuple((most,) * (number - less) + (most - 1,) * less for most, number, less in parts)


def _guess(ends: Sequence[Finish], replicas: Sequence[int], microbatches: int, minimum: int) -> list[int]:
    """First guess of the number of microbatches of a replica in each pool, which assumes that all
    microbatches take equally long."""
    mean = max(minimum, microbatches // sum(replicas))
    rates = [1 / max(1e-12, end(mean + 1) - end(mean)) for end in ends]
    starts = [end(mean) - mean / rate for end, rate in zip(ends, rates, strict=True)]
    total_rate = sum(count * rate for count, rate in zip(replicas, rates, strict=True))
    missed = sum(n * rate * start for n, rate, start in zip(replicas, rates, starts, strict=True))
    moment = (microbatches + missed) / total_rate
    guesses = [int((moment - start) * rate) for start, rate in zip(starts, rates, strict=True)]
    return [min(max(minimum, own), microbatches) for own in guesses]
