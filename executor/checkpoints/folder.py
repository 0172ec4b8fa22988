"""The folder of a run's checkpoints.

step-00000040/                 complete: it got this name after everything in it was on the disk
.partial-step-00000060/        being written, or left by a run that was killed; never read
broken-step-00000050-0/        found broken when a run resumed, set aside for a person to look at
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

_COMPLETE = re.compile(r"step-(\d{8,})$")
_HIDDEN = (".partial-step-*", ".deleting-step-*")


class Folder:
    """Checkpoints by their step. One process may change it; any may read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def complete(self) -> list[int]:
        """Steps of the complete checkpoints, newest first."""
        if not self.path.is_dir():
            return []
        found = [_COMPLETE.match(entry.name) for entry in self.path.iterdir() if entry.is_dir()]
        return sorted((int(match[1]) for match in found if match), reverse=True)

    def at(self, step: int) -> Path:
        """The folder of the complete checkpoint of a step."""
        return self.path / f"step-{step:08}"

    def partial(self, step: int) -> Path:
        """The folder in which the checkpoint of a step is written."""
        return self.path / f".partial-step-{step:08}"

    def begin(self, step: int) -> Path:
        """Make an empty folder to write into; what killed runs left is deleted."""
        self.path.mkdir(parents=True, exist_ok=True)
        for pattern in _HIDDEN:
            for left in self.path.glob(pattern):
                shutil.rmtree(left)
        self.partial(step).mkdir()
        return self.partial(step)

    def commit(self, step: int) -> None:
        """Give a written checkpoint its name, in one rename; one of the same step is replaced."""
        _sync(self.partial(step))
        if self.at(step).exists():
            self.delete(step)
        os.rename(self.partial(step), self.at(step))
        _sync(self.path)

    def abandon(self, step: int) -> None:
        """Delete what a failed save wrote."""
        shutil.rmtree(self.partial(step), ignore_errors=True)

    def keep(self, newest: int) -> None:
        """Delete all but the newest `newest` checkpoints."""
        for step in self.complete()[newest:]:
            self.delete(step)

    def set_aside(self, step: int) -> str:
        """Rename a broken checkpoint, so that it is neither tried again nor counted; returns its new name."""
        attempt = 0
        while (target := self.path / f"broken-step-{step:08}-{attempt}").exists():
            attempt += 1
        os.rename(self.at(step), target)
        return target.name

    def delete(self, step: int) -> None:
        """Remove a complete checkpoint; it is renamed first, so that a partial one never looks complete."""
        doomed = self.path / f".deleting-step-{step:08}"
        os.rename(self.at(step), doomed)
        shutil.rmtree(doomed)


def _sync(folder: Path) -> None:
    """Flush a folder's names to the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
