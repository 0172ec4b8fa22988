"""Analysis of traces of a job's ranks: seconds of a step by part on each rank, late ranks, all passes of a
pipeline on one clock, rates of products and collectives.

A collective's kernel runs while its rank waits for the others; the shortest of a kind's is the nearest to its own time.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median, median_low
from typing import NamedTuple

import numpy as np

from cost_models.arrays import Array
from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import Layout
from cost_models.communication import collectives
from cost_models.communication.topology import Groups, axis_groups, group_of
from cost_models.compute.gemm import device_of, gemm_seconds
from cost_models.documents import printable
from cost_models.errors import InputError, Problem, either
from cost_models.measured.logs import search
from cost_models.measured.traces.events import Event, NsightFile, TraceFile
from cost_models.measured.traces.step_parts import (
    AXES,
    COLLECTIVES,
    KERNELS,
    KINDS,
    ON_CPU,
    UNKNOWN,
    UNNAMED,
    Arrival,
    Exchange,
    Exchanges,
    HostSpans,
    Late,
    Parts,
    Pass,
    Pipeline,
    Product,
    Products,
    Spans,
    Step,
    aligned,
    arrivals,
    bubble_of,
    late_ranks,
    passes_of,
    patterns,
    step_of,
    updating_of,
    without_waits,
)
from cost_models.pipeline.pricing import pass_spans, price_ranks
from cost_models.question import Question
from cost_models.schedules.actions import KINDS as ACTION_KINDS
from cost_models.units import counted, grouped

_HOST = ("cpu_", "python_", "overhead", "trace", "fwdbwd", "ac2g")
"""Prefixes of the categories of host events."""
_CPU_OPERATOR, _CPU_STEP, _GPU_STEP = "cpu_op", "user_annotation", "gpu_user_annotation"


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTrace:
    """Trace of one rank: one of its steps split into parts, with collectives, pipeline passes and matrix
    products."""

    rank: int
    step: Step
    """The step that was split into parts."""
    parts: dict[str, float]
    """Seconds of the step by part; their sum is the step."""
    exchanges: dict[Exchange, list[tuple[float, float]]]
    """Start and seconds of each communication kernel of the step, by kind of collective."""
    passes: tuple[Pass, ...] = ()
    """Passes of the step that the trainer annotates, in seconds since the step began."""
    products: dict[Product, array[float]] = field(default_factory=dict)
    """Seconds of each matrix product of the trace whose shape is known, by shape."""
    unknown: dict[str, float] = field(default_factory=dict)
    """Seconds in the trace of the kernels in part `other`, by name."""
    covered: float = 1.0
    """Share of kernel time in kernels whose part is known."""

    @property
    def seconds(self) -> float:
        """Seconds of the traced step, the sum of its parts."""
        return sum(self.parts.values())


def read_traces(paths: Sequence[Path], layout: Layout, *, on_cpu: bool = False) -> tuple[RankTrace, ...]:
    """Read the traces of several ranks, one file per rank, and split the same step of all into parts; sorted
    by rank. With `on_cpu` the traces need no GPU kernels.

    Raises:
        InputError: a file cannot be read, is no trace of a GPU, or is of another job than the layout's.
    """
    traces: dict[int, RankTrace] = {}
    for path in paths:
        first = next(iter(traces.values()), None)
        trace = _read(path, layout, len(traces), None if first is None else first.step.number, on_cpu=on_cpu)
        if trace.rank in traces:
            hint = "give one for each rank; a name with `rank3` says whose it is"
            raise InputError(f"`{printable(str(path))}` is a second trace of rank {trace.rank}", hint=hint)
        traces[trace.rank] = trace
    return tuple(traces[rank] for rank in sorted(traces))


def _read(path: Path, layout: Layout, default_rank: int, number: int | None, *, on_cpu: bool) -> RankTrace:
    """Read the trace of one rank and split the step `number` into parts. The rank is `default_rank` if the
    file names none."""
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
    """Raise InputError if no kernel ran, or if a job of several ranks has no communication."""
    if not len(spans):
        hint = "profile with ProfilerActivity.CUDA: a trace of the host alone tells nothing of the GPU"
        if not all(one.startswith(_HOST) or one == _CPU_STEP for one in categories):
            words = printable(", ".join(categories), limit=200)
            hint = f"kernels are {either(list(KERNELS))}; the file has {words}"
        raise InputError(f"`{name}` has no kernel of a GPU", hint=hint)
    if layout.num_gpus > 1 and not any(seconds[kind] for kind in (*AXES, UNNAMED)):
        ranks, words = counted(layout.num_gpus, "rank"), ", ".join(patterns().kernels["communication"])
        message = f"`{name}` has no communication, and the plan is of {ranks} ({layout.brief})"
        raise InputError(message, hint=f"it is told by names of kernels ({words}): profile whole steps")


def _annotate(spans: Spans, event: Event) -> None:
    """Add an annotation (step, optimizer update or wait for a batch) to the spans. For a step the GPU's
    annotation replaces the host's."""
    begin, end = event.start, event.start + event.seconds
    if match := search(patterns().step, event.name):
        if event.category == _GPU_STEP or int(match[1]) not in spans.steps:
            spans.steps[int(match[1])] = begin, end
    elif event.category == _GPU_STEP and any(word in event.name for word in patterns().update):
        spans.updates.append((begin, end))
    elif event.category == _CPU_STEP and any(word in event.name for word in patterns().loading):
        spans.add(begin, event.seconds, "data")


