"""Clicks that are made up, with something in them to learn: what recommenders train on where no recording is at hand.

Samples of a step follow from (seed, step) alone, so every sharding sees the same ones in the same order and each rank
takes its slice. Ids follow the accesses of their tables; every row has a hidden worth, and a sample is clicked the
likelier the more its ids and dense features are worth. So a model learns the worth of the rows used most first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from cost_models.arrays import Array, Ints
from cost_models.recommender.accesses import accesses_of
from cost_models.specs.recommender.model import RecommenderSpec, TableSpec
from executor.embeddings.bags import Bags
from executor.pinned import carried_to

_STRENGTH = 3.0
"""Standard deviation of a sample's worth, in units of log odds."""


@dataclass(frozen=True, slots=True)
class Clicks:
    """Samples of a step: what a recommender is trained on."""

    dense: Tensor
    """(b, dense features)"""
    ids: Sequence[Bags]
    """Of each table: a bag of each sample."""
    labels: Tensor
    """(b, tasks) 0 or 1."""

    def to(self, device: torch.device) -> Clicks:
        """The same on a device."""
        dense, labels = carried_to(device, self.dense), carried_to(device, self.labels)
        return Clicks(dense, [one.to(device) for one in self.ids], labels)


class MadeUpClicks:
    """The samples of a run, by step; `jagged` lets the number of ids of a sample vary, down to none."""

    name = "made-up"

    def __init__(self, model: RecommenderSpec, global_batch: int, *, seed: int, jagged: bool = False) -> None:
        self.model, self.global_batch, self.seed, self.jagged = model, global_batch, seed, jagged
        self.tables = [model.classes[index] for index in model.class_of_table]

    def counted(self) -> list[list[int]]:
        """No ids out of range."""
        return []

    def told(self, of_ranks: Sequence[Sequence[Sequence[int]]]) -> list[str]:
        """No notes: every id has a row."""
        return []

    def slice(self, step: int, rank: int, ranks: int) -> Clicks:
        """The samples of one rank; steps count from 0."""
        share = self.global_batch // ranks
        first, last = rank * share, (rank + 1) * share
        draw = np.random.default_rng((self.seed, step))
        dense = draw.standard_normal((self.global_batch, self.model.dense_features))[first:last]
        chance = draw.random((self.global_batch, self.model.top_mlp[-1]))[first:last]
        drawn = [self.ids(table, step, first, last) for table in range(len(self.tables))]
        worth = self._worth(dense, drawn)
        labels = chance < 1.0 / (1.0 + np.exp(-_STRENGTH * worth))[:, None]
        return Clicks(
            torch.from_numpy(dense.astype(np.float32)),
            [Bags(torch.from_numpy(values), torch.from_numpy(lengths)) for values, lengths in drawn],
            torch.from_numpy(labels.astype(np.float32)),
        )

    def ids(self, table: int, step: int, first: int, last: int) -> tuple[Ints, npt.NDArray[np.int32]]:
        """(ids, how many each sample has) of one table, for the samples from `first` to `last` − 1."""
        spec = self.tables[table]
        draw = np.random.default_rng((self.seed, step, table))
        lengths = self._lengths(spec, draw)
        places = draw.random(int(lengths.sum()))
        ends = np.cumsum(lengths)
        start, end = (int(ends[at - 1]) if at else 0 for at in (first, last))
        return row_at(places[start:end], spec), lengths[first:last].astype(np.int32)

    def _lengths(self, spec: TableSpec, draw: np.random.Generator) -> Ints:
        if self.jagged:
            most = int(spec.pooling) if spec.combiner == "concat" else int(2 * spec.pooling)
            return draw.integers(0, most + 1, self.global_batch)
        low = int(spec.pooling)
        return low + (draw.random(self.global_batch) < spec.pooling - low).astype(np.int64)

    def _worth(self, dense: Array, drawn: Sequence[tuple[Ints, npt.NDArray[np.int32]]]) -> Array:
        """(b,) of variance about 1: half of it the dense features', half the tables'."""
        worth = dense @ hidden_worth(np.arange(dense.shape[1]), -1, self.seed) / max(1, dense.shape[1]) ** 0.5
        for table, (values, lengths) in enumerate(drawn):
            bag = np.repeat(np.arange(len(lengths)), lengths)
            total = np.bincount(bag, hidden_worth(values, table, self.seed), minlength=len(lengths))
            worth = worth + total / np.sqrt(np.maximum(lengths, 1) * len(drawn))
        return np.asarray(worth / np.sqrt(2.0), dtype=np.float64)


def row_at(places: Array, table: TableSpec) -> Ints:
    """Shares of all accesses in [0, 1), the rows used most first → the rows that they fall on."""
    found = accesses_of(table).rows_for(places)
    return np.asarray(found, dtype=np.int64).clip(0, table.rows - 1)


def hidden_worth(rows: Ints, table: int, seed: int) -> Array:
    """A number for each row, of mean 0 and variance 1, that follows from its place."""
    with np.errstate(over="ignore"):
        mixed = (rows.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        mixed += np.uint64((table + 2) * 0xBF58476D1CE4E5B9 + seed * 0x94D049BB133111EB & (1 << 64) - 1)
        for shift in (30, 27, 31):
            mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(0xBF58476D1CE4E5B9)
    shares = (mixed >> np.uint64(11)).astype(np.float64) / 2.0**53
    worth: Array = shares * 12.0**0.5 - 3.0**0.5
    return worth
