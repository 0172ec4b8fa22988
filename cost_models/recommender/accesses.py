"""Distribution of accesses over the rows of an embedding table, and hit rates of caches with its most used
rows or with the rows used last.

    p_r      share of the accesses that go to the row of rank r, the hottest first
    h(f)     share of the accesses that go to the f hottest rows, Σ_{r ≤ f} p_r: concave, as p_r never rises
    U(n)     expected distinct rows of n independent accesses, Σ_r 1 − (1 − p_r)^n

Accesses are steps of rows that are used alike. A recorded histogram is steps as it stands. Under a Zipf law,
p_r ∝ r^−s, the first ranks are steps of their own and each later step holds 1/64 more ranks: its share is the exact
sum of its ranks (formula of Euler and Maclaurin, whose first term left out is below 1e-9 of a step), spread over them
evenly, which changes h and U inside of steps by s / (8 · 64²) of a step's share, 3e-5 of it for s = 1.

A cache holds

    hottest    the f rows that are used most, for good (what counting uses ends with): hits h(f)
    lru        the C rows that were used last: a row is there if one of the last n accesses was to it, so that

                   C = U(n) = Σ_r 1 − (1 − p_r)^n,    hits = Σ_r p_r (1 − (1 − p_r)^n)

               for accesses that do not depend on one another (Fagin 1977; Che, Tung and Wang 2002)

A batch of n accesses counts as one use of all its rows, and brings up once what it repeats, so that `lru` has the rows
of the last w accesses, U(w) = C, and a batch lacks

    Σ_r (1 − (1 − p_r)^n) (1 − p_r)^w = U(n + w) − U(w)     rows; for n = 1 one less its hits, as above

Where it names more rows than there is room for, U(n) > C, all else is evicted, and of its rows those used most are let
in, whose numbers come first: a row of the kept ones is there with the chance q_r = 1 − (1 − p_r)^n that the batch
before named it, Σ_kept q_r = C.

Both curves are concave: the slope of the first is p_r, that of the second a mean of p_r with weights p_r (1 − p_r)^n,
which leave the hot rows as n grows.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from cost_models.arrays import Array
from cost_models.files.recommenders import HEAD, STEPS_PER_E_FOLD
from cost_models.specs.recommender.model import RecommenderSpec, TableSpec


@dataclass(frozen=True, slots=True)
class Accesses:
    """Distribution of the accesses to an embedding table's rows, as K steps of equally often used rows, the
    hottest first."""

    rows: Array
    """Number of rows in each step, (K,)."""
    shares: Array
    """Share of the accesses that go to all rows of each step, (K,)."""
    rows_up_to: Array
    """Number of rows in all steps before each step, then the total, (K + 1,)."""
    share_up_to: Array
    """Share of the accesses that go to the rows of all steps before each step, then 1, (K + 1,)."""

    @classmethod
    def of_steps(cls, rows: npt.ArrayLike, shares: npt.ArrayLike) -> Accesses:
        """Build a distribution from row counts and shares of accesses, (K,) each, the hottest step first;
        shares are scaled to sum to 1."""
        row_counts, used = np.asarray(rows, np.float64), np.asarray(shares, np.float64)
        used = used / used.sum()
        share_up_to = np.concatenate(([0.0], np.minimum(np.cumsum(used), 1.0)))
        share_up_to[-1] = 1.0
        return cls(row_counts, used, np.concatenate(([0.0], np.cumsum(row_counts))), share_up_to)

    @property
    def share_of_row(self) -> Array:
        """Share of the accesses that goes to each single row of a step, (K,). This share p_r never rises with
        the row's rank r."""
        return self.shares / self.rows

    @property
    def log_others(self) -> Array:
        """Logarithm ln(1 − p_r) of the probability that an access goes to a row other than r, (K,)."""
        return np.log1p(-np.minimum(self.share_of_row, 1 - 2.0**-53))

    def hits(self, hottest: npt.ArrayLike) -> Array:
        """Share h(f) of the accesses that go to the `hottest` most used rows."""
        return np.interp(np.asarray(hottest, np.float64), self.rows_up_to, self.share_up_to)

    def rows_for(self, share: npt.ArrayLike) -> Array:
        """Smallest number of the most used rows that receive the share `share` of the accesses, not rounded
        to an integer."""
        rising = np.concatenate(([True], np.diff(self.share_up_to) > 0))  # unused rows help no share
        return np.interp(np.asarray(share, np.float64), self.share_up_to[rising], self.rows_up_to[rising])

    def distinct(self, accesses: npt.ArrayLike, hottest: npt.ArrayLike | None = None) -> Array:
        """Expected number U(n) of distinct rows among `accesses` accesses, of all rows or only of the
        `hottest` rows.

        Accesses are independent draws. Shapes of both arguments broadcast.
        """
        n = np.asarray(accesses, np.float64)[..., None]
        of_step = self.rows * -np.expm1(n * self.log_others)
        if hottest is not None:
            inside = np.asarray(hottest, np.float64)[..., None] - self.rows_up_to[:-1]
            of_step = of_step * np.clip(inside / self.rows, 0.0, 1.0)
        total: Array = of_step.sum(-1)
        return total


