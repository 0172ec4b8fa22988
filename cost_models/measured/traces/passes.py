"""Passes of a pipeline, microbatch by microbatch, and the work of a rank on a CPU.

Between two passes of a rank lies a send or a receive wherever the plan's action table has one: kernels between two of
them are one pass, or several that follow each other without, which are told apart by their predicted lengths. Where
the trainer annotates its passes these are taken.

Clocks of ranks differ. A message arrives after it was sent, in both directions: each bounds by how much the clock of
one stage is ahead of its neighbour's, and the middle is taken (Mills 1991, RFC 1305).

On a CPU compute is the time inside torch's operators, less that of operators inside them, and without those that only
dispatch to the same operator on the shards of a `DTensor`. Waits, passes and updates are annotated, as `run --profiler`
does.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from cost_models.measured.logs import search
from cost_models.measured.traces.events import Event, Series
from cost_models.measured.traces.exchanges import TimesByExchange
from cost_models.measured.traces.step_parts import COMPUTE, Interval, Spans, Step, patterns
from cost_models.schedules.actions import Action, ActionTable

_OPERATOR = "aten::"


class Pass(NamedTuple):
    """Begin and end in seconds of one pass (forward or backward) of one microbatch on one stage."""

    kind: str
    """The letter of the action table: F, B, I, W."""
    stage: int
    microbatch: int
    start: float
    end: float

    def earlier(self, seconds: float) -> Pass:
        """The pass by a clock that shows `seconds` less."""
        return self._replace(start=self.start - seconds, end=self.end - seconds)


Passes = Sequence[Pass]


@dataclass(slots=True)
class _Frame:
    """Host operator that is running, with the intervals so far in which no inner operator ran."""

    name: int
    end: float
    since: float
    spans: list[Interval] = field(default_factory=list)
    dispatches: bool = False


@dataclass(slots=True)
class HostSpans(Series):
    """Operators of all host threads in a CPU trace, each name a kind, and the waits, passes and updates that the
    training thread annotates."""

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
        """Add an operator or an annotation of the host."""
        kineto, begin, end = patterns(), event.start, event.start + event.seconds
        if match := search(kineto.wait, event.name):
            self.waits.append((match[1], begin, event.seconds))
        elif match := search(kineto.passed, event.name):
            self.passes.append(Pass(match[1], int(match[2]), int(match[3]), begin, end))
        elif any(word in event.name for word in kineto.update):
            self.updates.append((begin, end))
        elif search(kineto.step, event.name):
            self.training = event.thread
        self.append(begin, event.seconds, self._names.setdefault(event.name, len(self._names)))
        self.thread.append(self._threads.setdefault(event.thread, len(self._threads)))

    def passes_of(self, begin: float, seconds: float) -> tuple[Pass, ...]:
        """Annotated passes of the step that starts at `begin` and lasts `seconds`, in seconds since `begin`."""
        passes = (span.earlier(begin) for span in self.passes)
        inside = (span for span in passes if 0 <= span.start <= seconds)
        return tuple(sorted(inside, key=lambda span: span.start))

    def fill(self, spans: Spans) -> None:
        """Add the training thread's waits, updates and operators to the spans of its rank."""
        for axis, begin, seconds in self.waits:
            spans.add(begin, seconds, axis)
        spans.updates += self.updates
        for begin, end in self.updates:
            spans.add(begin, end - begin, "optimizer")
        for begin, end in self._computed():
            spans.add(begin, end - begin, "compute")

    def _computed(self) -> Iterator[Interval]:
        """Yield the intervals in which each operator of the training thread runs outside inner operators,
        innermost first."""
        thread = np.array(self.thread)
        training = self._threads.get(self.training, np.bincount(thread).argmax())
        columns = (np.array(column) for column in (self.start, self.seconds, self.kind))
        start, seconds, name = (column[thread == training] for column in columns)
        operators = {number for one, number in self._names.items() if one.startswith(_OPERATOR)}
        open_frames: list[_Frame] = []

        def close(until: float) -> Iterator[Interval]:
            while open_frames and open_frames[-1].end <= until:
                frame = open_frames.pop()
                frame.spans.append((frame.since, frame.end))
                if open_frames:
                    open_frames[-1].since = frame.end
                if frame.name in operators and not frame.dispatches:
                    yield from (span for span in frame.spans if span[1] > span[0])

        for index in np.lexsort((-seconds, start)).tolist():
            begin, end, kind = float(start[index]), float(start[index] + seconds[index]), int(name[index])
            yield from close(begin)
            if open_frames:
                outer = open_frames[-1]
                outer.spans.append((outer.since, begin))
                outer.dispatches |= outer.name == kind
                end = min(end, outer.end)
            open_frames.append(_Frame(name=kind, end=end, since=begin))
        yield from close(float("inf"))


_TICK = 1e-6
"""Seconds by which what follows on another may seem to begin before it, as clocks are rounded."""


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Action table of a plan's pipeline, with the expected seconds of each kind of pass on each stage."""

    table: ActionTable
    expected: Mapping[tuple[str, int], float]

    def sends(self, action: Action) -> bool:
        """Whether the output of a pass goes to a stage on another rank."""
        return action.kind != "W" and self._leaves(action.stage, forward=action.kind == "F")

    def receives(self, action: Action) -> bool:
        """Whether the input of a pass comes from a stage on another rank."""
        return action.kind != "W" and self._leaves(action.stage, forward=action.kind != "F")

    def _leaves(self, stage: int, *, forward: bool) -> bool:
        """Whether the next stage (with `forward`), or the previous one, is on another rank."""
        neighbour, ranks = stage + (1 if forward else -1), self.table.rank_of_stage
        return 0 <= neighbour < len(ranks) and bool(ranks[neighbour] != ranks[stage])


