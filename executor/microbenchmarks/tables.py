"""Times what tables of recommenders ask of a device: lookups by row and pooling, sums of gradients, optimizers; and
lookups through the caches that serve.

They are those of `executor.embeddings`, on tables beyond all caches whose rows are met in random order. So many ids at
once that launches hardly count: a step's are priced by the operation.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import get_args

import torch
from torch import Tensor

from cost_models.measured.calibration.measurements import Measurement
from cost_models.measured.calibration.microbenchmark_fit import (
    CHANGE,
    LOOKUP,
    SERVED_PREFIX,
    SUMS,
    moved_bytes,
)
from cost_models.recommender.accesses import POLICIES
from cost_models.specs.recommender.training import TableOptimizer
from executor.embeddings.bags import Bags, pooled, row_gradients
from executor.embeddings.cache import CachedSets, HottestRows
from executor.embeddings.updating import RowOptimizer
from executor.microbenchmarks.scale import Scale
from executor.microbenchmarks.stopwatch import Stopwatch, Timing, in_turn

_FP32 = 4
_FEW = 16
_ROUND = 8
"""Batches of missing ids, which together name four times the rows of the cache."""
_RATE = 1e-3


def tables(watch: Stopwatch, scale: Scale) -> Iterator[Measurement]:
    """Every width with every pooling, then sums and optimizers of every width."""
    flat = torch.zeros(scale.table_bytes // _FP32, device=watch.device)
    for width in scale.table_widths:
        weights = flat.view(-1, width)
        for pooling in scale.poolings:
            bags = _bags(len(weights), pooling, scale.table_ids, watch.device)
            yield _row(LOOKUP, width, bags, watch.compute(lambda b=bags, w=weights: pooled(w, b)))  # type: ignore[misc]
        yield from _updates(watch, scale, weights)
        yield from _served(watch, scale, weights)


def _updates(watch: Stopwatch, scale: Scale, weights: Tensor) -> Iterator[Measurement]:
    width = weights.shape[1]
    bags = _bags(len(weights), 1.0, scale.table_ids, watch.device)
    given = torch.full((len(bags.lengths), width), _RATE, device=watch.device)
    yield _row(SUMS, width, bags, watch.compute(lambda: row_gradients(bags, given)))
    found = row_gradients(bags, given)
    for kind in get_args(TableOptimizer):
        optimizer = RowOptimizer(kind)
        states = optimizer.states(len(weights), width, watch.device)
        squares = found.values.square().mean(1) if optimizer.by_row else None

        def change(optimizer=optimizer, states=states, squares=squares) -> None:  # type: ignore[no-untyped-def]
            optimizer.apply(weights, states, found.rows, found.values, squares, _RATE, 1)

        yield _row(f"{CHANGE}{kind}", width, bags, watch.compute(change))


def _served(watch: Stopwatch, scale: Scale, weights: Tensor) -> Iterator[Measurement]:
    """A few ids, of whose rows half are there; as many with many more that are there, and many that are all brought up.

    Batches of missing ids go round more rows than the cache has, so that a row is gone when it is named again.
    """
    draw = torch.Generator().manual_seed(0)
    ids, width = min(scale.table_ids, len(weights) // (_ROUND + 2)), weights.shape[1]
    below, room = weights[: (_ROUND + 2) * ids].cpu(), 2 * ids
    one_each = torch.ones(ids, dtype=torch.int32, device=watch.device)

    def asked(*rows: Tensor) -> list[Bags]:
        return [Bags(one.to(watch.device), one_each[: len(one)]) for one in rows]

    there = torch.randperm(ids, generator=draw)
    gone = asked(*torch.split(room + torch.randperm(_ROUND * ids, generator=draw), ids))
    strange = [one.values[:_FEW].cpu() for one in gone]
    few = asked(*(torch.cat((there[:_FEW], one)) for one in strange))
    hit = asked(*(torch.cat((there[:-_FEW], one)) for one in strange))
    for policy in POLICIES:
        cache: HottestRows | CachedSets = (
            CachedSets(below, room, policy, watch.device)
            if policy == "lru"
            else HottestRows(below, torch.arange(room), watch.device)
        )
        for name, batches in (("miss", gone), ("few", few), ("hit", hit)):
            timing = watch.on_host(in_turn([partial(cache.look_up, one) for one in batches]), own_clock=True)
            shape = width * _FP32, len(batches[0].values)
            yield timing.row("table", f"{SERVED_PREFIX}{policy}.{name}", float(shape[1]), shape)


def _bags(rows: int, pooling: float, ids: int, device: torch.device) -> Bags:
    """`ids` ids of random rows, `pooling` in each bag; below 1, one in some bags."""
    draw = torch.Generator().manual_seed(0)  # the same in every round, on every process
    values = torch.randint(rows, (ids,), generator=draw).to(device)
    count = round(ids / pooling)
    lengths = torch.zeros(count, dtype=torch.int32, device=device)
    if pooling < 1:
        lengths[torch.randperm(count, generator=draw)[:ids].to(device)] = 1
    else:
        lengths += int(pooling)
    return Bags(values, lengths)


def _row(name: str, width: int, bags: Bags, timing: Timing) -> Measurement:
    distinct = len(bags.values.unique())  # type: ignore[no-untyped-call]
    shape = width * _FP32, len(bags.values), len(bags.lengths), distinct
    return timing.row("table", name, moved_bytes(name, shape), shape)
