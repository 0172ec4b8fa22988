"""The SQLite export of Nsight Systems as spans of a trace: kernels, copies, NVTX ranges. It names no process groups, so
collectives are of an axis only where one alone can be meant."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from cost_models.documents import printable
from cost_models.errors import InputError, Problem
from cost_models.measured.traces.events import Event, TraceFile, rank_in_name

_COPY = "CASE copyKind WHEN 1 THEN 'Memcpy HtoD' WHEN 2 THEN 'Memcpy DtoH' ELSE 'Memcpy DtoD' END"
_TABLES = {
    "CUPTI_ACTIVITY_KIND_KERNEL": ("kernel", "s.value", "deviceId, streamId", "demangledName"),
    "CUPTI_ACTIVITY_KIND_MEMCPY": ("gpu_memcpy", _COPY, "deviceId, streamId", "NULL"),
    "CUPTI_ACTIVITY_KIND_MEMSET": ("gpu_memset", "'Memset'", "deviceId, streamId", "NULL"),
    "NVTX_EVENTS": ("user_annotation", "coalesce(text, s.value)", "0, globalTid", "textId"),
}
"""Table → category of its events; where their name, device and thread stand; the name's number (schemas to 2026)."""


class NsightFile(TraceFile):
    """An export, read as a trace is."""

    def __init__(self, path: Path) -> None:
        self.path, self.rank, self.world_size = path, rank_in_name(path), None

    def events(self) -> Iterator[Event]:
        try:
            with closing(sqlite3.connect(f"{self.path.resolve().as_uri()}?mode=ro", uri=True)) as export:
                export.text_factory = lambda text: text.decode("utf-8", "replace")
                there = {name for (name,) in export.execute("SELECT name FROM sqlite_master")}
                for table in (table for table in _TABLES if table in there):
                    category, called, where, named = _TABLES[table]
                    asked = f"SELECT {called}, start / 1e3, (end - start) / 1e3, {where} FROM {table}"
                    asked += f" LEFT JOIN StringIds AS s ON s.id = {named} WHERE end IS NOT NULL"
                    for number, (name, start, length, device, thread) in enumerate(export.execute(asked), 1):
                        said = {"name": name, "cat": category, "ts": start, "dur": length, "tid": thread}
                        yield self._event(number, said | {"args": {"device": device}})
        except (sqlite3.Error, OSError) as error:
            raise InputError(
                f"`{self._name}` is no whole export of Nsight Systems",
                problems=[Problem(self._name, printable(str(error), limit=100))],
                hint="nsys export --type sqlite report.nsys-rep",
            ) from None
