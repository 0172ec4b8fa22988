"""Distribution of accesses over the rows of an embedding table, with the share of the hottest rows, the rows
for a share, and the distinct rows of a batch.

    p_r      share of the accesses that go to the row of rank r, the hottest first
    h(f)     share of the accesses that go to the f hottest rows, Σ_{r ≤ f} p_r: concave, as p_r never rises
    U(n)     expected distinct rows of n independent accesses, Σ_r 1 − (1 − p_r)^n

Accesses are steps of rows that are used alike. A recorded histogram is steps as it stands. Under a Zipf law,
p_r ∝ r^−s, the first ranks are steps of their own and each later step holds 1/64 more ranks: its share is the exact
sum of its ranks (formula of Euler and Maclaurin, whose first term left out is below 1e-9 of a step), spread over them
evenly, which changes h and U inside of steps by s / (8 · 64²) of a step's share, 3e-5 of it for s = 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from cost_models.arrays import Array, Ints
from cost_models.specs.recommender.model import TableSpec

HEAD = 1024
"""Number of the most used rows that each form a step of their own in a Zipf distribution."""
STEPS_PER_E_FOLD = 64
"""Number of steps in which the ranks of further rows grow by a factor e."""


@dataclass(frozen=True, slots=True)
class Accesses:
    """Distribution of the accesses to an embedding table's rows, as K steps of equally used rows, the hottest
    first."""

    rows: Array
    """(K,) number of rows in each step."""
    shares: Array
    """(K,) share of the accesses that go to all rows of each step."""
    rows_up_to: Array
    """(K + 1,) number of rows in all steps before each step, then the total."""
    share_up_to: Array
    """(K + 1,) share of the accesses that go to the rows of all steps before each step, then 1."""

    @classmethod
    def of_steps(cls, rows: npt.ArrayLike, shares: npt.ArrayLike) -> Accesses:
        """Build a distribution from (K,) row counts and shares of accesses, the hottest step first; shares
        are scaled to sum to 1."""
        row_counts: Array = np.asarray(rows, np.float64)
        used: Array = np.asarray(shares, np.float64)
        used = used / used.sum()
        share_up_to = np.concatenate(([0.0], np.minimum(np.cumsum(used), 1.0)))
        share_up_to[-1] = 1.0
        return cls(row_counts, used, np.concatenate(([0.0], np.cumsum(row_counts))), share_up_to)

    @property
    def share_of_row(self) -> Array:
        """(K,) share of the accesses that go to each single row of a step, p_r, which never rises with the rank r."""
        return self.shares / self.rows

    @property
    def log_others(self) -> Array:
        """(K,) logarithm ln(1 − p_r) of the probability that an access goes to a row other than r."""
        return np.log1p(-np.minimum(self.share_of_row, 1 - 2.0**-53))

    def hits(self, hottest: npt.ArrayLike) -> Array:
        """Share h(f) of the accesses that go to the f = `hottest` most used rows."""
        return np.interp(np.asarray(hottest, np.float64), self.rows_up_to, self.share_up_to)

    def rows_for(self, share: npt.ArrayLike) -> Array:
        """Smallest number of the most used rows that receive this `share` of the accesses, not rounded to
        whole rows."""
        used = np.concatenate(([True], self.shares > 0))  # rows that nothing uses help no share
        share_up_to, rows_up_to = self.share_up_to[used], self.rows_up_to[used]
        return np.interp(np.asarray(share, np.float64), share_up_to, rows_up_to)

    def distinct(self, accesses: npt.ArrayLike, hottest: npt.ArrayLike | None = None) -> Array:
        """Expected number U(n) of distinct rows among n accesses, counting all rows or only the `hottest` ones.

        Accesses are independent draws. Shapes of both arguments broadcast.
        """
        n = np.asarray(accesses, np.float64)[..., None]
        never = n * self.log_others
        of_step = self.rows * -np.expm1(never)
        if hottest is not None:
            inside = np.asarray(hottest, np.float64)[..., None] - self.rows_up_to[:-1]
            of_step = of_step * np.clip(inside / self.rows, 0.0, 1.0)
        total: Array = of_step.sum(-1)
        return total


@lru_cache(maxsize=1024)
def accesses_of(table: TableSpec) -> Accesses:
    """Distribution of the accesses to one table, by its histogram or Zipf exponent; uniform where it states
    neither."""
    if table.histogram:
        rows, shares = zip(*table.histogram, strict=True)
        return Accesses.of_steps(rows, shares)
    return zipf_accesses(table.rows, table.zipf or 0.0)


def zipf_accesses(rows: int, exponent: float) -> Accesses:
    """Zipf distribution of accesses, in which the row of rank r is used in proportion to r^−exponent."""
    if not exponent:
        return Accesses.of_steps([rows], [1.0])
    head = np.arange(1.0, min(rows, HEAD) + 1)
    edges = rank_edges(rows)[len(head) :].astype(np.float64)
    tail = power_sums(edges[:-1], edges[1:], exponent)
    step_rows = np.append(np.ones_like(head), np.diff(edges))
    return Accesses.of_steps(step_rows, np.append(head**-exponent, tail))


def rank_edges(rows: int) -> Ints:
    """(K + 1,) ranks at which the K steps of a table of `rows` rows begin, and the last rank."""
    head = np.arange(min(rows, HEAD) + 1)
    if rows <= HEAD:
        return head
    folds = np.log(rows / HEAD)
    steps = int(np.ceil(folds * STEPS_PER_E_FOLD))
    tail = np.rint(HEAD * np.exp(np.linspace(0.0, folds, steps + 1))).astype(np.int64)
    tail[-1] = rows
    return np.concatenate((head, np.unique(tail)[1:]))


def power_sums(lower: Array, up_to: Array, exponent: float) -> Array:
    """Σ r^−s over `lower` < r ≤ `up_to` with s = `exponent`, by the Euler-Maclaurin formula. The terms are
    the integral, half the ends and a twelfth of the slopes there."""
    folds = np.log(up_to / lower)
    power = (1.0 - exponent) * folds
    tiny = np.abs(power) < 1e-12
    growth = np.where(tiny, 1.0, np.expm1(power) / np.where(tiny, 1.0, power))
    integral = lower ** (1.0 - exponent) * folds * growth
    ends = (up_to**-exponent - lower**-exponent) / 2
    slopes = exponent * (lower ** (-exponent - 1) - up_to ** (-exponent - 1)) / 12
    return integral + ends + slopes
