"""The passes of a pipeline, microbatch by microbatch, from what each of its ranks computes, sends and receives.

Between two passes of a rank lies a send or a receive wherever the plan's action table has one: kernels between two of
them are one pass, or several that follow each other without, which are told apart by their predicted lengths. Where
the trainer annotates its passes these are taken.

Clocks of ranks differ. A message arrives after it was sent, in both directions: each bounds by how much the clock of
one stage is ahead of its neighbour's, and the middle is taken (Mills 1991, RFC 1305).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from cost_models.arrays import Array
from cost_models.measured.traces.exchanges import Exchange
from cost_models.measured.traces.host import Pass
from cost_models.measured.traces.splitting import COMPUTE, Step
from cost_models.schedules.actions import Action, ActionTable

_TICK = 1e-6
"""Seconds by which what follows on another may seem to begin before it, as clocks are rounded."""
Timed = Mapping[Exchange, list[tuple[float, float]]]


@dataclass(frozen=True, slots=True)
class Pipeline:
    """The table of a plan, and how long it expects each kind of pass on each stage to take."""

    table: ActionTable
    expected: Mapping[tuple[str, int], float]

    def sends(self, action: Action) -> bool:
        """Whether what a pass makes goes to another rank."""
        return self._leaves(action.stage, forward=action.kind == "F") and action.kind != "W"

    def receives(self, action: Action) -> bool:
        """Whether what it needs comes from one."""
        return self._leaves(action.stage, forward=action.kind != "F") and action.kind != "W"

    def _leaves(self, stage: int, *, forward: bool) -> bool:
        """Whether the next stage, or the one before, is on another rank."""
        other, ranks = stage + (1 if forward else -1), self.table.rank_of_stage
        return 0 <= other < len(ranks) and bool(ranks[other] != ranks[stage])


def passes_of(step: Step, exchanges: Timed, pipeline: Pipeline, place: int) -> tuple[Pass, ...]:
    """Every pass of one rank at that place of the pipeline; none where its sends do not follow the table."""
    cuts = _cuts(exchanges)
    mine = step.kind == COMPUTE
    low, high = step.low[mine], step.high[mine]
    if not len(low):
        return ()
    bursts = np.searchsorted(cuts, low, side="right")
    first = np.flatnonzero(np.diff(bursts, prepend=-1))
    spans = [
        (float(low[a]), float(high[a:b].max())) for a, b in zip(first, [*first[1:], len(low)], strict=True)
    ]
    runs = _runs(pipeline, place)
    if len(spans) != len(runs):
        return ()
    found: list[Pass] = []
    for (begin, end), run in zip(spans, runs, strict=True):
        lengths = np.array([pipeline.expected.get((one.kind, one.stage), 1.0) for one in run])
        edges = begin + (end - begin) * np.concatenate([[0.0], np.cumsum(lengths) / lengths.sum()])
        found += [
            Pass(*one, float(a), float(b)) for one, a, b in zip(run, edges[:-1], edges[1:], strict=True)
        ]
    return tuple(found)


def _cuts(exchanges: Timed) -> Array:
    """When a pass may end, as something is sent, or begin, as something is there."""
    cuts = [
        moment
        for kind, times in exchanges.items()
        if kind.axis == "pp" and kind.operation in ("send", "recv", "p2p")
        for start, seconds in times
        for moment in ([start] if kind.operation != "recv" else [])
        + [start + seconds] * (kind.operation != "send")
    ]
    return np.sort(np.array(cuts)) - _TICK


def _runs(pipeline: Pipeline, place: int) -> list[list[Action]]:
    """The actions of a rank, those together between which nothing is sent or received."""
    number, runs = 0, []
    actions = pipeline.table.actions(place)
    for index, action in enumerate(actions):
        number += index > 0 and (pipeline.sends(actions[index - 1]) or pipeline.receives(action))
        runs.append((number, action))
    return [[action for _, action in run] for _, run in groupby(runs, key=lambda one: one[0])]


def aligned(passes: Mapping[int, Sequence[Pass]], pipeline: Pipeline) -> dict[int, tuple[Pass, ...]]:
    """Passes by place in the pipeline, of one replica, on the clock of the first place, from the first pass on."""
    sent = {(one.kind == "F", one.stage, one.microbatch): one for each in passes.values() for one in each}
    ranks = pipeline.table.rank_of_stage.tolist()
    ahead: dict[tuple[int, int], list[float]] = {}
    for (forward, stage, microbatch), one in sent.items():
        sender = sent.get((forward, stage + (-1 if forward else 1), microbatch))
        if sender is None or one.kind == "W" or ranks[stage] == ranks[sender.stage]:
            continue
        here, there = ranks[sender.stage], ranks[stage]
        ahead.setdefault((here, there), []).append(one.start - sender.end)
    shift = {min(passes): 0.0}
    for _ in passes:  # a clock is known once a neighbour's is
        for (here, there), gaps in ahead.items():
            if here in shift and there not in shift and (there, here) in ahead:
                most, least = min(gaps), -min(ahead[there, here])
                shift[there] = shift[here] + (most + least) / 2
    moved = {
        place: [one._replace(start=one.start - shift[place], end=one.end - shift[place]) for one in each]
        for place, each in passes.items()
        if place in shift
    }
    origin = min(one.start for each in moved.values() for one in each)
    return {
        place: tuple(one._replace(start=one.start - origin, end=one.end - origin) for one in each)
        for place, each in moved.items()
    }


def bubble_of(
    step: Step, passes: Sequence[Pass], every: Sequence[Pass], begin: float, all_there: float
) -> float:
    """Seconds of a step in which a rank waits for another stage that is not done yet.

    `passes` are its own and `every` those of its replica, in seconds since `begin` of this rank's clock; `all_there` is
    when the last stage begins its update.
    """
    ends = {(one.kind == "F", one.stage, one.microbatch): one.end for one in every if one.kind != "W"}
    updating, bubble = updating_of(step, passes, begin), 0.0
    for low, high in ((low - begin, high - begin) for low, high in step.sends):
        after = next((one for one in passes if one.start >= low and one.kind != "W"), None)
        if after is not None:
            forward = after.kind == "F"
            ready = ends.get((forward, after.stage + (-1 if forward else 1), after.microbatch), 0.0)
        else:
            ready = all_there if low >= updating else 0.0
        bubble += min(max(0.0, ready - low), high - low)
    return bubble


def updating_of(step: Step, passes: Sequence[Pass], begin: float) -> float:
    """When a rank begins its update, in seconds since `begin`: as annotated, else after its last pass."""
    return max(one.end for one in passes) if step.updating is None else step.updating - begin