@lru_cache(maxsize=1024)
def accesses_of(table: TableSpec) -> Accesses:
    """Distribution of the accesses to one table, by its histogram or Zipf exponent; uniform without either."""
    if table.histogram:
        rows, shares = zip(*table.histogram, strict=True)
        return Accesses.of_steps(rows, shares)
    return zipf_accesses(table.rows, table.zipf or 0.0)


def zipf_accesses(rows: int, exponent: float) -> Accesses:
    """Zipf distribution of accesses, in which the row of rank r is used in proportion to r^−exponent."""
    if not exponent:
        return Accesses.of_steps([rows], [1.0])
    head, edges = np.arange(1.0, min(rows, HEAD) + 1), np.array([float(rows)])
    if rows > HEAD:  # ranks at which the later steps begin, and the last rank
        folds = np.log(rows / HEAD)
        edges = np.rint(HEAD * np.exp(np.linspace(0.0, folds, int(np.ceil(folds * STEPS_PER_E_FOLD)) + 1)))
        edges[-1] = rows
        edges = np.unique(edges)
    tail = power_sums(edges[:-1], edges[1:], exponent)
    return Accesses.of_steps(np.append(np.ones_like(head), np.diff(edges)), np.append(head**-exponent, tail))


def power_sums(lower: Array, up_to: Array, exponent: float) -> Array:
    """Sum of r^−`exponent` over all integers r with `lower` < r ≤ `up_to`, by the Euler-Maclaurin formula. It
    adds the integral, half the difference at the ends, and a twelfth of that of the slopes."""
    folds = np.log(up_to / lower)
    power = (1.0 - exponent) * folds
    tiny = np.abs(power) < 1e-12
    growth = np.where(tiny, 1.0, np.expm1(power) / np.where(tiny, 1.0, power))
    integral = lower ** (1.0 - exponent) * folds * growth
    ends = (up_to**-exponent - lower**-exponent) / 2
    slopes = exponent * (lower ** (-exponent - 1) - up_to ** (-exponent - 1)) / 12
    return integral + ends + slopes


Policy = Literal["hottest", "lru"]
POLICIES: tuple[Policy, ...] = get_args(Policy)

TAG_BYTES = 16.0
"""Bytes of device memory for each cached row in addition to its vector: its key and when, or how often, it
was used, 8 bytes each (FBGEMM's `lxu_cache_state` and `lxu_state`)."""
_WINDOWS_PER_E_FOLD = 16
"""Number of window lengths, for each factor e, at which the hit curve of an `lru` cache is computed. The
curve is straight between them."""


@dataclass(frozen=True, slots=True)
class CachedTables:
    """Embedding tables that share a cache, in C classes: bytes of rows, and hit rates by number of cached
    rows."""

    counts: Array
    """Number of tables in each class, (C,)."""
    rows: Array
    """Number of rows of each table, (C,)."""
    vector_bytes: Array
    """Bytes of a row outside of the cache, (C,)."""
    lookups: Array
    """Number of ids of a sample that are looked up in each table, (C,)."""
    accesses: tuple[Accesses, ...]
    curves: tuple[Accesses, ...]
    """Hits of each table by number of cached rows."""
    policy: Policy

    @property
    def row_bytes(self) -> Array:
        """Bytes of one row in the cache, with its tag, (C,)."""
        return self.vector_bytes + TAG_BYTES

    @property
    def weights(self) -> Array:
        """Share of all accesses that go to the tables of each class, (C,)."""
        class_lookups = self.counts * self.lookups
        return np.asarray(class_lookups / class_lookups.sum())

    @property
    def cached_whole_bytes(self) -> float:
        """Bytes of a cache that holds all rows of all tables."""
        return float(self.counts @ (self.rows * self.row_bytes))

    @property
    def bytes(self) -> float:
        """Bytes of all rows of all tables in the memory that the cache reads from."""
        return float(self.counts @ (self.rows * self.vector_bytes))

    def table_hits(self, rows: npt.ArrayLike) -> Array:
        """Hit rate of each table with `rows` of its rows cached, (C,)."""
        cached_rows = np.broadcast_to(np.asarray(rows, np.float64), len(self.curves))
        return np.array([curve.hits(held) for curve, held in zip(self.curves, cached_rows, strict=True)])

    def hits(self, rows: npt.ArrayLike) -> float:
        """Share of the accesses to all tables that hit the cache, with `rows` rows of each table cached."""
        return float(self.weights @ self.table_hits(rows))

    def distinct_cold_rows(self, ids: Array, cached: Array) -> Array:
        """Number of distinct rows of each table that N batches of `ids` (N, C) look up outside its `cached`
        hottest rows, (N, C)."""
        triples = zip(self.accesses, ids.T, cached, strict=True)
        cold_rows = [table.distinct(of) - table.distinct(of, held) for table, of, held in triples]
        return np.maximum(0.0, np.stack(cold_rows, axis=-1))


