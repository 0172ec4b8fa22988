"""Processes that Meshwright starts import nothing from the current directory, whatever lies there."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from effort import few
from training import plan_for

from executor.launch.environment import imports_of_workers, worker_environment
from executor.launch.launch import run_plan
from executor.launch.workers import run_workers
from executor.run_config import RunConfig
from meshwright.explorer.answers import Worker

NAMES = ("yaml", "numpy", "torch", "psutil", "executor", "cost_models", "json", "pickle", "multiprocessing")
"""Packages that ranks import: others', our own, Python's."""


@pytest.fixture
def marker(tmp_path, monkeypatch) -> Path:
    """A file that the modules of the current directory write to when they are imported."""
    marker, here = tmp_path / "imported", tmp_path / "here"
    here.mkdir()
    for name in NAMES:
        (here / f"{name}.py").write_text(f"open({str(marker)!r}, 'a').write('{name} ')\nraise ImportError")
    monkeypatch.chdir(here)
    return marker


@few(0)
def test_ranks_and_torchrun_do_not_import_from_it(marker, tmp_path) -> None:
    config = RunConfig(steps=1, warm_up=0, backend="gloo", out=tmp_path / "out")
    report = run_plan(plan_for("mbs4"), config)
    assert len(report.losses) == 1
    assert not marker.exists()


def test_processes_that_measure_do_not_import_from_it(marker, tmp_path) -> None:
    """The module is no worker: it only has to be found."""
    run_workers("executor.run_config", 1, "cpu", task="nothing", longest_seconds=60)
    assert not marker.exists()


def test_processes_of_the_explorer_do_not_import_from_it(marker, monkeypatch) -> None:
    monkeypatch.setattr(multiprocessing, "get_all_start_methods", lambda: ["spawn"])
    start: Any = None
    worker = Worker(start)

    async def answers() -> list[Any]:
        return [message async for message in worker.ask({})]

    try:
        assert "defect" in str(asyncio.run(answers()))
    finally:
        worker.close()
    assert not marker.exists()


def test_workers_import_the_packages_of_this_process(tmp_path, monkeypatch) -> None:
    """Also those of a copy that is not installed and was found in the current directory; an empty entry of PYTHONPATH
    would be that directory."""
    home = Path(worker_environment.__code__.co_filename).parents[2]
    monkeypatch.setenv("PYTHONPATH", f":{tmp_path}")
    environment = worker_environment()
    assert environment["PYTHONPATH"] == os.pathsep.join([str(home), str(tmp_path)])
    code = "import sys, executor; print('' in sys.path, executor.__file__)"
    told = subprocess.run(
        [sys.executable, "-S", "-c", code], env=environment, cwd=tmp_path, capture_output=True, text=True
    )
    assert told.stdout.split() == ["False", str(home / "executor/__init__.py")]


def test_the_environment_of_this_process_is_as_before(monkeypatch) -> None:
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    before = dict(os.environ)
    with imports_of_workers():
        assert os.environ["PYTHONSAFEPATH"] == "1"
    assert dict(os.environ) == before
