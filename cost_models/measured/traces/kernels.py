"""Kernels of a rank's trace: collectives by axis, operation and size, and matrix products by shape.

Collectives are matched over ranks, to find late ranks. All members of a collective end together, so the one whose
kernel is shortest came last, whatever their clocks say; the others waited by as much as theirs are longer. Kernels of
products are joined with the operators that launched them, which tell their shapes.
"""

from __future__ import annotations

import re
from array import array
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import lru_cache
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from cost_models.arrays import Ints
from cost_models.axes.layout import Layout
from cost_models.measured.traces.events import Columns, Event, whole_number
from cost_models.measured.traces.step_parts import AXES, Step, patterns

_COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast")
_OPERATIONS = {operation.replace("_", ""): operation for operation in _COLLECTIVES}
_OPERATIONS |= {"sendrecv": "p2p", "send": "send", "recv": "recv", "coalesced": "p2p"}
"""Word in the name of a collective or its kernel, without `_` → operation."""
_BYTES = {"double": 8, "long": 8, "float": 4, "int": 4, "bfloat16": 2, "half": 2}
"""Type of elements as torch's traces call it → bytes; all others have one."""
_MOST_KINDS = 100_000
LATE = 0.02
"""Share of a step from which a late rank is named."""
_LATE_SHARE = 0.6
"""Share of collectives to which a late rank must have come last."""


class Exchange(NamedTuple):
    """Kind of a collective in a trace (axis, operation, group, ranks and message bytes)."""

    axis: str
    operation: str
    """`all_reduce`, `all_gather`, ...; `p2p` is a send and a receive in one kernel."""
    group: str
    """The ranks, as the trace names them, or the group's description."""
    size: int
    """Ranks; 0: unknown."""
    message_bytes: float
    """Bytes of the whole tensor; 0: unknown."""


TimesByExchange = Mapping[Exchange, list[tuple[float, float]]]
"""Begin and seconds of each exchange of a step, by kind."""


class Exchanges(Columns):
    """Begin, seconds and kind of the communication kernels of one rank's trace."""

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
        """(begin, seconds) of the communication kernels of a step in order of time, by kind of collective."""
        start, seconds, kind = self.arrays()
        inside = np.flatnonzero((start >= step.begin) & (start < step.begin + step.seconds))
        exchange_kinds, times = list(self.kinds), defaultdict(list)
        for index in inside[np.argsort(start[inside], kind="stable")].tolist():
            times[exchange_kinds[kind[index]]].append((float(start[index]), float(seconds[index])))
        return dict(times)


class Late(NamedTuple):
    """Rank for which others wait in collectives, and the seconds of a step that are lost so."""

    rank: int
    seconds: float
    """Seconds of a step in which a group waits for this rank alone."""
    share: float
    """Share of collectives to which the rank came last, or with the last."""


class Arrival(NamedTuple):
    """Time at which one rank began a collective, and the seconds for which the first rank there waited for it."""

    rank: int
    at: float
    """Seconds by the clock of the rank."""
    waited: float
    """Seconds that the first to come waited for it."""


def arrivals(exchanges_by_rank: Mapping[int, TimesByExchange], layout: Layout) -> list[list[Arrival]]:
    """Arrival times of all ranks at each collective that could be matched over the ranks' traces."""
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
    """Key of the group that runs a collective, to match ranks; None where unknown or where not all members
    meet at once."""
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
"""Operator → index of the first factor among the inputs; the second follows."""
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
    """Whether a kernel multiplies matrices, by its name."""
    return bool(re.search(patterns().kernels["compute"][0], name.lower()))


class Products:
    """Matrix-product kernels of a trace, collected with the launches and operators that tell their shapes."""

    def __init__(self) -> None:
        self._shapes: dict[Product, int] = {}
        self._operators = Columns("qi")
        """Id of an operator, and number of its shape."""
        self._launches = Columns("qq")
        """Number of a launch, and id of its operator."""
        self._kernels = Columns("qd")
        """Id of a kernel's operator, or minus the number of its launch; and its seconds."""

    def add_kernel(self, event: Event) -> None:
        """Add a kernel if it multiplies matrices."""
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
        """Shape of a matrix product → seconds of each of its kernels in the trace."""
        kernel, seconds = self._kernels.arrays()
        launched = _values_of(-kernel, *self._launches.arrays(), none=0)
        operator = np.where(kernel < 0, launched, kernel)
        shape = _values_of(operator, *self._operators.arrays(), none=-1)
        shapes = list(self._shapes)
        numbers = dict.fromkeys(shape[shape >= 0].tolist())
        return {shapes[number]: array("d", seconds[shape == number]) for number in numbers}


def _values_of(keys: Ints, known_keys: Ints, values: Ints, *, none: int) -> Ints:
    """Look up each of `keys` in `known_keys` and return its value, the last where there are several; `none`
    for unknown keys."""
    if not len(known_keys):
        return np.full(len(keys), none)
    order = np.argsort(known_keys, kind="stable")
    place = np.searchsorted(known_keys, keys, side="right", sorter=order) - 1
    indices = order[np.maximum(place, 0)]
    return np.where(known_keys[indices] == keys, values[indices], none)


def _shape(dims: Any, first: int) -> Product | None:
    """Shape of the matrix product of two inputs with dimensions `dims`, from the input `first` on; None where
    they do not fit."""
    pair = dims[first : first + 2] if isinstance(dims, list) else []
    sized = (isinstance(one, list) and len(one) in (2, 3) and all(map(whole_number, one)) for one in pair)
    if len(pair) < 2 or not all(sized):
        return None
    left, right = pair
    if len(left) != len(right) or left[-1] != right[-2]:
        return None
    return Product(left[0] if len(left) == 3 else 1, left[-2], left[-1], right[-1])
