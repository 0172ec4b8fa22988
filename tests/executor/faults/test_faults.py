"""Runs whose ranks are killed, stopped or interrupted: nothing is lost beyond the last checkpoint, and it is said."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any

import psutil
import pytest
from effort import THOROUGH, some_of
from saving_jobs import train_and_save
from training import plan_for, reported

from cost_models.errors import RunError, StoppedError
from executor.checkpoints.manifest import Folder
from executor.faults.failures import failure_cause, failure_error, read_signs, write_failure
from executor.launch.launch import run_plan
from executor.measure.report import OperationsReport, RunReport
from executor.run_config import RunConfig
from planner.plan import Plan

STEPS = 12
LAYOUT = "dp2 mbs2 zero1"
OFFLOADED = ("dp2 mbs2 zero1 offload=states:1/parked:1/streamed", "pp2 mbs2 offload=streamed/activations")
"""Blocks are between host and device when a rank is killed; `benchmarks/faults` does it twenty times."""


@pytest.mark.parametrize("layout", some_of([LAYOUT, *OFFLOADED], LAYOUT))
def test_a_killed_rank_is_replaced_and_the_curve_is_the_same(layout: str, processes, tmp_path) -> None:
    """SIGKILL in the middle: torchrun starts both ranks again, and they go on from the last checkpoint."""
    plan = plan_for(layout)
    expected = processes.run(2, _uninterrupted, plan, tmp_path / "reference")[0][0]
    out, killed, notes = tmp_path / "out", [], []

    def kill_once(step: dict[str, Any]) -> None:
        if step["step"] >= 5 and not killed:
            killed.append(step["step"])
            os.kill(int(str(read_signs(out)[1]["pid"])), signal.SIGKILL)

    report = run_plan(
        plan,
        RunConfig(
            steps=STEPS,
            warm_up=0,
            out=out,
            backend="gloo",
            learning_rate=1e-3,
            checkpoint=tmp_path / "saved",
            every=2,
        ),
        on_step=kill_once,
        on_note=notes.append,
    )
    assert killed
    assert report.first_step == 1
    assert list(zip(report.losses, report.gradient_norms, strict=True)) == expected
    assert list(report.notes) == notes
    of_starts = [note for note in notes if " is slow: " not in note]  # a busy machine may slow a rank, too
    assert of_starts[0].startswith("start 2: rank 1 was ended from outside in step")
    assert "(start)" not in of_starts[0]
    assert of_starts[1].startswith(("resumed from", "nothing to resume"))
    _require_account(report.operations, killed[0])


def _require_account(seen: OperationsReport | None, killed: int) -> None:
    """Its parts are the time from the first step to the last, with the restart and every save in it."""
    assert seen is not None
    (restart,) = seen.restarts
    assert (seen.every, seen.steps, restart.start) == (2, STEPS, 2)
    assert killed - restart.resumed_step <= restart.steps_lost + 1
    assert min(restart.detection_seconds, restart.starting_seconds, restart.loading_seconds) > 0
    assert seen.parts["restarting"] == pytest.approx(restart.seconds, rel=1e-3)
    assert seen.parts["lost_work"] > 0
    finished = [save for save in seen.saves if save.bytes is not None and save.flush_seconds is not None]
    every = {2, 4, 6, 8, 10, 12}
    # the rank may die between a write and its account
    assert every - {restart.resumed_step} <= {save.step for save in finished} <= every
    assert 0 < sum(save.blocked_seconds for save in seen.saves) <= seen.parts["saving"]


def _uninterrupted(plan, folder):  # type: ignore[no-untyped-def]
    return train_and_save(plan, folder, resume=False, steps=STEPS, every=STEPS)


def test_an_interrupted_run_saves_and_goes_on_later(processes, tmp_path) -> None:
    """A first Ctrl-C ends the step, saves and says so; `resume` then gives the same curve."""
    plan = plan_for(LAYOUT)
    expected = processes.run(2, _uninterrupted, plan, tmp_path / "reference")[0][0]
    saving = {"checkpoint": tmp_path / "saved", "every": 100}
    steps: list[int] = []

    def interrupt(step: dict[str, Any]) -> None:
        steps.append(step["step"])
        if len(steps) == 1:
            raise KeyboardInterrupt

    how: dict[str, Any] = {"steps": STEPS, "warm_up": 0, "backend": "gloo", "learning_rate": 1e-3}
    with pytest.raises(StoppedError, match="stopped after step") as stopped:
        run_plan(plan, RunConfig(**how, **saving, out=tmp_path / "out"), on_step=interrupt)
    assert stopped.value.exit_code == 130
    assert stopped.value.hint == "the same command with --resume goes on"
    (at,) = Folder(tmp_path / "saved").complete()
    assert at < STEPS
    report, _ = processes.run(2, _resumed, plan, tmp_path / "out", how | saving)
    assert report.first_step == at + 1
    assert list(zip(report.losses, report.gradient_norms, strict=True)) == expected[at:]


def _resumed(plan: Plan, folder: Path, how: dict[str, Any]) -> RunReport:
    return reported(plan, folder, **how, resume=True)


def test_a_rank_that_stands_still_is_named(tmp_path, monkeypatch) -> None:
    """A rank stopped by SIGSTOP says nothing any more; the other notices after the timeout and says where.

    torchrun kills what does not end 30 s after a failure; a usual run does not wait for that.
    """
    monkeypatch.setenv("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "1")
    frozen: list[int] = []

    def freeze(step: dict[str, Any]) -> None:
        if not frozen:
            other, one = (psutil.Process(int(str(read_signs(tmp_path)[rank]["pid"]))) for rank in (0, 1))
            one.suspend()
            frozen.append(one.pid)
            if not THOROUGH:
                threading.Thread(target=kill_after, args=(other, one), daemon=True).start()

    def kill_after(other: psutil.Process, one: psutil.Process) -> None:
        other.wait()
        one.kill()

    with pytest.raises(RunError, match=r"rank 1 hangs in step \d+ \(") as failed:
        run_plan(
            plan_for(LAYOUT),
            RunConfig(steps=100_000, out=tmp_path, backend="gloo", timeout=4.0),
            on_step=freeze,
        )
    assert failed.value.exit_code == 1
    (problem,) = failed.value.problems
    assert problem.where == "rank 0"
    assert problem.what.startswith("stood still for 4 s in step")


def test_of_ranks_that_all_speak_the_one_least_far_hangs(tmp_path) -> None:
    for rank, phase in enumerate(("forward and backward", "data", "forward and backward")):
        write_failure(tmp_path, rank, "stood still", final=False, step=7, phase=phase, frames=["a.py:1 in f"])
    assert failure_cause(tmp_path, 3) == "rank 1 hangs in step 7 (data)"
    error = failure_error(tmp_path, tmp_path, 3)
    assert str(error).startswith("rank 1 hangs in step 7 (data)\n  rank 0: stood still: a.py:1 in f")
    write_failure(tmp_path, 1, "stood still", final=False, step=7, phase="forward and backward", frames=[])
    assert failure_cause(tmp_path, 3) == "all ranks stand still in step 7 (forward and backward)"
