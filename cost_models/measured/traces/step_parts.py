"""Splitting of one step of a rank's trace into parts that add up to the step.

compute, optimizer, other   on a GPU: a kernel of that kind runs; where several do, the first of these
tp, cp, ep, pp, dp _comm    communication of that axis while no such kernel runs
jitter                      nothing but a collective that waits for a rank that is late, where its peers' traces tell
offload                     only copies to or from host memory
data                        nothing runs, and the host waits for a batch
host                        nothing else

The part of a kernel follows from the process group of a collective, from its name, and from patterns of
`data/traces/kineto.yaml`. On a CPU whatever is waited for comes first, then the update. While a rank waits for another
stage its kernel of a send or receive runs already. What such kernels take beyond the shortest of them is `bubble`;
where passes of the other stages are known, what lies before the end of the sender's pass is.

Kernels of a rank's trace: collectives by axis, operation and size, and matrix products by shape.

Collectives are matched over ranks, to find late ranks. All members of a collective end together, so the one whose
kernel is shortest came last, whatever their clocks say; the others waited by as much as theirs are longer. Kernels of
products are joined with the operators that launched them, which tell their shapes.

Passes of a pipeline, microbatch by microbatch, and the work of a rank on a CPU.

Between two passes of a rank lies a send or a receive wherever the plan's action table has one: kernels between two of
them are one pass, or several that follow each other without, which are told apart by their predicted lengths. Where
the trainer annotates its passes these are taken.

Clocks of ranks differ. A message arrives after it was sent, in both directions: each bounds by how much the clock of
one stage is ahead of its neighbour's, and the middle is taken (Mills 1991, RFC 1305).

On a CPU compute is the time inside torch's operators, less that of operators inside them, and without those that only
dispatch to the same operator on the shards of a `DTensor`. Waits, passes and updates are annotated, as `run --profiler`
does.
"""

from __future__ import annotations

import math
import re
from array import array
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from itertools import pairwise
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from cost_models.arrays import Array, Ints
from cost_models.axes.layout import Layout
from cost_models.base import Spec
from cost_models.errors import InputError
from cost_models.files import read_data
from cost_models.measured.logs import search
from cost_models.measured.traces.events import Columns, Event, whole_number
from cost_models.schedules.actions import Action, ActionTable
from cost_models.units import grouped

KERNELS = ("kernel", "gpu_memcpy", "gpu_memset")
"""Categories of events that run on a GPU."""
AXES = ("tp", "cp", "ep", "pp", "dp")
"""Axes of communication; if several communicate at once, time counts for the first axis."""
UNKNOWN, UNNAMED = "other", "unnamed"
"""Part of kernels that no pattern matches; part of communication in groups that belong to no axis."""
_MOST_NAMES = 1_000


class Patterns(Spec):
    """Patterns for names of kernels and annotations in traces, from `data/traces/kineto.yaml`."""

    source: str
    step: str
    """Pattern of the annotation of a step; its group is the step's number."""
    update: tuple[str, ...]
    """Words in annotations of the optimizer update."""
    loading: tuple[str, ...]
    """Words in annotations of waits for a batch."""
    wait: str
    """Pattern of the annotation of a wait; its group is the cause."""
    passed: str
    """Pattern of the annotation of a pass; its groups are kind, stage and microbatch."""
    groups: tuple[tuple[str, str], ...]
    """Pairs of a pattern for descriptions of process groups and the groups' axis."""
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
    """Part of a step to which a kernel belongs according to its name, or `communication`; cached."""
    name, kineto = name.lower(), patterns()
    if category != "kernel":
        return "offload" if any(word in name for word in kineto.to_host) else "compute"
    parts = (part for part, names in kineto.kernels.items() if any(re.search(one, name) for one in names))
    return next(parts, UNKNOWN)


