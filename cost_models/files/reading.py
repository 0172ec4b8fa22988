"""Reading a file, or a pipe, from a stranger: size, encoding and syntax are checked, nothing is constructed.

A pipe gives what it holds once: `<(ssh there cat plan.yaml)`, or a name made by `mkfifo`. Opening one by its name waits
until there is a writer, possibly for ever; so it is opened without waiting, and refused without one.
"""

from __future__ import annotations

import json
import math
import os
import re
import select
import stat
from io import BufferedReader, FileIO, RawIOBase
from pathlib import Path
from typing import Any

from cost_models.documents import Document, printable
from cost_models.errors import InputError, Problem
from cost_models.files.yaml_text import MAX_DEPTH, parse_yaml
from cost_models.units import MB

WRITER_SECONDS = 3.0
"""Seconds to wait for a pipe's writer; shells open pipes before they start a command."""
_FIRST_BYTES = 1 << 16


def is_pipe(path: str | Path) -> bool:
    """Whether a path is a pipe or a terminal, whose content can be read only once."""
    return os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path)


def read_raw(path: str | Path, most_bytes: int) -> bytes:
    """Read the first `most_bytes` bytes of a file or a pipe.

    Raises:
        InputError: missing, a folder, unreadable, or a pipe without a writer.
    """
    name = printable(str(path))
    try:
        with _opened_pipe(path) if stat.S_ISFIFO(os.stat(path).st_mode) else Path(path).open("rb") as file:
            return file.read(most_bytes)
    except OSError as error:
        raise InputError(f"cannot read `{name}`: {(error.strerror or str(error)).lower()}") from None
    except ValueError as error:  # a null character in the path
        raise InputError(f"cannot read `{name}`: {error}") from None


def opened(path: Path) -> BufferedReader:
    """Open a file or a pipe of any length for reading in binary mode.

    Raises:
        OSError, ValueError: missing, unreadable, no path.
        InputError: a folder, a device, or a pipe without a writer.
    """
    mode, name = os.stat(path).st_mode, printable(str(path))
    if stat.S_ISDIR(mode):
        raise InputError(f"`{name}` is a folder", hint=f"name the files in it, as {name.rstrip('/')}/*")
    if stat.S_ISFIFO(mode):
        return _opened_pipe(path)
    if not stat.S_ISREG(mode):
        raise InputError(f"`{name}` is a device, which may never end", hint="name a file")
    return path.open("rb")


def _opened_pipe(path: str | Path) -> BufferedReader:
    """Open a pipe that somebody writes to, for reading in binary mode. Raises InputError where nobody does."""
    pipe = FileIO(os.open(path, os.O_RDONLY | os.O_NONBLOCK))
    readable, _, _ = select.select([pipe], [], [], WRITER_SECONDS)  # something, or that the writer has ended
    first = pipe.read(_FIRST_BYTES)  # None: nothing so far, and a writer has it open
    if not readable and first == b"":
        pipe.close()
        hint = "name a file, or write `<(command)` for what a command prints"
        raise InputError(f"`{printable(str(path))}` is a pipe that nobody writes to", hint=hint)
    os.set_blocking(pipe.fileno(), True)
    return BufferedReader(_Begun(first or b"", pipe))


class _Begun(RawIOBase):
    """Binary stream that continues a pipe after the bytes `first`, which were read already."""

    def __init__(self, first: bytes, pipe: FileIO) -> None:
        self._first, self._pipe = first, pipe

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        chunk = self._first[: len(buffer)] or self._pipe.read(len(buffer)) or b""
        self._first = self._first[len(chunk) :]
        buffer[: len(chunk)] = chunk
        return len(chunk)

    def close(self) -> None:
        self._pipe.close()
        super().close()


MAX_BYTES = int(4 * MB)
"""Largest file that is read, in bytes; inputs have a few kilobytes, plans some hundreds."""
_INTEGER = re.compile(r"-?\d+")


