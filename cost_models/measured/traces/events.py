"""Reading of the events of a trace file (Chrome's JSON, compressed or not) one at a time in bounded memory."""

from __future__ import annotations

import math
import re
import sqlite3
from array import array
from collections.abc import Iterator, Mapping
from contextlib import closing
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import ijson
import numpy as np

from cost_models.documents import printable
from cost_models.errors import InputError, Problem
from cost_models.files.reading import Nesting
from cost_models.measured.logs import LONGEST_SECONDS, chunks_of
from cost_models.units import grouped

_LARGEST_EVENT = 1 << 26
"""Maximum number of bytes of an event."""
_HEAD = 1 << 18
"""Number of first bytes of a trace that are searched for its rank."""
_RANK = re.compile(rb'"rank": *(\d{1,9})')
_WORLD = re.compile(rb'"world_size": *(\d{1,9})')
_RANK_IN_NAME = re.compile(r"rank[-_.]?(\d{1,9})", re.IGNORECASE)
_MICROSECOND = 1e-6
_OLDER = {"memcpy": "gpu_memcpy", "memset": "gpu_memset", "operator": "cpu_op", "runtime": "cuda_runtime"}
"""Present category of a category of PyTorch 1.8 to 1.13 (libkineto/src/output_json.cpp of 2021 and 2022)."""
_STEP = "ProfilerStep#"
"""Start of the name of step annotations, which PyTorch 1.8 wrote as operators."""


class Event(NamedTuple):
    """Span of time in a trace, such as a kernel, an operator or an annotation, with start and length in
    seconds."""

    name: str
    category: str
    start: float
    """Start in seconds on the machine's clock."""
    seconds: float
    device: int
    thread: str
    """Thread of the host, or stream of a GPU."""
    details: Mapping[str, Any]


class Columns:
    """Numeric properties of many events, stored compactly with one array per property."""

    def __init__(self, codes: str) -> None:
        """Create an array for each type code (of the module `array`) in `codes`."""
        self._columns: list[array[float]] = [array(code) for code in codes]

    def __len__(self) -> int:
        return len(self._columns[0])

    def append(self, *figures: float) -> None:
        """Append the numbers of one event, one to each array."""
        for column, figure in zip(self._columns, figures, strict=True):
            column.append(figure)

    def arrays(self) -> list[Any]:
        """Numbers of all events, one array (N,) per column."""
        return [np.array(column) for column in self._columns]


def rank_in_name(path: Path) -> int | None:
    """Rank in the name of a trace file, such as `trace_rank3.json`; None if the name has none."""
    match = _RANK_IN_NAME.search(path.name)
    return int(match[1]) if match else None


class TraceFile:
    """Reader of one trace file: rank and world size from its head, and its events in one pass."""

    def __init__(self, path: Path) -> None:
        """Open a trace and read its head. Raises InputError if the file cannot be read or is not JSON."""
        self.path, self._name = path, printable(str(path))
        self._since, self._nesting = 0, Nesting(self._name)
        self._chunks = chunks_of(path)
        first = next(self._chunks, b"")
        while first and len(first) < _HEAD and (following := next(self._chunks, b"")):
            first += following
        self._events = "item" if first.lstrip()[:1] == b"[" else "traceEvents.item"
        if not first.lstrip().startswith((b"{", b"[")):
            hint = "torch.profiler writes one: export_chrome_trace, or tensorboard_trace_handler"
            raise InputError(f"`{self._name}` is no trace: it does not begin as JSON does", hint=hint)
        head = first.partition(b'"traceEvents"')[0]
        rank, world = _RANK.search(head), _WORLD.search(head)
        self.rank = int(rank[1]) if rank else rank_in_name(path)
        """Rank in the file's head or name; None if neither has it."""
        self.world_size = int(world[1]) if world else None
        self._chunks = chain([first], self._chunks)

    def read(self, size: int = -1) -> bytes:
        """Return the next bytes of the file to the JSON parser; empty if `size` is 0."""
        if size == 0:
            return b""
        chunk = next(self._chunks, b"")
        self._nesting.take(chunk)
        self._since += len(chunk)
        if self._since > _LARGEST_EVENT + _HEAD:
            raise InputError(f"`{self._name}` has an event of more than 64 MiB; it is no trace")
        return chunk

    def events(self) -> Iterator[Event]:
        """Yield every event of the trace that has a start and a length.

        Raises:
            InputError: broken JSON, no list of events, times that are none; with the number of the event.
        """
        number = 0
        try:
            for number, entry in enumerate(ijson.items(self, self._events, use_float=True), start=1):
                self._since = 0
                if isinstance(entry, dict) and entry.get("ph") == "X":
                    yield self._event(number, entry)
        except ijson.JSONError as error:
            entry = str(error).splitlines()[0]
            ends = "premature" in entry or "ncomplete" in entry
            message = "the file ends inside an event" if ends else printable(entry, limit=100)
            problem = Problem(f"{self._name}  event {grouped(number + 1)}", message)
            hint = "export it again, or copy it again where it was cut off"
            raise InputError(f"`{self._name}` is no whole trace", problems=[problem], hint=hint) from None
        if number == 0:
            raise InputError(f"`{self._name}` is no trace: it has no `traceEvents`")

    def _event(self, number: int, entry: Mapping[str, Any]) -> Event:
        """Convert the JSON entry with the given number into an event. Raises InputError for invalid times."""
        name, details = printable(str(entry.get("name", "")), limit=200), entry.get("args")
        details = details if isinstance(details, dict) else {}
        start, seconds = (_number(entry.get(key)) * _MICROSECOND for key in ("ts", "dur"))
        if not math.isfinite(start) or not 0 <= seconds <= LONGEST_SECONDS:
            times = f"has ts {entry.get('ts')!r:.30}, dur {entry.get('dur')!r:.30}"
            place, words = f"{self._name}  event {grouped(number)}", f"`{printable(name, limit=60)}` {times}"
            raise InputError(f"`{self._name}` has times that are none", problems=[Problem(place, words)])
        device = details.get("device", details.get("inDevice", entry.get("pid", 0)))
        if "external id" in details:
            details = {"External id": details["external id"], **details}
        category = str(entry.get("cat", "")).lower()
        category = _OLDER.get(category, category)
        if name.startswith(_STEP) and "gpu" not in category:
            category = "user_annotation"
        device = device if isinstance(device, int) else 0
        return Event(name, category, start, seconds, device, str(entry.get("tid", ""))[:40], details)


