"""What ends a run is named: a full disk, ranks that are told to end or gone, a node that is lost; and how to go on."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from effort import few
from training import plan_for

from cost_models.errors import InputError, RunError
from executor.checkpoints.manifest import Folder
from executor.faults.failures import (
    LAUNCH,
    Heartbeat,
    error_fields,
    error_of_full_disk,
    failure_cause,
    failure_error,
    read_failures,
    write_failure,
)
from executor.launch.launch import Launch, run_plan
from executor.run_config import RunConfig
from executor.steps import Watcher, read_progress

FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def full(*arguments: Any, **options: Any) -> Any:
    raise FULL


def test_a_rank_that_cannot_write_a_file_says_so_in_its_sign(tmp_path, monkeypatch) -> None:
    """Which has its room since the rank started; the launcher then knows the file, the checkpoint and what to do."""
    saved = tmp_path / "checkpoints"
    Folder(saved).at(40).mkdir(parents=True)
    Heartbeat(tmp_path, 0)
    error = error_of_full_disk(OSError(*FULL.args, str(tmp_path / "progress.jsonl")), tmp_path, saved)
    assert error is not None
    monkeypatch.setattr(Path, "write_text", full)
    write_failure(tmp_path, 0, error.headline, final=True, **error_fields(error))
    assert [one["final"] for one in read_failures(tmp_path)] == [True]
    told = failure_error(tmp_path, tmp_path / "logs", 2, saved=saved)
    assert isinstance(told, RunError)
    assert told.headline == f"`{tmp_path}/progress.jsonl`: no space left on device"
    assert [(one.where, one.what) for one in told.problems] == [
        ("last checkpoint", f"of step 40, in {saved}")
    ]
    assert told.hint == "make room, then the same command with --resume goes on"


def test_where_no_rank_could_say_a_word_the_folder_is_tried(tmp_path, monkeypatch) -> None:
    assert "ran out of memory" in failure_error(tmp_path, tmp_path / "logs", 2).headline
    monkeypatch.setattr("tempfile.TemporaryFile", full)
    told = failure_error(tmp_path, tmp_path / "logs", 2)
    assert told.headline == f"`{tmp_path}`: no space left on device"
    assert [one.what for one in told.problems] == ["none is kept"]


def test_a_folder_that_is_gone_is_named(tmp_path) -> None:
    """Neither ranks nor the launcher can say more; what is saved elsewhere is."""
    saved = tmp_path / "checkpoints"
    Folder(saved).at(40).mkdir(parents=True)
    told = failure_error(tmp_path / "run", tmp_path / "logs", 2, saved=saved)
    assert told.headline == f"the run's folder `{tmp_path}/run` was deleted or moved while it went on"
    assert [one.what for one in told.problems] == [f"of step 40, in {saved}"]


def test_other_errors_of_the_system_are_no_full_disk(tmp_path) -> None:
    assert error_of_full_disk(OSError(errno.ECONNRESET, "reset"), tmp_path, None) is None


@pytest.mark.parametrize("room", [None, 7])
def test_half_a_line_is_taken_back(room: int | None, tmp_path, monkeypatch) -> None:
    """The disk may take some bytes of a line; a run that goes on later reads whole ones."""
    monkeypatch.setattr("torch.distributed.get_rank", lambda: 0)
    watcher = Watcher(tmp_path, is_continued=False)
    watcher.saved(1, 0.0)
    really = os.write
    monkeypatch.setattr(os, "write", full if room is None else lambda file, text: really(file, text[:room]))
    with pytest.raises(OSError, match=r"No space left on device: '.*progress\.jsonl'"):
        watcher.saved(2, 0.0)
    monkeypatch.undo()
    watcher.saved(3, 0.0)
    assert [line["save"] for line in read_progress(tmp_path)] == [1, 3]


_WAIT = """
import ctypes, signal, sys
from pathlib import Path
from executor.faults.failures import write_failure
from executor.faults.stopping import last_words

folder, said = Path(sys.argv[1]), sys.argv[2:]
with last_words(folder, 1):
    if said:
        write_failure(folder, 1, said[0], final=False)
    print("waiting", flush=True)
    libc, mutex = ctypes.CDLL(None), ctypes.create_string_buffer(64)
    libc.pthread_mutex_lock(mutex)
    libc.pthread_mutex_lock(mutex)  # where no handler written in Python gets its turn