@dataclass(slots=True)
class Parts:
    """Classifier that assigns a trace's kernels to parts of a layout's step (compute, optimizer,
    communication by axis, ...)."""

    layout: Layout
    unknown: dict[str, float] = field(default_factory=dict)
    """Seconds of kernels that no pattern matches, by name."""
    _groups: dict[tuple[str, str, str], str] = field(default_factory=dict)

    def part_of(self, event: Event) -> str:
        """Part of a step to which a kernel belongs: `compute`, `optimizer`, `offload`, an axis of `AXES`,
        `other` or `unnamed`."""
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
        """Parallel axis of a collective, found from its group's description, else its ranks, else its kind;
        empty if unclear."""
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
"""Kinds of activity; time in which several overlap on a GPU counts for the first."""
ON_CPU = (*AXES, UNNAMED, JITTER, "offload", "data", "optimizer", "compute", UNKNOWN)
"""Kinds of activity; time in which several overlap on a CPU counts for the first."""
COMPUTE, _OPTIMIZER, PP = (KINDS.index(kind) for kind in ("compute", "optimizer", "pp"))
MOST_SPANS = 20_000_000
"""Maximum number of kernels of a trace, 20 bytes each."""
Interval = tuple[float, float]


class Spans(Columns):
    """Start, seconds and kind of each kernel in one rank's trace, with annotated steps and updates."""

    def __init__(self) -> None:
        super().__init__("ddi")
        self.steps: dict[int, Interval] = {}
        """Start and end of each annotated step, by its number."""
        self.updates: list[Interval] = []

    def add(self, start: float, seconds: float, part: str) -> None:
        """Add a kernel of the given part. Raises InputError if the trace has too many."""
        if len(self) >= MOST_SPANS:
            message = f"a trace has more than {grouped(MOST_SPANS)} kernels"
            raise InputError(message, hint="profile two or three steps")
        self.append(start, seconds, KINDS.index(part))


@dataclass(frozen=True, slots=True)
class Step:
    """Traced step of one rank, with its seconds by part and its kernels."""

    number: int
    begin: float
    """Start of the step in seconds on the machine's clock."""
    seconds: float
    parts: dict[str, float]
    """Seconds by part; their sum is the step."""
    low: Array
    """(K,): when each kernel in it begins, in order."""
    high: Array
    kind: Ints
    sends: tuple[Interval, ...]
    """Intervals in which the rank only waits for another stage, or sends to it."""
    updating: float | None
    """Start of the optimizer update; None if it is not annotated."""
    count: int
    """Number of steps in the trace."""


def step_of(spans: Spans, *, number: int | None = None, order: Sequence[str] = KINDS) -> Step:
    """Split the step with the given number into parts, by default the step of median length. A trace without
    annotations is one step."""
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
    """Seconds of a step by part, with waits for late ranks in collectives counted as `jitter`; `waits` are
    (start, seconds)."""
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
    """Start and end in seconds of each step, by number; a step lasts until the next begins."""
    if not spans.steps:
        return {0: (float(start.min()), float(end.max()))}
    ordered = sorted(spans.steps.items(), key=lambda step_span: step_span[1])
    ends = [begin for _, (begin, _) in ordered[1:]] + [ordered[-1][1][1]]
    return {number: (begin, ended) for (number, (begin, _)), ended in zip(ordered, ends, strict=True)}


def _parts(
    low: Array, high: Array, kind: Ints, step_seconds: float, order: Sequence[str]
) -> tuple[dict[str, float], tuple[Interval, ...]]:
    """Seconds of a step by part, and the intervals that count as `pp`. Each moment counts only for the first
    active kind in `order`."""
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


COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast")
_OPERATIONS = {operation.replace("_", ""): operation for operation in COLLECTIVES}
_OPERATIONS |= {"sendrecv": "p2p", "send": "send", "recv": "recv", "coalesced": "p2p"}
"""Operation of a collective by a word in its name or its kernel's, without `_`."""
_BYTES = {"double": 8, "long": 8, "float": 4, "int": 4, "bfloat16": 2, "half": 2}
"""Bytes of an element by the name of its type in torch's traces; other types have 1."""
_MOST_KINDS = 100_000
LATE = 0.02
"""Minimum share of a step that a late rank costs."""
_LATE_SHARE = 0.6
"""Minimum share of collectives to which a late rank came last."""


