"""Splits each step of one GPU's trace into parts that add up to it.

compute, optimizer, other   a kernel of that kind runs; where several do, the first of these
tp, cp, ep, pp, dp _comm    communication of that axis while no such kernel runs, waiting for slower ranks included
offload                     only copies to or from host memory
host                        nothing runs

While a rank waits for another stage its kernel of a send or receive runs already. What such kernels take beyond the
shortest of them is `bubble`.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from cost_models.arrays import Array, Ints
from cost_models.errors import InputError
from cost_models.measured.traces.kernels import AXES, OTHER, UNNAMED
from cost_models.units import grouped

KINDS = ("compute", "optimizer", OTHER, *AXES, UNNAMED, "offload")
"""What may run, what counts first at the front."""
_PP = KINDS.index("pp")
MOST_SPANS = 20_000_000
"""Kernels of one trace that are kept, 17 bytes each."""


@dataclass(slots=True)
class Spans:
    """What ran on one GPU, and annotations of steps and updates."""

    start: array[float] = field(default_factory=lambda: array("d"))
    seconds: array[float] = field(default_factory=lambda: array("d"))
    kind: array[int] = field(default_factory=lambda: array("b"))
    steps: dict[int, tuple[float, float]] = field(default_factory=dict)
    """Number of a step → when it began and ended."""
    updates: list[tuple[float, float]] = field(default_factory=list)

    def add(self, start: float, seconds: float, part: str) -> None:
        """Keep a kernel. Raises InputError: there are too many."""
        if len(self.start) >= MOST_SPANS:
            raise InputError(
                f"a trace has more than {grouped(MOST_SPANS)} kernels", hint="profile two or three steps"
            )
        self.start.append(start)
        self.seconds.append(seconds)
        self.kind.append(KINDS.index(part))


def split(spans: Spans) -> tuple[float, dict[str, float], int]:
    """(seconds of the step of median length, its parts, number of steps); a trace without annotations of steps is taken
    as one."""
    start, seconds = np.array(spans.start), np.array(spans.seconds)
    kind = np.array(spans.kind, dtype=np.int64)
    for began, ended in spans.updates:  # kernels that compute within an update belong to it
        middle = start + seconds / 2
        kind[(kind == 0) & (middle >= began) & (middle <= ended)] = KINDS.index("optimizer")
    sends = seconds[kind == _PP]
    shortest = float(sends.min()) if len(sends) else 0.0
    windows = sorted(_windows(spans, start, start + seconds), key=lambda window: window[1] - window[0])
    begin, end = windows[(len(windows) - 1) // 2]
    inside = (start < end) & (start + seconds > begin)
    low, high = np.maximum(start[inside], begin), np.minimum(start[inside] + seconds[inside], end)
    return end - begin, _parts(low, high, kind[inside], end - begin, shortest), len(windows)


def _windows(spans: Spans, start: Array, end: Array) -> Iterator[tuple[float, float]]:
    """Begin and end of each step: each lasts until the next begins."""
    begins = sorted(spans.steps.values())
    for number, (begin, done) in enumerate(begins):
        yield begin, begins[number + 1][0] if number + 1 < len(begins) else done
    if not begins:
        yield float(start.min()), float(end.max())


def _parts(low: Array, high: Array, kind: Ints, whole: float, shortest: float) -> dict[str, float]:
    """Seconds by part of one step: each moment belongs to the first kind of `KINDS` that runs then."""
    edges = np.unique(np.concatenate([low, high]))
    lengths = np.diff(edges)
    free = np.ones(len(lengths), dtype=bool)
    found: dict[str, float] = {}
    for number, name in enumerate(KINDS):
        mine = kind == number
        counts = np.zeros(len(edges), dtype=np.int64)
        np.add.at(counts, np.searchsorted(edges, low[mine]), 1)
        np.add.at(counts, np.searchsorted(edges, high[mine]), -1)
        here = free & (np.cumsum(counts)[:-1] > 0) if len(lengths) else free
        found[name] = float(lengths[here].sum())
        free &= ~here
    waited = max(0.0, found["pp"] - shortest * int((kind == _PP).sum()))
    parts = {f"{axis}_comm": found[axis] for axis in AXES}
    parts |= {name: found[name] for name in ("compute", "optimizer", "offload")}
    parts[OTHER] = found[OTHER] + found[UNNAMED]
    parts |= {"pp_comm": found["pp"] - waited, "bubble": waited}
    parts["host"] = max(0.0, whole - sum(parts.values()))
    return parts
