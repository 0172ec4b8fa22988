"""A run: its folders are its own, nothing beside it is imported, they listen where they meet and end with it."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import psutil
import pytest
from effort import few
from training import plan_for

from cost_models.errors import HostError, InputError
from executor.faults.failures import LAUNCH
from executor.faults.stopping import stop_request
from executor.launch import launch
from executor.launch.agent import store_at
from executor.launch.environment import worker_environment
from executor.launch.launch import Launch, exclusive_folders, run_plan
from executor.launch.rendezvous import is_owned_by, owner, write_owners
from executor.launch.workers import run_workers
from executor.run_config import STOP, RunConfig
from meshwright.explorer.answers import Worker
from planner.plan import save_plan


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
    with mock.patch.dict(os.environ, {LAUNCH: "mine"}), stop_request(folder) as is_made:
        for token in ("another", "mine", "of its second node"):
            (folder / "alive-1.json").write_text('{"rank": 1, "launch": "of its second node"}')
            found.append(is_made())
            (folder / STOP).write_text(token)
            found.append(is_made())
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


def addresses(port: int) -> set[str]:
    """Where this process listens."""
    here = psutil.Process(os.getpid()).net_connections("inet")
    return {one.laddr.ip for one in here if one.laddr.port == port and one.status == psutil.CONN_LISTEN}


def test_the_store_of_several_nodes_listens_where_they_meet() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    how = {"multi_tenant": True, "timeout": timedelta(seconds=10)}
    store = store_at("127.0.0.1", port, is_master=True, **how)
    assert addresses(port) == {"127.0.0.1"}
    other = store_at("127.0.0.1", port, is_master=False, **how)
    store.set("key", "value")
    assert other.get("key") == b"value"
    with pytest.raises(RuntimeError, match="in use"):  # torchrun joins it then
        store_at("127.0.0.1", port, is_master=True, **how)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_nodes_of_one_machine_stay_on_loopback(host: str) -> None:
    """Their ranks, too."""

    def launch_at(host: str) -> Launch:
        config = RunConfig(out=Path("out"), nodes=2, rendezvous=f"{host}:29500")
        return Launch(config, 4, Path("logs"), print, print)

    words = launch_at(host).arguments()
    assert launch_at(host).here
    assert words[words.index("--rdzv-endpoint") + 1] == "127.0.0.1:29500"
    assert words[words.index("--local-addr") + 1] == "127.0.0.1"
    elsewhere = launch_at("node0")
    assert not elsewhere.here
    assert "--local-addr" not in elsewhere.arguments()
