"""Runs whose launcher is killed, or whose temporary folder is deleted, end."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from effort import few
from training import plan_for

from cost_models.errors import RunError
from executor.launch.launch import run_plan
from executor.run_config import RunConfig
from planner.plan import save_plan

LAUNCHER = """
import sys
from executor.launch.launch import run_plan
from executor.run_config import RunConfig

config = RunConfig(steps=100_000, warm_up=0, backend="gloo", out=sys.argv[2])
run_plan(sys.argv[1], config, on_step=lambda step: print("step", flush=True))
"""


@few(0)
def test_ranks_end_with_a_launcher_that_is_killed(tmp_path: Path) -> None:
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


@few(0)
def test_a_run_whose_temporary_folder_is_deleted_ends_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torchrun alone would wait for ever for the file it keeps there."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    below: list[psutil.Process] = []

    def sweep(step: dict[str, Any]) -> None:
        if not below:
            ours = psutil.Process().children()  # other tests' workers among them
            (torchrun,) = (one for one in ours if "executor.launch.agent" in one.cmdline())
            below.extend([torchrun, *torchrun.children(recursive=True)])
            (folder,) = tmp_path.glob("meshwright-run-*")
            shutil.rmtree(folder)

    with pytest.raises(RunError, match=r"temporary folder .*meshwright-run-\w+ was deleted") as failed:
        run_plan(
            plan_for("dp2 mbs2"),
            RunConfig(steps=100_000, backend="gloo", out=tmp_path / "out"),
            on_step=sweep,
        )
    assert "TMPDIR" in str(failed.value.hint)
    assert len(below) >= 3
    assert psutil.wait_procs(below, timeout=60)[1] == []