class Exchange(NamedTuple):
    """Kind of collective in a trace: axis, operation, group, ranks and message bytes."""

    axis: str
    operation: str
    """`all_reduce`, `all_gather`, ...; `p2p` is a send and a receive in one kernel."""
    group: str
    """The ranks, as the trace names them, or the group's description."""
    size: int
    """Number of ranks; 0: unknown."""
    message_bytes: float
    """Bytes of the whole tensor; 0: unknown."""


TimesByExchange = Mapping[Exchange, list[tuple[float, float]]]
"""Start and seconds of each communication kernel of a step, by kind of collective."""


class Exchanges(Columns):
    """Start, seconds and kind of each communication kernel in one rank's trace."""

    def __init__(self) -> None:
        super().__init__("ddi")
        self.kinds: dict[Exchange, int] = {}

    def add(self, event: Event, axis: str) -> None:
        """Add a communication kernel of the given axis."""
        details = event.details
        name = str(details.get("Collective name") or event.name).lower().replace("_", "")
        operation = next((one for word, one in _OPERATIONS.items() if word in name), "")
        inputs, outputs = (whole_number(details.get(f"{way} msg nelems"), 10**15) for way in ("In", "Out"))
        elements = inputs if operation == "all_to_all" else max(inputs, outputs)
        message_bytes = float(_BYTES.get(str(details.get("dtype", "float")).lower(), 1) * elements)
        ranks = details.get("Process Group Ranks") or details.get("Process Group Description") or ""
        size = whole_number(details.get("Group size"), 10**9)
        exchange = Exchange(axis, operation, str(ranks)[:4_000], size, message_bytes)
        if exchange in self.kinds or len(self.kinds) < _MOST_KINDS:
            self.append(event.start, event.seconds, self.kinds.setdefault(exchange, len(self.kinds)))

    def of_step(self, step: Step) -> dict[Exchange, list[tuple[float, float]]]:
        """Start and seconds of the communication kernels of a step in order of time, by kind of collective."""
        start, seconds, kind = self.arrays()
        inside = np.flatnonzero((start >= step.begin) & (start < step.begin + step.seconds))
        exchange_kinds, times = list(self.kinds), defaultdict(list)
        for index in inside[np.argsort(start[inside], kind="stable")].tolist():
            times[exchange_kinds[kind[index]]].append((float(start[index]), float(seconds[index])))
        return dict(times)


class Late(NamedTuple):
    """Rank for which others wait in collectives, with the seconds of a step lost by the waits."""

    rank: int
    seconds: float
    """Seconds of a step in which a group waits for this rank alone."""
    share: float
    """Share of collectives to which the rank came last, or with the last."""


class Arrival(NamedTuple):
    """Start of one rank's kernel for a collective, and the seconds for which the first rank waited for it."""

    rank: int
    at: float
    """Start of the kernel in seconds on the rank's clock."""
    waited: float
    """Seconds from the first rank's start to this rank's."""


def arrivals(exchanges_by_rank: Mapping[int, TimesByExchange], layout: Layout) -> list[list[Arrival]]:
    """Arrival of every rank at each collective that could be matched over the ranks' traces."""
    groups: dict[tuple[object, ...], dict[int, list[tuple[float, float]]]] = defaultdict(dict)
    for rank, exchanges in exchanges_by_rank.items():
        for kind, times in exchanges.items():
            if (group := _members(kind, layout, rank)) is not None:
                groups[group, kind.axis, kind.operation, kind.group, kind.message_bytes][rank] = times
    matched = []
    for members in groups.values():
        if len(members) > 1 and len({len(times) for times in members.values()}) == 1:
            for kernels in zip(*members.values(), strict=True):
                longest = max(seconds for _, seconds in kernels)
                pairs = zip(members, kernels, strict=True)
                matched.append([Arrival(rank, start, longest - seconds) for rank, (start, seconds) in pairs])
    return matched


