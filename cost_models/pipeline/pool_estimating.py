"""The price of one placed layout on a cluster of several pools.

The same sums as for one cluster (`cost_models.pipeline.estimating`), each rank with the coefficients of its own pool.

Shape legend: S virtual stages, R pipeline ranks.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import Layout
from cost_models.breakdown import Breakdown
from cost_models.errors import InputError
from cost_models.estimate import Estimate
from cost_models.operators.flops import model_flops, recomputed_flops, utilisation
from cost_models.pipeline.costs import add_up
from cost_models.pipeline.estimating import (
    Placed,
    bound_by,
    once_a_step,
    part_seconds,
    place,
    rank_memory,
    stage_seconds,
    trust_of,
)
from cost_models.pipeline.memory_terms import MemoryTerms
from cost_models.pipeline.pool_terms import pool_terms, rank_terms, ranks_in
from cost_models.pipeline.stage_costs import StageCosts
from cost_models.pipeline.time_terms import HIDDEN_PARTS, TIME_PARTS, TimeTerms
from cost_models.question import MixedQuestion, doubt
from cost_models.schedules import compile_timeline

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ranks:
    """A placed layout, and a row of coefficients for each of its ranks."""

    placed: Placed
    times: tuple[TimeTerms, ...]
    """For each rank, one row."""
    memories: tuple[MemoryTerms, ...]
    costs: StageCosts
    """R rows."""
    limits: tuple[float, ...]


def estimate_mixed(question: MixedQuestion, layout: Layout) -> Estimate:
    """Step time, MFU (of the peaks of all pools together) and memory of one layout.

    Raises:
        InputError: the layout cannot be placed or scheduled, or its ranks are not those of the pools.
    """
    ranks = _ranks(question, with_pools(question, layout))
    placed = ranks.placed
    seconds, parts = _step(ranks)
    model, training, ran = question.model, question.training, placed.layout
    useful = model_flops(model, training, ran.tp)
    spent = useful + recomputed_flops(model, training, ran)
    peak = sum(p.cluster.num_gpus * p.cluster.gpu.peak[training.precision] for p in question.pools)
    peaks = tuple(rank_memory(placed, memories)[rank] for rank, memories in enumerate(ranks.memories))
    fullest = max(range(ran.pp), key=lambda rank: peaks[rank].total / ranks.limits[rank])
    return Estimate(
        layout=ran,
        microbatches=placed.table.microbatches,
        step_seconds=seconds,
        time=parts,
        hidden_comm=_hidden(ranks),
        rank_memory=peaks,
        memory_limit=ranks.limits[fullest],
        mfu=utilisation(useful, seconds, 1, peak),
        hfu=utilisation(spent, seconds, 1, peak),
        tokens_per_second=training.tokens_per_step / seconds,
        bound_by=bound_by(parts),
        trust=trust_of(max(question.pools, key=lambda pool: doubt(pool.hardware))),
        rank_limits=ranks.limits,
    )


def mixed_durations(question: MixedQuestion, layout: Layout) -> tuple[tuple[Floats, Floats, Floats], float]:
    """What a placed layout's timeline is made of: (S,) seconds as `estimating.stage_seconds`, and the delay between."""
    ranks = _ranks(question, with_pools(question, layout))
    return _on_stages(ranks), float(ranks.costs.p2p[0])


def mixed_once_a_step(question: MixedQuestion, layout: Layout) -> tuple[Floats, Floats, float]:
    """(R,) seconds of synchronising gradients and of the update, and the step's overhead."""
    ranks = _ranks(question, with_pools(question, layout))
    return *_once(ranks), float(ranks.costs.step_overhead[0])


def with_pools(question: MixedQuestion, layout: Layout) -> Layout:
    """The layout with the pool of each rank; where it does not say, the pools follow one another as in the cluster.

    Raises:
        InputError: the ranks do not fill the pools.
    """
    counts = ranks_in(question, LayoutColumns.of([layout]))[:, 0].tolist()
    if layout.pools:
        return layout
    ranks = [name for name, count in zip(question.names, counts, strict=True) for _ in range(count)]
    if len(ranks) != layout.pp:
        size = layout.tp * layout.replicas
        raise InputError(f"`{layout}` has {layout.pp} ranks of {size} GPUs; the pools hold {len(ranks)}")
    return layout.model_copy(update={"pools": tuple(ranks)})