SLICES = 50
"""Number of equal slices of a step for which lateness is summed."""
_UNEVEN = 0.05
"""Relative excess over the plan, compared with other stages, from which a stage counts as slow."""
_OWN_WORK_SHARE = 0.25
"""Share of a late rank's lateness that longer work of its own must explain to be the cause."""


class SlowStage(NamedTuple):
    """Pipeline stage whose compute takes longer than planned, relative to the other stages."""

    place: int
    seconds: float
    """Seconds of a step in excess of the plan times the other stages' ratio of measured to planned seconds."""
    times: float
    """Ratio of measured to planned seconds, divided by the other stages' ratio."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Traces of a job's ranks after matching: pipeline passes, late ranks, and a slow stage if there is one."""

    traced: tuple[RankTrace, ...]
    passes: Mapping[int, tuple[Pass, ...]]
    """Passes by rank, in seconds since the step began, for pipelines with every rank traced."""
    late: tuple[Late, ...]
    late_seconds: Mapping[int, tuple[float, ...]]
    """Seconds that other ranks waited for a rank, in each of `SLICES` slices of the step, by rank."""
    slow_stage: SlowStage | None = None
    unfollowed: tuple[int, ...] = ()
    """Ranks whose sends and receives do not follow the plan's schedule."""


def job_of(traced: Sequence[RankTrace], question: Question, layout: Layout) -> Job:
    """Analyse the traces of a job's ranks to find late ranks, pipeline passes and a slow stage. Collectives
    are matched over ranks, and sends are separated from waits for other stages and late ranks."""
    longest = max(trace.seconds for trace in traced)
    matched = arrivals({trace.rank: trace.exchanges for trace in traced}, layout)
    # rank → begin, and seconds that the rank waited for the last, of each matched collective
    waits: dict[int, list[tuple[float, float]]] = defaultdict(list)
    for members in matched:
        last = max(arrival.waited for arrival in members)
        for arrival in members:
            waits[arrival.rank].append((arrival.at, last - arrival.waited))
    annotated = all(trace.passes for trace in traced)
    ranks = []
    for trace in traced:
        parts = without_waits(trace.step, waits[trace.rank]) if trace.rank in waits else trace.parts
        if annotated:  # on a CPU: a barrier is where steps begin, so each waits until the slowest is done
            parts = parts | {"bubble": parts["bubble"] + longest - sum(parts.values())}
        ranks.append(replace(trace, parts=parts))
    # place in the pipeline → rank → seconds of its own work
    work: dict[int, dict[int, float]] = defaultdict(dict)
    for trace in ranks:
        work[layout.place_along("pp", trace.rank)][trace.rank] = trace.parts["compute"] + trace.parts["host"]
    late = _first_late(late_ranks(matched, longest), work)
    if layout.pp == 1 and not annotated:
        return Job(traced=tuple(ranks), passes={}, late=late, late_seconds=_delays(ranks, matched))
    pipeline = pipeline_of(question, layout)
    traces, placed_passes, raw = {}, {}, {}
    # first rank of a replica → place in the pipeline → trace
    replicas: dict[int, dict[int, RankTrace]] = defaultdict(dict)
    for trace in ranks:
        place = layout.place_along("pp", trace.rank)
        replicas[trace.rank - place * layout.stride("pp")][place] = trace
        traces[trace.rank] = trace
        raw[trace.rank] = trace.passes or passes_of(trace.step, trace.exchanges, pipeline, place)
    for replica in replicas.values():
        if len(replica) < layout.pp or not all(raw[trace.rank] for trace in replica.values()):
            continue
        rank_passes = {place: raw[trace.rank] for place, trace in replica.items()}
        clock = rank_passes if annotated else aligned(rank_passes, pipeline)
        if len(clock) < layout.pp:  # no message tells how far apart two clocks are
            continue
        begins = {place: replica[place].step.begin for place in clock}
        if not annotated:
            begins = {place: rank_passes[place][0].start - clock[place][0].start for place in clock}
        all_there = max(updating_of(replica[place].step, clock[place], begins[place]) for place in clock)
        all_passes = [span for each in clock.values() for span in each]
        for place, trace in replica.items():
            # waits for unfinished stages are `bubble`, and the rest of send time is `pp_comm`
            end_wait = trace.seconds - trace.step.seconds
            bubble = bubble_of(trace.step, clock[place], all_passes, begins[place], all_there)
            sends = trace.parts["pp_comm"] + trace.parts["bubble"] - end_wait - bubble
            parts = trace.parts | {"bubble": bubble + end_wait, "pp_comm": max(0.0, sends)}
            placed_passes[trace.rank], traces[trace.rank] = clock[place], replace(trace, parts=parts)
    return Job(
        traced=tuple(traces.values()),
        passes=placed_passes,
        late=late,
        late_seconds=_delays(ranks, matched),
        slow_stage=_slow_stage(work, pipeline),
        unfollowed=tuple(rank for rank, each in raw.items() if not each),
    )