def _members(kind: Exchange, layout: Layout, rank: int) -> object:
    """Key that is the same for all ranks of the group that runs a collective; None if the group is unknown or
    its ranks do not run the collective at one time."""
    if kind.axis not in AXES or kind.operation in ("", "send", "recv", "p2p"):
        return None
    if kind.group.startswith("["):  # of one stage: others end later as planned
        places = {layout.place_along("pp", int(one)) for one in re.findall(r"\d{1,9}", kind.group)}
        return kind.group if len(places) == 1 else None
    if kind.axis == "ep":
        return None
    return rank - layout.place_along(kind.axis, rank) * layout.stride(kind.axis)


def late_ranks(matched: Sequence[Sequence[Arrival]], step_seconds: float) -> tuple[Late, ...]:
    """Ranks that come last to most of their collectives and cost their groups 2 % or more of the step, worst
    first."""
    lost: dict[int, float] = defaultdict(float)
    last: dict[int, list[bool]] = defaultdict(list)
    for members in matched:
        longest = max(arrival.waited for arrival in members)
        waits_of_others = [arrival.waited for arrival in members if arrival.waited <= longest / 2]
        for arrival in members:
            came_last = arrival.waited > longest / 2
            last[arrival.rank].append(came_last)
            lost[arrival.rank] += arrival.waited - median(waits_of_others) if came_last else 0.0
    late = [
        Late(rank, seconds, sum(last[rank]) / len(last[rank]))
        for rank, seconds in lost.items()
        if seconds >= LATE * step_seconds and sum(last[rank]) >= _LATE_SHARE * len(last[rank])
    ]
    return tuple(sorted(late, key=lambda arrival: -arrival.seconds))


_OPERATORS = {"aten::mm": 0, "aten::addmm": 1, "aten::bmm": 0, "aten::baddbmm": 1, "aten::_scaled_mm": 0}
"""Index of the first factor among an operator's inputs, by operator; the second factor follows."""
_RUNTIME = ("cuda_runtime", "cuda_driver")
"""Categories of launches; ROCm's are called alike."""
_MAX_EVENTS, _MAX_NAMES = 2_000_000, 100_000


class Product(NamedTuple):
    """Shape of a matrix product, `batch` times (rows, inner) x (inner, columns)."""

    batch: int
    rows: int
    inner: int
    columns: int

    @property
    def flops(self) -> float:
        """FLOPs of the product, summed over the batch."""
        return 2.0 * self.batch * self.rows * self.inner * self.columns

    def __str__(self) -> str:
        words = f"{self.rows} x {self.inner} x {self.columns}"
        return words if self.batch == 1 else f"{self.batch} x ({words})"


@lru_cache(maxsize=_MAX_NAMES)
def _multiplies(name: str) -> bool:
    """Whether a kernel multiplies matrices, judged by its name; cached."""
    return bool(re.search(patterns().kernels["compute"][0], name.lower()))


