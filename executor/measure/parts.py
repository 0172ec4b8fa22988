"""Time of a step by part: recorded spans of a step, kernels of torch's profiler, and the trace file of both.

**Spans** of passes and waits are on a clock that all ranks start together. All ranks leave a barrier, and that moment
is zero on each of them: clocks of different hosts need not agree, and spans of different ranks are as far off as ranks
left it apart. Watching slows a step down a little.

**Trace.** A Chrome trace (Perfetto, chrome://tracing) has one step, predicted and measured, of every rank. A process of
the trace is a rank of the run; its lanes are the predicted step of its pipeline rank, the passes it ran and its update,
and what it waited for meanwhile. Where blocks live in host memory, lanes of the link and the CPU follow, each as
predicted and as measured. All start at zero.

**Parts** add up to the step, which ends with its slowest rank:

compute    operators of forward and backward
host       what drives them: Python, autograd, dispatch; on a GPU also when nothing is queued
tp, cp, ep, dp, pp _comm   communication that no compute hides; of data-parallel ranks also in the update
offload    on a GPU, copies to and from host memory that no compute hides
bubble     waiting for another stage that is not done yet, and for the slowest rank at the end
optimizer  the update without communication
other      on a CPU time in which the training thread neither computed nor waited for ranks: others had its core

What a stage waits for is split by the common clock: until the sender's pass has ended it is bubble, then `pp_comm`.
In the update it is bubble until the last rank is there.

The share of operators is taken by torch's profiler from one step. On a CPU it is the time inside torch's operators,
without those inside waits and those that only dispatch to the same operator on the shards of a `DTensor`. On a GPU it
is the time in which a kernel other than NCCL's runs, without copies to and from the host. A share, because a busy
machine stretches operators and the rest alike.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch.distributed as dist
from torch import Tensor
from torch._C._autograd import DeviceType
from torch._C._profiler import _RecordFunctionFast
from torch.autograd.profiler_util import FunctionEvent
from torch.profiler import ProfilerActivity, profile, record_function

from cost_models.axes.offload.moves import LANE_NAMES, MoveSpan, predicted_moves
from cost_models.base import Spec
from cost_models.files.whole import write_whole
from cost_models.pipeline.pricing import PredictedSpan, predicted_spans
from cost_models.schedules.actions import KINDS
from executor.mesh import Place
from executor.messages import gather_json
from executor.timing import (
    AXES,
    OFFLOAD,
    WAITS,
    Carried,
    Mark,
    Pass,
    Wait,
    Waits,
    finish,
    lap_between,
    mark_on,
)
from planner.plan import Plan

if TYPE_CHECKING:
    from executor.engine.engine import Engine


class StepSpans(Spec):
    """Recorded passes, waits and copies of one step on one rank; times in seconds from the common start."""

    rank: int
    place: Place
    work: tuple[Pass[float], ...]
    waits: tuple[Wait[float], ...]
    """Waits of both phases (forward and backward, then update), in order."""
    carried: tuple[Carried[float], ...] = ()
    """Copies for blocks in host memory; empty without such blocks."""
    update_start: float
    """Time at which forward and backward end and the update begins."""
    end: float
    forward_backward_thread: float
    """CPU seconds of the training thread in forward and backward, waits included."""
    update_thread: float
    """CPU seconds of the training thread in the update, waits included."""

    def waits_in_phase(self, *, update: bool) -> list[Wait[float]]:
        """Waits in the update, or in forward and backward if `update` is false."""
        return [wait for wait in self.waits if (wait.start >= self.update_start) == update]


def record_steps(engine: Engine, batches: Sequence[Sequence[Tensor]]) -> list[StepSpans]:
    """Train one step on each batch and return the recorded spans of each."""
    waits = Waits(engine.mesh, engine.device, engine.context_group, engine.experts)
    steps = []
    for number, batch in enumerate(batches):
        engine.passes.passes = []
        finish(engine.device)
        dist.barrier()
        origin = mark_on(engine.device)
        carried: list[Carried[Mark]] = []
        engine.record(carried)
        with record_function(f"ProfilerStep#{number}"), waits.watching():
            engine.forward_backward(*batch)
            middle = mark_on(engine.device)
            with _RecordFunctionFast("optimizer step"):
                engine.update()
            end = mark_on(engine.device)
        engine.record(None)
        passes, engine.passes.passes = engine.passes.passes, None
        steps.append(_spans(engine.place, (origin, middle, end), passes, waits.take(), carried))
    return steps


def typical_waits(steps: Sequence[StepSpans], *, update: bool) -> tuple[dict[str, float], float | None]:
    """Median seconds that a step waits in one phase, by kind of wait (`WAITS`), and median CPU seconds of the thread
    in these waits. Without steps they are empty and None.
    """
    if not steps:
        return {}, None
    waits_of_steps = [step.waits_in_phase(update=update) for step in steps]
    seconds = {
        axis: statistics.median(_length(one for one in waits if one.axis == axis) for waits in waits_of_steps)
        for axis in WAITS
    }
    return seconds, statistics.median(sum(wait.thread for wait in waits) for waits in waits_of_steps)


def gather_typical(steps: Sequence[StepSpans]) -> list[StepSpans]:
    """Every rank's spans in the typical step: of the recorded steps, the one of median length. Every rank calls it."""
    ends = gather_json([step.end for step in steps])
    longest = [max(rank[index] for rank in ends) for index in range(len(steps))]
    typical = steps[longest.index(statistics.median_low(longest))]
    return [StepSpans.model_validate_json(text) for text in gather_json(typical.model_dump_json())]


