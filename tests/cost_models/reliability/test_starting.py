"""What a start takes: requests beside those that were counted, their growth, and the forecast that pays for it."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import pytest
from forecast_job import JOB

from cost_models.axes.layout import parse_layout
from cost_models.estimate import Breakdown
from cost_models.files.catalog import load_operations
from cost_models.reliability.forecast import forecast
from cost_models.reliability.outlook import draw_ends
from cost_models.reliability.starting import (
    group_sizes,
    requests,
    requests_of_all_pairs,
    start_up,
    store_seconds,
)

COUNTED = Path(__file__).parents[3] / "benchmarks" / "start_up" / "counted.csv"


def test_requests_are_those_that_were_counted() -> None:
    """On 2, 4 and 8 real processes, each of which also made the group beside that of its shards."""
    with COUNTED.open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["speaking"]]
    assert [int(row["ranks"]) for row in rows] == [2, 4, 8]
    for row in rows:
        layout = parse_layout(row["layout"])
        told = requests((*group_sizes(layout), layout.shard_group))
        assert told == pytest.approx(int(row["making"]) + int(row["speaking"]), rel=0.1)


def test_a_start_grows_with_the_ranks_and_not_with_their_square() -> None:
    """MegaScale's 2,048 GPUs started in less than 5 s where barriers of all with all had taken 1,047."""
    few, many = (parse_layout(f"tp8 pp8 dp{dp} zero1 mbs1") for dp in (32, 256))
    assert start_up(many)["groups"] / start_up(few)["groups"] < 1.5 * 8
    pairs = [store_seconds(one.num_gpus, requests_of_all_pairs(group_sizes(one))) for one in (few, many)]
    assert pairs[1] / pairs[0] == pytest.approx(64, rel=0.1)
    assert start_up(few)["groups"] < 5 < pairs[0]


def test_a_forecast_pays_one_start_and_no_restart_is_quicker() -> None:
    operations = load_operations("megascale").model_copy(update={"slow_hosts": 0.0})
    starts = Breakdown.of(processes=5.0, groups=1.0), Breakdown.of(processes=5.0, groups=5000.0)
    plain = forecast(JOB, operations, every=100)
    quick, slow = (forecast(replace(JOB, start=start), operations, every=100) for start in starts)
    assert quick.segment == plain.segment
    assert quick.seconds == pytest.approx(plain.seconds + 6.0 / (1 - plain.maintained), abs=1e-6)
    assert slow.segment.restart == pytest.approx(plain.segment.restart - operations.restart + 5005.0)
    for found in (quick, slow):
        assert found.parts["starting"] == found.job.start_seconds
        assert found.parts.total == pytest.approx(found.seconds)
    assert "starting" not in plain.parts.as_dict()
    drawn = draw_ends(quick).seconds.mean() - draw_ends(plain).seconds.mean()
    assert drawn == pytest.approx(6.0 / (1 - plain.maintained))