class Products:
    """Matrix-product kernels of a trace, collected with the launches and operators from which their shapes
    follow."""

    def __init__(self) -> None:
        self._shapes: dict[Product, int] = {}
        self._operators = Columns("qi")
        """Columns of operator ids and of shape numbers."""
        self._launches = Columns("qq")
        """Columns of launch numbers and of operator ids."""
        self._kernels = Columns("qd")
        """Columns of operator ids (or negative launch numbers) and of seconds, for kernels."""

    def add_kernel(self, event: Event) -> None:
        """Add a trace event if it is a kernel that multiplies matrices."""
        if event.category == "kernel" and len(self._kernels) < _MAX_EVENTS and _multiplies(event.name):
            operator, launch = map(whole_number, map(event.details.get, ("External id", "correlation")))
            if operator or launch:
                self._kernels.append(operator or -launch, event.seconds)

    def add_operator(self, event: Event) -> None:
        """Record a trace event if it is an operator that multiplies matrices, or a kernel launch."""
        operator = whole_number(event.details.get("External id"))
        if event.category == "cpu_op" and event.name in _OPERATORS and len(self._operators) < _MAX_EVENTS:
            if operator and (shape := _shape(event.details.get("Input Dims"), _OPERATORS[event.name])):
                self._operators.append(operator, self._shapes.setdefault(shape, len(self._shapes)))
        elif event.category in _RUNTIME and operator and len(self._launches) < 10 * _MAX_EVENTS:
            self._launches.append(whole_number(event.details.get("correlation")), operator)

    def seconds_by_shape(self) -> dict[Product, array[float]]:
        """Seconds of each matrix-product kernel of the trace, by shape of the product."""
        kernel, seconds = self._kernels.arrays()
        operator = np.where(kernel < 0, _values_of(-kernel, *self._launches.arrays(), none=0), kernel)
        shape = _values_of(operator, *self._operators.arrays(), none=-1)
        shapes = list(self._shapes)
        numbers = dict.fromkeys(shape[shape >= 0].tolist())
        return {shapes[number]: array("d", seconds[shape == number]) for number in numbers}


def _values_of(keys: Ints, known_keys: Ints, values: Ints, *, none: int) -> Ints:
    """Element of `values` for each of `keys`: the one at the last place where `known_keys` has that key;
    `none` for an unknown key."""
    if not len(known_keys):
        return np.full(len(keys), none)
    order = np.argsort(known_keys, kind="stable")
    place = np.searchsorted(known_keys, keys, side="right", sorter=order) - 1
    indices = order[np.maximum(place, 0)]
    return np.where(known_keys[indices] == keys, values[indices], none)


def _shape(dims: Any, first: int) -> Product | None:
    """Shape of the product of an operator's inputs number `first` and `first + 1`, where `dims` has the sizes
    of all inputs; None if the two cannot be multiplied."""
    pair = dims[first : first + 2] if isinstance(dims, list) else []
    sized = (isinstance(one, list) and len(one) in (2, 3) and all(map(whole_number, one)) for one in pair)
    if len(pair) < 2 or not all(sized):
        return None
    left, right = pair
    if len(left) != len(right) or left[-1] != right[-2]:
        return None
    return Product(left[0] if len(left) == 3 else 1, left[-2], left[-1], right[-1])


class Pass(NamedTuple):
    """Start and end in seconds of one pass (forward or backward) of one microbatch on one stage."""

    kind: str
    """Letter of the pass in the action table: F, B, I or W."""
    stage: int
    microbatch: int
    start: float
    end: float

    def earlier(self, seconds: float) -> Pass:
        """Copy of the pass with start and end `seconds` earlier."""
        return self._replace(start=self.start - seconds, end=self.end - seconds)


Passes = Sequence[Pass]


