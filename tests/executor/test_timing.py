"""Clocks that nobody sets, waits by the axis that causes them, and the start of a run by part."""

from __future__ import annotations

import re
import time
from pathlib import Path
from unittest import mock

import pytest
import torch
from effort import few
from training import GPT, MOE, engine_and_batches, plan_for

from executor import clock
from executor.clock import BOOT_DATE, StartClock, StartReport, boot_date, date, making_group, timing_groups
from executor.launch.environment import worker_environment
from executor.measure.report import PhaseReport, RankReport
from planner.plan import Plan

LATE_SECONDS = 0.2


def report(plan: Plan) -> tuple[RankReport, ...]:
    """All ranks' measurements of two steps."""
    from executor.run_config import RunConfig
    from executor.steps import Watcher
    from executor.transformer.train import train

    config = RunConfig(steps=2, warm_up=1, measure_memory=False)
    return train(plan, torch.device("cpu"), config, Watcher()).ranks


def waits_for_a_late_rank(plan: Plan) -> dict[str, float]:
    """What this rank waited by axis in forward and backward, where the last rank comes late to it."""
    import torch.distributed as dist

    from executor.timing import Waits

    engine, batch = engine_and_batches(plan)
    engine.step(*batch(0))
    waits = Waits(engine.mesh, engine.device, engine.context_group, engine.experts)
    dist.barrier()
    if dist.get_rank() == dist.get_world_size() - 1:
        time.sleep(LATE_SECONDS)
    with waits.watching():
        engine.forward_backward(*batch(1))
        return waits.seconds()


@few(2)
@pytest.mark.parametrize(
    ("layout", "axis"),
    [
        ("tp2 mbs2", "tp"),
        ("pp2 mbs2", "pp"),
        ("dp2 mbs2 zero3", "dp"),
        ("dp2 ep2 mbs2", "ep"),
        ("cp2 mbs2 context=all-to-all", "cp"),
    ],
)
def test_waiting_is_charged_to_the_axis_of_the_late_rank(layout: str, axis: str, processes) -> None:
    """The others wait at least nearly as long as it is late, and nowhere else."""
    plan = plan_for(layout, MOE if axis == "ep" else GPT)
    waited = processes.run(2, waits_for_a_late_rank, plan)[0]
    assert waited[axis] > 0.8 * LATE_SECONDS
    assert {other for other in waited if waited[other] > 0.0} == {axis}


def test_phases_make_up_the_step(processes) -> None:
    for rank in processes.run(4, report, plan_for("tp2 pp2 mbs2"))[0]:
        phases: list[PhaseReport] = [rank.forward_backward, rank.update]
        for step, seconds in enumerate(rank.wall_seconds):
            walls = (rank.data_seconds[step], *(phase.wall_seconds[step] for phase in phases))
            assert sum(walls) == pytest.approx(seconds, rel=0.05)
        for phase in phases:
            assert list(phase.waiting_seconds) == ["tp", "cp", "ep", "dp", "pp", "offload"]
            assert phase.waiting_seconds["dp"] == 0.0
        assert rank.forward_backward.waiting_seconds["tp"] > 0
        assert rank.forward_backward.waiting_seconds["pp"] > 0
        assert sum(phase.thread_seconds[0] for phase in phases) == pytest.approx(rank.thread_seconds[0])


def test_watching_leaves_torch_as_it_was(processes) -> None:
    assert processes.run(1, watched_once) == [True]


def watched_once() -> bool:
    """After watching, torch waits as it did before."""
    import torch.distributed as dist

    from executor.mesh import make_mesh
    from executor.timing import Waits

    before = (dist.Work.wait, torch.cuda.Stream.wait_event)
    with Waits(make_mesh(plan_for("mbs2").layout, "cpu"), torch.device("cpu")).watching():
        assert dist.Work.wait is not before[0]
    return (dist.Work.wait, torch.cuda.Stream.wait_event) == before


WALL = re.compile(r"\btime\.time(_ns)?\(|\bdatetime\.(now|utcnow)\(")


def test_dates_of_a_run_are_as_far_apart_as_they_should_be() -> None:
    """Whatever the wall clock is set to between them; and about right."""
    first = date()
    assert abs(first - time.time()) < 3600
    with mock.patch("time.time", return_value=first + 3 * 86400):
        assert 0 <= date() - first < 3600
        assert float(worker_environment()[BOOT_DATE]) == boot_date()  # ranks count from there, too


def test_only_the_clock_of_a_run_asks_the_wall_clock() -> None:
    """But for the day of a calibration."""
    sources = Path(str(clock.__file__)).parent.rglob("*.py")
    assert [one.name for one in sources if WALL.search(one.read_text("utf-8"))] == ["clock.py"]


def test_parts_follow_one_another_and_groups_are_taken_out() -> None:
    with mock.patch("executor.clock.date", side_effect=[103.0, 104.0, 109.0, 110.0, 111.0]):
        clock = StartClock(100.0)
        clock.end("processes")
        clock.end("groups")
        assert clock.report() is None
        clock.end("weights", inside=2.0)
        clock.end("first_step")
        clock.end("first_step")  # of the next step
    found = clock.report()
    assert found == StartReport(processes=3.0, groups=3.0, weights=3.0, first_step=1.0)
    assert list(found.parts) == ["processes", "groups", "weights", "first_step"]


def test_only_groups_inside_the_block_are_timed() -> None:
    with timing_groups() as spent:
        for _ in range(2):
            with making_group():
                pass
    with making_group():
        pass
    assert len(spent) == 2
