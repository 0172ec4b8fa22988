"""The lines of a log of any length, packed or not, in constant memory."""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Iterator
from io import BufferedIOBase
from pathlib import Path

from cost_models.documents import printable
from cost_models.errors import InputError, Problem
from cost_models.files.reading import opened

LONGEST_LINE = 1 << 16
"""Characters of a line that are read; no line of a step is nearly as long."""
LONGEST_SECONDS = 1e7
"""Beyond which a duration that is told is a mistake."""
_CHUNK = 1 << 18
_MAGIC = b"\x1f\x8b"
_COLOUR = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
MOST_EXPANSION = 400
"""Bytes that a byte of a packed file may become, beyond the first `_SMALL`: logs and traces expand 5 to 50 times, one
that is made to fill a memory a thousand times (deflate's limit is 1,032)."""
_SMALL = 1 << 26


def lines_of(path: Path) -> Iterator[tuple[int, str]]:
    """Numbered lines without colours; what carriage returns part (progress bars) are lines of one number.

    A last line that no line end closes is left out: it may be cut off inside a number.

    Raises:
        InputError: missing, a folder, unreadable, packed and broken, or packed to fill a memory.
    """
    number, rest = 1, b""
    for chunk in chunks_of(path):
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            yield from _parts(number, line)
            number += 1
        if len(rest) > LONGEST_LINE:
            *done, rest = rest.split(b"\r")
            for part in done:
                yield from _parts(number, part)
            rest = rest[-LONGEST_LINE:]
    if b"\r" in rest:
        yield from _parts(number, rest.rpartition(b"\r")[0])


def _parts(number: int, line: bytes) -> Iterator[tuple[int, str]]:
    for part in line.split(b"\r"):
        text = part[:LONGEST_LINE].decode("utf-8", "replace")
        yield number, _COLOUR.sub("", text) if "\x1b" in text else text


def chunks_of(path: Path) -> Iterator[bytes]:
    """The bytes of a file, unpacked where it is packed by gzip, a piece at a time.

    Raises:
        InputError: as `lines_of`.
    """
    name = printable(str(path))
    try:
        with opened(path) as file:
            if file.peek(2)[:2] != _MAGIC:
                yield from _read(file)
                return
            packed, sent = path.stat().st_size, 0
            with gzip.open(file) as unpacked:
                for chunk in _read(unpacked):
                    sent += len(chunk)
                    if packed and sent > max(_SMALL, MOST_EXPANSION * packed):  # a pipe has no size
                        raise InputError(
                            f"`{name}` becomes more than {MOST_EXPANSION} times as large when it is unpacked;"
                            " it is no log or trace"
                        )
                    yield chunk
    except InputError:
        raise
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(
            f"`{name}` cannot be unpacked",
            problems=[Problem(name, printable(str(error)[:1].lower() + str(error)[1:]))],
            hint="copy it again, or unpack what is whole of it: gzip -dc FILE > log",
        ) from None
    except (OSError, ValueError) as error:  # which is a null character in the path
        said = getattr(error, "strerror", None) or str(error)
        raise InputError(f"cannot read `{name}`: {said.lower()}") from None


def _read(file: BufferedIOBase) -> Iterator[bytes]:
    return iter(lambda: file.read(_CHUNK), b"")
