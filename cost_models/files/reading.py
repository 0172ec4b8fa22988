"""Safe reading of a file or pipe that a user names: size, encoding and syntax are checked, and nothing in it
is executed.

A pipe can be read only once: `<(ssh there cat plan.yaml)`, or a name made by `mkfifo`. A pipe without a writer would
block the program when opened, possibly for ever; so pipes are opened without blocking, and refused if nobody writes.

YAML is read event by event: no tag can run code, nesting and size of a document are limited, and the line of every key
is known. Scalars follow the YAML 1.2 core schema and usual spellings: `300e9` and `1_000_000` are numbers, `no` is a
word.
"""

from __future__ import annotations

import json
import math
import os
import re
import select
import stat
from collections.abc import Iterator
from io import BufferedReader, FileIO, RawIOBase
from pathlib import Path
from typing import Any, NoReturn

import yaml

from cost_models.documents import Document, Key, printable, show_key
from cost_models.errors import InputError, Problem
from cost_models.units import MB

MAX_DEPTH = 32
"""Maximum nesting depth of a document; real inputs need eight levels."""
MAX_VALUES = 500_000
"""Maximum number of values, with aliases followed, so that a few lines cannot stand for billions."""

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
        with _open_pipe(path) if stat.S_ISFIFO(os.stat(path).st_mode) else Path(path).open("rb") as file:
            return file.read(most_bytes)
    except OSError as error:
        raise InputError(f"cannot read `{name}`: {(error.strerror or str(error)).lower()}") from None
    except ValueError as error:  # a null character in the path
        raise InputError(f"cannot read `{name}`: {error}") from None


def open_binary(path: Path) -> BufferedReader:
    """Open a file or a pipe of any length for reading in binary mode.

    Raises:
        OSError, ValueError: missing, unreadable, no path.
        InputError: a folder, a device, or a pipe without a writer.
    """
    mode, name = os.stat(path).st_mode, printable(str(path))
    if stat.S_ISDIR(mode):
        raise InputError(f"`{name}` is a folder", hint=f"name the files in it, as {name.rstrip('/')}/*")
    if stat.S_ISFIFO(mode):
        return _open_pipe(path)
    if not stat.S_ISREG(mode):
        raise InputError(f"`{name}` is a device, which may never end", hint="name a file")
    return path.open("rb")


