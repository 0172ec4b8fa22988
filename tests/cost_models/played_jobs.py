"""Traces of all ranks of a job that plays its plan on GPUs, with a fault of known size.

Ranks meet at collectives and exchange messages, so that one that is late makes others wait, as on a cluster. Every rank
has a clock of its own.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpu_traces import ADAM, GEMM

from cost_models.axes.layout import Layout, parse_layout
from cost_models.defaults import complete_question
from cost_models.files import catalog
from cost_models.files.loading import resolve_cluster
from cost_models.measured.traces.job import pipeline_of
from cost_models.measured.traces.step_parts import Pipeline
from cost_models.pipeline.pricing import estimate
from cost_models.specs.hardware import HardwareProfile
from cost_models.specs.training import TrainingSpec
from planner.plan import Plan, make_plan

FAULTS = ("slow link", "slow rank", "host-bound", "data-bound", "unbalanced stages")
KERNELS = 4
"""In each pass."""


@dataclass(frozen=True)
class Fault:
    """What is wrong: `strength` is how much longer it makes what it touches; of a slow link, of an `axis`, and of waits
    for data the share of passes or the step that these take longer."""

    kind: str = ""
    strength: float = 0.0
    rank: int = 1
    axis: str = "dp"

    def times(self, kind: str) -> float:
        """Factor on what this kind of fault touches."""
        return 1 + self.strength if kind == self.kind else 1.0


@dataclass
class _Meeting:
    """One collective or message: who came when, until all are there."""

    seconds: float
    members: int
    came: dict[int, float] = field(default_factory=dict)

    @property
    def done(self) -> float | None:
        return max(self.came.values()) + self.seconds if len(self.came) == self.members else None


@dataclass
class _Rank:
    """One rank as it plays: when it is free, and its events, those of meetings without their end."""

    rank: int
    program: Iterator[tuple[Any, ...]]
    now: float = 0.0
    waiting: tuple[Any, ...] | None = None
    events: list[dict[str, Any]] = field(default_factory=list)
    sends: list[tuple[dict[str, Any], tuple[Any, ...]]] = field(default_factory=list)


def plan_of(layout: str, profile: HardwareProfile | None = None) -> Plan:
    """A plan of Llama 3 8B on GPUs of one node, or several."""
    parsed = parse_layout(layout)
    question = complete_question(
        catalog.load_model("llama3-8b"),
        resolve_cluster("dgx-h100", parsed.num_gpus),
        TrainingSpec(global_batch=32, sequence_length=4096),
        profile=profile,
    )
    return make_plan(question, estimate(question, parsed))


def play(
    folder: Path, plan: Plan, fault: Fault = Fault(), *, steps: int = 2, jitter: float = 0.01, seed: int = 0
) -> list[Path]:
    """Write `trace_rankN.json` of every rank; steps take what the plan says, but for the fault."""
    layout = plan.layout
    pipeline = pipeline_of(plan.question, layout)
    meetings: dict[tuple[Any, ...], _Meeting] = {}
    draw = random.Random(seed)
    ranks = [
        _Rank(rank, _program(plan, pipeline, rank, fault, steps, jitter, draw))
        for rank in range(layout.num_gpus)
    ]
    busy = True
    while busy:
        busy = False
        for one in ranks:
            while _advance(one, layout, meetings):
                busy = True
    paths = []
    for one in ranks:
        for event, key in one.sends:
            event["dur"] = max(1e-7, (meetings[key].done or event["ts"]) - event["ts"])
        clock = 1000.0 + draw.uniform(0, 5)
        for event in one.events:
            event["ts"], event["dur"] = 1e6 * (event["ts"] + clock), 1e6 * event["dur"]
        info = {"backend": "nccl", "rank": one.rank, "world_size": layout.num_gpus}
        path = folder / f"trace_rank{one.rank}.json"
        path.write_text(json.dumps({"distributedInfo": info, "traceEvents": one.events}))
        paths.append(path)
    return paths


def _advance(one: _Rank, layout: Layout, meetings: dict[tuple[Any, ...], _Meeting]) -> bool:
    """Play what a rank does next; False where it waits for others, or is done."""
    word, *said = one.waiting or next(one.program, ("end",))
    if word == "end":
        return False
    if word == "run":
        name, seconds, category = said
        one.events.append(_event(category, name, one.now, seconds, 7))
        one.now += seconds
    elif word == "idle":
        one.now += said[0]
    elif word == "mark":
        name, begun = said
        one.events.append(_event("user_annotation", name, begun(one.now), one.now - begun(one.now), 1))
    else:  # meet, send, recv
        axis, group, key, seconds, operation = said
        meeting = meetings.setdefault(key, _Meeting(seconds, 2 if axis == "pp" else len(group)))
        came = one.rank not in meeting.came
        meeting.came.setdefault(one.rank, one.now)
        details = {
            "Collective name": operation,
            "Group size": len(group),
            "Process Group Ranks": str(list(group)),
        }
        details |= {
            "Process Group Description": f"mesh_{axis}",
            "In msg nelems": 1 << 20,
            "dtype": "BFloat16",
        }
        event = _event("kernel", f"ncclDevKernel_{operation}", meeting.came[one.rank], 0.0, 20, **details)
        if word == "send":
            one.events.append(event)
            one.sends.append((event, key))
        elif meeting.done is None:
            one.waiting = (word, *said)
            return came
        else:
            event["dur"] = meeting.done - event["ts"]
            one.events.append(event)
            one.now = meeting.done
    one.waiting = None
    return True


def _program(
    plan: Plan, pipeline: Pipeline, rank: int, fault: Fault, steps: int, jitter: float, draw: random.Random
) -> Iterator[tuple[Any, ...]]:
    """What one rank does: ("run", name, seconds, category), ("idle", seconds), ("mark", name, begin),
    ("meet" | "send" | "recv", axis, group, key, seconds, operation)."""
    layout, time = plan.layout, plan.prediction.time
    place = layout.place_along("pp", rank)
    inside = {name: time.get(name, 0.0) for name in ("compute", "recompute", "host", "tp_comm")}
    whole = sum(inside.values())
    share = {name: seconds / whole for name, seconds in inside.items()}
    hurt = fault.times("slow rank") if rank == fault.rank else 1.0
    hurt *= fault.times("unbalanced stages") if place == layout.pp - 1 else 1.0
    step_seconds = plan.prediction.step_seconds
    for step in range(steps):
        starts: list[float] = []

        def begun(now: float, starts: list[float] = starts) -> float:
            starts.append(now)
            return starts[0]

        yield "mark", "step begins", begun
        loading: list[float] = []
        yield "mark", "loading", lambda now, kept=loading: kept.append(now) or kept[0]
        yield (
            "idle",
            0.002 * step_seconds + (fault.strength * step_seconds if fault.kind == "data-bound" else 0.0),
        )
        yield "mark", "enumerate(DataLoader)#_Iter.__next__", lambda now, kept=loading: kept[0]
        for number, action in enumerate(pipeline.table.actions(place)):
            length = pipeline.expected[action.kind, action.stage] * (1 + jitter * draw.uniform(-1, 1))
            if pipeline.crosses(action, output=False):
                other = action.stage + (-1 if action.kind == "F" else 1)
                yield _message(layout, rank, "recv", step, action, other)
            for part in range(KERNELS):
                work = (share["compute"] + share["recompute"]) * length * hurt / KERNELS
                yield "run", GEMM, work, "kernel"
                host = share["host"] * length + fault.strength * work * KERNELS * (fault.kind == "host-bound")
                yield "idle", host / KERNELS
                if layout.tp > 1:
                    more = fault.strength if (fault.kind, fault.axis) == ("slow link", "tp") else 0.0
                    seconds = (share["tp_comm"] + more) * length / KERNELS
                    yield _meeting(layout, rank, "tp", (step, number, part), seconds, "allreduce")
            if pipeline.crosses(action, output=True):
                yield _message(layout, rank, "send", step, action, action.stage)
        if layout.dp > 1:
            more = fault.strength * step_seconds if (fault.kind, fault.axis) == ("slow link", "dp") else 0.0
            seconds = time["dp_comm"] + more
            yield _meeting(layout, rank, "dp", (step, "sync"), seconds, "_reduce_scatter_base")
        everyone = range(layout.num_gpus)
        yield "meet", "world", everyone, ("world", step), 1e-5, "allreduce"
        yield "run", ADAM, time["optimizer"], "kernel"
        yield "mark", f"ProfilerStep#{step}", lambda now, kept=starts: kept[0]


def _meeting(
    layout: Layout, rank: int, axis: str, which: Sequence[object], seconds: float, operation: str
) -> tuple[Any, ...]:
    stride = layout.stride(axis)
    first = rank - layout.place_along(axis, rank) * stride
    group = [first + stride * place for place in range(getattr(layout, axis))]
    return "meet", axis, group, (axis, first, *which), seconds, operation


def _message(layout: Layout, rank: int, word: str, step: int, action: Any, sender: int) -> tuple[Any, ...]:
    """A message of a replica: what the pass on stage `sender` made of a microbatch."""
    stride = layout.stride("pp")
    first = rank - layout.place_along("pp", rank) * stride
    group = [first + stride * place for place in range(layout.pp)]
    key = ("pp", first, step, action.kind == "F", sender, action.microbatch)
    return word, "pp", group, key, 2e-4, word


def _event(
    category: str, name: str, start: float, seconds: float, stream: int, **details: Any
) -> dict[str, Any]:
    event = {"ph": "X", "cat": category, "name": name, "pid": 0, "tid": stream, "ts": start, "dur": seconds}
    return event | {"args": {"device": 0, "stream": stream, **details}}
