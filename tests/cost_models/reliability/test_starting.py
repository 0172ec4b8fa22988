"""What a start takes: requests beside those that were counted, their growth, and the forecast that pays for it."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import pytest
from forecast_job import JOB

from cost_models.axes.layout import parse_layout
from cost_models.defaults import OWN_STACK, complete_question
from cost_models.estimate import Breakdown
from cost_models.files.catalog import load_operations
from cost_models.files.loading import resolve_cluster, resolve_model
from cost_models.question import Question
from cost_models.reliability import (
    checkpoint_bytes,
    copies,
    draw_ends,
    forecast,
    group_sizes,
    requests,
    resume_of,
    start_up,
    store_seconds,
)
from cost_models.specs.training import TrainingSpec

COUNTED = Path(__file__).parents[3] / "benchmarks" / "start_up" / "counted.csv"


def question(model: str, gpus: int, cluster: str = "dgx-h100") -> Question:
    job = TrainingSpec(global_batch=512, sequence_length=4096)
    return complete_question(resolve_model(model).spec, resolve_cluster(cluster, gpus), job, stack=OWN_STACK)


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
    asked = question("gpt3-175b", 2048)
    assert start_up(asked, many)["groups"] / start_up(asked, few)["groups"] < 1.5 * 8
    # each rank asks for all others of its groups
    asks = {one: sum(1 + 2 * size for size in group_sizes(one)) for one in (few, many)}
    pairs = [store_seconds(one.num_gpus, count) for one, count in asks.items()]
    assert pairs[1] / pairs[0] == pytest.approx(64, rel=0.1)
    assert start_up(asked, few)["groups"] < 5 < pairs[0]


def test_a_start_builds_and_draws_what_a_rank_has() -> None:
    """Replicas without ZeRO each draw all; on a CPU 15 ns an element. A restart draws nothing."""
    local = question("gpt2-medium", 4, "local")
    alone, shared = (parse_layout(f"dp4 mbs1 {zero}") for zero in ("zero0", "zero1"))
    for layout, same in ((alone, 4), (shared, 1)):
        assert copies(local, layout) == same
        again = start_up(local, layout, draws=False)
        drawn = start_up(local, layout)["weights"] - again["weights"]
        assert drawn == pytest.approx(354.8e6 * same / 4 * 1.5e-8, rel=2e-3)
        assert again["weights"] == pytest.approx(24 * 0.004)
    split = parse_layout("dp4 mbs1 zero3")
    assert start_up(local, split)["first_step"] > 0 == start_up(local, alone)["first_step"]


def test_storage_is_read_once_where_links_are_faster() -> None:
    """Llama 2 13B over 64 groups of 8 ranks: 64 times as many bytes to read, or 1/8 of them to send."""
    asked, layout = question("llama2-13b", 512), parse_layout("dp512 mbs1 zero1 shard8")
    whole = checkpoint_bytes(asked)
    found = resume_of(asked, layout, whole)
    assert found.held_bytes == pytest.approx(64 * whole)
    assert found.sending > whole / 8 / 50e9  # of one adapter
    slow, fast = 100e9, 1e15
    assert found.reads_once(slow)
    assert not found.reads_once(fast)
    digest = 5.6e-10 * whole / 512
    assert found.seconds(slow) == pytest.approx(2 * whole / slow + digest + found.sending)
    assert found.seconds(fast) == pytest.approx(65 * whole / fast + digest)
    alone = resume_of(asked, parse_layout("dp512 mbs1 zero1"), whole)
    assert (alone.held_bytes, alone.sending) == (pytest.approx(whole), 0.0)
    mixture = question("mixtral-8x7b", 64)
    assert 1 < copies(mixture, parse_layout("dp64 ep8 mbs1 zero1 shard8")) <= 8


def test_a_forecast_pays_one_start_and_no_restart_is_quicker() -> None:
    operations = load_operations("megascale").model_copy(update={"slow_hosts": 0.0})
    starts = Breakdown(processes=5.0, groups=1.0), Breakdown(processes=5.0, groups=5000.0)
    plain = forecast(JOB, operations, interval=100)
    quick, slow = (
        forecast(replace(JOB, start=start, restart=start), operations, interval=100) for start in starts
    )
    assert quick.segment == plain.segment
    assert quick.seconds == pytest.approx(plain.seconds + 6.0 / (1 - plain.maintained), abs=1e-6)
    assert slow.segment.restart == pytest.approx(plain.segment.restart - operations.restart + 5005.0)
    for found in (quick, slow):
        assert found.parts["starting"] == found.job.start_seconds
        assert found.parts.total == pytest.approx(found.seconds)
    assert "starting" not in plain.parts
    drawn = draw_ends(quick).mean() - draw_ends(plain).mean()
    assert drawn == pytest.approx(6.0 / (1 - plain.maintained))