def _first_late(late: Sequence[Late], work: Mapping[int, Mapping[int, float]]) -> tuple[Late, ...]:
    """Late ranks whose own compute and host seconds exceed those of the other ranks on their stage; all late
    ranks if there is none. `work` is seconds of compute and host, by place in the pipeline and rank."""
    own_work = []
    for delay in late:
        stage = next(ranks for ranks in work.values() if delay.rank in ranks)
        peers = [seconds for rank, seconds in stage.items() if rank != delay.rank]
        if peers and stage[delay.rank] - median(peers) >= _OWN_WORK_SHARE * delay.seconds:
            own_work.append(delay)
    return tuple(own_work or late)


def _delays(ranks: Sequence[RankTrace], matched: Sequence[Sequence[Arrival]]) -> dict[int, tuple[float, ...]]:
    """Seconds that other ranks waited for each rank in collectives, by rank, for each of `SLICES` equal
    slices of the step."""
    steps = {arrival.rank: arrival.step for arrival in ranks}
    seconds_by_rank: dict[int, list[float]] = {}
    for arrival in (arrival for members in matched for arrival in members):
        step = steps[arrival.rank]
        place = min(SLICES - 1, int(SLICES * (arrival.at - step.begin) / step.seconds))
        seconds_by_rank.setdefault(arrival.rank, [0.0] * SLICES)[place] += arrival.waited
    return {rank: tuple(each) for rank, each in seconds_by_rank.items()}


def _slow_stage(work: Mapping[int, Mapping[int, float]], pipeline: Pipeline) -> SlowStage | None:
    """Pipeline stage whose compute most exceeds the plan, relative to the other stages; None if all are even
    or some were not traced."""
    places = range(pipeline.table.pp)
    actions = [pipeline.table.actions(place) for place in places]
    planned = [sum(pipeline.expected.get((one.kind, one.stage), 0.0) for one in each) for each in actions]
    if len(work) < len(places) or len(places) == 1 or not all(planned):
        return None
    # not of one slow rank
    times = [median_low(work[place].values()) / planned[place] for place in places]
    worst = max(places, key=times.__getitem__)
    typical = median(times[:worst] + times[worst + 1 :])
    if typical <= 0 or times[worst] < (1 + _UNEVEN) * typical:
        return None
    return SlowStage(worst, (times[worst] - typical) * planned[worst], times[worst] / typical)