def _number(value: object) -> float:
    """Value as a float; NaN if it is not a number."""
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else math.nan


def whole_number(value: object, most: int = 2**62) -> int:
    """Value of an event's detail if it is a whole number above zero and below `most`; otherwise 0."""
    return value if isinstance(value, int) and 0 < value < most else 0


_COPY = "CASE copyKind WHEN 1 THEN 'Memcpy HtoD' WHEN 2 THEN 'Memcpy DtoH' ELSE 'Memcpy DtoD' END"
_TABLES = {
    "CUPTI_ACTIVITY_KIND_KERNEL": ("kernel", "s.value", "deviceId, streamId", "demangledName"),
    "CUPTI_ACTIVITY_KIND_MEMCPY": ("gpu_memcpy", _COPY, "deviceId, streamId", "NULL"),
    "CUPTI_ACTIVITY_KIND_MEMSET": ("gpu_memset", "'Memset'", "deviceId, streamId", "NULL"),
    "NVTX_EVENTS": ("user_annotation", "coalesce(text, s.value)", "0, globalTid", "textId"),
}
"""Category of a table's events; columns of name, of device and thread, and of the name's id (schemas to 2026)."""


class NsightFile(TraceFile):
    """Reader of an SQLite export of Nsight Systems with the interface of `TraceFile`."""

    def __init__(self, path: Path) -> None:
        self.path, self._name = path, printable(str(path))
        self.rank, self.world_size = rank_in_name(path), None

    def events(self) -> Iterator[Event]:
        """Yield every event of the export. Raises InputError if the file is no complete export."""
        try:
            with closing(sqlite3.connect(f"{self.path.resolve().as_uri()}?mode=ro", uri=True)) as export:
                export.text_factory = lambda text: text.decode("utf-8", "replace")
                tables = {name for (name,) in export.execute("SELECT name FROM sqlite_master")}
                for table in (table for table in _TABLES if table in tables):
                    category, name_column, columns, name_id = _TABLES[table]
                    query = f"SELECT {name_column}, start / 1e3, (end - start) / 1e3, {columns} FROM {table}"
                    query += f" LEFT JOIN StringIds AS s ON s.id = {name_id} WHERE end IS NOT NULL"
                    for number, (name, start, length, device, thread) in enumerate(export.execute(query), 1):
                        entry = {"name": name, "cat": category, "ts": start, "dur": length, "tid": thread}
                        yield self._event(number, entry | {"args": {"device": device}})
        except (sqlite3.Error, OSError) as error:
            problem = Problem(self._name, printable(str(error), limit=100))
            message = f"`{self._name}` is no whole export of Nsight Systems"
            hint = "nsys export --type sqlite report.nsys-rep"
            raise InputError(message, problems=[problem], hint=hint) from None