def _spans(
    place: Place,
    borders: tuple[Mark, Mark, Mark],
    passes: Sequence[Pass[Mark]],
    waits: Sequence[Wait[Mark]],
    carried: Sequence[Carried[Mark]],
) -> StepSpans:
    """Spans of a step, given the marks of its beginning, of its update and of its end."""
    origin, middle, end = borders

    def when(mark: Mark) -> float:
        """Seconds from the common start to a mark."""
        return lap_between(origin, mark).wall

    return StepSpans(
        rank=dist.get_rank(),
        place=place,
        work=tuple(Pass(*one[:3], when(one.start), when(one.end)) for one in passes),
        waits=tuple(Wait(*one[:2], when(one.start), when(one.end)) for one in waits),
        carried=tuple(Carried(*one[:2], max(0.0, when(one.start)), when(one.end)) for one in carried),
        update_start=when(middle),
        end=when(end),
        forward_backward_thread=lap_between(origin, middle).thread,
        update_thread=lap_between(middle, end).thread,
    )


LANES = (
    "predicted",
    "measured",
    "waits for others",
    *(f"{name}, {said}" for name in LANE_NAMES.values() for said in ("predicted", "measured")),
)
"""Names of the lanes of a trace, by thread id."""
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
    """Chrome trace of one step of all ranks: events in microseconds, names, arrows from sender to receiver."""
    predicted = predicted_spans(plan.question, plan.layout)
    moves = predicted_moves(plan.question, plan.layout)
    events: list[Event] = []
    for step in sorted(steps, key=lambda step: step.rank):
        of_rank = list(_events_of_rank(step, predicted, moves))
        events += [*of_rank, *_names(step, sorted({event["tid"] for event in of_rank} | {_WAITS}))]
    return {
        "displayTimeUnit": "ms",
        "traceEvents": [*events, *_arrows(events, steps)],
        "otherData": {
            "layout": str(plan.layout),
            "predicted_step_seconds": plan.prediction.step_seconds,
            "measured_step_seconds": max(step.end for step in steps),
        },
    }