"""


@few(1)
@pytest.mark.parametrize(
    ("said", "reason"), [([], "was told to end (SIGTERM)"), (["ValueError: here"], "ValueError: here")]
)
def test_a_waiting_rank_leaves_word(said: list[str], reason: str, tmp_path) -> None:
    """Deep inside a call of C."""
    with subprocess.Popen(
        [sys.executable, "-c", _WAIT, str(tmp_path), *said], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "waiting\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 128 + signal.SIGTERM
    assert json.loads((tmp_path / "failure-1.json").read_text("utf-8"))["reason"] == reason


def test_the_rank_without_a_word_was_gone_first(tmp_path) -> None:
    """Of three the others lost touch with it, or were told to end."""
    write_failure(tmp_path, 0, "RuntimeError: Connection closed by peer", final=False)
    write_failure(tmp_path, 2, "was told to end (SIGTERM)", final=False, ended=True)
    assert failure_cause(tmp_path, 3) == "rank 1 was ended from outside"
    assert (
        failure_error(tmp_path, tmp_path, 3).hint
        == "with --checkpoint FOLDER a run goes on when ranks are lost"
    )


def test_ranks_that_are_told_to_end_are_named(tmp_path) -> None:
    """Where nobody went without a word, and nothing was wrong with any."""
    write_failure(tmp_path, 0, "RuntimeError: Connection closed by peer", final=False)
    write_failure(tmp_path, 1, "was told to end (SIGTERM)", final=False, ended=True)
    assert failure_cause(tmp_path, 2) == "rank 1 was told to end from outside (SIGTERM)"
    assert [one.where for one in failure_error(tmp_path, tmp_path, 2).problems] == ["last checkpoint"]
    write_failure(
        tmp_path, 0, "was told to end (SIGTERM)", final=False, ended=True
    )  # by torchrun, therefore later
    assert failure_cause(tmp_path, 2) == "rank 1 was told to end from outside (SIGTERM)"
    write_failure(tmp_path, 0, "ValueError: here", final=False)
    assert failure_cause(tmp_path, 2) == "rank 0 failed: ValueError: here"


def test_a_rank_that_stands_still_does_not_hang_where_another_says_nothing(tmp_path) -> None:
    """One whose watch did not look, and that was told to end when the others gave up, said nothing of where it is."""
    write_failure(tmp_path, 0, "stood still", final=False, step=7, phase="update", frames=[])
    write_failure(tmp_path, 1, "was told to end (SIGTERM)", final=False, ended=True)
    assert failure_cause(tmp_path, 2) == "rank 1 hangs"


def test_a_node_that_is_shut_down_is_lost(tmp_path, monkeypatch) -> None:
    """Its ranks are told to end, as are others then; but its launcher does not answer."""
    for rank in range(4):
        _beat(tmp_path, rank, rank // 2, monkeypatch)
        write_failure(tmp_path, rank, "was told to end (SIGTERM)", final=False, ended=True)
    error = failure_error(tmp_path, tmp_path, 4, live_ranks={0, 1})
    assert error.headline == "node 1 (host1) was lost, and with it ranks 2, 3 in step 9 (update)"


_FORK = """
import os, signal, sys, time
from pathlib import Path
from executor.faults.stopping import last_words

with last_words(Path(sys.argv[1]), 1):
    there, ready = os.pipe()
    if not (child := os.fork()):
        os.write(ready, b"!")
        time.sleep(60)
    os.read(there, 1)
    os.kill(child, signal.SIGTERM)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGTERM
os.kill(os.getpid(), signal.SIGTERM)  # of which there is no word any more
time.sleep(60)
"""


def test_a_forked_process_ends_by_itself(tmp_path) -> None:
    """And takes nobody with it; afterwards the signal is what it was."""
    done = subprocess.run([sys.executable, "-c", _FORK, str(tmp_path)], check=False)
    assert done.returncode == -signal.SIGTERM
    assert not list(tmp_path.iterdir())


GONE = "RuntimeError: Connection closed by peer"


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
    assert failure_cause(tmp_path, 12) == "node 2 (host2) was lost, and with it ranks 8-11 in step 9 (update)"
    for rank in range(4, 8):
        (tmp_path / f"failure-{rank}.json").unlink()
    both = "node 1 (host1), node 2 (host2) were lost, and with them ranks 4-11 in step 9 (update)"
    assert failure_cause(tmp_path, 12) == both
    assert failure_cause(tmp_path, 12, live_ranks={4, 5, 6, 7}).startswith("node 2 (host2) was lost")
    write_failure(tmp_path, 4, GONE, final=False)
    assert failure_cause(tmp_path, 12) == "ranks 5-11 were ended from outside in step 9 (update)"


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
    here, there = (Launch(RunConfig(out=tmp_path), 3, tmp_path, print, print) for _ in range(2))
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

    def name(folder: str) -> str:
        config = RunConfig(out=tmp_path / folder, nodes=2, rendezvous="node0:29500")
        given = Launch(config, 4, tmp_path / "logs", print, print).arguments()
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