def cached_tables(model: RecommenderSpec, element_bytes: float, policy: Policy = "hottest") -> CachedTables:
    """Create the tables of a model that share a cache with eviction by `policy`, with their sizes and access
    distributions."""
    sizes = zip(*((one.count, one.rows, one.width, one.pooling) for one in model.classes), strict=True)
    counts, rows, widths, lookups = (np.array(column, np.float64) for column in sizes)
    accesses = tuple(map(accesses_of, model.classes))
    curves = accesses if policy == "hottest" else tuple(map(lru_curve, accesses))
    return CachedTables(counts, rows, widths * element_bytes, lookups, accesses, curves, policy)


def rows_brought(tables: CachedTables, ids: Array, cached: Array) -> Array:
    """Number of rows of each table that N batches of `ids` (N, C) fetch into a cache with room for `cached`
    rows (C,), (N, C)."""
    if tables.policy == "hottest":
        return tables.distinct_cold_rows(ids, cached)
    brought = []
    for accesses, batch, capacity in zip(tables.accesses, ids.T, cached.tolist(), strict=True):
        distinct, window = accesses.distinct, _window(accesses, capacity)
        fetched = distinct(batch + window) - distinct(window) if np.isfinite(window) else 0.0 * batch
        chances = -np.expm1(batch[:, None] * accesses.log_others)
        of_step = accesses.rows * chances
        room = capacity - (np.cumsum(of_step, axis=-1) - of_step)
        resident_share = np.clip(room / np.maximum(of_step, 1e-300), 0.0, 1.0)
        absent = (of_step * (1.0 - resident_share * chances)).sum(-1)
        brought.append(np.where(distinct(batch) > capacity, absent, np.maximum(fetched, 0.0)))
    return np.stack(brought, axis=-1)


def _window(accesses: Accesses, capacity: float) -> float:
    """Number of accesses whose expected number of distinct rows is `capacity`, U⁻¹; infinite if all rows fit.
    By Newton's method from below, as U is concave."""
    if capacity >= (1 - 1e-9) * accesses.rows[accesses.shares > 0].sum():
        return float("inf")
    logs = accesses.log_others
    window = capacity
    for _ in range(200):
        absent = np.exp(window * logs)
        lacking = capacity - float(accesses.rows @ (1.0 - absent))
        if lacking <= 1e-9 * capacity:
            break
        window += lacking / -float((accesses.rows * logs) @ absent)
    return window


def lru_curve(accesses: Accesses) -> Accesses:
    """Hit rate of a least-recently-used cache over the number of cached rows, as steps of decreasing hits per row."""
    used = accesses.share_of_row[accesses.shares > 0]
    if len(accesses.rows) == 1 or used[0] >= 1:
        return accesses
    folds = np.log(40.0 / used[-1])  # by then the row used least is there, but for e^-40
    windows = np.exp(np.linspace(0.0, folds, int(np.ceil(folds * _WINDOWS_PER_E_FOLD)) + 1))
    logs = windows[:, None] * accesses.log_others
    present, absent = -np.expm1(logs), np.exp(logs)
    rows = _rises(present @ accesses.rows, absent @ accesses.rows)
    shares = _rises(present @ accesses.shares, absent @ accesses.shares)
    distinguishable = rows > 1e-9 * np.cumsum(rows)
    return Accesses.of_steps(rows[distinguishable], shares[distinguishable])


def _rises(present: Array, absent: Array) -> Array:
    """Increments of a cumulative curve that starts at 0, given both as values `present` and as their
    complements `absent`. Each increment uses the one that loses fewer digits."""
    curve, gone = np.concatenate(([0.0], present, present[-1:] + absent[-1])), np.append(absent, 0.0)
    late = -np.diff(np.concatenate(([curve[-1]], gone)))
    return np.where(curve[1:] < 0.5 * curve[-1], np.diff(curve), late)
