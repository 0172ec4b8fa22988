"""Slow ranks are named with their part and the step since when; even ones are not."""

from __future__ import annotations

import time
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch
from training import GPT, plan_for, reported

from cost_models.arrays import Array
from executor.measure.report import RunReport, listed_steps, load_report
from executor.measure.slow_ranks import FEWEST_STEPS, sentence, slow_ranks
from executor.run_config import MOST_STEPS
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
    assert report == load_report(tmp_path / "run-report.json")
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
