"""A Chrome trace of one step, predicted and measured under one another on every rank (Perfetto, chrome://tracing).

A process of the trace is a rank of the run; its lanes are the predicted step of its pipeline rank, the passes it ran
and its update, and what it waited for meanwhile. Where blocks live in host memory, lanes of the link and the CPU
follow, each as predicted and as measured. All start at zero.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from itertools import count
from pathlib import Path
from typing import Any

from cost_models.axes.offload.moves import LANE_NAMES, Lane, MoveSpan, predicted_moves
from cost_models.files.whole import write_whole
from cost_models.pipeline.pricing import PredictedSpan, predicted_spans
from executor.measure.step_spans import CarriedSpan, StepSpans
from planner.plan import Plan

LANES = (
    "predicted",
    "measured",
    "waits for others",
    *(f"{name}, {said}" for name in LANE_NAMES.values() for said in ("predicted", "measured")),
)
"""By thread id."""
_PREDICTED, _MEASURED, _WAITS, *_ = range(len(LANES))
_MICROSECONDS = 1e6
_NAMES = {"F": "forward", "B": "backward", "I": "backward input", "W": "backward weights"}
_COLOURS = {
    "F": "thread_state_running",
    "B": "thread_state_runnable",
    "I": "thread_state_runnable",
    "W": "thread_state_iowait",
}
Event = dict[str, Any]


def chrome_trace(plan: Plan, steps: Sequence[StepSpans]) -> dict[str, Any]:
    """The document: complete events in microseconds, names of ranks and lanes, arrows from sender to receiver."""
    predicted = predicted_spans(plan.question, plan.layout)
    moves = predicted_moves(plan.question, plan.layout)
    events: list[Event] = []
    numbers = count(1)
    for step in sorted(steps, key=lambda step: step.rank):
        events += [_predicted(step.rank, span) for span in predicted if span.rank == step.place.pp]
        events += _measured(step)
        events += [_moved(step.rank, move) for move in moves if move.rank == step.place.pp]
        events += [_carried(step.rank, one) for one in step.carried]
        lanes = {event["tid"] for event in events if event["pid"] == step.rank}
        events += _names(step, sorted(lanes | {_WAITS}))
    for lane in (_PREDICTED, _MEASURED):
        events += _arrows(
            [event for event in events if event["ph"] == "X" and event["tid"] == lane], steps, numbers
        )
    return {
        "displayTimeUnit": "ms",
        "traceEvents": events,
        "otherData": {
            "layout": str(plan.layout),
            "predicted_step_seconds": plan.prediction.step_seconds,
            "measured_step_seconds": max(step.end for step in steps),
        },
    }


def save_trace(trace: dict[str, Any], path: Path) -> None:
    """Write JSON, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, json.dumps(trace, allow_nan=False))


def _names(step: StepSpans, lanes: Sequence[int]) -> Iterable[Event]:
    place = step.place
    where = f"rank {step.rank} (pp {place.pp}, dp {place.dp}, cp {place.cp}, tp {place.tp})"
    yield {"ph": "M", "name": "process_name", "pid": step.rank, "args": {"name": where}}
    yield {"ph": "M", "name": "process_sort_index", "pid": step.rank, "args": {"sort_index": step.rank}}
    for lane in lanes:
        yield {"ph": "M", "name": "thread_name", "pid": step.rank, "tid": lane, "args": {"name": LANES[lane]}}
        yield {
            "ph": "M",
            "name": "thread_sort_index",
            "pid": step.rank,
            "tid": lane,
            "args": {"sort_index": lane},
        }


def _predicted(rank: int, span: PredictedSpan) -> Event:
    return _span(rank, _PREDICTED, span.kind, span.stage, span.microbatch, span.start, span.end)


def _moved(rank: int, move: MoveSpan) -> Event:
    """A predicted move, in its lane."""
    return _span(rank, _lane(move.lane), f"{move.what} {move.block}", -1, -1, move.start, move.end)


def _carried(rank: int, one: CarriedSpan) -> Event:
    """A measured one, in the lane below."""
    name = f"block {one.block}" if one.block >= 0 else "other"
    return _span(rank, _lane(one.lane) + 1, name, -1, -1, one.start, one.end)


def _lane(lane: Lane) -> int:
    """The thread id of a lane as predicted; as measured it is the next."""
    return _WAITS + 1 + 2 * list(LANE_NAMES).index(lane)


def _measured(step: StepSpans) -> Iterable[Event]:
    for span in step.work:
        yield _span(step.rank, _MEASURED, *span)
    yield _span(step.rank, _MEASURED, "update", -1, -1, step.update_start, step.end)
    for wait in step.waits:
        yield _span(step.rank, _WAITS, wait.axis, -1, -1, wait.start, wait.end)


def _span(rank: int, lane: int, kind: str, stage: int, microbatch: int, start: float, end: float) -> Event:
    event: Event = {
        "ph": "X",
        "name": kind,
        "cat": LANES[lane],
        "pid": rank,
        "tid": lane,
        "ts": start * _MICROSECONDS,
        "dur": (end - start) * _MICROSECONDS,
    }
    if kind in _NAMES:
        event["name"] = f"{_NAMES[kind]} {microbatch}"
        event["cname"] = _COLOURS[kind]
        event["args"] = {"kind": kind, "stage": stage, "microbatch": microbatch}
    return event


def _arrows(spans: Sequence[Event], steps: Sequence[StepSpans], numbers: Iterable[int]) -> list[Event]:
    """Arrows from the end of each pass to the start of the one on another rank that needed it."""
    pipeline_of = {step.rank: (step.place.dp, step.place.cp, step.place.tp) for step in steps}
    sent = {}
    for event in spans:
        said = event.get("args")
        if said and said["kind"] != "W":
            sent[pipeline_of[event["pid"]], said["kind"] == "F", said["stage"], said["microbatch"]] = event
    arrows: list[Event] = []
    ids = iter(numbers)
    for (pipeline, forward, stage, microbatch), event in sent.items():
        sender = sent.get((pipeline, forward, stage + (-1 if forward else 1), microbatch))
        if sender is None or sender["pid"] == event["pid"]:
            continue
        common = {"name": "hands on", "cat": event["cat"], "id": next(ids), "tid": event["tid"]}
        leaves, arrives = sender["ts"] + sender["dur"], event["ts"]
        arrows.append({"ph": "s", "pid": sender["pid"], "ts": leaves, **common})
        arrows.append({"ph": "f", "bp": "e", "pid": event["pid"], "ts": arrives, **common})
    return arrows