def save_trace(trace: dict[str, Any], path: Path) -> None:
    """Write a trace as JSON; the file appears complete or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, json.dumps(trace, allow_nan=False))


def _names(step: StepSpans, lanes: Sequence[int]) -> Iterable[Event]:
    """Trace events that name a rank and its lanes."""
    place = step.place
    process = f"rank {step.rank} (pp {place.pp}, dp {place.dp}, cp {place.cp}, tp {place.tp})"
    yield {"ph": "M", "name": "process_name", "pid": step.rank, "args": {"name": process}}
    yield {"ph": "M", "name": "process_sort_index", "pid": step.rank, "args": {"sort_index": step.rank}}
    for lane in lanes:
        about = {"ph": "M", "pid": step.rank, "tid": lane}
        yield {**about, "name": "thread_name", "args": {"name": LANES[lane]}}
        yield {**about, "name": "thread_sort_index", "args": {"sort_index": lane}}


def _events_of_rank(
    step: StepSpans, predicted: Sequence[PredictedSpan], moves: Sequence[MoveSpan]
) -> Iterable[Event]:
    """Trace events of one rank: passes and host copies, each both as predicted and as measured."""

    def event(lane: int, name: str, start: float, end: float, **fields: Any) -> Event:
        """Complete event of a lane of this rank."""
        about = {"ph": "X", "name": name, "cat": LANES[lane], "pid": step.rank, "tid": lane}
        return {**about, "ts": start * _MICROSECONDS, "dur": (end - start) * _MICROSECONDS, **fields}

    def passed(lane: int, span: PredictedSpan | Pass[float]) -> Event:
        """Event of a predicted or measured pass."""
        if span.kind not in _NAMES:
            return event(lane, span.kind, span.start, span.end)
        name = f"{_NAMES[span.kind]} {span.microbatch}"
        arguments = {"kind": span.kind, "stage": span.stage, "microbatch": span.microbatch}
        return event(lane, name, span.start, span.end, cname=_COLOURS[span.kind], args=arguments)

    for span in predicted:
        if span.rank == step.place.pp:
            yield passed(_PREDICTED, span)
    for work in step.work:
        yield passed(_MEASURED, work)
    yield event(_MEASURED, "update", step.update_start, step.end)
    for wait in step.waits:
        yield event(_WAITS, wait.axis, wait.start, wait.end)
    lanes = {lane: _WAITS + 1 + 2 * place for place, lane in enumerate(LANE_NAMES)}  # measured is the next
    for move in moves:
        if move.rank == step.place.pp:
            yield event(lanes[move.lane], f"{move.what} {move.block}", move.start, move.end)
    for carried in step.carried:
        name = f"block {carried.block}" if carried.block >= 0 else "other"
        yield event(lanes[carried.lane] + 1, name, carried.start, carried.end)


def _arrows(events: Sequence[Event], steps: Sequence[StepSpans]) -> list[Event]:
    """Trace arrows from a pass to the pass of the same microbatch on the next rank, which needs its result; predicted
    passes and measured ones each among themselves.
    """
    pipeline_of = {step.rank: (step.place.dp, step.place.cp, step.place.tp) for step in steps}
    passes = {}
    for event in events:
        if (kind := event.get("args", {}).get("kind", "W")) != "W":
            _, stage, microbatch = event["args"].values()
            passes[event["tid"], pipeline_of[event["pid"]], kind == "F", stage, microbatch] = event
    arrows: list[Event] = []
    for (lane, pipeline, forward, stage, microbatch), event in passes.items():
        sender = passes.get((lane, pipeline, forward, stage + (-1 if forward else 1), microbatch))
        if sender is None or sender["pid"] == event["pid"]:
            continue
        common = {"name": "hands on", "cat": event["cat"], "id": len(arrows), "tid": lane}
        leaves, arrives = sender["ts"] + sender["dur"], event["ts"]
        arrows.append({"ph": "s", "pid": sender["pid"], "ts": leaves, **common})
        arrows.append({"ph": "f", "bp": "e", "pid": event["pid"], "ts": arrives, **common})
    return arrows


STEP_PARTS = ("compute", "host", *(f"{axis}_comm" for axis in AXES), OFFLOAD, "bubble", "optimizer", "other")

_SENDS_BACK = KINDS[1:3]
"""Kinds of passes that the previous stage waits for: full backward passes and input halves."""
_Senders = Mapping[tuple[bool, int, int], float]
"""(whether forward, stage, microbatch) → time at which that pass ended."""


def step_parts(
    steps: Sequence[StepSpans], shares: Mapping[int, float], *, on_cpu: bool
) -> dict[int, dict[str, float]]:
    """Rank → part of a step → seconds. `shares` has the share of each rank's busy time that is inside operators."""
    return {step.rank: _parts(step, steps, shares[step.rank], on_cpu=on_cpu) for step in steps}


def _parts(step: StepSpans, steps: Sequence[StepSpans], share: float, *, on_cpu: bool) -> dict[str, float]:
    """Seconds of each part of a step on one rank; `share` of its busy time is inside operators."""
    step_seconds = max(one.end for one in steps)
    all_there = max(one.update_start for one in steps)
    senders = _senders(step, steps)
    first, second = (step.waits_in_phase(update=update) for update in (False, True))
    busy = step.update_start - _length(first)
    updating = step.end - step.update_start - _length(second)
    driving, optimizer = busy, updating
    if on_cpu:
        driving = _clamped(step.forward_backward_thread - sum(wait.thread for wait in first), busy)
        optimizer = _clamped(step.update_thread - sum(wait.thread for wait in second), updating)
    compute = share * driving
    parts = dict.fromkeys(STEP_PARTS, 0.0)
    parts |= {"compute": compute, "host": driving - compute, "optimizer": optimizer}
    parts["other"] = busy - driving + updating - optimizer
    parts["bubble"] = step_seconds - step.end
    for wait in first + second:
        bubble = 0.0
        if wait.axis == "pp":
            ready = all_there if wait.start >= step.update_start else _send_time(wait, step.work, senders)
            bubble = _clamped(ready - wait.start, wait.end - wait.start)
        parts["bubble"] += bubble
        parts[OFFLOAD if wait.axis == OFFLOAD else f"{wait.axis}_comm"] += wait.end - wait.start - bubble
    return parts