def pipeline_of(question: Question, layout: Layout) -> Pipeline:
    """Schedule of the plan's pipeline with the median predicted seconds of each kind of pass on each stage."""
    spans = pass_spans(price_ranks(question, layout))
    table, lengths = spans.table, spans.end - spans.start
    seconds: dict[tuple[str, int], list[float]] = defaultdict(list)
    for kind, stage, length in zip(table.kind.flat, table.stage.flat, lengths.flat, strict=True):
        if kind < len(ACTION_KINDS):
            seconds[ACTION_KINDS[kind], int(stage)].append(float(length))
    return Pipeline(table, {key: median(each) for key, each in seconds.items()})


_PRICES: dict[str, Callable[..., Array]] = {
    name: getattr(collectives, f"{name}_seconds") for name in COLLECTIVES
}


class Achieved(NamedTuple):
    """Measured and predicted seconds of the matrix products of one shape, or of the collectives of one size."""

    axis: str
    """Parallel axis of a collective; empty for a product."""
    what: str
    """Shape of a product, operation of a collective."""
    ranks: int
    """Ranks of a collective; 0 for a product."""
    message_bytes: float
    """Bytes of a collective's whole tensor; 0 for a product."""
    kernels: int
    """Number of kernels on one rank: of a product in the trace, of a collective in a step."""
    seconds: float
    """Median seconds of a kernel; for collectives on the rank with the shortest median."""
    predicted: float
    """Predicted seconds of a kernel; 0: unknown, for example without a size."""
    rate: float
    """FLOP/s of a product, message bytes/s of a collective."""

    @property
    def excess(self) -> float:
        """Seconds by which all kernels together exceed the prediction; 0 without a prediction."""
        return self.kernels * (self.seconds - self.predicted) if self.predicted else 0.0


def products(job: Job, question: Question) -> list[Achieved]:
    """Measured and predicted seconds of the matrix products of each shape, largest excess over the prediction
    first."""
    device = device_of(question)
    times: dict[Product, array[float]] = defaultdict(lambda: array("d"))
    for rank in job.traced:
        for product, seconds in rank.products.items():
            times[product] += seconds
    achieved = []
    for product, kernels in times.items():
        batch, rows, inner, columns = (np.array([float(size)]) for size in product)
        predicted = float(gemm_seconds(rows, columns, inner, device, batch)[0])
        typical, count = median(kernels), -(-len(kernels) // len(job.traced))
        rate = product.flops / typical if typical else 0.0
        achieved.append(Achieved("", str(product), 0, 0.0, count, typical, predicted, rate))
    return sorted(achieved, key=lambda size: -size.excess)


def collectives_of(job: Job, question: Question, layout: Layout) -> list[Achieved]:
    """Measured and predicted seconds of a step's collectives of each axis, operation and size, largest excess
    first."""
    times_by_kind: dict[tuple[str, str, int, float], list[list[float]]] = defaultdict(list)
    for rank in job.traced:
        for kind, times in rank.exchanges.items():
            if kind.operation and kind.axis in AXES:
                size = kind.size or int(getattr(layout, kind.axis))
                key = (kind.axis, kind.operation, size, kind.message_bytes)
                times_by_kind[key].append([seconds for _, seconds in times])
    rows = []
    for (axis, operation, size, message), rank_times in times_by_kind.items():
        typical = min(median(each) for each in rank_times)
        price, groups = _PRICES.get(operation), _groups(axis, size, question, layout)
        predicted = 0.0
        if price is not None and message > 0 and groups is not None:
            predicted = float(price(message, groups, question.hardware)[0])
        count = max(len(each) for each in rank_times)
        rate = message / typical if typical else 0.0
        rows.append(Achieved(axis, operation, size, message, count, typical, predicted, rate))
    return sorted(rows, key=lambda one: (-one.excess, -one.kernels * one.seconds))


def _groups(axis: str, size: int, question: Question, layout: Layout) -> Groups | None:
    """Process groups of an axis with their links; a group of `size` neighbouring GPUs instead if the axis has
    groups of another size. None if the cluster has fewer GPUs."""
    axis_group: Groups = getattr(axis_groups(question.cluster, LayoutColumns.of([layout])), axis)
    if int(axis_group.size[0]) == size:
        return axis_group
    return group_of(question.cluster, size) if 1 < size <= question.cluster.num_gpus else None
