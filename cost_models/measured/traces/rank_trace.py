"""Traces of some ranks of a job → seconds of a step by part on each."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cost_models.axes.layout import Layout
from cost_models.documents import printable
from cost_models.errors import InputError, Problem, either
from cost_models.measured.logs import search
from cost_models.measured.traces.events import Event, NsightFile, TraceFile
from cost_models.measured.traces.exchanges import Exchange, Exchanges
from cost_models.measured.traces.passes import HostSpans, Pass
from cost_models.measured.traces.products import Product, Products
from cost_models.measured.traces.step_parts import (
    AXES,
    KERNELS,
    KINDS,
    ON_CPU,
    UNKNOWN,
    UNNAMED,
    Parts,
    Spans,
    Step,
    patterns,
    step_of,
)
from cost_models.units import counted, grouped

_HOST = ("cpu_", "python_", "overhead", "trace", "fwdbwd", "ac2g")
"""Prefixes of categories of host events."""
_CPU_OPERATOR, _CPU_STEP, _GPU_STEP = "cpu_op", "user_annotation", "gpu_user_annotation"


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTrace:
    """Trace of one rank, with one step split into parts and its collectives, passes and matrix products."""

    rank: int
    step: Step
    """The step that was split into parts."""
    parts: dict[str, float]
    """Seconds of the step by part; they add up to it."""
    exchanges: dict[Exchange, list[tuple[float, float]]]
    """Begin and seconds of each exchange of the step."""
    passes: tuple[Pass, ...] = ()
    """Passes of the step that the trainer annotates, in seconds since its begin."""
    products: dict[Product, array[float]] = field(default_factory=dict)
    """Matrix products of the whole trace whose shapes it tells → seconds of each."""
    unknown: dict[str, float] = field(default_factory=dict)
    """Names of kernels of part `other` → seconds in the whole trace."""
    covered: float = 1.0
    """Share of the time of kernels whose part is known."""

    @property
    def seconds(self) -> float:
        """Seconds of the traced step, the sum of its parts."""
        return sum(self.parts.values())

    @property
    def steps(self) -> int:
        """Number of steps in the trace."""
        return self.step.count


def read_traces(paths: Sequence[Path], layout: Layout, *, on_cpu: bool = False) -> tuple[RankTrace, ...]:
    """Read traces of one rank each and split the same step of all into parts, in order of rank; where all ran
    `on_cpu` no kernels are needed.

    Raises:
        InputError: a file cannot be read, is no trace of a GPU, or is of another job than the layout's.
    """
    traces: dict[int, RankTrace] = {}
    for path in paths:
        first = next(iter(traces.values()), None)
        trace = _read(path, layout, len(traces), None if first is None else first.step.number, on_cpu=on_cpu)
        if trace.rank in traces:
            raise InputError(
                f"`{printable(str(path))}` is a second trace of rank {trace.rank}",
                hint="give one for each rank; a name with `rank3` says whose it is",
            )
        traces[trace.rank] = trace
    return tuple(traces[rank] for rank in sorted(traces))


def _read(path: Path, layout: Layout, default_rank: int, number: int | None, *, on_cpu: bool) -> RankTrace:
    """Read the trace of one rank, `default_rank` where the file names none; `number` is the step to split
    into parts."""
    file = NsightFile(path) if path.suffix == ".sqlite" else TraceFile(path)
    name = printable(str(path))
    rank = default_rank if file.rank is None else file.rank
    if file.world_size not in (None, layout.num_gpus) or rank >= layout.num_gpus:
        rank_words = f"rank {grouped(rank)}" + (f" of {grouped(file.world_size)}" if file.world_size else "")
        problem = Problem(name, f"it is of {rank_words}, the plan has {counted(layout.num_gpus, 'rank')}")
        raise InputError("the trace is of another job than the plan", problems=[problem])
    spans, parts, exchanges, products, host = Spans(), Parts(layout), Exchanges(), Products(), HostSpans()
    seconds = dict.fromkeys(KINDS, 0.0)
    device, categories = None, set[str]()
    for event in file.events():
        categories.add(event.category)
        if event.category in KERNELS and event.device == (event.device if device is None else device):
            device = event.device
            part = parts.part_of(event)
            seconds[part] += event.seconds
            spans.add(event.start, event.seconds, part)
            if part in (*AXES, UNNAMED):
                exchanges.add(event, part)
            elif part == "compute":
                products.add_kernel(event)
        elif event.category in (_CPU_STEP, _GPU_STEP):
            _annotate(spans, event)
        products.add_operator(event)
        if on_cpu and event.category in (_CPU_OPERATOR, _CPU_STEP):
            host.add(event)
    if on_cpu and not len(spans):
        host.fill(spans)
        seconds = {kind: sum(seconds for axis, _, seconds in host.waits if axis == kind) for kind in KINDS}
    _require_complete(name, layout, spans, seconds, sorted(categories))
    step = step_of(spans, number=number, order=ON_CPU if host.passes or host.waits else KINDS)
    if step.seconds <= 0:
        raise InputError(f"`{name}` has no step that lasts", hint="profile two or three whole steps")
    everything = sum(seconds.values())
    return RankTrace(
        rank=rank,
        step=step,
        parts=step.parts,
        exchanges=exchanges.of_step(step),
        passes=host.passes_of(step.begin, step.seconds),
        products=products.seconds_by_shape(),
        unknown=dict(sorted(parts.unknown.items(), key=lambda name_and_seconds: -name_and_seconds[1])),
        covered=1 - (seconds[UNKNOWN] + seconds[UNNAMED]) / everything if everything else 1.0,
    )


def _require_complete(
    name: str, layout: Layout, spans: Spans, seconds: Mapping[str, float], categories: Sequence[str]
) -> None:
    """Raise InputError where no kernel ran, or where ranks of a job of several never communicated."""
    if not len(spans):
        host = all(one.startswith(_HOST) or one == _CPU_STEP for one in categories)
        raise InputError(
            f"`{name}` has no kernel of a GPU",
            hint="profile with ProfilerActivity.CUDA: a trace of the host alone tells nothing of the GPU"
            if host
            else f"kernels are {either(list(KERNELS))}; the file has {printable(', '.join(categories), limit=200)}",
        )
    if layout.num_gpus > 1 and not any(seconds[kind] for kind in (*AXES, UNNAMED)):
        words = ", ".join(patterns().kernels["communication"])
        raise InputError(
            f"`{name}` has no communication, and the plan is of {counted(layout.num_gpus, 'rank')} ({layout.brief})",
            hint=f"it is told by names of kernels ({words}): profile whole steps",
        )


def _annotate(spans: Spans, event: Event) -> None:
    """Add an annotation (step, optimizer update or wait for a batch) to the spans. For steps the GPU's
    annotation counts before the host's."""
    begin, end = event.start, event.start + event.seconds
    if match := search(patterns().step, event.name):
        if event.category == _GPU_STEP or int(match[1]) not in spans.steps:
            spans.steps[int(match[1])] = begin, end
    elif event.category == _GPU_STEP and any(word in event.name for word in patterns().update):
        spans.updates.append((begin, end))
    elif event.category == _CPU_STEP and any(word in event.name for word in patterns().loading):
        spans.add(begin, event.seconds, "data")
