"""A rank that is told to end says so, whatever it waits for, and what it said before stays."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import pytest
from effort import few

from executor.faults.failures import failure_error, what_happened, write_failure
from executor.faults.stopping import last_words

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
    assert what_happened(tmp_path, 3) == "rank 1 was ended from outside"
    assert (
        failure_error(tmp_path, tmp_path, 3).hint
        == "with --checkpoint FOLDER a run goes on when ranks are lost"
    )


def test_ranks_that_are_told_to_end_are_named(tmp_path) -> None:
    """Where nobody went without a word, and nothing was wrong with any."""
    write_failure(tmp_path, 0, "RuntimeError: Connection closed by peer", final=False)
    write_failure(tmp_path, 1, "was told to end (SIGTERM)", final=False, ended=True)
    assert what_happened(tmp_path, 2) == "rank 1 was told to end from outside (SIGTERM)"
    assert [one.where for one in failure_error(tmp_path, tmp_path, 2).problems] == ["last checkpoint"]
    write_failure(
        tmp_path, 0, "was told to end (SIGTERM)", final=False, ended=True
    )  # by torchrun, therefore later
    assert what_happened(tmp_path, 2) == "rank 1 was told to end from outside (SIGTERM)"
    write_failure(tmp_path, 0, "ValueError: here", final=False)
    assert what_happened(tmp_path, 2) == "rank 0 failed: ValueError: here"


def test_a_rank_that_stands_still_does_not_hang_where_another_says_nothing(tmp_path) -> None:
    """One whose watch did not look, and that was told to end when the others gave up, said nothing of where it is."""
    write_failure(tmp_path, 0, "stood still", final=False, step=7, phase="update", frames=[])
    write_failure(tmp_path, 1, "was told to end (SIGTERM)", final=False, ended=True)
    assert what_happened(tmp_path, 2) == "rank 1 hangs"


def test_a_node_that_is_shut_down_is_lost(tmp_path) -> None:
    """Its ranks are told to end, as are others then; but its launcher does not answer."""
    for rank in range(4):
        node = {"node": rank // 2, "host": f"h{rank // 2}"}
        sign = {"rank": rank, "pid": 1, "step": 5, "phase": "update", "at": 0.0, "launch": ""} | node
        (tmp_path / f"alive-{rank}.json").write_text(json.dumps(sign), "utf-8")
        write_failure(tmp_path, rank, "was told to end (SIGTERM)", final=False, ended=True)
    error = failure_error(tmp_path, tmp_path, 4, live_ranks={0, 1})
    assert error.headline == "node 1 (h1) was lost, and with it ranks 2, 3 in step 5 (update)"


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


def test_a_handler_of_somebody_else_stays(tmp_path) -> None:
    """Of a script, say, that torchrun started."""
    heard: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))
    try:
        with last_words(tmp_path, 0):
            signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert heard == [signal.SIGTERM]
    assert not list(tmp_path.iterdir())
