"""Lookups and updates of embedding rows: measured, made shares of memory bandwidth, and read by the price."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from cost_models.errors import InputError
from cost_models.files.catalog import load_profile, load_recommender
from cost_models.files.loading import resolve_cluster
from cost_models.measured.calibration.microbenchmarks import Measurement, moved_bytes, table_rates
from cost_models.recommender.options import option_columns
from cost_models.recommender.prices import efficiency, lookup_seconds, update_seconds
from cost_models.recommender.question import RecommenderQuestion, complete_recommender
from cost_models.specs.recommender.constants import TablePoint, TableRates
from cost_models.specs.recommender.sharding import Option
from cost_models.specs.recommender.training import RecommenderTraining
from executor.microbenchmarks.kernels import tables
from executor.microbenchmarks.stopwatch import Stopwatch, scale_of

BANDWIDTH = 1e10


def test_every_row_size_is_measured_the_same_in_every_round() -> None:
    """Pooling and optimizer, too: rounds are of one thing, and the fit has a full grid of each."""
    scale = replace(scale_of("cpu", quick=True), table_bytes=2**20, table_widths=(4, 16), table_ids=64)
    watch = Stopwatch(device=torch.device("cpu"), budget_seconds=1e-4)
    first, second = (list(tables(watch, scale)) for _ in range(2))
    assert [(one.name, one.shape, one.size) for one in first] == [
        (one.name, one.shape, one.size) for one in second
    ]
    rates = table_rates(first, BANDWIDTH, "here")
    assert rates is not None
    assert {(one.row_bytes, one.pooling) for one in rates.lookup} == {
        (size, pool) for size in (16.0, 64.0) for pool in (0.125, 1.0, 16.0)
    }
    assert {len(points) for points in (rates.sums, *rates.changes.values())} == {2}
    assert set(rates.changes) == {"sgd", "adagrad", "rowwise-adagrad", "adam"}
    assert rates.source == "here"
    assert {name: [one.row_bytes for one in points] for name, points in rates.served.items()} == {
        policy: [16.0, 64.0] for policy in ("hottest", "lru")
    }
    assert all(one.launch_seconds > 0 for points in rates.served.values() for one in points)


def test_what_is_measured_is_what_the_price_moves() -> None:
    """1,000 ids of rows of 64 B in 100 bags, 900 of them rows of their own, worked by hand."""
    shape = (64, 1000, 100, 900)
    assert moved_bytes("lookup", shape) == 1000 * (64 + 8) + 100 * 64
    assert moved_bytes("sums", shape) == 1000 * (64 + 8) + 900 * 64
    assert moved_bytes("change.sgd", shape) == 900 * 2 * 64
    assert moved_bytes("change.rowwise-adagrad", shape) == 900 * 2 * (64 + 4)
    assert moved_bytes("change.adam", shape) == 900 * 2 * 64 * 3
    row = Measurement(
        kind="table",
        name="sums",
        shape=shape,
        size=moved_bytes("sums", shape),
        seconds=1e-4,
        quiet_seconds=1e-4,
    )
    assert table_rates([], BANDWIDTH, "") is None
    rates = table_rates([row, replace(row, name="lookup")], BANDWIDTH, "")
    assert rates is not None
    assert rates.sums[0].efficiency == pytest.approx(129600 / 1e-4 / BANDWIDTH)


def test_between_measured_points_and_beyond_them() -> None:
    points = [
        TablePoint(row_bytes=size, pooling=pool, efficiency=share)
        for size, pool, share in ((16, 1, 0.1), (64, 1, 0.4), (16, 4, 0.2), (64, 4, 0.8))
    ]
    found = efficiency(points, np.array([16.0, 32.0, 64.0, 1024.0, 4.0]), np.array([1.0, 1.0, 2.0, 9.0, 0.1]))
    assert found == pytest.approx([0.1, 0.2, 0.4 * 2**0.5, 0.8, 0.1])
    assert efficiency(points[:1], np.array([1.0, 1e6])) == pytest.approx([0.1, 0.1])
    with pytest.raises(InputError, match="a point for every row size and pooling"):
        TableRates(lookup=tuple(points[:3]), sums=tuple(points[:1]), changes={})


def test_the_price_reads_them_where_a_profile_has_them() -> None:
    """Half of the efficiency takes twice as long, for lookups, sums and optimizers; without them as before."""

    def asked(share: float | None) -> RecommenderQuestion:
        points = (TablePoint(row_bytes=64, efficiency=share or 1.0),)
        rates = TableRates(lookup=points, sums=points, changes={"sgd": points})
        profile = load_profile("datasheet-cpu").model_copy(update={"tables": rates if share else None})
        training = RecommenderTraining(global_batch=4096, precision="fp32")
        return complete_recommender(
            load_recommender("dlrm-tiny"), resolve_cluster("local", 2), training, profile=profile
        )

    def seconds(question: RecommenderQuestion) -> list[float]:
        x = option_columns(question, [(0, Option("whole")), (0, Option("copy"))])
        parts = (*lookup_seconds(question, x), *update_seconds(question, x))
        return [float(part.sum()) for part in parts]

    fast, slow, before = seconds(asked(0.5)), seconds(asked(0.25)), seconds(asked(None))
    assert slow == pytest.approx([2 * each for each in fast])
    assert before != pytest.approx(fast, rel=0.1)
    question = asked(0.5)
    x = option_columns(question, [(0, Option("whole"))])
    moved = x.ids * (64 + 8) + x.bags * 64
    bandwidth = question.cluster.gpu.memory_bandwidth
    assert lookup_seconds(question, x)[0] == pytest.approx(moved / (0.5 * bandwidth))
