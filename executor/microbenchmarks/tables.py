"""Times what tables of recommenders ask of a device: lookups by row and pooling, sums of gradients, optimizers.

They are those of `executor.embeddings`, on tables beyond all caches whose rows are met in random order. So many ids at
once that launches hardly count: a step's are priced by the operation.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import get_args

import torch
from torch import Tensor

from cost_models.measured.calibration.measurements import Measurement
from cost_models.measured.calibration.microbenchmark_parts import CHANGE, LOOKUP, SUMS, moved_bytes
from cost_models.specs.recommender.training import TableOptimizer
from executor.embeddings.bags import Bags, pooled, row_gradients
from executor.embeddings.updating import RowOptimizer
from executor.microbenchmarks.scale import Scale
from executor.microbenchmarks.stopwatch import Stopwatch, Timing

_FP32 = 4
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