class HostSpans(Columns):
    """Operators of all host threads in a CPU trace (start, seconds, numbers of name and thread), and the
    waits, passes and updates that the training thread annotates."""

    def __init__(self) -> None:
        super().__init__("ddii")
        self.waits: list[tuple[str, float, float]] = []
        """Axis, start and seconds of each wait."""
        self.passes: list[Pass] = []
        self.updates: list[Interval] = []
        self.training = ""
        """Name of the thread that annotates steps."""
        self._names: dict[str, int] = {}
        self._threads: dict[str, int] = {}

    def add(self, event: Event) -> None:
        """Add an operator or an annotation of a host thread."""
        kineto, begin, end = patterns(), event.start, event.start + event.seconds
        if match := search(kineto.wait, event.name):
            self.waits.append((match[1], begin, event.seconds))
        elif match := search(kineto.passed, event.name):
            self.passes.append(Pass(match[1], int(match[2]), int(match[3]), begin, end))
        elif any(word in event.name for word in kineto.update):
            self.updates.append((begin, end))
        elif search(kineto.step, event.name):
            self.training = event.thread
        name = self._names.setdefault(event.name, len(self._names))
        thread = self._threads.setdefault(event.thread, len(self._threads))
        self.append(begin, event.seconds, name, thread)

    def passes_of(self, begin: float, seconds: float) -> tuple[Pass, ...]:
        """Annotated passes of the step that starts at `begin` and lasts `seconds`, in seconds since `begin`."""
        passes = (span.earlier(begin) for span in self.passes)
        inside = (span for span in passes if 0 <= span.start <= seconds)
        return tuple(sorted(inside, key=lambda span: span.start))

    def fill(self, spans: Spans) -> None:
        """Add the training thread's waits, updates and operators to `spans`, the spans of its rank."""
        for axis, begin, seconds in self.waits:
            spans.add(begin, seconds, axis)
        spans.updates += self.updates
        for part, intervals in (("optimizer", self.updates), ("compute", self._computed())):
            for begin, end in intervals:
                spans.add(begin, end - begin, part)

    def _computed(self) -> list[Interval]:
        """Intervals, in order of time, in which the training thread's innermost running operator computes.
        Operators that only dispatch to another operator of the same name do not compute."""
        *columns, thread = self.arrays()
        training = self._threads.get(self.training, np.bincount(thread).argmax())
        start, seconds, name = (column[thread == training] for column in columns)
        counts = np.isin(name, [number for word, number in self._names.items() if word.startswith("aten::")])
        begins, ends = start.tolist(), (start + seconds).tolist()
        open_events: list[int] = []
        changes: list[tuple[float, int]] = []  # moment, and the innermost event from then on (-1: none)

        def close(until: float) -> None:
            """Close the open events that end by the time `until`."""
            while open_events and ends[open_events[-1]] <= until:
                changes.append((ends[open_events.pop()], open_events[-1] if open_events else -1))

        for index in np.lexsort((-seconds, start)).tolist():
            close(begins[index])
            if open_events:
                outer = open_events[-1]
                counts[outer] &= name[outer] != name[index]
                ends[index] = min(ends[index], ends[outer])
            open_events.append(index)
            changes.append((begins[index], index))
        close(math.inf)
        spans = ((low, high) for (low, event), (high, _) in pairwise(changes) if event >= 0 and counts[event])
        return [(low, high) for low, high in spans if high > low]


_TICK = 1e-6
"""Seconds by which an event may seem to begin before its predecessor ends, as clocks are rounded."""


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Action table of a plan's pipeline, with the predicted seconds of each kind of pass on each stage."""

    table: ActionTable
    expected: Mapping[tuple[str, int], float]

    def crosses(self, action: Action, *, output: bool) -> bool:
        """Whether a pass sends its output to a stage on another rank or, with `output` false, receives its
        input from one."""
        neighbour = action.stage + (1 if (action.kind == "F") == output else -1)
        ranks = self.table.rank_of_stage
        has_neighbour = action.kind != "W" and 0 <= neighbour < len(ranks)
        return has_neighbour and bool(ranks[neighbour] != ranks[action.stage])


def passes_of(step: Step, exchanges: TimesByExchange, pipeline: Pipeline, place: int) -> tuple[Pass, ...]:
    """Passes of the rank at `place` in the pipeline, in order; empty if its sends do not follow the action
    table."""
    cuts = []  # times at which a pass may end (a send begins) or begin (a receive ends)
    for kind, times in exchanges.items():
        if kind.axis == "pp" and kind.operation in ("send", "recv", "p2p"):
            cuts += [start for start, _ in times if kind.operation != "recv"]
            cuts += [start + seconds for start, seconds in times if kind.operation != "send"]
    computes = step.kind == COMPUTE
    low, high = step.low[computes], step.high[computes]
    if not len(low):
        return ()
    bursts = np.searchsorted(np.sort(np.array(cuts)) - _TICK, low, side="right")
    first = np.flatnonzero(np.diff(bursts, prepend=-1))
    ranges = zip(first, [*first[1:], len(low)], strict=True)
    spans = [(float(low[begin]), float(high[begin:end].max())) for begin, end in ranges]
    runs = _runs(pipeline, place)
    if len(spans) != len(runs):
        return ()
    passes: list[Pass] = []
    for (begin, end), run in zip(spans, runs, strict=True):
        lengths = np.array([pipeline.expected.get((one.kind, one.stage), 1.0) for one in run])
        shares = np.concatenate([[0.0], np.cumsum(lengths) / lengths.sum()])
        edges = pairwise((begin + (end - begin) * shares).tolist())
        passes += [Pass(*action, *times) for action, times in zip(run, edges, strict=True)]
    return tuple(passes)


