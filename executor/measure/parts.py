"""Splits one recorded step of each rank into parts that add up to the step, which ends with its slowest rank.

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

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch.distributed as dist
from torch import Tensor
from torch._C._autograd import DeviceType
from torch.autograd.profiler_util import FunctionEvent
from torch.profiler import ProfilerActivity, profile

from cost_models.schedules.actions import KINDS
from executor.measure.step_spans import StepSpans, WaitSpan, WorkSpan, record_steps
from executor.timing import AXES, OFFLOAD, Waits, finish, lap_between, mark_on

if TYPE_CHECKING:
    from executor.engine.engine import Engine

STEP_PARTS = ("compute", "host", *(f"{axis}_comm" for axis in AXES), OFFLOAD, "bubble", "optimizer", "other")

_SENDS_BACK = KINDS[1:3]
"""What the stage before waits for: whole backward passes and input halves."""
_Senders = Mapping[tuple[bool, int, int], float]
"""(forward, stage, microbatch) → when its pass ended."""


def step_parts(
    steps: Sequence[StepSpans], shares: Mapping[int, float], *, on_cpu: bool
) -> dict[int, dict[str, float]]:
    """Rank → seconds by part, from the same step of every rank and the share of operators in what each is busy with."""
    step_seconds = max(step.end for step in steps)
    all_there = max(step.update_start for step in steps)
    return {
        step.rank: _parts(
            step, _senders(step, steps), shares[step.rank], step_seconds, all_there, on_cpu=on_cpu
        )
        for step in steps
    }


def _parts(
    step: StepSpans,
    senders: _Senders,
    share: float,
    step_seconds: float,
    all_there: float,
    *,
    on_cpu: bool,
) -> dict[str, float]:
    first, second = (step.waits_in_phase(update=update) for update in (False, True))
    busy = step.update_start - _length(first)
    updating = step.end - step.update_start - _length(second)
    driving, optimizer = busy, updating
    if on_cpu:
        driving = _within(step.forward_backward_thread - sum(wait.thread for wait in first), busy)
        optimizer = _within(step.update_thread - sum(wait.thread for wait in second), updating)
    compute = share * driving
    parts = dict.fromkeys(STEP_PARTS, 0.0)
    parts |= {"compute": compute, "host": driving - compute, "optimizer": optimizer}
    parts["other"] = busy - driving + updating - optimizer
    parts["bubble"] = step_seconds - step.end
    for wait in first + second:
        bubble = 0.0
        if wait.axis == "pp":
            ready = all_there if wait.start >= step.update_start else _sent(wait, step.work, senders)
            bubble = _within(ready - wait.start, wait.end - wait.start)
        parts["bubble"] += bubble
        parts[OFFLOAD if wait.axis == OFFLOAD else f"{wait.axis}_comm"] += wait.end - wait.start - bubble
    return parts


def _senders(step: StepSpans, steps: Sequence[StepSpans]) -> _Senders:
    """The end of every pass of this rank's pipeline, by kind, stage and microbatch."""
    place = step.place
    return {
        (span.kind == "F", span.stage, span.microbatch): span.end
        for other in steps
        if (other.place.dp, other.place.cp, other.place.tp) == (place.dp, place.cp, place.tp)
        for span in other.work
        if span.kind == "F" or span.kind in _SENDS_BACK
    }


def _sent(wait: WaitSpan, work: Sequence[WorkSpan], senders: _Senders) -> float:
    """When the pass had ended that the rank's next pass needs; 0 where it needs none."""
    for span in work:
        if span.start >= wait.start and span.kind != "W":
            forward = span.kind == "F"
            return senders.get((forward, span.stage + (-1 if forward else 1), span.microbatch), 0.0)
    return 0.0


def _within(seconds: float, most: float) -> float:
    return min(max(0.0, seconds), most)


def _length(waits: Sequence[WaitSpan]) -> float:
    return sum(wait.end - wait.start for wait in waits)


_MICROSECOND = 1e-6
_OPERATOR = "aten::"


def operator_share(engine: Engine, *batch: Tensor) -> float:
    """Train one step, its forward and backward pass profiled; at most 1."""
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
    """Train one step and write what torch's profiler saw of it as a Chrome trace: operators with their shapes, kernels,
    and by name passes, waits and the update. Returns the same step as recorded, and the seconds inside its operators.

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
    before = [event for event in events if event.time_range.start < updating]
    return spans, _kernels(before) if on_gpu else _operators(before)


def _operators(events: list[FunctionEvent]) -> float:
    seconds = 0.0
    for event in events:
        if not event.name.startswith(_OPERATOR) or _waits(event):
            continue
        if all(child.name != event.name for child in event.cpu_children):
            seconds += event.self_cpu_time_total * _MICROSECOND
    return seconds


def _waits(event: FunctionEvent) -> bool:
    """Whether an operator runs inside a wait (`executor.timing.Waits`)."""
    above = event.cpu_parent
    while above is not None and not above.name.startswith("wait "):
        above = above.cpu_parent
    return above is not None


_NOT_COMPUTE = ("nccl", "memcpy htod", "memcpy dtoh")
"""Parts of names of what runs on a GPU beside compute; copies within the device and memsets are compute."""


def _kernels(events: list[FunctionEvent]) -> float:
    """Length of the union of the kernels' spans, which overlap on different streams."""
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
