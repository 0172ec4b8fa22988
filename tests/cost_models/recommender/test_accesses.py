"""Accesses of tables: histograms and caches."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from calling import refusal
from hypothesis import given
from hypothesis import strategies as st

from cost_models.arrays import Array
from cost_models.documents import Document
from cost_models.errors import InputError
from cost_models.files.recommenders import read_histogram, read_tables, steps_of
from cost_models.recommender.accesses import Accesses, accesses_of, cached_tables, rows_brought, zipf_accesses
from cost_models.specs.recommender.model import Interaction, RecommenderSpec, TableSpec

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


CACHED_ROWS, HELD, EXPONENT = 4000, 500, 1.0
TABLES = cached_tables(
    RecommenderSpec(
        tables=(TableSpec(name="a", rows=CACHED_ROWS, width=4, zipf=EXPONENT),),
        interaction=Interaction(kind="none"),
    ),
    4.0,
    "lru",
)


def followed(batch: int, batches: int) -> float:
    """Rows that a batch brings up, the mean over half of the batches: rows of a batch are used at its time, what it
    names stays, of those used at one time any goes, of those that come the first find room."""
    draw, shares = np.random.default_rng(0), np.arange(1.0, CACHED_ROWS + 1) ** -EXPONENT
    used, cached, brought = np.full(CACHED_ROWS, -1), np.zeros(CACHED_ROWS, bool), []
    for now in range(batches):
        named = np.unique(draw.choice(CACHED_ROWS, batch, p=shares / shares.sum()))
        missing = named[~cached[named]]
        used[named] = now
        coming = missing[: HELD - int(cached[named].sum())]
        others = draw.permutation(np.flatnonzero(cached & (used < now)))
        gone = others[np.argsort(used[others], kind="stable")]
        cached[gone[: max(0, int(cached.sum()) + len(coming) - HELD)]] = False
        cached[coming] = True
        brought.append(len(missing))
    return float(np.mean(brought[batches // 2 :]))


@pytest.mark.parametrize(("batch", "batches"), [(1, 20_000), (64, 1000), (600, 200), (4000, 100)])
def test_a_batch_brings_up_what_it_repeats_once(batch: int, batches: int) -> None:
    """The largest names 1,300 rows, more than twice what the cache has room for."""
    ids: Array = np.array([[float(batch)]])
    (brought,) = rows_brought(TABLES, ids, np.array([float(HELD)])).ravel()
    assert brought == pytest.approx(followed(batch, batches), rel=0.03)


def test_batches_of_one_id_hit_as_the_curve_says() -> None:
    held = np.array([float(HELD)])
    one = 1.0 - rows_brought(TABLES, np.ones((1, 1)), held)[0]
    assert one == pytest.approx(TABLES.table_hits(held), abs=2e-3)
    assert rows_brought(TABLES, np.full((1, 1), 64.0), np.array([float(CACHED_ROWS)])) == 0


def test_files_of_counts_say_the_same(tmp_path: Path) -> None:
    counts = np.array([0, 5, 1, 0, 4])
    np.save(tmp_path / "by-row.npy", counts)
    (tmp_path / "by-row.csv").write_text("".join(f"{count}\n" for count in counts))
    (tmp_path / "pairs.csv").write_text("row,count\n1,5\n4,4\n2,1\n")
    read = [read_histogram(tmp_path / name, 5) for name in ("by-row.npy", "by-row.csv", "pairs.csv")]
    assert read[0] == read[1] == read[2] == ((1, 0.5), (1, 0.4), (1, 0.1), (1, 0.0), (1, 0.0))


def test_many_rows_become_steps_with_the_same_hits() -> None:
    counts = np.random.default_rng(0).permutation(np.rint(1e6 * np.arange(1.0, 200_001) ** -0.9))
    steps = steps_of(counts)
    accesses = accesses_of(TableSpec(name="a", rows=200_000, width=4, histogram=steps))
    direct = np.cumsum(np.sort(counts)[::-1]) / counts.sum()
    hottest = np.array([1, 500, 2000, 50_000, 150_000])
    np.testing.assert_allclose(accesses.hits(hottest), direct[hottest - 1], rtol=1e-4)
    assert len(steps) < 1500


def test_a_model_names_its_files(tmp_path: Path) -> None:
    np.save(tmp_path / "clicks.npy", np.array([3, 1]))
    tables = [{"name": "a", "rows": 2, "histogram": "clicks.npy"}, {"name": "b"}]
    read = read_tables(Document(source="model.yaml", value={"tables": tables}), tmp_path)
    assert read.value["tables"] == [
        {"name": "a", "rows": 2, "histogram": [[1, 0.75], [1, 0.25]]},
        {"name": "b"},
    ]


def test_other_rows_and_no_counts_are_refused(tmp_path: Path) -> None:
    for text, says in [
        ("1\n2\n3\n", "counts 3 rows, the table has 2"),
        ("5,1\n", "row 5 is not among the table's 2"),
        ("1,1\n1,1\n", "row 1 is counted twice"),
        ("1,1\nlots\n", "neither a count"),
        ("0\n0\n", "no access"),
        ("1\n-2\n", "below zero"),
        ("1\nnan\n", "below zero, or"),
    ]:
        path = tmp_path / "counts.csv"
        path.write_text(text)
        assert says in refusal(read_histogram, path, 2)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", ["counts.csv", "counts.npy"])
def test_a_pipe_is_no_histogram(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    with pytest.raises(InputError, match="is no file; write what a pipe gives to one"):
        read_histogram(tmp_path / name, 2)


def test_an_array_of_objects_runs_no_code(tmp_path: Path) -> None:
    np.save(tmp_path / "objects.npy", np.array([{}, []], dtype=object), allow_pickle=True)
    with pytest.raises(InputError, match="no array of numbers"):
        read_histogram(tmp_path / "objects.npy", 2)
