"""Lookups answered batch after batch on one device, and what was measured of them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from cost_models.arrays import Array, Ints
from executor.emulate.alone import device_for, name_of, require_memory
from executor.serving.requests import Batch, drawn, in_batches, recorded
from executor.serving.tables import ServedTables
from executor.timing import finish
from planner.serving import ServingPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """Batches of one size."""

    batch: int
    samples: int
    seconds: Array
    """Of each batch, from its ids to its vectors."""
    cpu_seconds: Array
    """The same by the clock of the thread that answers."""
    counts: Ints
    """(T, 4) ids of each table, those whose row was in the cache, rows from the host, of these from the drive."""
    vectors: list[list[Tensor]]
    """Of each batch by table, where they are kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """What was answered, size of batch by size, and where."""

    device: str
    """`cpu`, or the name of the GPU."""
    drive_bytes: int
    """Of rows that lie on the drive."""
    answered: tuple[Answered, ...]


def serve(
    plan: ServingPlan,
    batches: tuple[int, ...],
    *,
    samples: int,
    requests: Path | None = None,
    drive: Path | None = None,
    weights: Path | None = None,
) -> Served:
    """Fill the tiers of a plan and answer `samples` drawn samples in batches of each size, or the requests of a file,
    whose vectors are kept.

    Caches of what was used last are filled with as many samples before.

    Raises:
        InputError: requests or weights that do not go with the plan.
        HostError: too little room.
    """
    model, device = plan.question.model, device_for(plan.question.cluster.gpu)
    asked = None if requests is None else recorded(requests, model)
    if asked is None:  # a batch is drawn whole: ids, their vectors twice at most
        each = sum(one.count * one.pooling * (16 + 8 * one.width) for one in model.classes)
        needs = max(batches) * each
        require_memory(
            f"a batch of {max(batches)}", needs, torch.device("cpu"), "ask for smaller ones: --batch"
        )
    with _one_thread(device), torch.inference_mode():
        tables = ServedTables(plan, device, drive=drive, weights=weights)
        answered = []
        for size in batches:
            count = max(1, samples // size)
            _answered(
                tables, size, drawn(model, size, count if plan.question.policy == "lru" else 1, seed=size + 1)
            )
            some = drawn(model, size, count, seed=size) if asked is None else in_batches(asked, size)
            answered.append(_answered(tables, size, some, keep=asked is not None))
    return Served(device=name_of(device), drive_bytes=tables.drive_bytes, answered=tuple(answered))


def _answered(tables: ServedTables, size: int, batches: Iterable[Batch], *, keep: bool = False) -> Answered:
    before, samples = tables.counts(), 0
    seconds: list[tuple[float, float]] = []
    kept: list[list[Tensor]] = []
    for batch in batches:
        ids = [bags.to(tables.device) for bags in batch]
        finish(tables.device)
        began, worked = time.perf_counter(), time.thread_time()
        vectors = tables.look_up(ids)
        finish(tables.device)
        seconds.append((time.perf_counter() - began, time.thread_time() - worked))
        samples += len(ids[0].lengths)
        if keep:
            kept.append([one.float().cpu() for one in vectors])
    return Answered(
        batch=size,
        samples=samples,
        seconds=np.array(seconds)[:, 0],
        cpu_seconds=np.array(seconds)[:, 1],
        counts=tables.counts() - before,
        vectors=kept,
    )


@contextmanager
def _one_thread(device: torch.device) -> Iterator[None]:
    """A CPU serves on one core, as the plan for one prices it."""
    before = torch.get_num_threads()
    if device.type == "cpu":
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
