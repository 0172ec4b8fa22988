"""Parts of one step of a rank's trace, which add up to it.

compute, optimizer, other   on a GPU: a kernel of that kind runs; where several do, the first of these
tp, cp, ep, pp, dp _comm    communication of that axis while no such kernel runs
jitter                      nothing but a collective that waits for a rank that is late, where its peers' traces tell
offload                     only copies to or from host memory
data                        nothing runs, and the host waits for a batch
host                        nothing else

The part of a kernel follows from the process group of a collective, from its name, and from patterns of
`data/traces/kineto.yaml`. On a CPU whatever is waited for comes first, then the update. While a rank waits for another
stage its kernel of a send or receive runs already. What such kernels take beyond the shortest of them is `bubble`;
where passes of the other stages are known, what lies before the end of the sender's pass is (`passes`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from typing import Any

import numpy as np

from cost_models.arrays import Array, Ints
from cost_models.axes.layout import Layout
from cost_models.base import Spec
from cost_models.errors import InputError
from cost_models.files import read_data
from cost_models.measured.traces.events import Columns, Event
from cost_models.units import grouped

KERNELS = ("kernel", "gpu_memcpy", "gpu_memset")
"""Categories of events that run on a GPU."""
AXES = ("tp", "cp", "ep", "pp", "dp")
"""Axes of communication, those first whose ranks wait for it where several are at work."""
UNKNOWN, UNNAMED = "other", "unnamed"
"""A kernel that nothing names; communication of a group that is of no axis."""
_MOST_NAMES = 1_000


class Patterns(Spec):
    """Patterns for names of kernels and annotations in traces, from `data/traces/kineto.yaml`."""

    source: str
    step: str
    """Annotation of one step; the group is the number."""
    update: tuple[str, ...]
    """Annotations of the optimizer's update, by words in them."""
    loading: tuple[str, ...]
    """Annotations of waits for a batch, by words in them."""
    wait: str
    """Annotation of a wait; the group is its cause."""
    passed: str
    """Annotation of a pass; the groups are kind, stage and microbatch."""
    groups: tuple[tuple[str, str], ...]
    """Description of a process group → axis."""
    kernels: dict[str, tuple[str, ...]]
    """Part of a step, or `communication` → patterns of names of its kernels, the first that matches. A kernel that
    nothing names is `other`."""
    to_host: tuple[str, ...]
    """Words in names of copies to and from host memory."""


@cache
def patterns() -> Patterns:
    """Load the patterns for names of kernels and annotations from `data/traces/kineto.yaml`."""
    return Patterns.model_validate(read_data("traces/kineto"), strict=False)


@lru_cache(maxsize=100 * _MOST_NAMES)
def _part_by_name(name: str, category: str) -> str:
    """Part of a step that a kernel belongs to by its name, or `communication`."""
    name, kineto = name.lower(), patterns()
    if category != "kernel":
        return "offload" if any(word in name for word in kineto.to_host) else "compute"
    parts = (part for part, names in kineto.kernels.items() if any(re.search(one, name) for one in names))
    return next(parts, UNKNOWN)


