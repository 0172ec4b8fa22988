"""Rows in a cache: no choice of rows gives more hits, as brute force over all of them says."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from effort import number
from hypothesis import given, settings
from hypothesis import strategies as st

from cost_models.recommender.accesses import TAG_BYTES, CachedTables, cached_tables, lru_curve, zipf_accesses
from cost_models.specs.recommender.model import Interaction, RecommenderSpec, TableSpec
from planner.serving import filling_order, one_share_hits


def model(*tables: TableSpec) -> RecommenderSpec:
    return RecommenderSpec(tables=tables, interaction=Interaction(kind="none"))


def recorded(counts: list[int]) -> tuple[tuple[int, float], ...]:
    """A histogram of counts by rank."""
    ranked = sorted(counts, reverse=True)
    return tuple((1, count / sum(ranked)) for count in ranked)


def tables_of(said: list[tuple[list[int], int, float]]) -> CachedTables:
    """Tables of (counts by rank, width, pooling)."""
    tables = (
        TableSpec(
            name=f"t{place}", rows=len(counts), width=width, pooling=pooling, histogram=recorded(counts)
        )
        for place, (counts, width, pooling) in enumerate(said)
    )
    return cached_tables(model(*tables), 4.0)


TABLES = st.lists(
    st.tuples(
        st.lists(st.integers(0, 20), min_size=1, max_size=6).filter(any),
        st.sampled_from([1, 4, 12]),
        st.sampled_from([0.5, 1.0, 7.0]),
    ),
    min_size=1,
    max_size=3,
)


@settings(max_examples=number(100, 300))
@given(TABLES, st.integers(0, 800))
def test_no_choice_hits_more_than_a_row_beyond(
    said: list[tuple[list[int], int, float]], capacity: int
) -> None:
    tables = tables_of(said)
    found = filling_order(tables).fill(capacity)
    fitting = [
        np.array(rows, np.float64)
        for rows in product(*(range(len(counts) + 1) for counts, _, _ in said))
        if np.dot(rows, tables.row_bytes) <= capacity
    ]
    best = max(tables.hits(rows) for rows in fitting)
    largest_row = max(
        weight * curve.share_of_row[0] for weight, curve in zip(tables.weights, tables.curves, strict=True)
    )
    assert found.bytes <= capacity
    assert found.hits <= best + 1e-9
    assert best <= found.bound + 1e-9
    assert found.bound <= found.hits + largest_row + 1e-9


@settings(max_examples=number(40, 100))
@given(TABLES, st.floats(0.01, 1.0))
def test_the_smallest_cache_has_no_row_to_spare(
    said: list[tuple[list[int], int, float]], share: float
) -> None:
    one = tables_of(said)
    order = filling_order(one)
    found = order.smallest(share)
    assert found.hits >= share - 1e-9
    assert float(order.curve.rows_for(share)) >= found.bytes - one.row_bytes.max() - 1e-6


def test_by_hand() -> None:
    """Rows of 4 + 16 and 12 + 16 bytes; a: 6, 3, 1 of 10 accesses, b: 8, 2 of 10: in order a0, b0, a1, b1, a2."""
    tables = cached_tables(
        model(
            TableSpec(name="a", rows=3, width=1, histogram=recorded([6, 3, 1])),
            TableSpec(name="b", rows=2, width=3, histogram=recorded([8, 2])),
        ),
        4.0,
    )
    order = filling_order(tables)
    assert TAG_BYTES == 16
    assert list(order.fill(48).rows) == [1, 1]
    assert order.fill(48).hits == pytest.approx(0.7)
    assert list(order.fill(67).rows) == [1, 1]
    assert order.fill(67).bound == pytest.approx(0.7 + 0.15 * 19 / 20)
    assert list(order.smallest(0.71).rows) == [2, 1]
    assert order.fill(1e9).hits == pytest.approx(1)


def test_one_share_of_all_tables_hits_less_than_one_knapsack() -> None:
    tables = cached_tables(
        model(
            TableSpec(name="hot", rows=10**6, width=32, pooling=20, zipf=1.2),
            TableSpec(name="cold", rows=10**9, width=32, pooling=1, zipf=0.5),
        ),
        4.0,
    )
    capacity = 200e6
    together = filling_order(tables).fill(capacity)
    assert together.bytes == pytest.approx(capacity, rel=1e-5)
    assert together.hits > one_share_hits(tables, capacity) + 0.1


@given(st.integers(1, 10**12), st.floats(0, 5))
@settings(max_examples=60, deadline=None)
def test_curves_of_rows_used_last_are_concave(rows: int, exponent: float) -> None:
    curve = lru_curve(zipf_accesses(rows, exponent))
    assert (curve.share_of_row[1:] <= curve.share_of_row[:-1] * (1 + 1e-6) + 1e-15).all()
    assert curve.rows_up_to[-1] == pytest.approx(rows, rel=1e-6)
