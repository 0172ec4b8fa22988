"""Forecasts of a job that fails, starts and restarts."""

from __future__ import annotations

import csv
import math
import random
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cost_models.axes.layout import parse_layout
from cost_models.defaults import OWN_STACK, complete_question
from cost_models.errors import InfeasibleError, InputError
from cost_models.estimate import Breakdown
from cost_models.files.catalog import load_operations, names
from cost_models.files.loading import resolve_cluster, resolve_model
from cost_models.question import Question
from cost_models.reliability import (
    RUNS,
    Job,
    Segment,
    best_work,
    blocking_probability,
    changes_of,
    checkpoint_bytes,
    copies,
    daly,
    draw_ends,
    draw_ends_of,
    first_order_ratio,
    forecast,
    group_sizes,
    requests,
    resume_of,
    start_up,
    store_seconds,
    waiting,
    young,
)
from cost_models.specs.cluster import OperationsSpec
from cost_models.specs.training import TrainingSpec

JOB = Job(
    steps=300_000,
    step_seconds=5.0,
    checkpoint_bytes=13.8e12,
    gpus=3072,
    nodes=384,
    host_bandwidth=25e9,
    watts=400.0,
)


def operations(**fields: Any) -> OperationsSpec:
    usual = {"mtbf": "50700 h", "detection": "1 min", "restart": "5 min", "storage_write": "273 GB/s"}
    return OperationsSpec.model_validate(usual | fields)


MAINTENANCE = {"every": "14 d", "takes": "6 h"}
SLOW = {"slow_hosts": 0.002, "slowness": 0.1, "pause": 4.0}
BUSY = operations(mtbf="20000 h", spares=3, repair="8 h", maintenance=MAINTENANCE, **SLOW)


def test_a_checkpoint_of_a_trillion_parameters_takes_fifty_seconds() -> None:
    """Narayanan et al. 2021, section 5.10: 13.8 TB at 273 GB/s."""
    found = forecast(JOB, operations())
    assert found.flush == pytest.approx(50.5, abs=0.1)
    assert found.copy == pytest.approx(13.8e12 / 3072 / 25e9)


def test_the_slow_hosts_of_a_source_cost_what_it_says() -> None:
    """MegaScale trains for more than 90 % of its time on 12,288 GPUs, slow hosts found and replaced."""
    own = replace(JOB, gpus=12_288, nodes=1_536, steps=80_000, step_seconds=6.3, checkpoint_bytes=175e9 * 14)
    found = forecast(own, load_operations("megascale"))
    assert found.evicts
    assert 0.90 < found.goodput < 0.95
    assert found.parts["stragglers"] < 0.02 * found.seconds
    assert draw_ends(found, runs=2000).mean() == pytest.approx(found.seconds, rel=0.005)


def test_ends_are_as_uncertain_as_the_step() -> None:
    """Steps between half and twice as long spread the end by about as much, whatever failures add."""
    found = forecast(JOB, operations())
    ends = draw_ends_of(found, np.array([0.5, 1.0, 2.0]) * JOB.step_seconds, runs=300)
    early, middle, late = np.quantile(ends, (0.05, 0.5, 0.95))
    assert late / early > 3.5
    assert middle == pytest.approx(found.seconds, rel=0.05)


def test_parts_sum_to_the_whole() -> None:
    found = forecast(JOB, BUSY)
    assert found.parts.total == pytest.approx(found.seconds)
    assert all(seconds > 0 for seconds in found.parts.values())
    assert found.goodput == pytest.approx(found.parts["training"] / found.parts.total)


def test_energy_is_that_of_all_time_but_planned_stops() -> None:
    found = forecast(replace(JOB, watts=700.0), BUSY)
    seconds = found.parts.total - found.parts["maintenance"]
    assert found.kilowatt_hours == pytest.approx(seconds * JOB.gpus * 0.7 / 3600)


def test_draws_agree_with_mean_and_deviation() -> None:
    found = forecast(JOB, BUSY)
    ends = draw_ends(found)
    assert len(ends) == RUNS
    assert ends.mean() == pytest.approx(found.seconds, abs=3 * found.deviation / np.sqrt(RUNS))
    assert ends.std() == pytest.approx(found.deviation, rel=0.03)
    again = draw_ends(found)
    assert (ends == again).all()


def test_no_other_interval_ends_it_sooner() -> None:
    found = forecast(JOB, BUSY)
    for every in (1, found.interval - 1, found.interval + 1, 10 * found.interval):
        assert replace(found, interval=every).seconds >= found.seconds


@pytest.mark.parametrize("factor", [0.2, 1.0, 5.0])
def test_what_helps_keeps_an_interval_that_somebody_fixed(factor: float) -> None:
    """Twice of what two rows change, at the same interval, ends no later than each; another interval is its own row."""
    free = forecast(JOB, BUSY)
    every = max(1, round(free.interval * factor))
    found = forecast(JOB, BUSY, every)
    changes = changes_of(found, every)
    own = {name: after for name, after in changes.items() if name.startswith("saving more")}
    assert all(after.interval == every for name, after in changes.items() if name not in own)
    assert [after.interval for after in own.values()] == [free.interval] * (factor != 1.0)
    assert all(("often" if factor > 1 else "rarely") in name for name in own)
    assert all(after.seconds < found.seconds for after in changes.values())


def test_writing_while_training_waits_less_and_loses_more() -> None:
    behind, waiting = forecast(JOB, operations()), forecast(JOB, operations(asynchronous=False))
    assert behind.segment.saving < waiting.segment.saving
    assert behind.segment.lag > waiting.segment.lag == 0
    assert behind.seconds < waiting.seconds