@dataclass(slots=True)
class Parts:
    """Classifier of kernels into parts of a step (compute, optimizer, communication by axis, ...) under one
    layout."""

    layout: Layout
    unknown: dict[str, float] = field(default_factory=dict)
    """Name of a kernel that nothing names → its seconds."""
    _groups: dict[tuple[str, str, str], str] = field(default_factory=dict)

    def part_of(self, event: Event) -> str:
        """Part of a step that a kernel belongs to, `compute`, `optimizer`, `offload`, an axis of `AXES`,
        `other`, or `unnamed`."""
        part = _part_by_name(event.name, event.category)
        if part == "communication":
            details = event.details
            group = str(details.get("Process Group Description", "")).lower()
            ranks, kind = details.get("Process Group Ranks", ""), details.get("Collective name") or event.name
            key = (group, str(ranks), str(kind).lower())
            if key not in self._groups:
                self._groups[key] = self._axis_of(*key, details) or UNNAMED
            return self._groups[key]
        if part == UNKNOWN and (event.name in self.unknown or len(self.unknown) < _MOST_NAMES):
            self.unknown[event.name] = self.unknown.get(event.name, 0.0) + event.seconds
        return part

    def _axis_of(self, description: str, ranks: str, kind: str, details: Mapping[str, Any]) -> str:
        """Parallel axis of a collective, by the description of its group, else by its ranks, else by its
        kind; empty if unclear."""
        layout = self.layout
        used_axes = [axis for axis in AXES if getattr(layout, axis) > 1]
        for pattern, axis in patterns().groups:
            if axis in used_axes and re.search(pattern, description):
                return axis
        first, *further = [int(one) for one in re.findall(r"\d+", ranks)[:2]] or [0]
        shape = (details.get("Group size"), further[0] - first if further else 0)
        for axis in used_axes:
            if axis != "ep" and shape == (getattr(layout, axis), layout.stride(axis)):
                return axis
        if layout.cp > 1 and shape[0] == layout.data_ranks:
            return "dp"
        if layout.pp > 1 and shape[0] in (layout.num_gpus, layout.tp * layout.cp * layout.pp):
            return "pp"  # the norm of gradients, of all stages: they wait for the last
        if "alltoall" in kind.replace("_", ""):
            return "ep" if "ep" in used_axes else "cp" if "cp" in used_axes else ""
        if any(word in kind for word in ("send", "recv")):
            return next((axis for axis in ("pp", "cp", "ep") if axis in used_axes), "")
        meet = [axis for axis in used_axes if axis in ("tp", "dp", "cp")]
        return meet[0] if len(meet) == 1 else ""


JITTER = "jitter"
KINDS = ("compute", "optimizer", UNKNOWN, *AXES, UNNAMED, JITTER, "offload", "data")
"""Kinds of activity, in the order in which overlapping ones count on a GPU."""
ON_CPU = (*AXES, UNNAMED, JITTER, "offload", "data", "optimizer", "compute", UNKNOWN)
"""Kinds of activity, in the order in which overlapping ones count on a CPU."""
COMPUTE, _OPTIMIZER, PP = (KINDS.index(kind) for kind in ("compute", "optimizer", "pp"))
MOST_SPANS = 20_000_000
"""Kernels of one trace that are kept, 20 bytes each."""
Interval = tuple[float, float]


class Spans(Columns):
    """Start, seconds and kind of each kernel of one rank's trace, with annotated steps and updates."""

    def __init__(self) -> None:
        super().__init__("ddi")
        self.steps: dict[int, Interval] = {}
        """Number of a step → begin and end."""
        self.updates: list[Interval] = []

    def add(self, start: float, seconds: float, part: str) -> None:
        """Add a kernel of the given part; raise InputError where there are too many."""
        if len(self) >= MOST_SPANS:
            message = f"a trace has more than {grouped(MOST_SPANS)} kernels"
            raise InputError(message, hint="profile two or three steps")
        self.append(start, seconds, KINDS.index(part))


@dataclass(frozen=True, slots=True)
class Step:
    """Traced step of one rank, with its seconds by part and its kernels."""

    number: int
    begin: float
    """Seconds by the clock of the machine."""
    seconds: float
    parts: dict[str, float]
    """Seconds by part, which add up to the step."""
    low: Array
    """(K,): when each kernel in it begins, in order."""
    high: Array
    kind: Ints
    sends: tuple[Interval, ...]
    """Intervals in which the rank only waits for another stage, or sends to it."""
    updating: float | None
    """Begin of the update, where it is annotated."""
    count: int
    """Steps of the trace."""


