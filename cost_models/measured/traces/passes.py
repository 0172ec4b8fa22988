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

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from cost_models.measured.logs import search
from cost_models.measured.traces.events import Columns, Event
from cost_models.measured.traces.kernels import TimesByExchange
from cost_models.measured.traces.step_parts import COMPUTE, Interval, Spans, Step, patterns
from cost_models.schedules.actions import Action, ActionTable


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


class HostSpans(Columns):
    """Operators of all host threads in a CPU trace (begin, seconds, numbers of name and thread), and the waits, passes
    and updates that the training thread annotates."""

    def __init__(self) -> None:
        super().__init__("ddii")
        self.waits: list[tuple[str, float, float]] = []
        """Axis, begin, seconds."""
        self.passes: list[Pass] = []
        self.updates: list[Interval] = []
        self.training = ""
        """The thread that annotates steps."""
        self._names: dict[str, int] = {}
        self._threads: dict[str, int] = {}

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
        name = self._names.setdefault(event.name, len(self._names))
        thread = self._threads.setdefault(event.thread, len(self._threads))
        self.append(begin, event.seconds, name, thread)

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
        for part, intervals in (("optimizer", self.updates), ("compute", self._computed())):
            for begin, end in intervals:
                spans.add(begin, end - begin, part)

    def _computed(self) -> list[Interval]:
        """Intervals in which an operator of the training thread runs and no operator inside it does, in order of time;
        an operator that only dispatches to one of its name does not count."""
        columns, thread = self.arrays()[:3], self.arrays()[3]
        training = self._threads.get(self.training, np.bincount(thread).argmax())
        start, seconds, name = (column[thread == training] for column in columns)
        counts = np.isin(name, [number for word, number in self._names.items() if word.startswith("aten::")])
        begins, ends = start.tolist(), (start + seconds).tolist()
        open_events: list[int] = []
        changes: list[tuple[float, int]] = []  # moment, and the innermost event from then on (-1: none)

        def close(until: float) -> None:
            while open_events and ends[open_events[-1]] <= until:
                end = ends[open_events.pop()]
                changes.append((end, open_events[-1] if open_events else -1))

        for index in np.lexsort((-seconds, start)).tolist():
            close(begins[index])
            if open_events:
                outer = open_events[-1]
                counts[outer] &= name[outer] != name[index]
                ends[index] = min(ends[index], ends[outer])
            open_events.append(index)
            changes.append((begins[index], index))
        close(math.inf)
        spans = ((low, high) for (low, event), (high, _) in pairwise(changes) if event >= 0 and counts[event])
        return [(low, high) for low, high in spans if high > low]


_TICK = 1e-6
"""Seconds by which what follows on another may seem to begin before it, as clocks are rounded."""


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Action table of a plan's pipeline, with the expected seconds of each kind of pass on each stage."""

    table: ActionTable
    expected: Mapping[tuple[str, int], float]

    def crosses(self, action: Action, *, output: bool) -> bool:
        """Whether the `output` of a pass, or else its input, passes between stages on different ranks."""
        neighbour = action.stage + (1 if (action.kind == "F") == output else -1)
        ranks = self.table.rank_of_stage
        has_neighbour = action.kind != "W" and 0 <= neighbour < len(ranks)
        return has_neighbour and bool(ranks[neighbour] != ranks[action.stage])


def passes_of(step: Step, exchanges: TimesByExchange, pipeline: Pipeline, place: int) -> tuple[Pass, ...]:
    """Passes of the rank at `place` in the pipeline, in order; empty where its sends do not follow the action
    table."""
    cuts = []  # times at which a pass may end (a send begins) or begin (a receive ends)
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
        cut = runs and pipeline.crosses(runs[-1][-1], output=True)
        if not runs or cut or pipeline.crosses(action, output=False):
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
        if sender is not None and span.kind != "W" and ranks[stage] != ranks[sender.stage]:
            ahead.setdefault((ranks[sender.stage], ranks[stage]), []).append(span.start - sender.end)
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
