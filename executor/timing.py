"""Clocks of a step on this rank: its two phases in every step; passes, copies and waits in recorded steps.

forward_backward   forward and backward of every microbatch, with the communication inside
update             gradients synchronised, their norm, the optimizer, weights gathered

Phases are read off three clocks at their borders; on a GPU also off events in its stream, so nothing waits for it
between them. Waits are recorded by watching every collective, which slows a step down (compare
`executor.measure.memory`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Generic, NamedTuple, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._profiler import _RecordFunctionFast
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

from cost_models.axes.offload.moves import Lane

AXES = ("tp", "cp", "ep", "dp", "pp")
"""Axes over which ranks wait: `dp` joins ranks with the same parameters, `ep` ranks that share experts."""
OFFLOAD = "offload"
WAITS = (*AXES, OFFLOAD)
"""Causes of a rank's waits: other ranks along an axis, or, on a GPU, copies to and from host memory."""

Mark = tuple[float, float, float, "torch.cuda.Event | None"]
"""A moment: wall, thread and process clock, and on a GPU an event in its stream."""
_MILLISECOND = 1e-3


T = TypeVar("T")
"""Type of a moment: a mark, or seconds from the common start of all ranks."""


class Wait(NamedTuple, Generic[T]):
    """One interval in which this rank waited for other ranks or for copies."""

    axis: str
    """Cause of the wait, one of `WAITS`."""
    thread: float
    """CPU seconds that the training thread spent during the wait."""
    start: T
    end: T


@dataclass(frozen=True, slots=True)
class Lap:
    """Seconds of one phase of one step, by three clocks."""

    wall: float
    """Wall seconds, on a GPU by its own clock."""
    thread: float
    """CPU seconds of the training thread."""
    process: float
    """CPU seconds of all threads."""


@dataclass(slots=True)
class StepClock:
    """Stopwatch of steps: the laps of each step's phases, and the wall seconds of each step."""

    device: torch.device
    steps: list[tuple[Lap, ...]] = field(default_factory=list)
    wall_seconds: list[float] = field(default_factory=list)
    """Wall seconds of each step, from a common start of all ranks to its end on this rank."""

    def time(self, *phases: Callable[[], Any]) -> list[Any]:
        """Run and time the phases of one step, and return their results."""
        dist.barrier()
        finish(self.device)
        marks, results = [mark_on(self.device)], []
        for phase in phases:
            results.append(phase())
            marks.append(mark_on(self.device))
        finish(self.device)
        self.wall_seconds.append(time.perf_counter() - marks[0][0])
        self.steps.append(tuple(lap_between(start, end) for start, end in pairwise(marks)))
        return results

    def seconds_of_all(self) -> list[float]:
        """Seconds of each step, which ends when its slowest rank does; every rank calls it."""
        seconds = torch.tensor(self.wall_seconds, dtype=torch.float64, device=self.device)
        dist.all_reduce(seconds, op=dist.ReduceOp.MAX)
        return [float(one) for one in seconds.tolist()]

    def forget(self) -> None:
        """Discard all steps so far, as after the warm-up."""
        self.steps.clear()
        self.wall_seconds.clear()


class CopiedEvent(torch.cuda.Event):
    """GPU event that marks the end of a copy between device and host memory."""


