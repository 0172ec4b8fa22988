"""Atomic writing of files: a file is replaced as a whole or not at all, so that a user keeps either the old
or the new version.

Temporary files and folders that killed processes left behind are found by their locks and deleted.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

AGE_SECONDS = 3600.0
"""Minimum age of unlocked files to be deleted: a process locks a new file a moment after it creates it."""


@contextmanager
def temporary_folder(prefix: str, parent: Path | None = None) -> Iterator[Path]:
    """Create a private temporary folder that is locked while in use and deleted at the end; leftover folders with
    the same prefix are deleted first."""
    place = Path(tempfile.gettempdir()) if parent is None else parent
    sweep(place, re.compile(rf"{re.escape(prefix)}[a-z0-9_]{{8}}"))
    folder = tempfile.TemporaryDirectory(prefix=prefix, dir=place, ignore_cleanup_errors=True)
    with folder as name, ExitStack() as stack:
        if fcntl is not None:
            descriptor = os.open(name, os.O_RDONLY)
            stack.callback(os.close, descriptor)
            lock(descriptor)
        yield Path(name)


def lock(descriptor: int) -> None:
    """Lock a file or folder, so that `sweep` does not delete it until the descriptor is closed; does nothing
    if the file system has no locks."""
    with suppress(OSError, AttributeError):  # Windows has no such locks
        fcntl.flock(descriptor, fcntl.LOCK_SH)


def sweep(folder: Path, names: re.Pattern[str]) -> None:
    """Delete the user's unlocked files and folders that match a name pattern and were not written to for an hour."""
    if fcntl is None:
        return
    with suppress(OSError):
        for entry in list(os.scandir(folder)):
            if names.fullmatch(entry.name) and not entry.is_symlink():
                with suppress(OSError):
                    _sweep_one(Path(entry.path))


def _sweep_one(path: Path) -> None:
    """Delete a file or folder that was not written to within the last hour. Raises OSError if it is locked or
    does not exist any more."""
    inside = [Path(parent, name) for parent, folders, files in os.walk(path) for name in (*folders, *files)]
    if time.time() - max(one.lstat().st_mtime for one in (path, *inside)) < AGE_SECONDS:
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


@contextmanager
def whole_file(path: Path) -> Iterator[IO[bytes]]:
    """Open a stream whose bytes replace the file `path` atomically, once all are on the disk.

    They are first written to a hidden file beside it, which is deleted where the block or the disk fails, and by a
    later writer of `path` where the process is killed. Where `path` is a link, what it points to is replaced. Devices,
    pipes and what a process has open under another name, such as /dev/stdout, have no place to take: what is written
    goes to their end, wherever they lead.

    Raises:
        OSError: `path` cannot be written; it names `path`. What else the block raises goes on as it is.
    """
    if not is_replaced(path):
        with _opened(path) as stream:
            yield stream
        return
    target = Path(os.path.realpath(path))
    partial = target.with_name(f".{target.name}.{os.urandom(4).hex()}.partial")
    sweep(target.parent, re.compile(rf"\.{re.escape(target.name)}\.[0-9a-f]{{8}}\.partial"))
    try:
        with partial.open("xb") as stream:
            lock(stream.fileno())
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        if target.exists():
            shutil.copymode(target, partial)
        os.replace(partial, target)
    except OSError as error:
        if error.filename not in (None, str(partial), str(target)) or error.errno is None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        with suppress(OSError):
            partial.unlink()


def write_whole(path: Path, text: str) -> None:
    """Replace a file's content atomically by a UTF-8 text, with line ends unchanged. An OSError names `path`."""
    with whole_file(path) as stream:
        stream.write(text.encode())


def is_replaced(path: Path) -> bool:
    """Whether writing to a path replaces a regular file or creates a new file; False for devices, pipes,
    folders and system paths.

    Under /dev and /proc names may lead to files of others: /dev/stdout to where the shell sends what is printed.
    """
    name = Path(os.path.abspath(path))
    # the only folder of /dev with ordinary files is that of shared memory
    if any(map(name.is_relative_to, ("/dev", "/proc"))) and not name.is_relative_to("/dev/shm"):
        return False
    return path.is_file() or not path.exists()


def folder_obstacle(folder: Path, *, made: bool = False) -> str:
    """Reason why files cannot be written to a folder; empty if they can. With `made` the folder need not
    exist yet."""
    existing = folder
    try:
        while made and not existing.exists() and existing != existing.parent:
            existing = existing.parent
        if not existing.is_dir():
            message = "is no folder" if existing.exists() else "there is no such folder"
            return message if existing == folder else f"`{existing}` {message}"
        with tempfile.TemporaryFile(dir=existing) as file:
            file.write(bytes(1 << 16))
            return ""
    except OSError as error:
        return (error.strerror or str(error)).lower()


def file_obstacle(path: Path) -> str:
    """Reason why a file cannot be written; empty if it can."""
    try:
        if path.is_dir():
            return "is a folder"
        if not path.parent.is_dir():
            return f"the folder `{path.parent}` does not exist"
        if path.exists() and not os.access(path, os.W_OK):
            return "permission denied"
        replaced = is_replaced(path) or not path.exists()
        return folder_obstacle(Path(os.path.realpath(path)).parent) if replaced else ""
    except OSError as error:
        return (error.strerror or str(error)).lower()


def lock_alone(descriptor: int) -> bool | None:
    """Take an exclusive lock on a file, and return whether it was free; None if the file system has no locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (OSError, AttributeError) as error:  # nor has Windows such locks
        return False if isinstance(error, BlockingIOError) else None
    return True


def _opened(path: Path) -> IO[bytes]:
    """Open a file for appending. A file that standard output or error also writes is continued at the same
    position."""
    for printed in (1, 2):  # descriptors of standard output and error
        with suppress(OSError):
            if os.path.samestat(path.stat(), os.fstat(printed)):
                return open(os.dup(printed), "wb")
    return path.open("ab")
