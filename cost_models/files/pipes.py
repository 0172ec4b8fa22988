"""Reading from a pipe, which gives what it holds once: `<(ssh there cat plan.yaml)`, or a name made by `mkfifo`.

Opening a pipe by its name waits for somebody to write to it, for ever if nobody does. So it is opened without waiting,
and told to be one that nobody writes to where that is so for a while.
"""

from __future__ import annotations

import os
import select
import stat
from pathlib import Path

from cost_models.documents import printable
from cost_models.errors import InputError

WRITER_SECONDS = 3.0
"""How long somebody may take to open a pipe by its name for writing; shells do before they start a command."""


def is_pipe(path: str | Path) -> bool:
    """Whether something is there that gives what it holds once: a pipe, standard input of a terminal."""
    try:
        place = Path(path)
        return place.exists() and not place.is_file() and not place.is_dir()
    except (OSError, ValueError):  # too long, or a null character
        return False


def read_raw(path: str | Path, most_bytes: int) -> bytes:
    """The first so many bytes of a file, or of what a pipe gives.

    Raises:
        InputError: missing, a folder, unreadable, or a pipe that nobody writes to.
    """
    name = printable(str(path))
    try:
        raw = _from_pipe(path, most_bytes) if _is_fifo(path) else _from_file(path, most_bytes)
    except OSError as error:
        raise InputError(f"cannot read `{name}`: {(error.strerror or str(error)).lower()}") from None
    except ValueError as error:  # a null character in the path
        raise InputError(f"cannot read `{name}`: {error}") from None
    if raw is None:
        raise InputError(
            f"`{name}` is a pipe that nobody writes to",
            hint="name a file, or write `<(command)` for what a command prints",
        )
    return raw


def _is_fifo(path: str | Path) -> bool:
    return stat.S_ISFIFO(os.stat(path).st_mode)


def _from_file(path: str | Path, most_bytes: int) -> bytes:
    with Path(path).open("rb") as file:
        return file.read(most_bytes)


def _from_pipe(path: str | Path, most_bytes: int) -> bytes | None:
    """The same of a pipe, to its end; None where nobody writes to it."""
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as pipe:
        said, _, _ = select.select([pipe], [], [], WRITER_SECONDS)  # something, or that the writer has ended
        first = pipe.raw.read(most_bytes)  # None: nothing so far, and somebody has it open for writing
        if not said and first == b"":
            return None
        os.set_blocking(pipe.fileno(), True)
        return (first or b"") + pipe.read(most_bytes - len(first or b""))