class Waits(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Dispatch mode that records each interval in which this rank waits, and for which axis or copies.

    On a CPU that is the time its thread spends issuing collectives and waiting for them. On a GPU it is the time its
    compute stream stands still, so what compute hides does not count there either.
    Groups on no axis (tied embeddings tie the ends of the pipeline) count as `pp`, unless described as `dp`.
    """

    def __init__(
        self,
        mesh: DeviceMesh,
        device: torch.device,
        context_group: dist.ProcessGroup | None = None,
        experts: DeviceMesh | None = None,
    ) -> None:
        """Record waits over the axes of `mesh`, of the context group, and of the experts' mesh."""
        super().__init__()  # type: ignore[no-untyped-call]
        axes = {"tp": "tp", "pp": "pp", "copy": "dp", "shard": "dp", "ep": "ep", "etp": "ep"}
        self._axes: dict[str, str] = {}
        for one in (mesh, experts):
            dims = () if one is None else one.mesh_dim_names or ()
            self._axes |= {one[dim].get_group().group_name: axes[dim] for dim in dims if one is not None}
        if context_group is not None:
            self._axes[context_group.group_name] = "cp"
        self._device = device
        self._spans: list[Wait[Mark]] = []
        self._works: dict[int, tuple[object, str]] = {}
        """Work in flight by its id, with its axis; the reference keeps the id from being reused."""
        self._results: dict[int, str] = {}

    def seconds(self) -> dict[str, float]:
        """Seconds waited since the last call, by axis or `offload`."""
        seconds = dict.fromkeys(WAITS, 0.0)
        for wait in self.take():
            seconds[wait.axis] += lap_between(wait.start, wait.end).wall
        return seconds

    def take(self) -> list[Wait[Mark]]:
        """Every wait since the last call, in order."""
        finish(self._device)
        spans = list(self._spans)
        self._spans.clear()
        self._works.clear()
        self._results.clear()
        return spans

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Context manager that records every collective and every wait inside it."""
        original, original_event = dist.Work.wait, torch.cuda.Stream.wait_event
        waits = self

        def wait(work: dist.Work, *arguments: Any, **options: Any) -> bool:
            """Wait for a collective, and record the wait."""
            _, axis = waits._works.pop(id(work), (None, ""))
            with waits._timed(axis):
                return original(work, *arguments, **options)

        def wait_event(stream: torch.cuda.Stream, event: torch.cuda.Event) -> None:
            """Time the compute stream's waits for copies and for collectives of `fully_shard`, which run in streams of
            their own. Waits of other streams are not timed.
            """
            cause = OFFLOAD if isinstance(event, CopiedEvent) else "dp"
            with waits._timed(cause if stream == torch.cuda.default_stream(waits._device) else ""):
                original_event(stream, event)

        dist.Work.wait = wait  # type: ignore[method-assign, assignment]
        torch.cuda.Stream.wait_event = wait_event  # type: ignore[method-assign, assignment]
        try:
            with self:
                yield
        finally:
            dist.Work.wait = original  # type: ignore[method-assign]
            torch.cuda.Stream.wait_event = original_event  # type: ignore[method-assign]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator; if it is a collective or a wait for one, record the time."""
        if any(issubclass(kind, (DTensor, AsyncCollectiveTensor)) for kind in types):
            return NotImplemented  # the operators they call on the tensors inside come back here
        if func.namespace not in ("c10d", "_c10d_functional"):
            return func(*args, **(kwargs or {}))
        axis = self._axis(args)
        with self._timed(axis):
            result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor):
            self._results[result.data_ptr()] = axis
        last = result[-1] if isinstance(result, (tuple, list)) and result else result
        if isinstance(last, torch.ScriptObject):
            work = dist.Work.unbox(last)
            self._works[id(work)] = (work, axis)
        return result

    def _axis(self, arguments: tuple[Any, ...]) -> str:
        """Axis over which an operator communicates, or whose collective it waits for; empty if there is none."""
        for argument in arguments:
            if isinstance(argument, str) and argument in self._axes:
                return self._axes[argument]
            if isinstance(argument, torch.ScriptObject) and "ProcessGroup" in str(argument._type()):
                group = dist.ProcessGroup.unbox(argument)
                return self._axes.get(group.group_name, "dp" if group.group_desc == "dp" else "pp")
        first = arguments[0] if arguments else None
        return self._results.get(first.data_ptr(), "") if isinstance(first, Tensor) else ""

    @contextmanager
    def _timed(self, axis: str) -> Iterator[None]:
        """Context manager that records the time inside as a wait for `axis`, if that is not empty and the compute
        stream waits.
        """
        if not axis or not self._on_compute_stream():
            yield
            return
        # not `record_function`, an operator that this mode would see
        with _RecordFunctionFast(f"wait {axis}"):
            start = mark_on(self._device)
            yield
            end = mark_on(self._device)
            # not `lap_between`, as the GPU may not have reached these marks yet
            self._spans.append(Wait(axis, end[1] - start[1], start, end))

    def _on_compute_stream(self) -> bool:
        """Whether the current stream is the compute stream; True on a CPU."""
        if self._device.type != "cuda":
            return True
        return torch.cuda.current_stream(self._device) == torch.cuda.default_stream(self._device)


def mark_on(device: torch.device) -> Mark:
    """Mark of this moment on a device."""
    event: torch.cuda.Event | None = None
    if device.type == "cuda":
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
    return time.perf_counter(), time.thread_time(), time.process_time(), event


@contextmanager
def cpu_threads(count: int) -> Iterator[None]:
    """Context manager in which torch computes on this number of CPU threads."""
    threads_before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(threads_before)


def compute_seconds(lap: Lap, device: torch.device) -> float:
    """Seconds that a rank computed in a lap: on a CPU of its training thread, on a GPU by the GPU's clock."""
    return lap.thread if device.type == "cpu" else lap.wall


def finish(device: torch.device) -> None:
    """Wait until a GPU has finished all that was launched on it; nothing on a CPU."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def lap_between(start: Mark, end: Mark) -> Lap:
    """Seconds from one mark to a later mark, by each clock."""
    start_event, end_event = start[3], end[3]
    wall = end[0] - start[0]
    if start_event is not None and end_event is not None:
        wall = start_event.elapsed_time(end_event) * _MILLISECOND
    return Lap(wall, end[1] - start[1], end[2] - start[2])


class Carried(NamedTuple, Generic[T]):
    """One copy between device and host memory, or one update on the host."""

    lane: Lane
    block: int
    """Number of the block; -1 if the copy belongs to no single block."""
    start: T
    end: T


class Pass(NamedTuple, Generic[T]):
    """One pass of a microbatch through a stage, named as in an action table (`cost_models.schedules.actions`)."""

    kind: str
    stage: int
    microbatch: int
    start: T
    end: T


@dataclass(slots=True)
class Passes:
    """Recording of passes, to which engine and pipeline stages write."""

    device: torch.device
    passes: list[Pass[Mark]] | None = None
    """Recorded passes; None if recording is off."""
    running: bool = False
    """Whether a pass is under way; a pipeline also runs its stages once outside of passes, to learn their shapes."""

    @contextmanager
    def run(self, kind: str, stage: int, microbatch: int) -> Iterator[None]:
        """Context manager that records the pass inside it."""
        self.running = True
        try:
            if self.passes is None:
                yield
                return
            with _RecordFunctionFast(f"pass {kind} stage {stage} microbatch {microbatch}"):
                start = mark_on(self.device)
                yield
                self.passes.append(Pass(kind, stage, microbatch, start, mark_on(self.device)))
        finally:
            self.running = False
