"""Coefficients of a pipeline that passes through several pools: every rank has those of the pool it lies in.

A pool's coefficients are those of the same degrees on its own GPUs, links and profile. Four things know of the others:

- a transfer between two ranks takes what their own boundary takes: inside a pool what it takes there, across pools
  what `between` takes at the slower of both ends. A stack that blocks its sender pays each boundary on its own rank;
  one that does not waits everywhere as long as at the slowest boundary, as a pipeline on one cluster does;
- the gradients of tied embeddings cross from the first rank's pool to the last one's;
- stragglers are counted over all nodes of the job;
- the fixed time of a step is that of the slowest pool.

Shape legend: N layouts, K pools, R pipeline ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from cost_models.arrays import Array, Bools, Ints
from cost_models.axes.columns import LayoutColumns, is_overlapped
from cost_models.axes.layout import Layout
from cost_models.communication.stage import boundary_seconds
from cost_models.communication.topology import AxisGroups, axis_groups, pairs_over
from cost_models.errors import InputError
from cost_models.memory.device import memory_limit
from cost_models.pipeline.stage_costs import COLUMNS, StageCosts, costs_of, stage_costs
from cost_models.pipeline.terms.kinds import stage_terms, terms_by_kind, terms_by_sort
from cost_models.pipeline.terms.update_terms import tied_reduce_seconds
from cost_models.pipeline.time_pieces import Term, Terms, jitter, total, with_jitter
from cost_models.question import MixedQuestion, Question
from cost_models.specs.links import LinkLevels, LinkSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolTerms:
    """The coefficients of N layouts in each of K pools, and the transfers between ranks."""

    terms: tuple[Terms, ...]
    """For each pool, transfers left out; the fixed time of a step is the slowest pool's in all of them."""
    limits: tuple[Array, ...]
    """(N,) bytes that a device's peak may reach."""
    costs: tuple[StageCosts, ...]
    """All of this added up."""
    transfers: Array
    """(K, K, N) seconds from a rank in one pool to its neighbour in another, or in the same."""
    tied: Array
    """(K, K, N) seconds to add the gradients of a tied matrix between two pools."""
    slowdown: Array
    """(K, N): see `time_terms.jitter`."""
    blocking: Bools
    """(N,): whether a sender waits for its transfer."""


def pool_terms(question: MixedQuestion, columns: LayoutColumns) -> PoolTerms:
    """Price N layouts, whose `pp` counts the ranks of all pools, in every pool.

    Raises:
        InputError: a GPU has no rate for the training precision.
    """
    whole = [_as_large_as_all(pool, question) for pool in question.pools]
    each = [_without_transfers(stage_terms(pool, columns), pool, columns) for pool in whole]
    # the fixed time of a step is that of the pool where it takes longest
    overhead = max((terms["step_overhead"] for terms in each), key=lambda term: float(total(term).max()))
    each = [terms | {"step_overhead": overhead} for terms in each]
    transfers, tied = _transfers(question, whole, columns)
    limits = [memory_limit(pool, columns) for pool in whole]
    return PoolTerms(
        terms=tuple(each),
        limits=tuple(limits),
        costs=tuple(costs_of(*one) for one in zip(each, limits, strict=True)),
        transfers=transfers,
        tied=tied,
        slowdown=np.stack([jitter(pool, columns) for pool in whole]),
        blocking=~is_overlapped(columns, "pp", default=question.stack.overlap_pipeline_sends),
    )


def ranks_in(question: MixedQuestion, columns: LayoutColumns) -> Ints:
    """(K, N) pipeline ranks that each pool holds, all of its GPUs in use."""
    gpus_K1 = np.array([pool.cluster.num_gpus for pool in question.pools])[:, None]
    ranks: Ints = gpus_K1 // (columns.tp * columns.replicas)
    return ranks


RankTerms = tuple[Terms, Array]
"""The coefficients of a layout, one row for all its ranks, blocks by sort, or on several pools one for each of mean
blocks; and the bytes that the peak of each rank's device may reach."""