def _senders(step: StepSpans, steps: Sequence[StepSpans]) -> _Senders:
    """Time at which each pass of this rank's pipeline ended, by direction, stage and microbatch."""
    place = step.place
    return {
        (span.kind == "F", span.stage, span.microbatch): span.end
        for other in steps
        if (other.place.dp, other.place.cp, other.place.tp) == (place.dp, place.cp, place.tp)
        for span in other.work
        if span.kind == "F" or span.kind in _SENDS_BACK
    }


def _send_time(wait: Wait[float], work: Sequence[Pass[float]], senders: _Senders) -> float:
    """End of the pass on the neighbouring stage whose result ends a wait of this rank; 0 if there is none."""
    for span in work:
        if span.start >= wait.start and span.kind != "W":
            forward = span.kind == "F"
            return senders.get((forward, span.stage + (-1 if forward else 1), span.microbatch), 0.0)
    return 0.0


def _clamped(seconds: float, limit: float) -> float:
    """Seconds, limited to 0 to `limit`."""
    return min(max(0.0, seconds), limit)


def _length(waits: Iterable[Wait[float]]) -> float:
    """Total seconds of these waits."""
    return sum(wait.end - wait.start for wait in waits)


_MICROSECOND = 1e-6
_OPERATOR = "aten::"


def operator_share(engine: Engine, *batch: Tensor) -> float:
    """Share of a step's busy time that is inside operators, at most 1, from a profiled training step."""
    on_gpu = engine.device.type == "cuda"
    waits = Waits(engine.mesh, engine.device, engine.context_group, engine.experts)
    with profile(activities=[ProfilerActivity.CUDA if on_gpu else ProfilerActivity.CPU]) as profiler:
        finish(engine.device)
        dist.barrier()
        start = mark_on(engine.device)
        with waits.watching():
            engine.forward_backward(*batch)
        end = mark_on(engine.device)
        waited = sum(waits.seconds().values())
    engine.update()
    events = profiler.events() or []
    computed = _kernels(events) if on_gpu else _operators(events)
    busy = lap_between(start, end).wall - waited
    return min(1.0, computed / busy) if busy > 0 else 1.0


def profile_step(engine: Engine, batch: Sequence[Tensor], path: Path) -> tuple[StepSpans, float]:
    """Train one step under torch's profiler and write its Chrome trace; returns the step's spans and seconds inside
    operators. The trace has operators with shapes, kernels, and passes, waits and the update by name.

    Raises:
        OSError: the trace cannot be written.
    """
    on_gpu = engine.device.type == "cuda"
    seen = [ProfilerActivity.CPU, *[ProfilerActivity.CUDA] * on_gpu]
    with profile(activities=seen, record_shapes=True) as profiler:
        (spans,) = record_steps(engine, [batch])
    path.parent.mkdir(parents=True, exist_ok=True)
    profiler.export_chrome_trace(str(path))
    events = profiler.events() or []
    updating = min(event.time_range.start for event in events if event.name == "optimizer step")
    events_before = [event for event in events if event.time_range.start < updating]
    return spans, _kernels(events_before) if on_gpu else _operators(events_before)


def _operators(events: list[FunctionEvent]) -> float:
    """Seconds of operators on a CPU, without operators inside waits (`executor.timing.Waits`). Those that only dispatch
    to the same operator on shards are left out as well.
    """
    seconds = 0.0
    for event in events:
        parent = event.cpu_parent
        while parent is not None and not parent.name.startswith("wait "):
            parent = parent.cpu_parent
        dispatches = any(child.name == event.name for child in event.cpu_children)
        if event.name.startswith(_OPERATOR) and parent is None and not dispatches:
            seconds += event.self_cpu_time_total * _MICROSECOND
    return seconds


_NOT_COMPUTE = ("nccl", "memcpy htod", "memcpy dtoh")
"""Parts of names of GPU events that are not compute; copies within the device and memsets are compute."""


def _kernels(events: list[FunctionEvent]) -> float:
    """Seconds in which at least one compute kernel runs on the GPU; kernels overlap on different streams."""
    spans = sorted(
        (event.time_range.start, event.time_range.end)
        for event in events
        if event.device_type == DeviceType.CUDA and not any(one in event.name.lower() for one in _NOT_COMPUTE)
    )
    seconds, reached = 0.0, float("-inf")
    for start, end in spans:
        seconds += max(0.0, end - max(start, reached)) * _MICROSECOND
        reached = max(reached, end)
    return seconds
