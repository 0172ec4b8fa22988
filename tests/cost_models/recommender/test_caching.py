"""Rows that batches bring up to a cache of what was used last, beside a cache that is followed access by access."""

from __future__ import annotations

import numpy as np
import pytest

from cost_models.arrays import Array
from cost_models.recommender.accesses import cached_tables, rows_brought
from cost_models.specs.recommender.model import Interaction, RecommenderSpec, TableSpec

ROWS, HELD, EXPONENT = 4000, 500, 1.0
TABLES = cached_tables(
    RecommenderSpec(
        tables=(TableSpec(name="a", rows=ROWS, width=4, zipf=EXPONENT),), interaction=Interaction(kind="none")
    ),
    4.0,
    "lru",
)


def followed(batch: int, batches: int) -> float:
    """Rows that a batch brings up, the mean over half of the batches: rows of a batch are used at its time, what it
    names stays, of those used at one time any goes, of those that come the first find room."""
    draw, shares = np.random.default_rng(0), np.arange(1.0, ROWS + 1) ** -EXPONENT
    used, cached, brought = np.full(ROWS, -1), np.zeros(ROWS, bool), []
    for now in range(batches):
        named = np.unique(draw.choice(ROWS, batch, p=shares / shares.sum()))
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
    assert rows_brought(TABLES, np.full((1, 1), 64.0), np.array([float(ROWS)])) == 0
