"""A disk that gets full is named, with the file and the last checkpoint; what was written before stays whole."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from cost_models.errors import RunError
from executor.checkpoints.manifest import Folder
from executor.faults.failures import (
    Heartbeat,
    error_fields,
    error_of_full_disk,
    failure_error,
    read_failures,
    write_failure,
)
from executor.launch.rank import FileWatcher, read_progress

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
    watcher = FileWatcher(tmp_path, is_continued=False)
    watcher.saved(1, 0.0)
    really = os.write
    monkeypatch.setattr(os, "write", full if room is None else lambda file, text: really(file, text[:room]))
    with pytest.raises(OSError, match=r"No space left on device: '.*progress\.jsonl'"):
        watcher.saved(2, 0.0)
    monkeypatch.undo()
    watcher.saved(3, 0.0)
    assert [line["save"] for line in read_progress(tmp_path / "progress.jsonl")] == [1, 3]