def terms_of_each(question: Question, layouts: Sequence[Layout]) -> list[RankTerms]:
    """The coefficients of each of some layouts, computed together."""
    if not layouts:
        return []
    columns, rows = LayoutColumns.of(layouts), range(len(layouts))
    if isinstance(question, MixedQuestion):
        terms = pool_terms(question, columns)
        return [rank_terms(terms, np.array([row]), pools_of(question, layouts[row])) for row in rows]
    sorts, limit = terms_by_sort(terms_by_kind(question, columns)), memory_limit(question, columns)
    if len(layouts) == 1:
        return [(sorts, limit)]
    return [
        ({name: {part: value[at] for part, value in term.items()} for name, term in sorts.items()}, limit[at])
        for at in (slice(row, row + 1) for row in rows)
    ]


def costs_of_ranks(question: Question, layout: Layout) -> StageCosts:
    """The coefficients of one layout, parts added up: of one row, or in several pools one for each of its ranks."""
    if not isinstance(question, MixedQuestion):
        return stage_costs(question, LayoutColumns.of([layout]))
    (terms,) = terms_of_each(question, [layout])
    return costs_of(*terms)


def pools_of(question: MixedQuestion, layout: Layout) -> Ints:
    """(R,): the pool of each rank of a layout that names them."""
    return np.array([question.names.index(name) for name in layout.pools])


def with_pools(question: Question, layout: Layout) -> Layout:
    """The layout with the pool of each rank; where it does not say, the pools follow one another as in the cluster.

    Raises:
        InputError: the ranks do not fill the pools.
    """
    if layout.says_pools or not isinstance(question, MixedQuestion):
        return layout
    counts = ranks_in(question, LayoutColumns.of([layout]))[:, 0].tolist()
    ranks = [name for name, count in zip(question.names, counts, strict=True) for _ in range(count)]
    if len(ranks) != layout.pp:
        size = layout.tp * layout.data_ranks
        raise InputError(f"`{layout}` has {layout.pp} ranks of {size} GPUs; the pools hold {len(ranks)}")
    return layout.model_copy(update={"pools": tuple(ranks)})


def rank_terms(terms: PoolTerms, rows: Ints, pool_R: Ints) -> RankTerms:
    """The coefficients of some layouts with R ranks, rank r in pool `pool_R[r]`: n · R rows, a layout's ranks together.

    The second value is what the peak of each rank's device may reach.
    """
    ranks = {name: _of_ranks([one[name] for one in terms.terms], rows, pool_R) for name in terms.terms[0]}
    for name, (seconds_Rn, slowdown_Rn) in _handed_on(terms, rows, pool_R).items():
        seconds, noise = seconds_Rn.T.reshape(-1), (seconds_Rn * slowdown_Rn).T.reshape(-1)
        term = ranks[name]
        ranks[name] = {**term, "pp_comm": term["pp_comm"] + seconds, "jitter": term["jitter"] + noise}
    return ranks, _on_ranks([one[rows] for one in terms.limits], pool_R)


def rank_costs(terms: PoolTerms, rows: Ints, pool_R: Ints) -> StageCosts:
    """The same, parts added up."""
    columns = {name: _on_ranks([getattr(one, name)[rows] for one in terms.costs], pool_R) for name in COLUMNS}
    for name, (seconds_Rn, slowdown_Rn) in _handed_on(terms, rows, pool_R).items():
        columns[name] = columns[name] + (seconds_Rn * (1 + slowdown_Rn)).T.reshape(-1)
    return StageCosts(**columns, kinds=())


def _handed_on(terms: PoolTerms, rows: Ints, pool_R: Ints) -> dict[str, tuple[Array, Array]]:
    """Coefficient → (R, n) seconds of transfers that it has in addition, and (R, n) what stragglers add as a share."""
    ranks, here_R1, next_R1 = len(pool_R), pool_R[:-1, None], pool_R[1:, None]
    delay_Bn = terms.transfers[here_R1, next_R1, rows]
    slower_Bn = np.maximum(terms.slowdown[here_R1, rows], terms.slowdown[next_R1, rows])
    first, last = int(pool_R[0]), int(pool_R[-1])
    tied_n, slower_n = terms.tied[first, last, rows], np.maximum(*terms.slowdown[[first, last]][:, rows])
    tied = tuple(np.broadcast_to(one, (ranks, len(rows))) for one in (tied_n, slower_n))
    added = {"embedding_sync": (tied[0], tied[1]), "head_sync": (tied[0], tied[1])}
    waits_n = terms.blocking[rows]
    onward = np.minimum(np.arange(ranks), ranks - 2)
    back = np.maximum(np.arange(ranks) - 1, 0)
    slowest_n = np.argmax(delay_Bn * (1 + slower_Bn), axis=0)
    everywhere = np.broadcast_to(slowest_n, (ranks, len(rows)))
    p2p = tuple(np.take_along_axis(one, everywhere, axis=0) for one in (delay_Bn, slower_Bn))
    return {
        **added,
        "stage_forward": (np.where(waits_n, delay_Bn[onward], 0.0), slower_Bn[onward]),
        "stage_backward": (np.where(waits_n, delay_Bn[back], 0.0), slower_Bn[back]),
        "p2p": (np.where(waits_n, 0.0, p2p[0]), p2p[1]),
    }


