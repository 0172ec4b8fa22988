"""Bags of embedding rows, and the cache of rows in device memory.

**Bags.** Ids of samples are looked up in bags, each of which becomes one vector. A table whose vectors are added up or
averaged has one bag a sample. With `concat` each place of a sample is a bag of its own, empty where the sample has
fewer ids, so that a lookup is a sum over bags whatever the combiner.

**Caches.** While serving, some of a table's rows are on the device.

    HottestRows    the first rows of a table, which are used most
    CachedSets     a row may lie in the ways of one set; the way used longest ago (`lru`), or least often (`lfu`), makes
                   room. `lfu` counts all rows and lets none in that was used less than what it would displace

Both count `lookups`, `hits` (lookups whose row was on the device when the batch came) and `fetched` rows.

All rows are below, in host memory or on its drive; vectors are those of that table, whatever the cache holds. Rows that
a batch lacks are copied up once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from executor.pinned import carried_to

_RUN = 64
"""Rows that are added one after another to a row's gradient; longer sums are made of sums of this many."""


@dataclass(frozen=True, slots=True)
class Bags:
    """Ids of several bags, jagged: the first `lengths[0]` values are those of the first bag, and so on."""

    values: Tensor
    """Row numbers, (N,) int64, of all bags."""
    lengths: Tensor
    """Number of values of each bag, (bags,) int32."""

    @property
    def offsets(self) -> Tensor:
        """Index in `values` at which each bag begins, and the end, (bags + 1,)."""
        return F.pad(self.lengths.cumsum(0, dtype=torch.int64), (1, 0))

    def bag_of_value(self) -> Tensor:
        """Number of the bag that each value is in, (N,)."""
        bags = torch.arange(len(self.lengths), device=self.values.device)
        return bags.repeat_interleave(self.lengths, output_size=len(self.values))

    def to(self, device: torch.device) -> Bags:
        """Copy of the bags on a device."""
        return Bags(carried_to(device, self.values), carried_to(device, self.lengths))

    def split(self, ways: int) -> list[Bags]:
        """Divide values over `ways` parts: value v becomes v div `ways` in part v mod `ways`; each has all bags."""
        if ways == 1:
            return [self]
        part = self.values % ways
        order = part.argsort(stable=True)
        cell = part * len(self.lengths) + self.bag_of_value()
        lengths = cell.bincount(minlength=ways * len(self.lengths)).view(ways, -1)
        values = cut(self.values[order] // ways, lengths.sum(1).tolist())
        return list(map(Bags, values, lengths.to(torch.int32)))

    def masked(self, mask: Tensor) -> Bags:
        """Bags that keep only the values where `mask`, (N,) bool, is true."""
        lengths = self.bag_of_value()[mask].bincount(minlength=len(self.lengths))
        return Bags(self.values[mask], lengths.to(torch.int32))

    def concatenated(self, per_sample: int) -> Bags:
        """Bags of samples, each divided into `per_sample` bags with at most one value.

        Raises:
            ValueError: a sample has more values than that.
        """
        if len(self.lengths) and int(self.lengths.max()) > per_sample:
            raise ValueError(f"a sample has {int(self.lengths.max())} ids, `concat` takes {per_sample}")
        places = torch.arange(per_sample, device=self.lengths.device)
        return Bags(self.values, (places < self.lengths[:, None]).flatten().to(torch.int32))


def cut(tensor: Tensor, sizes: Sequence[int], dim: int = 0) -> tuple[Tensor, ...]:
    """Parts of a tensor of these sizes, one after another along `dim`."""
    return torch.split(tensor, list(sizes), dim)


def joined(parts: list[Bags]) -> Bags:
    """One Bags of all bags in `parts`, in order."""
    return Bags(torch.cat([bags.values for bags in parts]), torch.cat([bags.lengths for bags in parts]))


def pooled(weights: Tensor, bags: Bags) -> Tensor:
    """Sum of the rows of each bag, (bags, D), added in the order of its values."""
    return F.embedding_bag(bags.values, weights, bags.offsets, mode="sum", include_last_offset=True)


@dataclass(frozen=True, slots=True)
class RowGradients:
    """Gradients of the embedding rows that a batch uses."""

    rows: Tensor
    """Row numbers, (U,), ascending."""
    values: Tensor
    """Gradient of each row, (U, D)."""

    def pieces(self, max_rows: int) -> list[RowGradients]:
        """Pieces of at most `max_rows` rows each; one empty piece if there are no rows."""
        parts = (torch.split(tensor, max(max_rows, 1)) for tensor in (self.rows, self.values))
        return [RowGradients(rows, values) for rows, values in zip(*parts, strict=True)]


def row_gradients(bags: Bags, gradients: Tensor) -> RowGradients:
    """Gradient of each row, given the gradients of the bags' sums, (bags, D), added in the order of bags and values.

    Sorting makes it a lookup, too: of the bags that each row is in. So the sum has one order on every device.
    """
    values, order = bags.values.sort(stable=True)
    rows, counts = values.unique_consecutive(return_counts=True)  # type: ignore[no-untyped-call]
    users = Bags(bags.bag_of_value()[order], counts)
    del values, order
    if not len(counts) or int(counts.max()) <= _RUN:
        return RowGradients(rows, pooled(gradients, users))
    hot = counts > _RUN
    of_hot = hot.repeat_interleave(counts)
    sums = pooled(gradients, Bags(users.values[~of_hot], counts.masked_fill(hot, 0)))
    sums[hot] = _pooled_in_runs(gradients, Bags(users.values[of_hot], counts[hot]))
    return RowGradients(rows, sums)


def _pooled_in_runs(weights: Tensor, bags: Bags) -> Tensor:
    """Sum of the rows of each bag, (bags, D): sums of `_RUN` rows in fp32, then sums of these.

    A GPU adds the rows of a bag one after the other: a row that half of a batch uses would take longer than all others.
    """
    dtype, lengths = weights.dtype, bags.lengths
    while int(lengths.max()) > _RUN:
        runs = (lengths + _RUN - 1) // _RUN
        of_run = torch.full((int(runs.sum()),), _RUN, dtype=lengths.dtype, device=lengths.device)
        of_run[runs.cumsum(0) - 1] = lengths - (runs - 1) * _RUN
        weights = pooled(weights.float(), Bags(bags.values, of_run))
        bags, lengths = Bags(torch.arange(len(of_run), device=lengths.device), runs), runs
    return pooled(weights, bags).to(dtype)


WAYS = 32
"""Rows of a cache set: the lanes of a warp, which look through a set at once."""


class Counts(Counter[str]):
    """Counts by name, which begin anew when they are taken."""

    def take(self) -> Counter[str]:
        """Counts since the last call."""
        counts = Counter(self)
        self.clear()
        return counts


class StoredRows:
    """All rows of a table (R, D): the first ones in host memory, the rest on the drive."""

    def __init__(self, host: Tensor, drive: Tensor) -> None:
        self.host, self.drive = host, drive
        self.shape = (len(host) + len(drive), host.shape[1])
        self.dtype = host.dtype
        self.read = 0
        """Number of rows read from the drive."""

    def __getitem__(self, rows: Tensor) -> Tensor:
        """Vectors (n, D) of the rows with these numbers, (n,)."""
        on_drive = rows >= len(self.host)
        if not on_drive.any():
            return self.host[rows]
        values = self.host.new_empty(len(rows), self.shape[1])
        values[~on_drive] = self.host[rows[~on_drive]]
        values[on_drive] = self.drive[rows[on_drive] - len(self.host)]
        self.read += int(on_drive.sum())
        return values

    def parts(self) -> list[tuple[Tensor, int]]:
        """Rows in host memory and rows on the drive, each with its first row number."""
        return [one for one in ((self.host, 0), (self.drive, len(self.host))) if len(one[0])]


Rows = Tensor | StoredRows
"""Embedding table below a cache, (R, D)."""


class HottestRows:
    """Cache of the first rows of a table on the device: those used most, as rows are numbered by decreasing use."""

    def __init__(self, table: Rows, rows: int, device: torch.device) -> None:
        """Keep the first `rows` rows of a table (R, D) on a device."""
        self.table, self.rows, self.counts = table, rows, Counts()
        self.vectors = table[torch.arange(rows)].to(device)

    def look_up(self, bags: Bags) -> Tensor:
        """Sum of the rows of each bag, (bags, D), with rows missing from the cache fetched from the table."""
        ids = bags.values
        hit = ids < self.rows
        hits = int(hit.sum())
        self.counts.update(lookups=len(ids), hits=hits)
        if hits == len(ids):
            return pooled(self.vectors, bags)
        hit_bags = bags.masked(hit)
        missing, places = torch.unique(ids[~hit], return_inverse=True)
        rows = fetched(self.table, missing, self.counts)
        sums = pooled(rows, Bags(places, bags.lengths - hit_bags.lengths))
        return sums.add_(pooled(self.vectors, hit_bags)) if hits else sums


class CachedSets:
    """Set-associative cache of a table's rows on the device, from which the least used rows are evicted."""

    def __init__(
        self, table: Rows, rows: int, policy: Literal["lru", "lfu"], device: torch.device, ways: int = WAYS
    ) -> None:
        """Allocate a cache of `rows` rows of a table (R, D), in whole sets of `ways` rows."""
        self.table = table
        self.sets, self.ways, self.policy = max(1, rows // ways), ways, policy
        self.tags = torch.full((self.sets, ways), -1, dtype=torch.int64, device=device)
        self.last_use = torch.full((self.sets, ways), -1, dtype=torch.int64, device=device)
        """Batch in which each way was last used (`lru`), or number of uses of its row (`lfu`)."""
        table_rows, width = table.shape
        self.vectors = torch.zeros(self.sets * ways, width, dtype=table.dtype, device=device)
        self.use_counts = torch.zeros(table_rows if policy == "lfu" else 0, dtype=torch.int64, device=device)
        self.counts = Counts()
        self._now = 0

    def look_up(self, bags: Bags) -> Tensor:
        """Sum of the rows of each bag, (bags, D); missing rows are fetched, and admitted for later batches."""
        self._now += 1
        ids = bags.values
        rows, places, times = torch.unique(ids, return_inverse=True, return_counts=True)
        if self.policy == "lfu":
            self.use_counts[rows] += times
        sets = scattered(rows, self.sets)
        matches = self.tags[sets] == rows[:, None]
        hit, way = matches.any(1), matches.int().argmax(1)
        priority = self.use_counts[rows] if self.policy == "lfu" else torch.full_like(rows, self._now)
        self.last_use[sets[hit], way[hit]] = priority[hit]
        vectors = self.vectors.new_empty(len(rows), self.vectors.shape[1])
        vectors[hit] = self.vectors[sets[hit] * self.ways + way[hit]]
        vectors[~hit] = missing = fetched(self.table, rows[~hit], self.counts)
        self._admit(rows[~hit], sets[~hit], priority[~hit], missing)
        self.counts.update(lookups=len(ids), hits=int(times[hit].sum()))
        return pooled(vectors, Bags(places, bags.lengths))

    def _admit(self, rows: Tensor, sets: Tensor, priority: Tensor, vectors: Tensor) -> None:
        """Put each row in place of the least used row of its set, if it is used more itself."""
        order = priority.argsort(descending=True, stable=True)
        order = order[sets[order].argsort(stable=True)]
        rows, sets, priority, vectors = rows[order], sets[order], priority[order], vectors[order]
        first = torch.searchsorted(sets, sets)
        nth = torch.arange(len(sets), device=sets.device) - first
        room = nth < self.ways
        rows, sets, priority, vectors, nth = (values[room] for values in (rows, sets, priority, vectors, nth))
        way = self.last_use[sets].argsort(dim=1, stable=True).gather(1, nth[:, None]).squeeze(1)
        better = priority > self.last_use[sets, way]
        rows, sets, way = rows[better], sets[better], way[better]
        self.tags[sets, way] = rows
        self.last_use[sets, way] = priority[better]
        self.vectors[sets * self.ways + way] = vectors[better]


def fetched(table: Rows, rows: Tensor, counts: Counts) -> Tensor:
    """Rows of the table below a cache, copied to the device of their numbers, and counted as `fetched`."""
    counts["fetched"] += len(rows)
    return table[rows.cpu()].to(rows.device)


def scattered(rows: Tensor, sets: int) -> Tensor:
    """Set of each row in a cache of `sets` sets; neighbouring rows lie far apart (multiplicative hashing, Knuth)."""
    mixed = (rows * 0x9E3779B97F4A7C1 >> 20) & 0x7FFFFFFF
    return mixed % sets
