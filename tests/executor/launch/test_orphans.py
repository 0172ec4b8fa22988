"""Runs whose launcher is killed, or whose temporary folder is deleted, end."""

from __future__ import annotations

import signal
import subprocess
import sys

import psutil
from effort import few
from training import plan_for

from planner.plan import save_plan

LAUNCHER = """
import sys
from executor.launch.launch import run_plan
from executor.run_config import RunConfig

config = RunConfig(steps=100_000, warm_up=0, backend="gloo", out=sys.argv[2])
run_plan(sys.argv[1], config, on_step=lambda step: print("step", flush=True))
"""


@few(0)
def test_ranks_end_with_a_launcher_that_is_killed(tmp_path) -> None:
    """And torchrun with them."""
    save_plan(plan_for("dp2 mbs2"), tmp_path / "plan.yaml")
    words = [sys.executable, "-c", LAUNCHER, str(tmp_path / "plan.yaml"), str(tmp_path / "out")]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as launcher:
        assert launcher.stdout is not None
        assert launcher.stdout.readline() == "step\n"
        below = psutil.Process(launcher.pid).children(recursive=True)
        launcher.send_signal(signal.SIGKILL)
    assert len(below) >= 3
    gone, alive = psutil.wait_procs(below, timeout=60)
    for process in alive:
        process.kill()
    assert len(gone) == len(below)
