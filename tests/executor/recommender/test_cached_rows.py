"""Caches of rows: the vectors of the table whatever they hold, and the hits that were predicted."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from cost_models.files.recommenders import steps_of
from cost_models.recommender.accesses import accesses_of, lru_curve
from cost_models.specs.recommender.model import TableSpec
from executor.embeddings.bags import Bags, CachedSets, HottestRows, pooled

ROWS, HELD, BATCH = 50_000, 4096, 512
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Batches are small: threads would wait for one another longer than they work."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def zipf_ids(exponent: float, count: int, seed: int = 0) -> np.ndarray:
    weights = np.arange(1.0, ROWS + 1) ** -exponent
    rng = np.random.default_rng(seed)
    return rng.permutation(ROWS)[rng.choice(ROWS, count, p=weights / weights.sum())]


def table() -> torch.Tensor:
    return torch.randn(ROWS, 4, generator=torch.Generator().manual_seed(0))


def each(ids: torch.Tensor) -> Bags:
    """Bags of one id."""
    return Bags(ids, torch.ones(len(ids), dtype=torch.int32))


def replay(cache: HottestRows | CachedSets, ids: np.ndarray, warm: int) -> None:
    """All ids in batches; the first `warm` of them are not counted."""
    for place, batch in enumerate(torch.from_numpy(ids).split(BATCH)):
        if place * BATCH >= warm > 0:
            cache.counts, warm = type(cache.counts)(), 0
        cache.look_up(each(batch))


@pytest.mark.parametrize("kind", ["hottest", "lru", "lfu"])
def test_vectors_are_those_of_the_table(kind: str) -> None:
    rows = table()
    ids = zipf_ids(1.0, 20_000)
    cache = (
        HottestRows(rows, torch.from_numpy(np.unique(ids)[:300]), CPU)
        if kind == "hottest"
        else CachedSets(rows, 300, kind, CPU, ways=4)  # type: ignore[arg-type]
    )
    for batch in torch.from_numpy(ids).split(501):
        assert torch.equal(cache.look_up(each(batch)), rows[batch])
    assert cache.counts.lookups == 20_000
    assert cache.counts.up_bytes == cache.counts.fetched * 16
    assert 0 < cache.counts.hits < 20_000


@pytest.mark.parametrize("kind", ["hottest", "first", "lru"])
def test_bags_add_up_what_the_cache_has_and_what_it_lacks(kind: str) -> None:
    rows, held = table(), torch.arange(40, 340) if kind == "hottest" else torch.arange(300)
    cache = CachedSets(rows, 320, "lru", CPU) if kind == "lru" else HottestRows(rows, held, CPU)
    ids = torch.from_numpy(zipf_ids(1.0, 3000)) % 900
    bags = Bags(ids, torch.tensor([0, 1, 2, 7, 0] * 300, dtype=torch.int32))
    for _ in range(2):
        torch.testing.assert_close(cache.look_up(bags), pooled(rows, bags))
    assert 0 < cache.counts.hits < 6000


def test_an_empty_cache_and_an_empty_batch() -> None:
    rows = table()
    nothing = HottestRows(rows, torch.empty(0, dtype=torch.int64), CPU)
    ids = torch.tensor([5, 5, 9])
    assert torch.equal(nothing.look_up(each(ids)), rows[ids])
    assert nothing.counts.fetched == 2
    assert nothing.look_up(each(ids[:0])).shape == (0, 4)
    assert CachedSets(rows, 64, "lru", CPU).look_up(each(ids[:0])).shape == (0, 4)


@pytest.mark.parametrize("exponent", [0.8, 0.9, 1.0, 1.1, 1.2])
def test_hits_under_zipf_are_within_a_point_of_the_prediction(exponent: float) -> None:
    accesses = accesses_of(TableSpec(name="a", rows=ROWS, width=4, zipf=exponent))
    ids = zipf_ids(exponent, 120_000)
    rng = np.random.default_rng(0)
    by_rank = torch.from_numpy(rng.permutation(ROWS)[:HELD].copy())  # the law's own hottest rows
    hottest = HottestRows(table(), by_rank, CPU)
    replay(hottest, ids, 0)
    assert hottest.counts.hit_ratio == pytest.approx(accesses.hits(HELD), abs=0.01)

    last = CachedSets(table(), HELD, "lru", CPU)
    replay(last, ids, 60_000)
    assert last.counts.kept_ratio == pytest.approx(lru_curve(accesses).hits(HELD), abs=0.01)

    most = CachedSets(table(), HELD, "lfu", CPU)
    replay(most, ids, 60_000)
    assert last.counts.kept_ratio < most.counts.kept_ratio < accesses.hits(HELD) + 0.01


def test_hits_of_a_recorded_histogram_are_within_a_point() -> None:
    """Popularity that follows no Zipf law, recorded on one half of a log and served on the other."""
    rng = np.random.default_rng(3)
    popularity = rng.lognormal(0.0, 2.0, ROWS)
    ids = rng.choice(ROWS, 1_600_000, p=popularity / popularity.sum())
    recorded, served = ids[:1_500_000], ids[1_500_000:]
    counts = np.bincount(recorded, minlength=ROWS)
    steps = steps_of(counts)
    accesses = accesses_of(TableSpec(name="a", rows=ROWS, width=4, histogram=steps))
    hottest = torch.from_numpy(np.argsort(-counts, kind="stable")[:HELD].copy())
    cache = HottestRows(table(), hottest, CPU)
    replay(cache, served, 0)
    assert cache.counts.hit_ratio == pytest.approx(accesses.hits(HELD), abs=0.01)
