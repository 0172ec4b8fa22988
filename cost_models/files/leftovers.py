"""Temporary files and folders: locked while somebody works on them; what a killed process left is swept by the next.

The system drops a lock when the process that holds it ends, however it ends. Where there are no locks (Windows, some
network file systems) nothing is swept.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

AGE_SECONDS = 3600.0
"""What somebody wrote to so recently stays even without a lock: a process locks what it makes a moment later."""


@contextmanager
def temporary_folder(prefix: str, parent: Path | None = None) -> Iterator[Path]:
    """A new folder that only this user may enter, locked and deleted at the end; leftovers of its kind go first."""
    place = Path(tempfile.gettempdir()) if parent is None else parent
    sweep(place, re.compile(rf"{re.escape(prefix)}[a-z0-9_]{{8}}"))
    with tempfile.TemporaryDirectory(prefix=prefix, dir=place, ignore_cleanup_errors=True) as name:
        descriptor = os.open(name, os.O_RDONLY) if fcntl is not None else None
        try:
            if descriptor is not None:
                lock(descriptor)
            yield Path(name)
        finally:
            if descriptor is not None:
                os.close(descriptor)


def lock(descriptor: int) -> None:
    """Keep the file or folder from being swept until the descriptor is closed, where the file system has locks."""
    if fcntl is not None:
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_SH)


def sweep(folder: Path, names: re.Pattern[str]) -> None:
    """Delete this user's files and folders of such names that nobody has locked, nor written to for an hour."""
    if fcntl is None:
        return
    with suppress(OSError):
        for entry in list(os.scandir(folder)):
            if names.fullmatch(entry.name) and not entry.is_symlink():
                with suppress(OSError):
                    _sweep_one(Path(entry.path))


def _sweep_one(path: Path) -> None:
    """Raises OSError where it is locked, or gone meanwhile."""
    if time.time() - _last_written(path) < AGE_SECONDS:
        return
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(descriptor).st_uid != os.getuid():
            return
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
    finally:
        os.close(descriptor)


def _last_written(path: Path) -> float:
    """Seconds since 1970: of a folder, when anything in it was."""
    below = [Path(parent, name) for parent, folders, files in os.walk(path) for name in (*folders, *files)]
    return max(one.lstat().st_mtime for one in (path, *below))