def _open_pipe(path: str | Path) -> BufferedReader:
    """Open a pipe for reading in binary mode. Raises InputError if no process writes to it within
    `WRITER_SECONDS`."""
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
    """Binary stream of a pipe whose first bytes `first` were read already."""

    def __init__(self, first: bytes, pipe: FileIO) -> None:
        self._first, self._pipe = first, pipe

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill the start of `buffer` with the next bytes, first those read already, and return their number."""
        chunk = self._first[: len(buffer)] or self._pipe.read(len(buffer)) or b""
        self._first = self._first[len(chunk) :]
        buffer[: len(chunk)] = chunk
        return len(chunk)

    def close(self) -> None:
        self._pipe.close()
        super().close()


MAX_BYTES = int(4 * MB)
"""Maximum size of an input file in bytes; inputs have a few kilobytes, plans some hundreds."""
_JSON_INTEGER = re.compile(r"-?\d+")


def read_document(path: str | Path, *, most_bytes: int = MAX_BYTES) -> Document:
    """Parse a YAML file, or a JSON file if its name ends in `.json`, into a `Document`.

    Raises:
        InputError: missing, a folder, unreadable, a pipe without a writer, too large, not text, not valid YAML or
            JSON.
    """
    name, text = str(path), read_text(path, most_bytes=most_bytes)
    return parse_json(text, source=name) if name.endswith(".json") else parse_yaml(text, source=name)


def read_text(path: str | Path, *, most_bytes: int = MAX_BYTES) -> str:
    """Read a UTF-8 text file of limited size.

    Raises:
        InputError: missing, a folder, unreadable, a pipe without a writer, too large, not text.
    """
    name, raw = str(path), read_raw(path, most_bytes + 1)
    if len(raw) > most_bytes:
        limit_text = f"{most_bytes // int(MB)} MB"
        raise InputError(f"`{name}` is larger than {limit_text}; it is not an input of this tool")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"`{name}` is not a text file (byte {error.start} is not UTF-8)") from None


def parse_json(text: str, *, source: str) -> Document:
    """Parse a JSON text into a `Document` without line numbers. Raises InputError on NaN, repeated keys, deep
    nesting and invalid JSON. Infinity, which configs of state-space models contain, remains text."""
    Nesting(source).take(text.encode("utf-8", "replace"))

    def number(written: str) -> float | str:
        """Parse a JSON number into an int or float; "Infinity" remains text. Raises InputError if it is not
        finite."""
        if written.endswith("Infinity"):
            return written
        value = float(written)
        if not math.isfinite(value):
            raise InputError(f"`{source}` holds the number {printable(written, limit=20)}; it must be finite")
        return value if not _JSON_INTEGER.fullmatch(written) else int(written)

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        """Dictionary of the fields of a JSON object. Raises InputError if a name occurs twice."""
        result: dict[str, Any] = {}
        for name, value in pairs:
            if name in result:
                raise InputError(f"`{source}` gives `{printable(name)}` twice")
            result[name] = value
        return result

    try:
        hooks: dict[str, Any] = dict.fromkeys(("parse_int", "parse_float", "parse_constant"), number)
        value = json.loads(text, object_pairs_hook=unique, **hooks)
    except json.JSONDecodeError as error:
        message = f"not valid JSON: {error.msg[:1].lower()}{error.msg[1:]}"
        problem = Problem(f"{source}:{error.lineno}", message)
        raise InputError(f"cannot read `{source}`", problems=[problem]) from None
    return Document(source=source, value=value)


_ESCAPED = re.compile(rb"\\.", re.DOTALL)
_BESIDE_MARKS = bytes(set(range(256)) - set(b'"[]{}'))
_OPENING = 27
"""Character code modulo 32 of `[` and `{`; `]` and `}` have 29."""


class Nesting:
    """Counter of a JSON text's nesting depth, which rejects deep nesting before a parser takes memory or
    stack for each level. The text may arrive in parts. Brackets in strings do not count."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._depth = self._quoted = 0
        self._escaping = b""

    def take(self, part: bytes) -> None:
        """Count the brackets in the next part of the text. Raises InputError if it is nested too deeply."""
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


_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_INTEGER = re.compile(r"[-+]?\d[\d_]{0,30}$")
_FLOAT = re.compile(r"[-+]?(\d[\d_]{0,30}(\.\d{0,30})?|\.\d{1,30})([eE][-+]?\d{1,5})?$")
_NOT_FINITE = re.compile(r"[-+]?\.(inf|Inf|INF)$|\.(nan|NaN|NAN)$")
_WORDS: dict[str, bool | None] = {"": None, "~": None, "null": None, "Null": None, "NULL": None}
_WORDS |= {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}


def parse_yaml(text: str, *, source: str) -> Document:
    """Parse a YAML text safely into a `Document` of plain values with line numbers. Raises InputError for
    invalid YAML, tags, deep nesting and too many values."""
    if not text.strip():
        raise InputError(f"`{source}` is empty")
    try:
        return _Reader(source, text).document()
    except yaml.MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        message = f"not valid YAML: {printable(error.problem or str(error))}"
        if "nesting depth" in message:  # libyaml reads ahead, and may stop before we do
            message = f"nested more than {MAX_DEPTH} levels deep"
        raise InputError(f"cannot read `{source}`", problems=[Problem(f"{source}{line}", message)]) from None
    except yaml.YAMLError:
        raise InputError(f"`{source}` holds characters that YAML does not allow") from None