def step_of(spans: Spans, *, number: int | None = None, order: Sequence[str] = KINDS) -> Step:
    """Step with the given number, or else of median length, split into parts; without annotations the trace
    is one step."""
    start, seconds, kind = spans.arrays()
    for began, ended in spans.updates:  # kernels that compute within an update belong to it
        middle = start + seconds / 2
        kind[(kind == COMPUTE) & (middle >= began) & (middle <= ended)] = _OPTIMIZER
    windows = _windows(spans, start, start + seconds)
    if number not in windows:
        by_length = sorted(windows, key=lambda step: windows[step][1] - windows[step][0])
        number = by_length[(len(by_length) - 1) // 2]
    begin, end = windows[number]
    inside = np.flatnonzero((start < end) & (start + seconds > begin))
    inside = inside[np.argsort(start[inside], kind="stable")]
    low, high = np.maximum(start[inside], begin), np.minimum(start[inside] + seconds[inside], end)
    kind = kind[inside]
    parts, sends = _parts(low, high, kind, end - begin, order)
    shortest = float(seconds[inside][kind == PP].min()) if len(sends) else 0.0
    waited = max(0.0, parts["pp_comm"] - shortest * int((kind == PP).sum()))
    parts |= {"pp_comm": parts["pp_comm"] - waited, "bubble": waited}
    updating = min((began for began, _ in spans.updates if begin <= began < end), default=None)
    return Step(number, begin, end - begin, parts, low, high, kind, sends, updating, len(windows))


def without_waits(step: Step, waits: Sequence[Interval]) -> dict[str, float]:
    """Seconds of a step by part, with the waits for late ranks in collectives moved to `jitter`; `waits` are
    (begin, seconds)."""
    low, kind, late = step.low.copy(), step.kind, np.array(waits).reshape(-1, 2)
    late = late[np.argsort(late[:, 0])]
    sends = np.isin(kind, [KINDS.index(axis) for axis in AXES if axis != "pp"])
    place = np.searchsorted(late[:, 0], low)
    delayed = sends & (late[np.minimum(place, len(late) - 1), 0] == low)
    low[delayed] = np.minimum(low[delayed] + late[place[delayed], 1], step.high[delayed])
    begin, end = np.concatenate([low, step.low[delayed]]), np.concatenate([step.high, low[delayed]])
    kind = np.concatenate([kind, np.full(int(delayed.sum()), KINDS.index(JITTER))])
    parts, _ = _parts(begin, end, kind, step.seconds, KINDS)
    return parts | {"pp_comm": parts["pp_comm"] - step.parts["bubble"], "bubble": step.parts["bubble"]}


def _windows(spans: Spans, start: Array, end: Array) -> dict[int, Interval]:
    """Step number → (begin, end) in seconds; each step lasts until the next begins."""
    if not spans.steps:
        return {0: (float(start.min()), float(end.max()))}
    ordered = sorted(spans.steps.items(), key=lambda step_span: step_span[1])
    ends = [begin for _, (begin, _) in ordered[1:]] + [ordered[-1][1][1]]
    return {number: (begin, ended) for (number, (begin, _)), ended in zip(ordered, ends, strict=True)}


def _parts(
    low: Array, high: Array, kind: Ints, step_seconds: float, order: Sequence[str]
) -> tuple[dict[str, float], tuple[Interval, ...]]:
    """Seconds of a step by part, and the intervals that count as `pp`; each moment belongs to the first
    active kind of `order`."""
    edges = np.unique(np.concatenate([low, high]))
    lengths = np.diff(edges)
    free = np.ones(len(lengths), dtype=bool)
    seconds: dict[str, float] = {}
    sends: tuple[Interval, ...] = ()
    for name in order:
        of_kind = kind == KINDS.index(name)
        counts = np.zeros(len(edges), dtype=np.int64)
        np.add.at(counts, np.searchsorted(edges, low[of_kind]), 1)
        np.add.at(counts, np.searchsorted(edges, high[of_kind]), -1)
        first_kind = free & (np.cumsum(counts)[:-1] > 0) if len(lengths) else free
        seconds[name] = float(lengths[first_kind].sum())
        if name == "pp":
            sends = tuple(zip(edges[:-1][first_kind].tolist(), edges[1:][first_kind].tolist(), strict=True))
        free &= ~first_kind
    parts = {f"{axis}_comm": seconds[axis] for axis in AXES}
    parts |= {name: seconds[name] for name in ("compute", "optimizer", "offload", "data", JITTER)}
    parts[UNKNOWN] = seconds[UNKNOWN] + seconds[UNNAMED]
    parts["host"] = max(0.0, step_seconds - sum(parts.values()))
    return parts, sends
