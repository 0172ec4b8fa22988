"""Accesses of tables: steps stand for all ranks, as sums over every rank say."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cost_models.recommender.accesses import Accesses, accesses_of, zipf_accesses
from cost_models.specs.recommender.model import TableSpec

ROWS = 300_000
EXPONENTS = (0.0, 0.5, 0.8, 1.0, 1.2, 2.0, 5.0)


def by_rank(exponent: float, rows: int = ROWS) -> np.ndarray:
    weights = np.arange(1.0, rows + 1) ** -exponent
    return weights / weights.sum()


@pytest.mark.parametrize("exponent", EXPONENTS)
def test_shares_of_the_hottest_rows_are_sums_over_ranks(exponent: float) -> None:
    accesses = zipf_accesses(ROWS, exponent)
    direct = np.cumsum(by_rank(exponent))
    hottest = np.array([1, 2, 10, 100, 1024, 1030, 5000, 77_777, ROWS])
    np.testing.assert_allclose(accesses.hits(hottest), direct[hottest - 1], rtol=2e-5)
    assert accesses.hits(0) == 0
    assert accesses.rows.sum() == ROWS


@pytest.mark.parametrize("exponent", EXPONENTS)
@pytest.mark.parametrize("n", [1, 100, 50_000, 10_000_000])
def test_distinct_rows_are_sums_over_ranks(exponent: float, n: int) -> None:
    accesses = zipf_accesses(ROWS, exponent)
    direct = -np.expm1(n * np.log1p(-np.minimum(by_rank(exponent), 1 - 1e-16)))
    assert accesses.distinct(n) == pytest.approx(direct.sum(), rel=2e-4)
    assert accesses.distinct(n, 20_000) == pytest.approx(direct[:20_000].sum(), rel=2e-4)


def test_distinct_rows_are_what_draws_use() -> None:
    rng = np.random.default_rng(0)
    drawn = rng.choice(10_000, size=(50, 4000), p=by_rank(1.0, 10_000))
    seen = np.mean([np.unique(ids).size for ids in drawn])
    assert zipf_accesses(10_000, 1.0).distinct(4000) == pytest.approx(seen, rel=0.01)


@pytest.mark.parametrize("exponent", EXPONENTS)
@pytest.mark.parametrize("share", [0.01, 0.5, 0.95, 0.999, 1.0])
def test_rows_for_a_share_have_it(exponent: float, share: float) -> None:
    for rows in (1, 7, ROWS, 10**12):
        accesses = zipf_accesses(rows, exponent)
        assert accesses.hits(accesses.rows_for(share)) == pytest.approx(share, rel=1e-9)


def test_ranks_without_number_are_quick_and_add_up() -> None:
    """Σ r^-2 up to 10^12 is π²/6; h(10^6) of s = 1 is H(10^6) / H(10^12), H(n) ≈ ln n + 0.5772."""
    assert zipf_accesses(10**12, 2.0).hits(1) == pytest.approx(6 / np.pi**2, rel=1e-9)
    harmonic = [np.log(n) + 0.57721566490153 + 1 / (2 * n) for n in (1e6, 1e12)]
    accesses = zipf_accesses(10**12, 1.0)
    assert accesses.hits(1e6) == pytest.approx(harmonic[0] / harmonic[1], rel=1e-5)
    assert accesses.rows.size < 3000


def test_steps_of_a_histogram_are_taken_as_they_stand() -> None:
    table = TableSpec(name="a", rows=10, width=4, histogram=((2, 0.5), (4, 0.5), (4, 0.0)))
    accesses = accesses_of(table)
    np.testing.assert_allclose(accesses.hits([1, 2, 4, 6, 10]), [0.25, 0.5, 0.75, 1, 1])
    np.testing.assert_allclose(accesses.rows_for([0.25, 0.75, 1.0]), [1, 4, 6])
    assert accesses.distinct(10**6) == pytest.approx(6)


def test_rows_of_a_table_that_says_nothing_are_used_alike() -> None:
    accesses = accesses_of(TableSpec(name="a", rows=1000, width=4))
    assert accesses.hits(100) == pytest.approx(0.1)
    assert accesses.distinct(1000) == pytest.approx(1000 * (1 - (1 - 1e-3) ** 1000))


@given(st.integers(1, 10**12), st.floats(0, 5), st.floats(1, 1e10))
def test_hit_curves_are_concave_and_bounded(rows: int, exponent: float, n: float) -> None:
    accesses: Accesses = zipf_accesses(rows, exponent)
    each = accesses.share_of_row
    assert (each[1:] <= each[:-1] * (1 + 1e-9)).all()
    distinct = accesses.distinct([n, 2 * n])
    assert 0 < distinct[0] <= min(n, rows) * (1 + 1e-9)
    assert distinct[0] <= distinct[1] <= 2 * distinct[0] * (1 + 1e-9)
    assert 0 <= accesses.hits(rows / 2) <= 1