class _Reader:
    """Parser of a YAML text that builds plain values from the events of a YAML library (start, scalar, alias,
    end)."""

    def __init__(self, source: str, text: str) -> None:
        self.source = source
        self.events: Iterator[Any] = yaml.parse(text, Loader=_LOADER)
        self.line = 0
        """Line number of the latest event, from 1."""
        self.lines: dict[Key, int] = {}
        self.problems: dict[Key, Problem] = {}
        self.anchors: dict[str, tuple[Any, int]] = {}
        """Value of each YAML anchor (`&name`), and the number of values in it, by name."""
        self.values = 0

    def document(self) -> Document:
        """Parse the only document of the text. Raises InputError and yaml.YAMLError."""
        value, mark = None, False
        self.next_event()  # the stream begins
        if isinstance(self.next_event(), yaml.DocumentStartEvent):
            value = self.value(self.next_event(), ())
            mark = bool(self.next_event().explicit)
            if isinstance(self.next_event(), yaml.DocumentStartEvent):
                self.stop("a second document starts here; one file holds one")
        return Document(source=self.source, value=value, lines=self.lines, problems=self.problems, ended=mark)

    def next_event(self) -> Any:
        """Return the next event of the YAML text. Raises InputError if it has a tag, as a file may contain
        plain values only."""
        event = next(self.events)
        self.line = event.start_mark.line + 1
        tag = getattr(event, "tag", None)
        text = isinstance(event, yaml.ScalarEvent) and tag in ("!", "tag:yaml.org,2002:str")
        if tag and not text and event.implicit is not True:
            self.stop(f"the tag `{printable(tag)}` is not allowed; a file holds plain values only")
        return event

    def value(self, event: Any, key: Key) -> Any:
        """Value that begins with `event`, at the place `key` in the document."""
        values_before, alias = self.values, isinstance(event, yaml.AliasEvent)
        if alias and event.anchor not in self.anchors:
            self.stop(f"`*{printable(str(event.anchor))}` names nothing that is complete")
        if len(key) >= MAX_DEPTH and isinstance(event, yaml.CollectionStartEvent):
            self.stop(f"nested more than {MAX_DEPTH} levels deep")
        value, size = self.anchors[event.anchor] if alias else (None, 1)
        self.values += size
        if self.values > MAX_VALUES:
            self.stop(f"stands for more than {MAX_VALUES} values")
        if alias:
            return value
        if isinstance(event, yaml.ScalarEvent):
            value = self.scalar(event.value, key) if event.implicit[0] else event.value
        else:
            value = self.collection(key, isinstance(event, yaml.MappingStartEvent))
        if event.anchor:
            self.anchors[event.anchor] = value, self.values - values_before
        return value

    def collection(self, key: Key, is_mapping: bool) -> dict[str | int, Any] | list[Any]:
        """Dictionary of a mapping or list of a sequence, read up to its end event."""
        values: dict[str | int, Any] = {}
        while not isinstance(event := self.next_event(), yaml.CollectionEndEvent):
            name: Any = len(values)
            if is_mapping:
                self.values += 1
                is_alias = isinstance(event, yaml.AliasEvent)
                name = self.value(event, key) if is_alias else getattr(event, "value", None)
                if not isinstance(name, str):
                    self.stop("a mapping or list cannot be a field name")
            place = (*key, name)
            if name in values:
                self.problem(place, f"`{printable(name)}` is given twice, first on line {self.lines[place]}")
            self.lines[place] = self.line
            values[name] = self.value(self.next_event() if is_mapping else event, place)
        return values if is_mapping else list(values.values())

    def scalar(self, text: str, key: Key) -> Any:
        """Convert an unquoted word into None, a bool, an int, a float or text."""
        if text in _WORDS:
            return _WORDS[text]
        if _INTEGER.match(text):
            return int(text.replace("_", ""))
        if _NOT_FINITE.match(text):
            self.problem(key, f"`{text}` is not a finite number")
        if not _FLOAT.match(text):
            return text
        number = float(text.replace("_", ""))
        if math.isinf(number):
            self.problem(key, f"`{text}` is too large a number")
        return number

    def problem(self, key: Key, message: str) -> None:
        """Record a problem with the value at the place `key`."""
        self.problems[key] = Problem(f"{self.source}:{self.line}  {printable(show_key(key))}", message)

    def stop(self, message: str) -> NoReturn:
        """Raise InputError with a problem at the latest line. Raises InputError."""
        place = f"{self.source}:{self.line}"
        raise InputError(f"cannot read `{self.source}`", problems=[Problem(place, message)])
