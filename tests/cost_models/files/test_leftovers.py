"""What a killed process left is swept by the next; what somebody may still work on stays."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cost_models.files.whole import AGE_SECONDS, sweep, temporary_folder, whole_file, write_whole

pytest.importorskip("fcntl")

KILLED = """
import os, signal, sys
from pathlib import Path
from cost_models.files.whole import temporary_folder
from cost_models.files.whole import whole_file

place = Path(sys.argv[1])
with temporary_folder(".tokens.partial-", place) as folder, whole_file(place / "plan.yaml") as stream:
    (folder / "tokens.bin").write_bytes(b"half")
    stream.write(b"half")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def grow_old(*paths: Path) -> None:
    """As if nothing had been written there, nor below, for longer than leftovers stay."""
    long_ago = time.time() - AGE_SECONDS - 1
    for path in paths:
        for below in path.rglob("*"):
            os.utime(below, (long_ago, long_ago))
        os.utime(path, (long_ago, long_ago))


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_what_a_killed_process_left_goes_with_the_next_write(tmp_path: Path) -> None:
    """An hour later."""
    write_whole(tmp_path / "plan.yaml", "old\n")
    subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], check=False)
    assert len(names(tmp_path)) == 3
    write_whole(tmp_path / "plan.yaml", "new\n")
    with temporary_folder(".tokens.partial-", tmp_path):
        assert len(names(tmp_path)) == 4
    grow_old(*tmp_path.iterdir())
    write_whole(tmp_path / "plan.yaml", "new\n")
    with temporary_folder(".tokens.partial-", tmp_path) as folder:
        assert names(tmp_path) == {folder.name, "plan.yaml"}
    assert names(tmp_path) == {"plan.yaml"}


def test_two_who_write_the_same_file_do_not_meet(tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    with whole_file(path) as slow:
        slow.write(b"slow\n")
        slow.flush()
        grow_old(*tmp_path.iterdir())
        write_whole(path, "quick\n")
        assert path.read_text() == "quick\n"
    assert path.read_text() == "slow\n"
    assert names(tmp_path) == {"plan.yaml"}


def test_a_folder_somebody_works_in_stays_however_old(tmp_path: Path) -> None:
    with temporary_folder("run-", tmp_path) as mine:
        grow_old(mine)
        with temporary_folder("run-", tmp_path):
            assert mine.exists()


def test_without_a_lock_a_file_that_somebody_writes_keeps_its_folder(tmp_path: Path) -> None:
    """As torchrun does to its own, every few seconds."""
    folder = tmp_path / "run-00000000"
    (folder / "logs").mkdir(parents=True)
    grow_old(folder)
    (folder / "logs" / "rendezvous").touch()
    sweep(tmp_path, re.compile("run-.*"))
    assert (folder / "logs" / "rendezvous").exists()
    grow_old(folder)
    sweep(tmp_path, re.compile("run-.*"))
    assert names(tmp_path) == set()


def test_only_what_has_such_a_name_goes(tmp_path: Path) -> None:
    for name in ("left-1", "other-2"):
        (tmp_path / name).write_text("")
    (tmp_path / "left-3").symlink_to(tmp_path / "other-2")
    (tmp_path / "left-4").mkdir()
    grow_old(*tmp_path.iterdir())
    sweep(tmp_path, re.compile("left-."))
    assert names(tmp_path) == {"left-3", "other-2"}


def test_without_locks_nothing_is_swept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left = tmp_path / ".plan.yaml.01234567.partial"
    left.write_text("perhaps somebody's")
    grow_old(left)
    monkeypatch.setattr("cost_models.files.whole.fcntl", None)
    write_whole(tmp_path / "plan.yaml", "new\n")
    assert left.exists()
    assert (tmp_path / "plan.yaml").read_text() == "new\n"
