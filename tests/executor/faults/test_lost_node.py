"""Runs on several nodes, one of which is lost: those that are left end soon, and say which it was and how to go on."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from effort import few
from training import plan_for

import executor.launch.launch
from cost_models.errors import InputError, RunError
from executor.checkpoints.manifest import Folder
from executor.faults.failures import (
    LAUNCH,
    Heartbeat,
    failure_error,
    read_signs,
    what_happened,
    write_failure,
)
from executor.launch.launch import Launch, Nodes, run_plan
from executor.run_config import RunConfig
from planner.plan import save_plan

PATIENCE_SECONDS = 120.0
GONE = "RuntimeError: Connection closed by peer"


@few(0)
def test_a_lost_node_is_named_with_the_last_checkpoint(tmp_path, monkeypatch) -> None:
    """Two nodes of this machine, a rank each; launcher, agent and rank of one end at once by SIGKILL."""
    monkeypatch.setattr(executor.launch.launch, "_ROLL_CALL_SECONDS", 1.0)
    plan, out, saved = plan_for("dp2 mbs2 zero1"), tmp_path / "out", tmp_path / "saved"
    save_plan(plan, tmp_path / "plan.yaml")
    with socket.create_server(("localhost", 0)) as server:
        place = f"localhost:{server.getsockname()[1]}"
    other = [sys.executable, "-m", "meshwright", "run", str(tmp_path / "plan.yaml"), "--steps", "100000"]
    other += ["--checkpoint", str(saved), "--every", "2", "--restarts", "0", "--out", str(out), "--quiet"]
    process = subprocess.Popen([*other, "--nodes", "2", "--rendezvous", place])
    lost: list[int] = []
    ended: list[float] = []

    def end_the_other() -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not Folder(saved).complete() and time.monotonic() < deadline:
            time.sleep(0.05)
        node = psutil.Process(process.pid)
        doomed = [node, *node.children(recursive=True)]
        pids = {one.pid for one in doomed}
        lost.extend(rank for rank, sign in read_signs(out).items() if sign["pid"] in pids)
        for one in doomed:
            one.kill()
        ended.append(time.monotonic())

    threading.Thread(target=end_the_other, daemon=True).start()
    meeting: dict[str, Any] = {"nodes": 2, "rendezvous": place, "restarts": 0, "out": out}
    with pytest.raises(RunError) as failed:
        run_plan(plan, RunConfig(steps=100_000, backend="gloo", checkpoint=saved, every=2, **meeting))
    assert time.monotonic() - ended[0] < 40
    process.wait()
    named = rf"node {lost[0]} \(.+\) was lost, and with it rank {lost[0]} in step \d+ \(.+\)"
    assert re.fullmatch(named, failed.value.headline)
    newest = Folder(saved).complete()[0]
    (problem,) = failed.value.problems
    assert (problem.where, problem.what) == ("last checkpoint", f"of step {newest}, in {saved}")
    assert str(failed.value.hint).startswith("the same command with --resume goes on")
    assert failed.value.exit_code == 1


def _beat(folder: Path, rank: int, node: int, monkeypatch: pytest.MonkeyPatch, launch: str = "") -> None:
    monkeypatch.setenv("GROUP_RANK", str(node))
    monkeypatch.setenv(LAUNCH, launch)
    monkeypatch.setattr("socket.gethostname", lambda: f"host{node}")
    Heartbeat(folder, rank).beat(9, "update")


def test_ranks_that_are_gone_are_named_by_node(tmp_path, monkeypatch) -> None:
    for rank in range(12):
        _beat(tmp_path, rank, rank // 4, monkeypatch)
    for rank in range(4):
        write_failure(tmp_path, rank, GONE, final=False)
    for rank in range(4, 8):
        write_failure(tmp_path, rank, GONE, final=False)
    assert what_happened(tmp_path, 12) == "node 2 (host2) was lost, and with it ranks 8-11 in step 9 (update)"
    for rank in range(4, 8):
        (tmp_path / f"failure-{rank}.json").unlink()
    both = "node 1 (host1), node 2 (host2) were lost, and with them ranks 4-11 in step 9 (update)"
    assert what_happened(tmp_path, 12) == both
    assert what_happened(tmp_path, 12, live_ranks={4, 5, 6, 7}).startswith("node 2 (host2) was lost")
    write_failure(tmp_path, 4, GONE, final=False)
    assert what_happened(tmp_path, 12) == "ranks 5-11 were ended from outside in step 9 (update)"


def test_a_node_that_says_nothing_more_is_named(tmp_path, monkeypatch) -> None:
    """No connection breaks where a machine loses its power: the others stand still until the timeout."""
    for rank in range(4):
        _beat(tmp_path, rank, rank // 2, monkeypatch)
    for rank in (0, 1):
        write_failure(
            tmp_path, rank, "stood still", final=False, step=9, phase="update", frames=["a.py:1 in f"]
        )
    error = failure_error(tmp_path, tmp_path, 4, saved=tmp_path / "saved")
    assert error.headline == "node 1 (host1) answers no longer: ranks 2, 3 hang in step 9 (update)"
    assert error.problems[-1].what == f"none yet, in {tmp_path / 'saved'}"


def test_a_launcher_knows_its_ranks_and_who_answers(tmp_path, monkeypatch) -> None:
    here, there = Launch(tmp_path, 3), Launch(tmp_path, 3)
    _beat(tmp_path, 0, 0, monkeypatch, "of-an-earlier-run")
    assert not here.begun()
    _beat(tmp_path, 0, 0, monkeypatch, here.token)
    _beat(tmp_path, 1, 1, monkeypatch, there.token)
    _beat(tmp_path, 2, 2, monkeypatch, "lost")
    assert here.begun()
    assert here.has_first_rank()
    assert not there.has_first_rank()
    assert here.ranks() == {0}
    assert here.roll_call(0.0) == {0}
    assert there.roll_call(0.0) == {0, 1}


def test_nodes_meet_those_of_their_own_run(tmp_path) -> None:
    """The same name wherever the folder is mounted, another one for a folder of another name."""
    nodes = Nodes(count=2, rendezvous="node0:29500")

    def name(folder: str) -> str:
        given = nodes.arguments(4, 60.0, tmp_path / folder, tmp_path / "logs")
        return given[given.index("--rdzv-id") + 1]

    assert name("here/run-1") == name("there/run-1")
    assert name("here/run-1") != name("here/run-2")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"nodes": 0}, "a run has one node or more, not 0"),
        ({"rendezvous": "node0:29500"}, "one node has nobody to meet"),
        ({"nodes": 2}, "several nodes need a place to meet"),
        ({"nodes": 2, "rendezvous": "node0"}, "several nodes need a place to meet"),
        (
            {"nodes": 3, "rendezvous": "node0:29500"},
            "the plan has 2 ranks, which 3 nodes cannot share evenly",
        ),
        ({"nodes": 2, "rendezvous": "node0:29500"}, "several nodes need a folder for the report"),
    ],
)
def test_what_nodes_cannot_be_asked(given: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        run_plan(plan_for("dp2 mbs2 zero1"), RunConfig(**given))