def _as_large_as_all(pool: Question, question: MixedQuestion) -> Question:
    """The pool's question on as many nodes as the whole job has, so that its degrees find room.

    Groups of one rank stay as they are: each lies inside the pool, under its own leaf switches.
    """
    cluster = pool.cluster
    links = cluster.links
    if links.inter_node is None:
        links = links.with_inter_node(question.mixed.link)
    elif isinstance(links, LinkLevels):
        links = links.under(cluster.nodes)
    update: dict[str, object] = {"links": links}
    update["nodes"] = -(-question.mixed.num_gpus // cluster.gpus_per_node)
    if cluster.nodes <= (cluster.nodes_per_leaf or 0):
        update["oversubscription"] = 1.0  # no group leaves the one leaf that all nodes are under
    if cluster.buildings is not None and cluster.nodes <= cluster.buildings.nodes:
        update["buildings"] = None  # nor the one building
    return replace(pool, cluster=cluster.model_copy(update=update))


def _without_transfers(terms: Terms, pool: Question, columns: LayoutColumns) -> Terms:
    """What a rank does alone: hands nothing on."""
    slowdown = jitter(pool, columns)

    def alone(term: Term) -> Term:
        own = {part: value for part, value in term.items() if part not in ("pp_comm", "jitter")}
        return with_jitter({**own, "pp_comm": np.zeros(len(columns))}, slowdown)

    names = ("stage_forward", "stage_backward", "p2p", "embedding_sync", "head_sync")
    return terms | {name: alone(terms[name]) for name in names}


def _transfers(question: MixedQuestion, whole: list[Question], columns: LayoutColumns) -> tuple[Array, Array]:
    """(K, K, N) seconds of a stage boundary, and (K, K, N) of a tied matrix."""
    count = len(whole)
    boundary, tied = np.zeros((2, count, count, len(columns)))
    ranks_KN = ranks_in(question, columns)
    for k, pool in enumerate(question.pools):
        own = replace(columns, pp=ranks_KN[k])
        boundary[k, k] = boundary_seconds(pool, own, axis_groups(pool.cluster, own))
    ends = [_end_of_link(pool, question.mixed.link, columns) for pool in whole]
    for one in range(count):
        for other in range(count):
            if one != other:
                pair = (ends[one], ends[other])
                boundary[one, other] = np.maximum(*(boundary_seconds(q, columns, g) for q, g in pair))
                tied[one, other] = np.maximum(*(tied_reduce_seconds(q, columns, g.pp) for q, g in pair))
    return boundary, tied


def _end_of_link(pool: Question, link: LinkSpec, columns: LayoutColumns) -> tuple[Question, AxisGroups]:
    """A pool's question and groups, with neighbours in the pipeline at the other end of a link to another pool.

    Measured transfers are of the pool's own network, so they do not speak of that link.
    """
    collectives = tuple(curve for curve in pool.hardware.collectives if curve.operation != "p2p")
    hardware = pool.hardware.model_copy(update={"collectives": collectives})
    across = pairs_over(link, len(columns))
    return replace(pool, hardware=hardware), replace(axis_groups(pool.cluster, columns), pp=across)


def _of_ranks(terms: list[Term], rows: Ints, pool_R: Ints) -> Term:
    """Each pool's term → n · R rows; a part that a pool lacks is zero there."""
    known = {part: value for term in terms for part, value in term.items()}
    return {
        part: _on_ranks([term.get(part, np.zeros_like(value))[rows] for term in terms], pool_R)
        for part, value in known.items()
    }


def _on_ranks(values: list[Array], pool_R: Ints) -> Array:
    """Each pool's (n,) or (n, P) → n · R rows."""
    value_nR = np.stack(values, axis=1)[:, pool_R]
    return value_nR.reshape(-1, *value_nR.shape[2:])
