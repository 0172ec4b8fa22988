"""Caches of a table's rows on the device while serving: the rows used most for good, or sets of ways.

    HottestRows    rows that were chosen beforehand: the first of a table, or any, found by bisection
    CachedSets     a row may lie in the ways of one set; the way used longest ago (`lru`), or least often (`lfu`), makes
                   room. `lfu` counts all rows and lets none in that was used less than what it would displace

All rows are below, in host memory or on its drive; vectors are those of that table, whatever the cache holds. Rows that
a batch lacks are copied up once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

from executor.embeddings.bags import Bags, pooled

WAYS = 32
"""Rows of a set: the lanes of a warp, which probe it at once."""


@dataclass(slots=True)
class Counted:
    """Counts of lookups and hits."""

    lookups: int = 0
    hits: int = 0
    """Lookups whose row was on the device when the batch came."""
    fetched: int = 0
    """Rows that came from host memory, each once a batch."""
    up_bytes: int = 0

    @property
    def hit_ratio(self) -> float:
        """Share of lookups whose row was there."""
        return self.hits / max(self.lookups, 1)

    @property
    def kept_ratio(self) -> float:
        """Share of lookups that copied no row up; repeated ids of a batch share one copy."""
        return 1 - self.fetched / max(self.lookups, 1)


class Rows(Protocol):
    """A whole embedding table behind a cache: a tensor in host memory, or an object that is indexed like one."""

    @property
    def shape(self) -> Sequence[int]:
        """(rows, width)"""

    @property
    def dtype(self) -> torch.dtype:
        """Type of its elements."""

    def __getitem__(self, rows: Tensor, /) -> Tensor:
        """(n,) rows in host memory → (n, D)"""


class HottestRows:
    """Rows that stay on the device for good."""

    def __init__(self, table: Rows, rows: Tensor, device: torch.device) -> None:
        """`table` (R, D) below, `rows` (F,) of it to hold, each once."""
        self.table = table
        ordered = rows.sort().values
        self.held = ordered.to(device)
        self.first = not len(ordered) or int(ordered[-1]) == len(ordered) - 1
        """Whether these are the first rows of the table."""
        self.vectors = table[ordered].to(device)
        self.counted = Counted()

    def look_up(self, bags: Bags) -> Tensor:
        """Bags of ids on the device → (bags, D) sums of their vectors."""
        ids, held = bags.values, len(self.held)
        slots = ids if self.first else torch.searchsorted(self.held, ids).clamp_(max=max(held - 1, 0))
        found = ids < held if self.first else self.held[slots] == ids
        hits = int(found.sum())
        self.counted.lookups += len(ids)
        self.counted.hits += hits
        if hits == len(ids):
            return pooled(self.vectors, Bags(slots, bags.lengths))
        here = Bags(slots, bags.lengths).where(found)
        missing, places = torch.unique(ids[~found], return_inverse=True)
        brought = pooled(
            fetched(self.table, missing, self.counted), Bags(places, bags.lengths - here.lengths)
        )
        return brought.add_(pooled(self.vectors, here)) if hits else brought


class CachedSets:
    """Sets of ways, from which the least used rows are evicted."""

    def __init__(
        self, table: Rows, rows: int, policy: Literal["lru", "lfu"], device: torch.device, ways: int = WAYS
    ) -> None:
        """Room for so many rows of `table` (R, D), in whole sets."""
        self.table = table
        self.sets, self.ways, self.policy = max(1, rows // ways), ways, policy
        self.tags = torch.full((self.sets, ways), -1, dtype=torch.int64, device=device)
        self.used = torch.full((self.sets, ways), -1, dtype=torch.int64, device=device)
        """When each way was used last, or how often its row."""
        every, width = table.shape
        self.vectors = torch.zeros(self.sets * ways, width, dtype=table.dtype, device=device)
        self.uses = torch.zeros(every if policy == "lfu" else 0, dtype=torch.int64, device=device)
        self.counted = Counted()
        self._now = 0

    def look_up(self, bags: Bags) -> Tensor:
        """Bags of ids on the device → (bags, D) sums of their vectors; missing rows are admitted for the next batch."""
        self._now += 1
        ids = bags.values
        rows, places, times = torch.unique(ids, return_inverse=True, return_counts=True)
        if self.policy == "lfu":
            self.uses[rows] += times
        sets = scattered(rows, self.sets)
        same = self.tags[sets] == rows[:, None]
        found, way = same.any(1), same.int().argmax(1)
        worth = self.uses[rows] if self.policy == "lfu" else torch.full_like(rows, self._now)
        self.used[sets[found], way[found]] = worth[found]
        vectors = self.vectors.new_empty(len(rows), self.vectors.shape[1])
        vectors[found] = self.vectors[sets[found] * self.ways + way[found]]
        vectors[~found] = brought = fetched(self.table, rows[~found], self.counted)
        self._admit(rows[~found], sets[~found], worth[~found], brought)
        self.counted.lookups += len(ids)
        self.counted.hits += int(times[found].sum())
        return pooled(vectors, Bags(places, bags.lengths))

    def _admit(self, rows: Tensor, sets: Tensor, worth: Tensor, vectors: Tensor) -> None:
        """Admit each row in place of the least used way of its set; the most used rows of a set come first."""
        order = worth.argsort(descending=True, stable=True)
        order = order[sets[order].argsort(stable=True)]
        rows, sets, worth, vectors = rows[order], sets[order], worth[order], vectors[order]
        first = torch.searchsorted(sets, sets)
        nth = torch.arange(len(sets), device=sets.device) - first
        room = nth < self.ways
        rows, sets, worth, vectors, nth = (one[room] for one in (rows, sets, worth, vectors, nth))
        way = self.used[sets].argsort(dim=1, stable=True).gather(1, nth[:, None]).squeeze(1)
        better = worth > self.used[sets, way]
        rows, sets, way = rows[better], sets[better], way[better]
        self.tags[sets, way] = rows
        self.used[sets, way] = worth[better]
        self.vectors[sets * self.ways + way] = vectors[better]


def fetched(table: Rows, rows: Tensor, counted: Counted) -> Tensor:
    """Rows of the table below, copied to the device of their ids."""
    vectors = table[rows.cpu()]
    counted.fetched += len(rows)
    counted.up_bytes += vectors.nbytes
    return vectors.to(rows.device)


def scattered(rows: Tensor, sets: int) -> Tensor:
    """The set of each row: neighbours lie in sets far apart (multiplicative hashing, Knuth)."""
    mixed = (rows * 0x9E3779B97F4A7C1 >> 20) & 0x7FFFFFFF
    return mixed % sets
