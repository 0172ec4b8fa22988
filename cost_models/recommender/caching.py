"""Hits of caches by what they hold of a table: the rows that are used most, or those that were used last.

    hottest    the f rows that are used most, for good (what counting uses ends with): hits h(f)
    lru        the C rows that were used last: a row is there if one of the last n accesses was to it, so that

                   C = U(n) = Σ_r 1 − (1 − p_r)^n,    hits = Σ_r p_r (1 − (1 − p_r)^n)

               for accesses that do not depend on one another (Fagin 1977; Che, Tung and Wang 2002)

Both curves are concave: the slope of the first is p_r, that of the second a mean of p_r with weights p_r (1 − p_r)^n,
which leave the hot rows as n grows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from cost_models.arrays import Array
from cost_models.recommender.accesses import Accesses, accesses_of
from cost_models.specs.recommender.model import RecommenderSpec

Policy = Literal["hottest", "lru"]
POLICIES: tuple[Policy, ...] = get_args(Policy)

TAG_BYTES = 16.0
"""Device memory of a cached row beside its vector: its key and when, or how often, it was used, 8 bytes each (FBGEMM's
`lxu_cache_state` and `lxu_state`)."""
_WINDOWS_PER_E_FOLD = 16
"""Windows n, in each factor e, for which the curve of `lru` is computed; it is straight between them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedTables:
    """Tables that share a cache, by class: bytes of their rows and hits by cached rows."""

    names: tuple[str, ...]
    counts: Array
    """(C,) tables of each class."""
    rows: Array
    """(C,) rows of each table."""
    vector_bytes: Array
    """(C,) bytes of a row outside of the cache."""
    lookups: Array
    """(C,) ids of a sample that go to each table."""
    accesses: tuple[Accesses, ...]
    curves: tuple[Accesses, ...]
    """Hits of each table by rows that are cached of it."""
    policy: Policy

    @property
    def row_bytes(self) -> Array:
        """(C,) bytes of a row in the cache."""
        return self.vector_bytes + TAG_BYTES

    @property
    def weights(self) -> Array:
        """(C,) share of all accesses that go to all tables of a class."""
        each = self.counts * self.lookups
        return np.asarray(each / each.sum())

    @property
    def cached_whole_bytes(self) -> float:
        """Bytes of a cache that holds all rows."""
        return float(self.counts @ (self.rows * self.row_bytes))

    @property
    def bytes(self) -> float:
        """Bytes of all tables."""
        return float(self.counts @ (self.rows * self.vector_bytes))

    def table_hits(self, rows: npt.ArrayLike) -> Array:
        """(C,) hit rate of each table, with `rows` rows of each cached."""
        each = np.broadcast_to(np.asarray(rows, np.float64), len(self.curves))
        return np.array([curve.hits(held) for curve, held in zip(self.curves, each, strict=True)])

    def hits(self, rows: npt.ArrayLike) -> float:
        """Share of all accesses that find their row."""
        return float(self.weights @ self.table_hits(rows))


def cached_tables(model: RecommenderSpec, element_bytes: float, policy: Policy = "hottest") -> CachedTables:
    """The tables of a model, as a cache sees them."""
    classes = model.classes
    accesses = tuple(map(accesses_of, classes))
    return CachedTables(
        names=tuple(one.name for one in classes),
        counts=np.array([one.count for one in classes], np.float64),
        rows=np.array([one.rows for one in classes], np.float64),
        vector_bytes=np.array([one.width * element_bytes for one in classes]),
        lookups=np.array([one.pooling for one in classes], np.float64),
        accesses=accesses,
        curves=accesses if policy == "hottest" else tuple(map(lru_curve, accesses)),
        policy=policy,
    )


def lru_curve(accesses: Accesses) -> Accesses:
    """Hit curve of a cache with least-recently-used eviction, as steps of decreasing hits per row."""
    used = accesses.each[accesses.shares > 0]
    if len(accesses.rows) == 1 or used[0] >= 1:
        return accesses
    folds = np.log(40.0 / used[-1])  # by then the row used least is there, but for e^-40
    windows = np.exp(np.linspace(0.0, folds, int(np.ceil(folds * _WINDOWS_PER_E_FOLD)) + 1))
    logs = windows[:, None] * np.log1p(-np.minimum(accesses.each, 1 - 2.0**-53))
    there, absent = -np.expm1(logs), np.exp(logs)
    rows = _rises(there @ accesses.rows, absent @ accesses.rows)
    shares = _rises(there @ accesses.shares, absent @ accesses.shares)
    told_apart = rows > 1e-9 * np.cumsum(rows)
    return Accesses.of_steps(rows[told_apart], shares[told_apart])


def _rises(there: Array, absent: Array) -> Array:
    """Increments of a curve from 0 over `there` to the total, from `there` or from its complement `absent`, whichever
    loses fewer digits."""
    here, gone = np.concatenate(([0.0], there, there[-1:] + absent[-1])), np.append(absent, 0.0)
    late = -np.diff(np.concatenate(([here[-1]], gone)))
    return np.where(here[1:] < 0.5 * here[-1], np.diff(here), late)
