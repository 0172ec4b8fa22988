"""Ranks that are started again go on with what an earlier start of theirs left, and with nothing of another run."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from training import plan_for

from cost_models.errors import HostError, InputError
from executor.faults.failures import LAUNCH
from executor.faults.stopping import StopRequest
from executor.launch import launch
from executor.launch.launch import exclusive_folders, run_plan
from executor.launch.rendezvous import is_owned_by, owner, write_owners
from executor.run_config import STOP, RunConfig


def _environment() -> dict[str, str]:
    from executor.launch.environment import worker_environment

    environment = worker_environment() | {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    return environment | {"PYTHONPATH": str(Path(__file__).parents[3])}


HOLDS = """
import sys, time
from pathlib import Path
from executor.launch.launch import exclusive_folders

with exclusive_folders([Path(sys.argv[1])], ""):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_run_has_its_folders_for_itself(tmp_path, monkeypatch) -> None:
    """Its files and its checkpoints, until its process is gone; nodes that meet at one place share them."""
    monkeypatch.setattr(launch, "_ENDING_SECONDS", 0.1)
    out, saved = tmp_path / "run", tmp_path / "saved"

    def enter(meeting: str, *folders: Path) -> None:
        with exclusive_folders(folders, meeting):
            pass

    with exclusive_folders([out, None, saved], ""):
        for place in (out, saved):
            for meeting in ("", "127.0.0.1:1"):
                with pytest.raises(InputError, match=f"another run writes to `{place}`"):
                    enter(meeting, place)
        (out / "run-report.json").write_text("kept")
        with pytest.raises(InputError, match="another run writes"):
            run_plan(plan_for("mbs2"), RunConfig(out=out))
        assert (out / "run-report.json").read_text() == "kept"
    with exclusive_folders([out], "127.0.0.1:1"):
        enter("127.0.0.1:1", out)
        for meeting in ("", "127.0.0.1:12", "127.0.0.1:2"):
            with pytest.raises(InputError, match="another run writes"):
                enter(meeting, out)
    enter("", out, saved)
    words = [sys.executable, "-c", HOLDS, str(out)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, env=_environment()) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        with pytest.raises(InputError, match="another run writes"):
            enter("", out)
        other.kill()
        other.wait()
        enter("", out)


def test_a_place_to_meet_where_others_listen_is_named(tmp_path) -> None:
    """Before any rank starts, unless a node of the run is there, which listens itself."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        place = f"127.0.0.1:{other.getsockname()[1]}"
        with pytest.raises(HostError, match="another program listens there"):
            run_plan(plan_for("dp2 mbs2"), RunConfig(out=tmp_path, nodes=2, rendezvous=place, timeout=1))
    node = ("127.0.0.1", int(place.rpartition(":")[2]))
    with (
        exclusive_folders([tmp_path], place),
        socket.create_server(node),
        exclusive_folders([tmp_path], place),
    ):
        pass


def _stops(folder: Path) -> list[bool]:
    """Whether a rank stops where somebody else's launcher asks, its own, and another one of its run."""
    found = []
    write_owners(folder, frozenset())
    with mock.patch.dict(os.environ, {LAUNCH: "mine"}), StopRequest(folder) as request:
        for token in ("another", "mine", "of its second node"):
            (folder / "alive-1.json").write_text('{"rank": 1, "launch": "of its second node"}')
            found.append(request.is_made)
            (folder / STOP).write_text(token)
            found.append(request.is_made)
            (folder / STOP).unlink()
    return found


def test_a_stop_reaches_its_own_run(processes, tmp_path) -> None:
    assert processes.run(1, _stops, tmp_path) == [[False, False, False, True, False, True]]


def test_a_folder_is_of_who_cleared_it(tmp_path, monkeypatch) -> None:
    """Of launchers by their tokens, of torchrun alone by the folder of its logs, which counts starts."""

    def who(seed: int = 0, calls: int = 0, **environment: str) -> frozenset[str]:
        monkeypatch.setattr("executor.launch.rendezvous._calls", calls)
        with monkeypatch.context() as changed:
            for name in (LAUNCH, "TORCHELASTIC_ERROR_FILE"):
                changed.delenv(name, raising=False)
            for name, value in environment.items():
                changed.setenv(name, value)
            return frozenset({owner(plan, RunConfig(steps=4, seed=seed))})

    plan = plan_for("mbs2")
    token: dict[str, Any] = {LAUNCH: "one"}
    assert not is_owned_by(tmp_path, who(**token))
    write_owners(tmp_path, who(**token) | who(**{LAUNCH: "two"}))
    assert is_owned_by(tmp_path, who(**token))
    assert is_owned_by(tmp_path, who(**token) | who(**{LAUNCH: "in the place of two"}))
    assert not is_owned_by(tmp_path, who(**{LAUNCH: "of a later run"}))
    assert not is_owned_by(tmp_path, who(seed=7, **token))
    assert not is_owned_by(tmp_path, who(calls=1, **token))
    logs = "/logs/none_{}/attempt_{}/0/error.json"
    write_owners(tmp_path, who(TORCHELASTIC_ERROR_FILE=logs.format("abc", 0)))
    assert is_owned_by(tmp_path, who(TORCHELASTIC_ERROR_FILE=logs.format("abc", 1)))
    assert not is_owned_by(tmp_path, who(TORCHELASTIC_ERROR_FILE=logs.format("xyz", 0)))
    write_owners(tmp_path, who())
    assert is_owned_by(tmp_path, who())