def passes_of(step: Step, exchanges: TimesByExchange, pipeline: Pipeline, place: int) -> tuple[Pass, ...]:
    """Passes of the rank at `place` in the pipeline, in order; empty where its sends do not follow the action
    table."""
    # sorted times at which a pass may end (a send begins) or begin (a receive ends)
    cuts = []
    for kind, times in exchanges.items():
        if kind.axis == "pp" and kind.operation in ("send", "recv", "p2p"):
            cuts += [start for start, _ in times if kind.operation != "recv"]
            cuts += [start + seconds for start, seconds in times if kind.operation != "send"]
    computes = step.kind == COMPUTE
    low, high = step.low[computes], step.high[computes]
    if not len(low):
        return ()
    bursts = np.searchsorted(np.sort(np.array(cuts)) - _TICK, low, side="right")
    first = np.flatnonzero(np.diff(bursts, prepend=-1))
    ranges = zip(first, [*first[1:], len(low)], strict=True)
    spans = [(float(low[begin]), float(high[begin:end].max())) for begin, end in ranges]
    runs = _runs(pipeline, place)
    if len(spans) != len(runs):
        return ()
    passes: list[Pass] = []
    for (begin, end), run in zip(spans, runs, strict=True):
        lengths = np.array([pipeline.expected.get((one.kind, one.stage), 1.0) for one in run])
        shares = np.concatenate([[0.0], np.cumsum(lengths) / lengths.sum()])
        edges = pairwise((begin + (end - begin) * shares).tolist())
        passes += [Pass(*action, *times) for action, times in zip(run, edges, strict=True)]
    return tuple(passes)


def _runs(pipeline: Pipeline, place: int) -> list[list[Action]]:
    """Pipeline actions of a rank in order, grouped wherever none sends or receives in between."""
    runs: list[list[Action]] = []
    for action in pipeline.table.actions(place):
        if not runs or pipeline.sends(runs[-1][-1]) or pipeline.receives(action):
            runs.append([])
        runs[-1].append(action)
    return runs


def aligned(passes: Mapping[int, Sequence[Pass]], pipeline: Pipeline) -> dict[int, tuple[Pass, ...]]:
    """Passes of one pipeline replica by place, shifted to one common clock, in seconds since the first pass."""
    all_passes = [span for each in passes.values() for span in each]
    passes_by_key = {(span.kind == "F", span.stage, span.microbatch): span for span in all_passes}
    ranks = pipeline.table.rank_of_stage.tolist()
    ahead: dict[tuple[int, int], list[float]] = {}
    for (forward, stage, microbatch), span in passes_by_key.items():
        sender = passes_by_key.get((forward, stage + (-1 if forward else 1), microbatch))
        if sender is None or span.kind == "W" or ranks[stage] == ranks[sender.stage]:
            continue
        sender_rank, receiver_rank = ranks[sender.stage], ranks[stage]
        ahead.setdefault((sender_rank, receiver_rank), []).append(span.start - sender.end)
    shift = {min(passes): 0.0}
    for _ in passes:  # a clock is known once a neighbour's is
        for (sender_rank, receiver_rank), gaps in ahead.items():
            if sender_rank in shift and receiver_rank not in shift and (receiver_rank, sender_rank) in ahead:
                upper, lower = min(gaps), -min(ahead[receiver_rank, sender_rank])
                shift[receiver_rank] = shift[sender_rank] + (upper + lower) / 2
    known = [place for place in passes if place in shift]
    shifted = {place: [span.earlier(shift[place]) for span in passes[place]] for place in known}
    origin = min(span.start for each in shifted.values() for span in each)
    return {place: tuple(span.earlier(origin) for span in each) for place, each in shifted.items()}


def bubble_of(step: Step, passes: Passes, all_passes: Passes, begin: float, all_there: float) -> float:
    """Seconds of a step that a pipeline rank spends waiting for another stage that is not done yet.

    `passes` are the rank's and `all_passes` the replica's, in seconds since `begin` of this rank's clock; `all_there`
    is when the last stage begins its update.
    """
    ends = {(one.kind == "F", one.stage, one.microbatch): one.end for one in all_passes if one.kind != "W"}
    updating, bubble = updating_of(step, passes, begin), 0.0
    for low, high in ((low - begin, high - begin) for low, high in step.sends):
        next_pass = next((one for one in passes if one.start >= low and one.kind != "W"), None)
        if next_pass is not None:
            forward = next_pass.kind == "F"
            ready = ends.get((forward, next_pass.stage + (-1 if forward else 1), next_pass.microbatch), 0.0)
        else:
            ready = all_there if low >= updating else 0.0
        bubble += min(max(0.0, ready - low), high - low)
    return bubble


def updating_of(step: Step, passes: Passes, begin: float) -> float:
    """Start of a rank's optimizer update, in seconds since `begin`, by the annotation or else the end of its
    last pass."""
    return max(one.end for one in passes) if step.updating is None else step.updating - begin
