"""Where the time of a step goes: phases that make up the step, and waiting told apart by axis."""

from __future__ import annotations

import time

import pytest
import torch
from effort import few
from training import GPT, MOE, engine_and_batches, plan_for

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
        ("cp2 mbs2 context=ring", "cp"),
        ("cp2 mbs2 context=all-gather", "cp"),
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
