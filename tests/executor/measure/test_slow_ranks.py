"""Slow ranks are named with their part and step, even ones are not; and the account of a run's time."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from training import GPT, plan_for, reported

from cost_models.arrays import Array
from cost_models.errors import InputError
from executor.measure.report import (
    OperationsReport,
    RunReport,
    listed_steps,
    load_any_report,
    operations_of_record,
)
from executor.measure.slow_ranks import FEWEST_STEPS, sentence, slow_ranks
from executor.run_config import MOST_STEPS
from meshwright.verbs.ran import forecast_shares, operations_rows, operations_spec, operations_text
from planner.plan import Plan

STEPS = 30


def measured(seed: int, ranks: int = 8, *, noise: float = 0.04) -> dict[str, Array]:
    """Two parts of steps that all ranks work on alike; now and then all are disturbed, or one for a step."""
    draw = np.random.default_rng(seed)
    together = 1 + 0.3 * draw.random((STEPS, 1)) ** 4
    alone = np.where(draw.random((STEPS, ranks)) < 0.02, 1.5, 1.0)
    return {
        "forward and backward": 0.1 * together * alone * (1 + noise * draw.standard_normal((STEPS, ranks))),
        "the update": 0.02 * (1 + noise * draw.standard_normal((STEPS, ranks))),
    }


@pytest.mark.parametrize("seed", range(20))
def test_one_that_is_a_fifth_slower_is_found_and_no_other(seed: int) -> None:
    even = measured(seed)
    assert slow_ranks(even, [0] * 8) == ()
    since, rank = 3 + seed % 15, seed % 8
    even["forward and backward"][since:, rank] *= 1.25
    (found,) = slow_ranks(even, [0] * 8)
    assert (found.rank, found.part, found.peers) == (rank, "forward and backward", 7)
    assert found.excess == pytest.approx(0.21, abs=0.05)
    assert abs(found.since - since) <= 3


def test_stages_are_compared_with_their_own() -> None:
    """The last stage computes a head besides: half as much again, and yet none of its ranks is slow."""
    parts = measured(1, 4)
    parts["forward and backward"][:, 2:] *= 1.5
    assert slow_ranks(parts, [0, 0, 1, 1]) == ()
    parts["the update"][:, 3] += 0.05
    (found,) = slow_ranks(parts, [0, 0, 1, 1])
    assert (found.rank, found.part, found.since) == (3, "the update", 0)
    assert sentence(found, 11).endswith("than its peer since step 11, most of it in the update")


def test_a_few_steps_say_nothing() -> None:
    parts = {name: each[: FEWEST_STEPS - 1] for name, each in measured(2).items()}
    parts["the update"][:, 0] *= 10
    assert slow_ranks(parts, [0] * 8) == ()


def notes(plan: Plan, slow: int | None) -> tuple[list[str], list[int]]:
    """Notes of a run in which one rank works longer from the sixth step on; ranks that its report finds slow."""
    import torch.distributed as dist

    from executor.engine.engine import Engine
    from executor.run_config import RunConfig
    from executor.steps import Watcher
    from executor.transformer.train import train

    own, steps = Engine.forward_backward, [0]

    def slower(self: Engine, *batch: torch.Tensor) -> float:
        began = time.thread_time()
        value = own(self, *batch)
        steps[0] += 1
        until = time.thread_time() + (time.thread_time() - began)
        while slow == dist.get_rank() and steps[0] > 6 and time.thread_time() < until:
            pass
        return value

    watcher = Watcher()
    with mock.patch.object(Engine, "forward_backward", slower):
        config = RunConfig(steps=16, warm_up=1, measure_memory=False, waiting_steps=0)
        report = train(plan, torch.device("cpu"), config, watcher)
    return [one for one in watcher.notes if " is slow: " in one], [one.rank for one in report.slow_ranks]


def test_a_run_names_a_rank_while_it_trains(processes) -> None:
    plan = plan_for("dp2 mbs4 zero1", {**GPT, "hidden_size": 128}, sequence_length=64)
    told, found = processes.run(2, notes, plan, 1)[0]
    assert found == [1]
    assert len(told) == 1
    assert told[0].startswith("rank 1 is slow: ")
    assert "most of it in forward and backward" in told[0]


def listed(plan: Plan, folder: Path, most: int) -> RunReport:
    """The report of a run of eight steps, of which ranks list some."""
    with mock.patch("executor.transformer.train.listed_steps", lambda seconds: listed_steps(seconds, most)):
        return reported(plan, folder, steps=8, warm_up=1, waiting_steps=0, measure_memory=False)


def test_of_many_steps_ranks_list_the_slowest_and_some_others(processes, tmp_path) -> None:
    """The report knows the seconds of all; it does not grow with ranks times steps."""
    seconds = [1.0] * 10_000
    seconds[1234] = 9.0
    places = listed_steps(seconds)
    assert len(places) <= MOST_STEPS
    assert {0, 1234} <= {*places}
    report, other = processes.run(2, listed, plan_for("dp2 mbs2"), tmp_path, 4)
    assert report == load_any_report(tmp_path / "run-report.json")
    # notes may differ: a busy machine lets one rank watch what another does not see
    assert (report.ranks, report.listed_steps) == (other.ranks, other.listed_steps)
    assert report.first_measured_step == 2
    assert report.step_numbers == report.listed_steps
    assert 3 <= len(report.listed_steps) <= 4
    assert {len(rank.wall_seconds) for rank in report.ranks} == {len(report.step_numbers)}
    assert report.quickest_step_seconds <= min(report.all_step_seconds)
    whole, _ = processes.run(2, listed, plan_for("dp2 mbs2"), tmp_path, 8)
    assert whole.step_numbers == tuple(range(2, 10))
    assert "listed_steps" not in whole.model_dump()


Line = dict[str, Any]


def step(number: int, at: float) -> Line:
    return {"step": number, "seconds": 1.0, "at": at}


SAVE = {"save": 2, "blocked_seconds": 0.5, "at": 102.5}
SAVED = {"saved": 2, "flush_seconds": 0.8, "bytes": 1000, "at": 103.3}
KILLED: list[Line] = [
    *(step(1, 101.0), step(2, 102.0), SAVE, SAVED, step(3, 103.5)),
    {"note": "start 2: rank 1 was ended from outside"},
    # last sign of life at 104.0, half a step after the last line
    {
        "restart": 2,
        "detection_seconds": 1.0,
        "starting_seconds": 4.0,
        "loading_seconds": 2.0,
        "resumed_step": 2,
        "steps_lost": 1,
        "at": 111.0,
    },
    *(step(3, 112.0), step(4, 113.0)),
    {"saved": 4, "flush_seconds": 0.2, "bytes": 1000, "at": 113.3},
    {"save": 4, "blocked_seconds": 0.4, "at": 113.4},
]
"""Two steps, a save, one step, a kill half a step later, and on from step 2."""


def test_the_lines_of_a_record_partition_its_time() -> None:
    seen = operations_of_record(KILLED, every=2)
    assert seen is not None
    assert seen.wall_seconds == pytest.approx(113.4 - 100.0)
    assert seen.parts == pytest.approx({"training": 4.0, "saving": 0.9, "lost_work": 1.5, "restarting": 7.0})
    assert seen.goodput == pytest.approx(4.0 / 13.4)
    assert [(save.step, save.flush_seconds, save.bytes) for save in seen.saves] == [
        (2, 0.8, 1000),
        (4, 0.2, 1000),
    ]
    assert seen.mean_save.blocked == 0.5  # beside the last one nothing is trained
    (restart,) = seen.restarts
    assert (restart.seconds, restart.steps_lost) == (7.0, 1)


def test_a_save_that_was_cut_off_was_not_written() -> None:
    """The same step is saved again after the restart; its writing is that of the second time."""
    killed = [step(1, 1.0), {"save": 1, "blocked_seconds": 0.1, "at": 1.1}]
    again: Line = KILLED[6] | {"resumed_step": 0, "at": 20.0}
    retried = [
        step(1, 21.0),
        {"save": 1, "blocked_seconds": 0.1, "at": 21.1},
        SAVED | {"saved": 1, "at": 22.0},
    ]
    seen = operations_of_record([*killed, again, *retried], every=1)
    assert seen is not None
    assert [save.flush_seconds for save in seen.saves] == [None, 0.8]
    assert operations_of_record([KILLED[5]], every=1) is None


def test_parts_stand_beside_those_of_a_forecast() -> None:
    seen = operations_of_record(KILLED, every=2)
    assert seen is not None
    shares = forecast_shares(seen)
    assert sum(shares.values()) == pytest.approx(1.0)
    assert [row["part"] for row in operations_rows(seen)] == list(seen.parts)
    text = "\n".join(str(part) for part in operations_text(seen, operations_rows(seen)))
    for words in (
        "work done again",
        "each stops training for 500.0 ms",
        "1 failure, on average 1.00 s until",
    ):
        assert words in text
    assert all(len(line) <= 80 for line in text.splitlines())


def test_a_restart_in_which_ranks_are_lost_again_is_two_failures() -> None:
    """What the first of two starts took is no restart's typical detection."""
    again = KILLED[6] | {"restart": 4, "detection_seconds": 9.0, "starting_seconds": 2.0, "at": 130.0}
    seen = operations_of_record([*KILLED[:9], again, step(5, 131.0)], every=2)
    assert seen is not None
    assert seen.failures == 3
    assert seen.mean_restart.detection == 1.0
    assert seen.mean_restart.starting == 3.0


def test_a_run_says_what_a_forecast_counts() -> None:
    seen = operations_of_record(KILLED, every=2)
    assert seen is not None
    spec = operations_spec(seen, gpus=2, name="run-report.json")
    assert spec.mtbf == pytest.approx(2 * 13.4)
    assert (spec.detection, spec.restart, spec.pause) == (1.0, 4.0, 0.5)
    assert spec.storage_read == pytest.approx(1000)  # bytes/s, slowest that a file may say
    assert spec.storage_write == pytest.approx(1250)
    nothing = OperationsReport(every=2, steps=1, parts=dict.fromkeys(seen.parts, 0.0))
    with pytest.raises(InputError, match="no checkpoint that was written"):
        operations_spec(nothing, gpus=2, name="run-report.json")
