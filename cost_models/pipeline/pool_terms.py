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
from dataclasses import dataclass, fields, replace
from typing import TypeVar

import numpy as np

from cost_models.arrays import Array, Bools, Ints
from cost_models.axes.columns import LayoutColumns, is_overlapped
from cost_models.axes.layout import Layout
from cost_models.communication.stage import boundary_seconds
from cost_models.communication.topology import AxisGroups, axis_groups, pairs_over
from cost_models.errors import InputError
from cost_models.memory.device import memory_limit
from cost_models.pipeline.stage_costs import COLUMNS, StageCosts, add_up, stage_costs
from cost_models.pipeline.terms.kinds import each_kind, terms_by_sort, times_of_kinds
from cost_models.pipeline.terms.memory_terms import MemoryTerms, memory_terms
from cost_models.pipeline.terms.update_terms import tied_reduce_seconds
from cost_models.pipeline.time_pieces import Term, jitter, total, with_jitter
from cost_models.pipeline.time_terms import TimeTerms, time_terms
from cost_models.question import MixedQuestion, Question
from cost_models.specs.links import LinkLevels, LinkSpec

Coefficients = TypeVar("Coefficients", TimeTerms, MemoryTerms)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolTerms:
    """The coefficients of N layouts in each of K pools, and the transfers between ranks."""

    times: tuple[TimeTerms, ...]
    """For each pool, transfers left out; the fixed time of a step is the slowest pool's in all of them."""
    memories: tuple[MemoryTerms, ...]
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
    times = [_without_transfers(time_terms(pool, columns), pool, columns) for pool in whole]
    overhead = _slowest([one.step_overhead for one in times])
    transfers, tied = _transfers(question, whole, columns)
    times = [replace(one, step_overhead=overhead) for one in times]
    memories = [memory_terms(pool, columns) for pool in whole]
    limits = [memory_limit(pool, columns) for pool in whole]
    return PoolTerms(
        times=tuple(times),
        memories=tuple(memories),
        limits=tuple(limits),
        costs=tuple(add_up(*one) for one in zip(times, memories, limits, strict=True)),
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


RankTerms = tuple[TimeTerms, MemoryTerms, Array]
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
    times = terms_by_sort(times_of_kinds(question, columns))
    memories = terms_by_sort(each_kind(question, columns, memory_terms))
    limit = memory_limit(question, columns)
    if len(layouts) == 1:
        return [(times, memories, limit)]
    return [(_row(times, at), _row(memories, at), limit[at]) for at in (slice(row, row + 1) for row in rows)]


def _row(terms: Coefficients, at: slice) -> Coefficients:
    return type(terms)(
        **{
            field.name: {part: value[at] for part, value in getattr(terms, field.name).items()}
            for field in fields(terms)
        }
    )


def costs_of_ranks(question: Question, layout: Layout) -> StageCosts:
    """The coefficients of one layout, parts added up: of one row, or in several pools one for each of its ranks."""
    if not isinstance(question, MixedQuestion):
        return stage_costs(question, LayoutColumns.of([layout]))
    (terms,) = terms_of_each(question, [layout])
    return add_up(*terms)


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


def rank_terms(terms: PoolTerms, rows: Ints, pool_R: Ints) -> tuple[TimeTerms, MemoryTerms, Array]:
    """The coefficients of some layouts with R ranks, rank r in pool `pool_R[r]`: n · R rows, a layout's ranks together.

    The third value is what the peak of each rank's device may reach.
    """
    times = {
        field.name: _of_ranks([getattr(one, field.name) for one in terms.times], rows, pool_R)
        for field in fields(TimeTerms)
    }
    memories = {
        field.name: _of_ranks([getattr(one, field.name) for one in terms.memories], rows, pool_R)
        for field in fields(MemoryTerms)
    }
    for name, (seconds_Rn, slowdown_Rn) in _handed_on(terms, rows, pool_R).items():
        seconds, noise = seconds_Rn.T.reshape(-1), (seconds_Rn * slowdown_Rn).T.reshape(-1)
        term = times[name]
        times[name] = {**term, "pp_comm": term["pp_comm"] + seconds, "jitter": term["jitter"] + noise}
    limit = _on_ranks([one[rows] for one in terms.limits], pool_R)
    return TimeTerms(**times), MemoryTerms(**memories), limit


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


def _without_transfers(times: TimeTerms, pool: Question, columns: LayoutColumns) -> TimeTerms:
    """What a rank does alone: hands nothing on."""
    slowdown = jitter(pool, columns)

    def alone(term: Term) -> Term:
        own = {part: value for part, value in term.items() if part not in ("pp_comm", "jitter")}
        return with_jitter({**own, "pp_comm": np.zeros(len(columns))}, slowdown)

    names = ("stage_forward", "stage_backward", "p2p", "embedding_sync", "head_sync")
    return replace(times, **{name: alone(getattr(times, name)) for name in names})


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


def _slowest(terms: list[Term]) -> Term:
    """The term of the pool where it takes longest."""
    longest = int(np.argmax([float(total(term).max()) for term in terms]))
    return terms[longest]


def _of_ranks(terms: list[Term], rows: Ints, pool_R: Ints) -> Term:
    """Each pool's term → n · R rows."""
    parts = dict.fromkeys(part for term in terms for part in term)
    return {part: _part_of_ranks([term.get(part) for term in terms], rows, pool_R) for part in parts}


def _part_of_ranks(values: list[Array | None], rows: Ints, pool_R: Ints) -> Array:
    known = next(value for value in values if value is not None)
    none = np.zeros((len(rows), *known.shape[1:]))
    return _on_ranks([none if value is None else value[rows] for value in values], pool_R)


def _on_ranks(values: list[Array], pool_R: Ints) -> Array:
    """Each pool's (n,) or (n, P) → n · R rows."""
    value_nR = np.stack(values, axis=1)[:, pool_R]
    return value_nR.reshape(-1, *value_nR.shape[2:])
