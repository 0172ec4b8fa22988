"""Traces of several ranks put together: who is late, and every pass of a pipeline on one clock."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median, median_low
from typing import NamedTuple

from cost_models.axes.layout import Layout
from cost_models.measured.traces.exchanges import Arrival, Late, arrivals, late_ranks
from cost_models.measured.traces.host import Pass
from cost_models.measured.traces.passes import Pipeline, aligned, bubble_of, passes_of, updating_of
from cost_models.measured.traces.reading import Traced
from cost_models.measured.traces.splitting import without_waits
from cost_models.pipeline.pricing import pass_spans
from cost_models.question import Question
from cost_models.schedules.actions import KINDS

SLICES = 50
"""Pieces of a step in which lateness is added up."""
_UNEVEN = 0.05
"""Share by which a stage must take longer beside the others than planned, before it is named."""
_OWN = 0.25
"""Share of what a late rank costs that its own work must be longer by, for it to be the cause."""


class SlowStage(NamedTuple):
    """A stage that computes longer than planned, beside the others."""

    place: int
    seconds: float
    """Of a step, more than as the others do."""
    times: float
    """As long as planned beside the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What the traces of some ranks tell together."""

    traced: tuple[Traced, ...]
    passes: Mapping[int, tuple[Pass, ...]]
    """Rank → its passes, in seconds since the step began; of pipelines of which every rank was traced."""
    late: tuple[Late, ...]
    late_seconds: Mapping[int, tuple[float, ...]]
    """Rank → seconds that others waited for it, in each of `SLICES` of the step."""
    slow_stage: SlowStage | None = None
    unfollowed: tuple[int, ...] = ()
    """Ranks whose sends and receives are not those of the plan's schedule."""


def put_together(traced: Sequence[Traced], question: Question, layout: Layout) -> Job:
    """Match the collectives of a job's ranks, find the passes of its pipelines, and tell waits for other stages and for
    late ranks from what is sent."""
    ranks, longest = list(traced), max(one.seconds for one in traced)
    matched = arrivals({one.rank: one.exchanges for one in ranks}, layout)
    late = _first_late(late_ranks(matched, longest), ranks, layout)
    waits = _waits(matched)
    ranks = [
        replace(one, parts=without_waits(one.step, waits[one.rank])) if one.rank in waits else one
        for one in ranks
    ]
    annotated = all(one.passes for one in ranks)
    if annotated:  # on a CPU: a barrier is where steps begin, so each waits until the slowest is done
        waiting = {one.rank: one.parts["bubble"] + longest - one.seconds for one in ranks}
        ranks = [replace(one, parts=one.parts | {"bubble": waiting[one.rank]}) for one in ranks]
    if layout.pp == 1 and not annotated:
        return Job(traced=tuple(ranks), passes={}, late=late, late_seconds=_in_slices(ranks, matched))
    pipeline = pipeline_of(question, layout)
    found, told, raw = {one.rank: one for one in ranks}, {}, {}
    for one in ranks:
        place = layout.place_along("pp", one.rank)
        raw[one.rank] = one.passes or passes_of(one.step, one.exchanges, pipeline, place)
    for replica in _replicas(ranks, layout):
        if len(replica) < layout.pp or not all(raw[one.rank] for one in replica.values()):
            continue
        own = {place: raw[one.rank] for place, one in replica.items()}
        clock = own if annotated else aligned(own, pipeline)
        if len(clock) < layout.pp:  # no message tells how far apart two clocks are
            continue
        begins = {
            place: replica[place].step.begin if annotated else own[place][0].start - clock[place][0].start
            for place in clock
        }
        all_there = max(
            updating_of(replica[place].step, clock[place], begin) for place, begin in begins.items()
        )
        every = [span for each in clock.values() for span in each]
        for place, one in replica.items():
            told[one.rank] = clock[place]
            found[one.rank] = _refined(one, clock[place], every, begins[place], all_there)
    return Job(
        traced=tuple(found.values()),
        passes=told,
        late=late,
        late_seconds=_in_slices(ranks, matched),
        slow_stage=_slow_stage(ranks, pipeline, layout),
        unfollowed=tuple(rank for rank, each in raw.items() if not each),
    )


