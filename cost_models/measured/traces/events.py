"""The events of a trace file (Chrome's JSON, packed or not), one at a time in bounded memory."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import ijson

from cost_models.documents import printable
from cost_models.errors import InputError, Problem
from cost_models.files.reading import Nesting
from cost_models.measured.logs.lines import LONGEST_SECONDS, chunks_of
from cost_models.units import grouped

_LARGEST_EVENT = 1 << 26
"""Bytes without the end of an event: no event is as large."""
_HEAD = 1 << 18
"""Bytes in which a trace says whose it is, before its events."""
_RANK = re.compile(rb'"rank": *(\d{1,9})')
_WORLD = re.compile(rb'"world_size": *(\d{1,9})')
_RANK_IN_NAME = re.compile(r"rank[-_.]?(\d{1,9})", re.IGNORECASE)
_MICROSECOND = 1e-6
_OLDER = {
    "memcpy": "gpu_memcpy", "memset": "gpu_memset", "operator": "cpu_op", "runtime": "cuda_runtime",
}  # fmt: skip
"""Category of PyTorch 1.8 to 1.13 in small letters → today's (libkineto/src/output_json.cpp of 2021 and 2022)."""
_STEP = "ProfilerStep#"
"""Begin of the annotation that PyTorch 1.8 wrote among the operators."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One span of a trace."""

    name: str
    category: str
    start: float
    """Seconds by the clock of its machine."""
    seconds: float
    device: int
    thread: str
    """Of the host; on a GPU the stream."""
    details: Mapping[str, Any]


def rank_in_name(path: Path) -> int | None:
    """The rank that a file is named after, as `trace_rank3.json`."""
    named = _RANK_IN_NAME.search(path.name)
    return int(named[1]) if named else None


class TraceFile:
    """A file that is read once: whose it is, then its spans."""

    def __init__(self, path: Path) -> None:
        """Raises InputError: the file cannot be read, or is no JSON."""
        self.path = path
        self._since, self._nesting = 0, Nesting(self._name)
        self._chunks = chunks_of(path)
        first = next(self._chunks, b"")
        while first and len(first) < _HEAD and (more := next(self._chunks, b"")):
            first += more
        self._listed = first.lstrip()[:1] == b"["
        if not first.lstrip().startswith((b"{", b"[")):
            raise InputError(
                f"`{self._name}` is no trace: it does not begin as JSON does",
                hint="torch.profiler writes one: export_chrome_trace, or tensorboard_trace_handler",
            )
        head = first.partition(b'"traceEvents"')[0]
        rank, world = _RANK.search(head), _WORLD.search(head)
        self.rank = int(rank[1]) if rank else rank_in_name(path)
        """None where nothing says it."""
        self.world_size = int(world[1]) if world else None
        self._chunks = chain([first], self._chunks)

    @property
    def _name(self) -> str:
        return printable(str(self.path))

    def read(self, size: int = -1) -> bytes:
        """What the parser asks for; its first question is for nothing."""
        if size == 0:
            return b""
        chunk = next(self._chunks, b"")
        self._nesting.take(chunk)
        self._since += len(chunk)
        if self._since > _LARGEST_EVENT + _HEAD:
            raise InputError(f"`{self._name}` has an event of more than 64 MiB; it is no trace")
        return chunk

    def events(self) -> Iterator[Event]:
        """Every complete span.

        Raises:
            InputError: broken JSON, no list of events, times that are none; with the number of the event.
        """
        number = 0
        try:
            for number, said in enumerate(
                ijson.items(self, "item" if self._listed else "traceEvents.item", use_float=True), start=1
            ):
                self._since = 0
                if isinstance(said, dict) and said.get("ph") == "X":
                    yield self._event(number, said)
        except ijson.JSONError as error:
            said = str(error).splitlines()[0]
            ends = "premature" in said or "ncomplete" in said
            what = "the file ends inside an event" if ends else printable(said, limit=100)
            raise InputError(
                f"`{self._name}` is no whole trace",
                problems=[Problem(f"{self._name}  event {grouped(number + 1)}", what)],
                hint="export it again, or copy it again where it was cut off",
            ) from None
        if number == 0:
            raise InputError(f"`{self._name}` is no trace: it has no `traceEvents`")

    def _event(self, number: int, said: Mapping[str, Any]) -> Event:
        name, details = printable(str(said.get("name", "")), limit=200), said.get("args")
        details = details if isinstance(details, dict) else {}
        start, seconds = (_number(said.get(key)) * _MICROSECOND for key in ("ts", "dur"))
        if not math.isfinite(start) or not 0 <= seconds <= LONGEST_SECONDS:
            raise InputError(
                f"`{self._name}` has times that are none",
                problems=[
                    Problem(
                        f"{self._name}  event {grouped(number)}",
                        f"`{printable(name, limit=60)}` has ts {said.get('ts')!r:.30}, dur {said.get('dur')!r:.30}",
                    )
                ],
            )
        device = details.get("device", details.get("inDevice", said.get("pid", 0)))
        if "external id" in details:
            details = {"External id": details["external id"], **details}
        category = str(said.get("cat", "")).lower()
        return Event(
            name=name,
            category="user_annotation"
            if name.startswith(_STEP) and "gpu" not in category
            else _OLDER.get(category, category),
            start=start,
            seconds=seconds,
            device=device if isinstance(device, int) else 0,
            thread=str(said.get("tid", ""))[:40],
            details=details,
        )


def _number(value: object) -> float:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else math.nan
