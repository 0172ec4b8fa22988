"""What a rank on a CPU did, from the operators and annotations of its training thread.

compute is the time inside torch's operators, less that of operators inside them, and without those that only dispatch
to the same operator on the shards of a `DTensor`. What a rank waits for, passes and updates are annotated, as
`run --profiler` does.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from cost_models.measured.logs.formats import search
from cost_models.measured.traces.events import Event
from cost_models.measured.traces.kernels import patterns
from cost_models.measured.traces.splitting import Interval, Spans

_OPERATOR = "aten::"


class Pass(NamedTuple):
    """One pass of one microbatch, in seconds."""

    kind: str
    """The letter of the action table: F, B, I, W."""
    stage: int
    microbatch: int
    start: float
    end: float


@dataclass(slots=True)
class _Frame:
    """An operator that runs: its own time so far, and whether it only dispatches."""

    name: int
    end: float
    since: float
    own: list[Interval] = field(default_factory=list)
    dispatches: bool = False


@dataclass(slots=True)
class HostSpans:
    """Operators of all threads, and what the training thread annotates."""

    start: array[float] = field(default_factory=lambda: array("d"))
    seconds: array[float] = field(default_factory=lambda: array("d"))
    name: array[int] = field(default_factory=lambda: array("i"))
    thread: array[int] = field(default_factory=lambda: array("i"))
    waits: list[tuple[str, float, float]] = field(default_factory=list)
    """Axis, begin, seconds."""
    passes: list[Pass] = field(default_factory=list)
    updates: list[Interval] = field(default_factory=list)
    training: str = ""
    """The thread that annotates steps."""
    _names: dict[str, int] = field(default_factory=dict)
    _threads: dict[str, int] = field(default_factory=dict)

    def add(self, event: Event) -> None:
        """Keep an operator or an annotation."""
        told, begin, end = patterns(), event.start, event.start + event.seconds
        if found := search(told.wait, event.name):
            self.waits.append((found[1], begin, event.seconds))
        elif found := search(told.passed, event.name):
            self.passes.append(Pass(found[1], int(found[2]), int(found[3]), begin, end))
        elif any(word in event.name for word in told.update):
            self.updates.append((begin, end))
        elif search(told.step, event.name):
            self.training = event.thread
        self.start.append(begin)
        self.seconds.append(event.seconds)
        self.name.append(self._names.setdefault(event.name, len(self._names)))
        self.thread.append(self._threads.setdefault(event.thread, len(self._threads)))

    def passes_of(self, begin: float, seconds: float) -> tuple[Pass, ...]:
        """Those of a step, in seconds since it began."""
        moved = [one._replace(start=one.start - begin, end=one.end - begin) for one in self.passes]
        return tuple(sorted((one for one in moved if 0 <= one.start <= seconds), key=lambda one: one.start))

    def fill(self, spans: Spans) -> None:
        """Add what the training thread did to the spans of its rank."""
        for axis, begin, seconds in self.waits:
            spans.add(begin, seconds, axis)
        spans.updates += self.updates
        for begin, end in self.updates:
            spans.add(begin, end - begin, "optimizer")
        for begin, end in self._computed():
            spans.add(begin, end - begin, "compute")

    def _computed(self) -> Iterator[Interval]:
        """The own time of every operator of the training thread, from the innermost out."""
        thread = np.array(self.thread)
        mine = np.flatnonzero(thread == self._threads.get(self.training, np.bincount(thread).argmax()))
        start, seconds, name = (np.array(one)[mine] for one in (self.start, self.seconds, self.name))
        operators = {number for one, number in self._names.items() if one.startswith(_OPERATOR)}
        open_frames: list[_Frame] = []

        def close(until: float) -> Iterator[Interval]:
            while open_frames and open_frames[-1].end <= until:
                done = open_frames.pop()
                done.own.append((done.since, done.end))
                if open_frames:
                    open_frames[-1].since = done.end
                if done.name in operators and not done.dispatches:
                    yield from (span for span in done.own if span[1] > span[0])

        for index in np.lexsort((-seconds, start)).tolist():
            begin, end, kind = float(start[index]), float(start[index] + seconds[index]), int(name[index])
            yield from close(begin)
            if open_frames:
                above = open_frames[-1]
                above.own.append((above.since, begin))
                above.dispatches |= above.name == kind
                end = min(end, above.end)
            open_frames.append(_Frame(name=kind, end=end, since=begin))
        yield from close(float("inf"))