def test_a_job_that_fails_before_it_restarts_never_ends() -> None:
    with pytest.raises(InfeasibleError, match="never ends: with 3,072 GPUs something fails every"):
        forecast(JOB, operations(mtbf="300 h"))


def test_no_spare_at_all_means_waiting_for_every_repair() -> None:
    found = forecast(JOB, operations(spares=0, repair="1 d"))
    assert found.waiting.chance == 1.0
    assert found.parts["waiting_for_spares"] == pytest.approx(found.failures * 86400)


def test_storage_must_keep_up() -> None:
    slow = operations(storage_write="1 GB/s", mtbf="1000000 h")
    with pytest.raises(InputError, match=r"storage takes 12.6 TiB at 1 GB/s: longer than 10 steps") as caught:
        forecast(JOB, slow, interval=10)
    assert "or more" in caught.value.hint
    assert forecast(JOB, slow).interval * 5.0 >= 13.8e12 / 1e9 - 1


@pytest.mark.parametrize("every", [0, 300_001])
def test_an_interval_beyond_the_job_is_refused(every: int) -> None:
    with pytest.raises(InputError, match="cannot save every"):
        forecast(JOB, operations(), interval=every)


@pytest.mark.parametrize("name", names("operations"))
def test_catalogue_entries_say_where_they_are_from(name: str) -> None:
    one = load_operations(name)
    assert one.name == name
    assert len(one.source) > 40
    assert 0.5 < forecast(JOB, one).goodput < 1


def test_wrong_operations_are_refused() -> None:
    usual = {"mtbf": "50 h", "detection": "1 s", "restart": "1 s", "storage_write": "1 GB/s"}
    cases: list[tuple[dict[str, Any], str]] = [
        ({"mtbf": "0 h"}, "above zero"),
        ({"mtbf": "-3 h"}, "above zero"),
        ({"storage_write": "0 GB/s"}, "above zero"),
        ({"spares": -1}, "spares"),
        ({"slow_hosts": 1.5}, "slow_hosts"),
        ({"maintenance": {"every": "1 h", "takes": "2 h"}}, "no time is left"),
    ]
    for fields, says in cases:
        with pytest.raises(InputError, match=says):
            OperationsSpec(**usual | fields)


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


HOUR = 3600.0
LLAMA3 = 3.09 * HOUR
"""Seconds between failures of 16,384 H100: 419 in 54 days."""


def test_published_figures_by_hand() -> None:
    """Young's interval on 16,384 GPUs, and the goodput that it leaves."""
    for saving, restart, minutes, goodput in [(60.0, 600.0, 19.3, 0.852), (30.0, 120.0, 13.6, 0.918)]:
        interval = young(saving, LLAMA3)
        assert interval / 60 == pytest.approx(minutes, abs=0.06)
        one = Segment(work=interval, saving=saving, restart=restart, mtbf=LLAMA3)
        assert one.goodput == pytest.approx(goodput, abs=6e-4)
        assert first_order_ratio(one) == pytest.approx(one.goodput, abs=0.01)


def test_no_interval_is_better_than_the_best() -> None:
    best = best_work(60.0, LLAMA3)
    assert best == pytest.approx(daly(60.0, LLAMA3), rel=0.02)

    def goodput(work: float) -> float:
        return Segment(work=work, saving=60.0, restart=600.0, mtbf=LLAMA3).goodput

    assert goodput(best) > max(goodput(best * 0.9), goodput(best * 1.1))


def test_parts_of_a_segment_are_the_whole() -> None:
    one = Segment(work=900.0, saving=20.0, restart=300.0, mtbf=5000.0, lag=60.0)
    assert one.length + one.restarting + one.lost == pytest.approx(one.expected)
    assert one.failures * one.mtbf == pytest.approx(one.expected)


def test_mean_and_variance_are_those_of_failures_drawn_one_by_one() -> None:
    """The clock runs through trainings, saves and restarts; what could not be read yet when it failed is done again."""
    one = Segment(work=900.0, saving=60.0, restart=300.0, mtbf=2500.0, lag=200.0)
    drawn = _draw(one, segments=60_000, seed=5)
    error = math.sqrt(one.variance / len(drawn))
    assert statistics.fmean(drawn) == pytest.approx(one.expected, abs=3 * error)
    assert statistics.pvariance(drawn) == pytest.approx(one.variance, rel=0.1)


def _draw(one: Segment, segments: int, seed: int) -> list[float]:
    """Seconds between readable checkpoints of a job that is followed from event to event."""
    rng = random.Random(seed)
    clock, done, readable = 0.0, 0.0, 0
    failure = rng.expovariate(1 / one.mtbf)
    times, last = [], 0.0
    while len(times) < segments:
        target = (readable + 1) * one.length + one.lag  # progress at which the next checkpoint can be read
        if clock + target - done <= failure:
            clock += target - done
            done, readable = target, readable + 1
            times.append(clock - last)
            last = clock
            continue
        clock, done = failure, readable * one.length
        while (failure := clock + rng.expovariate(1 / one.mtbf)) < clock + one.restart:
            clock = failure
        clock += one.restart
    return times[1:]


def test_spares_wait_as_erlang_says() -> None:
    """The chance that a failure finds no spare, from the states of the repair shop."""
    load, spares = 2.5, 4
    weights = [load**away / math.factorial(away) for away in range(spares + 1)]
    assert blocking_probability(spares, load) == pytest.approx(weights[-1] / sum(weights))
    assert waiting(None, 10.0, 1.0).mean_seconds == 0.0
    assert waiting(0, 10.0, 1e9).chance == 1.0
    chances = [waiting(count, 3600.0, 1000.0).mean_seconds for count in range(12)]
    assert chances == sorted(chances, reverse=True)
