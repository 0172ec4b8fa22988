"""A rank that is told to end says so, whatever it waits for, and what it said before stays."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from executor.failures import what_happened, worded_failure, write_failure

_WAIT = """
import ctypes, signal, sys
from pathlib import Path
from executor.failures import write_failure
from executor.last_words import last_words

folder, said = Path(sys.argv[1]), sys.argv[2:]
with last_words(folder, 1):
    if said:
        write_failure(folder, 1, said[0], final=False)
    print("waiting", flush=True)
    libc, mutex = ctypes.CDLL(None), ctypes.create_string_buffer(64)
    libc.pthread_mutex_lock(mutex)
    libc.pthread_mutex_lock(mutex)  # where no handler written in Python gets its turn
"""


@pytest.mark.parametrize(
    ("said", "reason"),
    [([], "was told to end (SIGTERM)"), (["ValueError: here"], "ValueError: here")],
)
def test_a_waiting_rank_leaves_word(said: list[str], reason: str, tmp_path: Path) -> None:
    """Deep inside a call of C."""
    with subprocess.Popen(
        [sys.executable, "-c", _WAIT, str(tmp_path), *said], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "waiting\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 128 + signal.SIGTERM
    assert json.loads((tmp_path / "failure-1.json").read_text("utf-8"))["reason"] == reason


def test_the_rank_without_a_word_was_gone_first(tmp_path: Path) -> None:
    """Of three the others lost touch with it, or were told to end."""
    write_failure(tmp_path, 0, "RuntimeError: Connection closed by peer", final=False)
    write_failure(tmp_path, 2, "was told to end (SIGTERM)", final=False, ended=True)
    assert what_happened(tmp_path, 3) == "rank 1 was ended from outside"
    assert (
        worded_failure(tmp_path, tmp_path, 3).hint
        == "with --checkpoint FOLDER a run goes on when ranks are lost"
    )


def test_ranks_that_are_told_to_end_are_named(tmp_path: Path) -> None:
    """Where nobody went without a word, and nothing was wrong with any."""
    write_failure(tmp_path, 0, "RuntimeError: Connection closed by peer", final=False)
    write_failure(tmp_path, 1, "was told to end (SIGTERM)", final=False, ended=True)
    assert what_happened(tmp_path, 2) == "rank 1 was told to end from outside (SIGTERM)"
    write_failure(tmp_path, 0, "ValueError: here", final=False)
    assert what_happened(tmp_path, 2) == "rank 0 failed: ValueError: here"


def test_a_rank_that_stands_still_does_not_hang_where_another_says_nothing(tmp_path: Path) -> None:
    """One whose watch did not look, and that was told to end when the others gave up, said nothing of where it is."""
    write_failure(tmp_path, 0, "stood still", final=False, step=7, phase="update", frames=[])
    write_failure(tmp_path, 1, "was told to end (SIGTERM)", final=False, ended=True)
    assert what_happened(tmp_path, 2) == "rank 1 hangs"