def _ranks(question: MixedQuestion, layout: Layout) -> _Ranks:
    placed = place(layout, question)
    terms = pool_terms(question, LayoutColumns.of([placed.layout]))
    pool_R = np.array([question.names.index(name) for name in layout.pools])
    times, memories, limit = rank_terms(terms, np.zeros(1, dtype=np.int64), pool_R)
    rows = range(len(pool_R))
    return _Ranks(
        placed=placed,
        times=tuple(TimeTerms(**_row(times, rank)) for rank in rows),
        memories=tuple(MemoryTerms(**_row(memories, rank)) for rank in rows),
        costs=add_up(times, memories, limit),
        limits=tuple(limit.tolist()),
    )


def _row(terms: TimeTerms | MemoryTerms, rank: int) -> dict[str, dict[str, Floats]]:
    """One rank's coefficients, as those of a single layout."""
    named = ((field.name, getattr(terms, field.name)) for field in fields(terms))
    return {name: {part: value[rank : rank + 1] for part, value in term.items()} for name, term in named}


def _on_stages(ranks: _Ranks) -> tuple[Floats, Floats, Floats]:
    """(S,) forward, backward and split-off weight seconds of a microbatch, each stage at its own rank's rates."""
    of_S = ranks.placed.stage_ranks
    at_every_rank = [stage_seconds(ranks.placed, ranks.costs, rank) for rank in range(len(ranks.limits))]
    forward_RS, backward_RS, weight_RS = (np.stack(values) for values in zip(*at_every_rank, strict=True))
    own = (of_S, np.arange(len(of_S)))
    return forward_RS[own], backward_RS[own], weight_RS[own]


def _once(ranks: _Ranks) -> tuple[Floats, Floats]:
    """(R,) synchronisation and optimizer seconds."""
    rows = range(len(ranks.limits))
    sync = np.array([once_a_step(ranks.placed, ranks.costs, "sync", rank)[rank] for rank in rows])
    update = np.array([once_a_step(ranks.placed, ranks.costs, "optimizer", rank)[rank] for rank in rows])
    return sync, update


def _step(ranks: _Ranks) -> tuple[float, Breakdown]:
    """Seconds of a step, and the parts of its busiest rank."""
    forward, backward, weight = _on_stages(ranks)
    sync, optimizer = _once(ranks)
    overhead = float(ranks.costs.step_overhead[0])
    timeline = compile_timeline(ranks.placed.table)

    def step(delay: float) -> float:
        ends = timeline.rank_ends(forward, backward, delay, weight)
        return float(np.max(ends + sync) + np.max(optimizer) + overhead)

    seconds = step(float(ranks.costs.p2p[0]))
    busy = (
        ranks.placed.table.microbatches * ranks.placed.per_rank(forward + backward + weight)
        + sync
        + optimizer
    )
    rank = int(np.argmax(busy))
    parts = {part: float(part_seconds(ranks.placed, ranks.times[rank], part)[rank]) for part in TIME_PARTS}
    parts["pp_comm"] += seconds - step(0.0)
    parts["bubble"] = max(0.0, seconds - sum(parts.values()))  # rounding must not make it negative
    return seconds, Breakdown.from_dict(parts)


def _hidden(ranks: _Ranks) -> Breakdown:
    """Communication that runs behind compute, of the rank that has most of it."""
    hidden = {part: part.replace("hidden", "comm") for part in HIDDEN_PARTS}
    pools, layout = ranks.placed.layout.pools, ranks.placed.layout
    # transfers apart, ranks of a pool cost the same
    alike = [pools.index(name) for name in dict.fromkeys(pools)]
    most = dict.fromkeys(hidden, 0.0)
    for first in alike:
        own = [rank for rank in range(layout.pp) if pools[rank] == pools[first]]
        for part in hidden:
            seconds_R = part_seconds(ranks.placed, ranks.times[first], part)
            most[part] = max(most[part], float(seconds_R[own].max()))
    return Breakdown.from_dict({name: most[part] for part, name in hidden.items()})