def _waits(matched: Sequence[Sequence[Arrival]]) -> dict[int, list[tuple[float, float]]]:
    """Rank → when each of its collectives began, and how long it waited there for the last to come."""
    waits: dict[int, list[tuple[float, float]]] = defaultdict(list)
    for members in matched:
        most = max(one.waited for one in members)
        for one in members:
            waits[one.rank].append((one.at, most - one.waited))
    return waits


def _first_late(late: Sequence[Late], ranks: Sequence[Traced], layout: Layout) -> tuple[Late, ...]:
    """Those that are late by their own work, beside others of their stage: the rest of their pipelines waits for them.
    All, where none is."""
    work = {one.rank: one.parts["compute"] + one.parts["host"] for one in ranks}
    own = []
    for one in late:
        stage = layout.place_along("pp", one.rank)
        others = [work[rank] for rank in work if rank != one.rank and layout.place_along("pp", rank) == stage]
        if others and work[one.rank] - median(others) >= _OWN * one.seconds:
            own.append(one)
    return tuple(own or late)


def _replicas(ranks: Sequence[Traced], layout: Layout) -> list[dict[int, Traced]]:
    """Place in the pipeline → rank, of each replica."""
    replicas: dict[int, dict[int, Traced]] = defaultdict(dict)
    for one in ranks:
        place = layout.place_along("pp", one.rank)
        replicas[one.rank - place * layout.stride("pp")][place] = one
    return list(replicas.values())


def _in_slices(ranks: Sequence[Traced], matched: Sequence[Sequence[Arrival]]) -> dict[int, tuple[float, ...]]:
    """Rank → seconds that others waited for it, slice by slice."""
    steps = {one.rank: one.step for one in ranks}
    found: dict[int, list[float]] = {}
    for one in (one for members in matched for one in members):
        step = steps[one.rank]
        place = min(SLICES - 1, int(SLICES * (one.at - step.begin) / step.seconds))
        found.setdefault(one.rank, [0.0] * SLICES)[place] += one.waited
    return {rank: tuple(each) for rank, each in found.items()}


def _slow_stage(ranks: Sequence[Traced], pipeline: Pipeline, layout: Layout) -> SlowStage | None:
    """The place of a pipeline that computes longest beside what was planned; None where they are even, or some were not
    traced."""
    measured: dict[int, list[float]] = defaultdict(list)
    for one in ranks:
        measured[layout.place_along("pp", one.rank)].append(one.parts["compute"] + one.parts["host"])
    planned = [
        sum(pipeline.expected.get((one.kind, one.stage), 0.0) for one in pipeline.table.actions(place))
        for place in range(layout.pp)
    ]
    if len(measured) < layout.pp or layout.pp == 1 or not all(planned):
        return None
    # not of one slow rank
    times = [median_low(measured[place]) / planned[place] for place in range(layout.pp)]
    worst = max(range(layout.pp), key=times.__getitem__)
    usual = median(times[:worst] + times[worst + 1 :])
    if usual <= 0 or times[worst] < (1 + _UNEVEN) * usual:
        return None
    return SlowStage(worst, (times[worst] - usual) * planned[worst], times[worst] / usual)


def pipeline_of(question: Question, layout: Layout) -> Pipeline:
    """The plan's schedule, and the median length of each kind of its passes."""
    spans = pass_spans(question, layout)
    table, lengths = spans.table, spans.end - spans.start
    seconds: dict[tuple[str, int], list[float]] = defaultdict(list)
    for kind, stage, length in zip(table.kind.flat, table.stage.flat, lengths.flat, strict=True):
        if kind < len(KINDS):
            seconds[KINDS[kind], int(stage)].append(float(length))
    return Pipeline(table, {key: median(each) for key, each in seconds.items()})


def _refined(
    one: Traced, passes: Sequence[Pass], every: Sequence[Pass], begin: float, all_there: float
) -> Traced:
    """With what it waits for stages that are not done yet as bubble, and the rest as sends."""
    bubble, after = bubble_of(one.step, passes, every, begin, all_there), one.seconds - one.step.seconds
    sends = one.parts["pp_comm"] + one.parts["bubble"] - after - bubble
    return replace(one, parts=one.parts | {"bubble": bubble + after, "pp_comm": max(0.0, sends)})
