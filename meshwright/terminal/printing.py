"""The one place where text is printed: whatever it came from, it cannot write to a terminal."""

from __future__ import annotations

import errno
import os
import sys
from contextlib import suppress
from typing import TextIO

from cost_models.documents import printable


def say(text: str) -> None:
    """A line or more on stdout, at once.

    Raises:
        OSError: nobody can read it: stdout is closed, or the disk it goes to is full.
    """
    if sys.stdout is None:
        raise OSError(errno.EBADF, "it is closed", "stdout")
    try:
        _write(text, sys.stdout)
    except BrokenPipeError:
        raise
    except OSError as error:
        _forget(sys.stdout)
        raise OSError(error.errno, error.strerror, "stdout") from None


def say_aside(text: str) -> None:
    """The same on stderr, where it is worth nothing to complain that nobody reads complaints."""
    if sys.stderr is not None:
        with suppress(OSError):
            _write(text, sys.stderr)


def _write(text: str, stream: TextIO) -> None:
    """Control characters, and others that move what stands around them, become `?`."""
    lines = "\n".join(printable(line, limit=None) for line in text.split("\n"))
    encoding = stream.encoding or "utf-8"
    print(lines.encode(encoding, "replace").decode(encoding), file=stream, flush=True)


def _forget(stream: TextIO) -> None:
    """What could not be written is not tried again when the program ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
