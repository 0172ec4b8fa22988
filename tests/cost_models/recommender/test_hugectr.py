"""HugeCTR's planner: its cost of a GPU, worked by hand."""

from __future__ import annotations

import pytest
from asked import asked, option_of

from benchmarks.recommenders.planners.hugectr import hugectr_options
from cost_models.recommender.options import STAGES
from cost_models.specs.recommender.model import TableSpec

TABLE = TableSpec(name="t", rows=10**6, width=128, pooling=100.0)


@pytest.mark.parametrize(
    ("option", "lookups", "slices"),
    [
        ("whole", 4 * 100 + 60, 1),
        ("row4", 4 * 25 + 60, 4),
        ("row", 4 * 12.5 + 60, 8),
        ("column2", (400 + 60) / 2, 2),
    ],
)
def test_a_shard_costs_its_lookups_and_its_due(option: str, lookups: float, slices: int) -> None:
    found = hugectr_options(asked(TABLE, batch=1024, optimizer="adagrad"), [(0, option_of(option))])
    cost = (found.shard_seconds + found.everywhere_seconds)[0]
    assert cost[STAGES.index(STAGES.lookup)] == pytest.approx(1024 * 128 * lookups)
    assert cost.sum() == cost.max()
    size = found.shard_bytes[0] + found.everywhere_bytes[0]
    assert size == pytest.approx(10**6 * 128 * 8 / slices)


def test_it_splits_rows_by_powers_of_two() -> None:
    assert [str(one) for one in hugectr_options(asked(TABLE)).options] == ["whole", "row2", "row4", "row"]
