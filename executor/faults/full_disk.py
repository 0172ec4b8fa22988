"""A disk without room for what a run writes beside its checkpoints, and what a run can go on from."""

from __future__ import annotations

import errno
import tempfile
from pathlib import Path

from cost_models.errors import Problem, RunError
from executor.checkpoints.folder import Folder

ON = "the same command with --resume goes on; with fewer GPUs, make another plan and resume with that"
ON_WITHOUT = "with --checkpoint FOLDER a run goes on when ranks are lost"
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_PROBE_BYTES = 1 << 16


def error_of_full_disk(error: OSError, folder: Path, saved: Path | None) -> RunError | None:
    """The error of a rank that could not write a file of the run; None where there was room."""
    if error.errno not in _FULL:
        return None
    return RunError(
        f"`{error.filename or folder}`: {(error.strerror or str(error)).lower()}",
        problems=[last_checkpoint(saved)],
        hint=f"make room, then {ON_WITHOUT if saved is None else ON.partition(';')[0]}",
    )


def no_room(folder: Path, saved: Path | None) -> RunError | None:
    """The error of a disk so full that no rank could say a word; None where there is room."""
    try:
        with tempfile.TemporaryFile(dir=folder) as stream:
            stream.write(bytes(_PROBE_BYTES))
    except OSError as error:
        return error_of_full_disk(error, folder, saved)
    return None


def last_checkpoint(saved: Path | None) -> Problem:
    """The newest checkpoint that a run can go on from, as a line of an error."""
    if saved is None:
        return Problem("last checkpoint", "none is kept")
    newest = Folder(saved).complete()[:1]
    return Problem(
        "last checkpoint", f"of step {newest[0]}, in {saved}" if newest else f"none yet, in {saved}"
    )