def _runs(pipeline: Pipeline, place: int) -> list[list[Action]]:
    """Pipeline actions of a rank in order, in groups without a send or receive between them."""
    runs: list[list[Action]] = []
    for action in pipeline.table.actions(place):
        cut = runs and pipeline.crosses(runs[-1][-1], output=True)
        if not runs or cut or pipeline.crosses(action, output=False):
            runs.append([])
        runs[-1].append(action)
    return runs


def aligned(passes: Mapping[int, Sequence[Pass]], pipeline: Pipeline) -> dict[int, tuple[Pass, ...]]:
    """Passes of one pipeline replica by place, shifted to a common clock, in seconds since the first pass."""
    all_passes = [span for each in passes.values() for span in each]
    passes_by_key = {(span.kind == "F", span.stage, span.microbatch): span for span in all_passes}
    ranks = pipeline.table.rank_of_stage.tolist()
    ahead: dict[tuple[int, int], list[float]] = {}
    for (forward, stage, microbatch), span in passes_by_key.items():
        sender = passes_by_key.get((forward, stage + (-1 if forward else 1), microbatch))
        if sender is not None and span.kind != "W" and ranks[stage] != ranks[sender.stage]:
            ahead.setdefault((ranks[sender.stage], ranks[stage]), []).append(span.start - sender.end)
    shift = {min(passes): 0.0}
    for _ in passes:  # a clock is known once a neighbour's is
        for (sender_rank, receiver_rank), gaps in ahead.items():
            if sender_rank in shift and receiver_rank not in shift and (receiver_rank, sender_rank) in ahead:
                upper, lower = min(gaps), -min(ahead[receiver_rank, sender_rank])
                shift[receiver_rank] = shift[sender_rank] + (upper + lower) / 2
    known = [place for place in passes if place in shift]
    shifted = {place: [span.earlier(shift[place]) for span in passes[place]] for place in known}
    origin = min(span.start for each in shifted.values() for span in each)
    return {place: tuple(span.earlier(origin) for span in each) for place, each in shifted.items()}


def bubble_of(step: Step, passes: Passes, all_passes: Passes, begin: float, all_there: float) -> float:
    """Seconds of a step in which a pipeline rank waits for another stage that has not finished its pass.

    `passes` are the rank's and `all_passes` the replica's, in seconds since `begin` on this rank's clock; `all_there`
    is the time at which the last stage begins its update.
    """
    ends = {(one.kind == "F", one.stage, one.microbatch): one.end for one in all_passes if one.kind != "W"}
    updating, bubble = updating_of(step, passes, begin), 0.0
    for low, high in ((low - begin, high - begin) for low, high in step.sends):
        next_pass = next((one for one in passes if one.start >= low and one.kind != "W"), None)
        if next_pass is not None:
            forward = next_pass.kind == "F"
            ready = ends.get((forward, next_pass.stage + (-1 if forward else 1), next_pass.microbatch), 0.0)
        else:
            ready = all_there if low >= updating else 0.0
        bubble += min(max(0.0, ready - low), high - low)
    return bubble


def updating_of(step: Step, passes: Passes, begin: float) -> float:
    """Start of a rank's optimizer update, in seconds since `begin`: as annotated, else the end of its last
    pass."""
    return max(one.end for one in passes) if step.updating is None else step.updating - begin
