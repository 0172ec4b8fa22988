"""Collectives of a rank's trace by axis, operation and size; those of several ranks matched, to tell who is late.

All members of a collective end together, so the one whose kernel is shortest came last, whatever their clocks say; the
others waited by as much as theirs are longer.
"""

from __future__ import annotations

import re
from array import array
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import NamedTuple

import numpy as np

from cost_models.axes.layout import Layout
from cost_models.measured.traces.events import Event
from cost_models.measured.traces.kernels import AXES
from cost_models.measured.traces.splitting import Step

_OPERATIONS = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "broadcast": "broadcast",
    "sendrecv": "p2p",
    "send": "send",
    "recv": "recv",
    "coalesced": "p2p",
}
"""Word in the name of a collective or its kernel, without `_` → operation."""
_BYTES = {"double": 8, "long": 8, "float": 4, "int": 4, "bfloat16": 2, "half": 2}
"""Type of elements as torch's traces call it → bytes; all others have one."""
_MOST_KINDS = 100_000
LATE = 0.02
"""Share of a step from which a late rank is named."""
_MOSTLY = 0.6
"""Share of its collectives to which a late rank must have come last."""


class Exchange(NamedTuple):
    """What tells one kind of collective from others."""

    axis: str
    operation: str
    """`all_reduce`, `all_gather`, ...; `p2p` is a send and a receive in one kernel."""
    group: str
    """The ranks, as the trace names them, or the group's description."""
    size: int
    """Ranks; 0: not told."""
    message_bytes: float
    """Of the whole tensor; 0: not told."""


@dataclass(slots=True)
class Exchanges:
    """The kernels of a trace that communicate."""

    start: array[float] = field(default_factory=lambda: array("d"))
    seconds: array[float] = field(default_factory=lambda: array("d"))
    kind: array[int] = field(default_factory=lambda: array("i"))
    kinds: dict[Exchange, int] = field(default_factory=dict)

    def add(self, event: Event, axis: str) -> None:
        """Keep a kernel."""
        one = _exchange(event, axis)
        if one in self.kinds or len(self.kinds) < _MOST_KINDS:
            self.start.append(event.start)
            self.seconds.append(event.seconds)
            self.kind.append(self.kinds.setdefault(one, len(self.kinds)))

    def within(self, step: Step) -> dict[Exchange, list[tuple[float, float]]]:
        """Begin and seconds of each exchange of a step, by kind, in order of time."""
        start, seconds, kind = np.array(self.start), np.array(self.seconds), np.array(self.kind)
        inside = np.flatnonzero((start >= step.begin) & (start < step.begin + step.seconds))
        named, found = list(self.kinds), defaultdict(list)
        for index in inside[np.argsort(start[inside], kind="stable")].tolist():
            found[named[kind[index]]].append((float(start[index]), float(seconds[index])))
        return dict(found)


def _exchange(event: Event, axis: str) -> Exchange:
    said = event.details
    called = str(said.get("Collective name") or event.name).lower().replace("_", "")
    operation = next((one for word, one in _OPERATIONS.items() if word in called), "")
    sent, got = (_count(said.get(f"{way} msg nelems")) for way in ("In", "Out"))
    width = _BYTES.get(str(said.get("dtype", "float")).lower(), 1)
    size = said.get("Group size")
    return Exchange(
        axis=axis,
        operation=operation,
        group=str(said.get("Process Group Ranks") or said.get("Process Group Description") or "")[:4_000],
        size=size if isinstance(size, int) and 0 < size < 10**9 else 0,
        message_bytes=float(width * (max(sent, got) if operation != "all_to_all" else sent)),
    )


def _count(value: object) -> int:
    return value if isinstance(value, int) and 0 <= value < 10**15 else 0


class Late(NamedTuple):
    """A rank that others wait for."""

    rank: int
    seconds: float
    """Of a step in which one of its groups waits for it alone."""
    share: float
    """Of its collectives to which it came last, or with the last."""


class Arrival(NamedTuple):
    """A rank at a collective."""

    rank: int
    at: float
    """By its own clock."""
    waited: float
    """Seconds that the first to come waited for it."""


def arrivals(
    found: Mapping[int, Mapping[Exchange, list[tuple[float, float]]]], layout: Layout
) -> list[list[Arrival]]:
    """Who came when to each collective that was matched."""
    groups: dict[tuple[object, ...], dict[int, list[tuple[float, float]]]] = defaultdict(dict)
    for rank, exchanges in found.items():
        for kind, times in exchanges.items():
            group = _members(kind, layout, rank)
            if group is not None:
                groups[group, kind.axis, kind.operation, kind.group, kind.message_bytes][rank] = times
    matched = []
    for members in groups.values():
        if len(members) < 2 or len({len(times) for times in members.values()}) > 1:
            continue
        for here in zip(*members.values(), strict=True):
            longest = max(seconds for _, seconds in here)
            pairs = zip(members, here, strict=True)
            matched.append([Arrival(rank, start, longest - seconds) for rank, (start, seconds) in pairs])
    return matched


def _members(kind: Exchange, layout: Layout, rank: int) -> object:
    """What tells a group from the others of its axis; None where nothing does, or it does not meet as a whole."""
    if kind.axis not in AXES or kind.operation in ("", "send", "recv", "p2p"):
        return None
    if kind.group.startswith("["):  # of one stage: others end later as planned
        places = {layout.place_along("pp", int(one)) for one in re.findall(r"\d{1,9}", kind.group)}
        return kind.group if len(places) == 1 else None
    if kind.axis == "ep":
        return None
    return rank - layout.place_along(kind.axis, rank) * layout.stride(kind.axis)


def late_ranks(matched: Sequence[Sequence[Arrival]], step_seconds: float) -> tuple[Late, ...]:
    """Ranks that come last to most of their collectives and cost their groups a share of the step, worst first."""
    lost: dict[int, float] = defaultdict(float)
    last: dict[int, list[bool]] = defaultdict(list)
    for members in matched:
        most = max(one.waited for one in members)
        others = [one.waited for one in members if one.waited <= most / 2]
        for one in members:
            last[one.rank].append(one.waited > most / 2)
            lost[one.rank] += one.waited - median(others) if one.waited > most / 2 else 0.0
    late = [
        Late(rank, seconds, sum(last[rank]) / len(last[rank]))
        for rank, seconds in lost.items()
        if seconds >= LATE * step_seconds and sum(last[rank]) >= _MOSTLY * len(last[rank])
    ]
    return tuple(sorted(late, key=lambda one: -one.seconds))