def read_document(path: str | Path, *, most_bytes: int = MAX_BYTES) -> Document:
    """Parse a YAML file, or a JSON file if its name ends in `.json`, into a `Document`.

    Raises:
        InputError: missing, a folder, unreadable, a pipe without a writer, too large, not text, not valid YAML or
            JSON.
    """
    name = str(path)
    text = read_text(path, most_bytes=most_bytes)
    return parse_json(text, source=name) if name.endswith(".json") else parse_yaml(text, source=name)


def read_text(path: str | Path, *, most_bytes: int = MAX_BYTES) -> str:
    """Read a UTF-8 text file of limited size.

    Raises:
        InputError: missing, a folder, unreadable, a pipe without a writer, too large, not text.
    """
    name = str(path)
    raw = read_raw(path, most_bytes + 1)
    if len(raw) > most_bytes:
        most = f"{most_bytes // int(MB)} MB"
        raise InputError(f"`{name}` is larger than {most}; it is not an input of this tool")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"`{name}` is not a text file (byte {error.start} is not UTF-8)") from None


def parse_json(text: str, *, source: str) -> Document:
    """Parse a JSON text into a `Document` without line numbers; Infinity, which configs of state-space models
    hold, stays text. Raises InputError on NaN, repeated keys, deep nesting and invalid JSON."""
    Nesting(source).take(text.encode("utf-8", "replace"))

    def number(written: str) -> float:
        value = float(written)
        if not math.isfinite(value):
            raise InputError(f"`{source}` holds the number {printable(written, limit=20)}; it must be finite")
        return value if not _INTEGER.fullmatch(written) else int(written)

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for name, value in pairs:
            if name in result:
                raise InputError(f"`{source}` gives `{printable(name)}` twice")
            result[name] = value
        return result

    try:
        value = json.loads(
            text,
            parse_int=number,
            parse_float=number,
            parse_constant=lambda word: number(word) if word == "NaN" else word,
            object_pairs_hook=unique,
        )
    except json.JSONDecodeError as error:
        message = f"not valid JSON: {error.msg[:1].lower()}{error.msg[1:]}"
        problem = Problem(f"{source}:{error.lineno}", message)
        raise InputError(f"cannot read `{source}`", problems=[problem]) from None
    return Document(source=source, value=value)


_ESCAPED = re.compile(rb"\\.", re.DOTALL)
_BESIDE_MARKS = bytes(set(range(256)) - set(b'"[]{}'))
_OPENING = 27
"""Code of `[` and of `{` modulo 32; that of `]` and `}` is 29."""


class Nesting:
    """Counter of the nesting depth of a JSON text that arrives in parts, for rejecting deep nesting before
    parsing. Parsers take memory or stack for each level. Brackets in strings do not count."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._depth = self._quoted = 0
        self._escaping = b""

    def take(self, part: bytes) -> None:
        """Count the brackets in the next part of the text. Raises InputError where it is nested too deeply."""
        import numpy as np

        plain = _ESCAPED.sub(b"", self._escaping + part)
        self._escaping = b"\\" if plain.endswith(b"\\") else b""
        strings = plain.translate(None, _BESIDE_MARKS).split(b'"')
        marks = np.frombuffer(b"".join(strings[self._quoted :: 2]), np.uint8)
        self._quoted = (self._quoted + len(strings) - 1) % 2
        depths = self._depth + np.cumsum(np.where(marks % 32 == _OPENING, 1, -1))
        if depths.size:
            self._depth = int(depths[-1])
            if depths.max() > MAX_DEPTH:
                raise InputError(f"`{self._source}` is nested more than {MAX_DEPTH} levels deep")


def is_file(path: str | Path) -> bool:
    """Whether a path is an existing file; False for text that cannot be a path."""
    return os.path.isfile(path)  # where the path is too long, or has a null character, `Path.is_file` raises
