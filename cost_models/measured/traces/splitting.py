"""Splits a step of one rank's trace into parts that add up to it.

compute, optimizer, other   on a GPU: a kernel of that kind runs; where several do, the first of these
tp, cp, ep, pp, dp _comm    communication of that axis while no such kernel runs
jitter                      nothing but a collective that waits for a rank that is late, where its peers' traces tell
offload                     only copies to or from host memory
data                        nothing runs, and the host waits for a batch
host                        nothing else

On a CPU whatever is waited for comes first, then the update. While a rank waits for another stage its kernel of a send
or receive runs already. What such kernels take beyond the shortest of them is `bubble`; where passes of the other
stages are known, what lies before the end of the sender's pass is (`passes`).
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from cost_models.arrays import Array, Ints
from cost_models.errors import InputError
from cost_models.measured.traces.kernels import AXES, OTHER, UNNAMED
from cost_models.units import grouped

JITTER = "jitter"
KINDS = ("compute", "optimizer", OTHER, *AXES, UNNAMED, JITTER, "offload", "data")
"""What may run, what counts first on a GPU at the front."""
ON_CPU = (*AXES, UNNAMED, JITTER, "offload", "data", "optimizer", "compute", OTHER)
"""The same on a CPU."""
COMPUTE, _OPTIMIZER, PP = (KINDS.index(kind) for kind in ("compute", "optimizer", "pp"))
MOST_SPANS = 20_000_000
"""Kernels of one trace that are kept, 17 bytes each."""
Interval = tuple[float, float]


@dataclass(slots=True)
class Spans:
    """What ran on one rank, and annotations of steps and updates."""

    start: array[float] = field(default_factory=lambda: array("d"))
    seconds: array[float] = field(default_factory=lambda: array("d"))
    kind: array[int] = field(default_factory=lambda: array("b"))
    steps: dict[int, Interval] = field(default_factory=dict)
    """Number of a step → when it began and ended."""
    updates: list[Interval] = field(default_factory=list)

    def add(self, start: float, seconds: float, part: str) -> None:
        """Keep a kernel. Raises InputError: there are too many."""
        if len(self.start) >= MOST_SPANS:
            raise InputError(
                f"a trace has more than {grouped(MOST_SPANS)} kernels", hint="profile two or three steps"
            )
        self.start.append(start)
        self.seconds.append(seconds)
        self.kind.append(KINDS.index(part))


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step of a rank."""

    number: int
    begin: float
    """By the clock of its machine."""
    seconds: float
    parts: dict[str, float]
    """They add up to it."""
    low: Array
    """(K,): when each kernel in it begins, in order."""
    high: Array
    kind: Ints
    sends: tuple[Interval, ...]
    """When it waits for another stage, or sends to it, and does nothing else."""
    updating: float | None
    """When its update begins, where that is annotated."""
    count: int
    """Steps of the trace."""


def split(spans: Spans, *, number: int | None = None, order: Sequence[str] = KINDS) -> Step:
    """The step of that number, else the one of median length; a trace without annotations of steps is taken as one."""
    start, seconds = np.array(spans.start), np.array(spans.seconds)
    kind = np.array(spans.kind, dtype=np.int64)
    for began, ended in spans.updates:  # kernels that compute within an update belong to it
        middle = start + seconds / 2
        kind[(kind == COMPUTE) & (middle >= began) & (middle <= ended)] = _OPTIMIZER
    windows = _windows(spans, start, start + seconds)
    if number not in windows:
        lengths = sorted(windows, key=lambda one: windows[one][1] - windows[one][0])
        number = lengths[(len(lengths) - 1) // 2]
    begin, end = windows[number]
    inside = np.flatnonzero((start < end) & (start + seconds > begin))
    inside = inside[np.argsort(start[inside], kind="stable")]
    low, high = np.maximum(start[inside], begin), np.minimum(start[inside] + seconds[inside], end)
    kind = kind[inside]
    parts, sends = _parts(low, high, kind, end - begin, order)
    shortest = float(seconds[inside][kind == PP].min()) if len(sends) else 0.0
    waited = max(0.0, parts["pp_comm"] - shortest * int((kind == PP).sum()))
    parts |= {"pp_comm": parts["pp_comm"] - waited, "bubble": waited}
    return Step(
        number=number,
        begin=begin,
        seconds=end - begin,
        parts=parts,
        low=low,
        high=high,
        kind=kind,
        sends=sends,
        updating=min((began for began, _ in spans.updates if begin <= began < end), default=None),
        count=len(windows),
    )


def without_waits(step: Step, waits: Sequence[Interval]) -> dict[str, float]:
    """The parts of a step of which it is known when collectives began, and for how long they waited for late ranks."""
    low, kind, late = step.low.copy(), step.kind, np.array(waits).reshape(-1, 2)
    late = late[np.argsort(late[:, 0])]
    sends = np.isin(kind, [KINDS.index(axis) for axis in AXES if axis != "pp"])
    place = np.searchsorted(late[:, 0], low)
    mine = sends & (late[np.minimum(place, len(late) - 1), 0] == low)
    low[mine] = np.minimum(low[mine] + late[place[mine], 1], step.high[mine])
    begin, end = np.concatenate([low, step.low[mine]]), np.concatenate([step.high, low[mine]])
    kind = np.concatenate([kind, np.full(int(mine.sum()), KINDS.index(JITTER))])
    parts, _ = _parts(begin, end, kind, step.seconds, KINDS)
    return parts | {"pp_comm": parts["pp_comm"] - step.parts["bubble"], "bubble": step.parts["bubble"]}


def _windows(spans: Spans, start: Array, end: Array) -> dict[int, Interval]:
    """Begin and end of each step: each lasts until the next begins."""
    if not spans.steps:
        return {0: (float(start.min()), float(end.max()))}
    ordered = sorted(spans.steps.items(), key=lambda one: one[1])
    ends = [begin for _, (begin, _) in ordered[1:]] + [ordered[-1][1][1]]
    return {number: (begin, ended) for (number, (begin, _)), ended in zip(ordered, ends, strict=True)}


def _parts(
    low: Array, high: Array, kind: Ints, whole: float, order: Sequence[str]
) -> tuple[dict[str, float], tuple[Interval, ...]]:
    """Seconds by part of one step, and when `pp` counts: each moment belongs to the first kind of `order` in it."""
    edges = np.unique(np.concatenate([low, high]))
    lengths = np.diff(edges)
    free = np.ones(len(lengths), dtype=bool)
    found: dict[str, float] = {}
    sends: tuple[Interval, ...] = ()
    for name in order:
        mine = kind == KINDS.index(name)
        counts = np.zeros(len(edges), dtype=np.int64)
        np.add.at(counts, np.searchsorted(edges, low[mine]), 1)
        np.add.at(counts, np.searchsorted(edges, high[mine]), -1)
        here = free & (np.cumsum(counts)[:-1] > 0) if len(lengths) else free
        found[name] = float(lengths[here].sum())
        if name == "pp":
            sends = tuple(zip(edges[:-1][here].tolist(), edges[1:][here].tolist(), strict=True))
        free &= ~here
    parts = {f"{axis}_comm": found[axis] for axis in AXES}
    parts |= {name: found[name] for name in ("compute", "optimizer", "offload", "data", JITTER)}
    parts[OTHER] = found[OTHER] + found[UNNAMED]
    parts["host"] = max(0.0, whole - sum(parts.values()))
    return parts, sends
