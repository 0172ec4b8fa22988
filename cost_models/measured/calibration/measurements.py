"""Measurements: one row for each thing that a microbenchmark timed, free of torch, written as CSV or JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any, Literal

from cost_models.arrays import group_by
from cost_models.specs.cluster import AttentionKernel

Kind = Literal[
    "matrix", "attention", "operator", "memory", "optimizer", "host", "offload", "collective", "table"
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """Seconds of one operation, timed by a microbenchmark on one process.

    `shape` and `size` by kind:
    matrix (m, n, k) and FLOPs, called `repeated` where its operands stay in the cache and `sustained` where it ran
    for seconds · attention (sequence, head_dim)
    and FLOPs of one causal head · operator () and elements · memory () and bytes read + written · optimizer (tensors,)
    and parameters · host (tokens, hidden size, heads) and blocks · offload (threads,) and parameters of an update,
    (ranks,) and bytes of a copy, (threads,) and blocks of what overlaps · collective (group size,) and bytes of the
    tensor · table (row bytes, ids, bags, rows met) and bytes moved, through a cache (row bytes, ids) and ids.
    """

    kind: Kind
    name: str
    """Operation and pass: `gelu` and `gelu.backward`."""
    shape: tuple[int, ...] = ()
    size: float
    seconds: float
    """Seconds of the typical repetition on a quiet machine: what adds up over the hundreds of calls of a step."""
    quiet_seconds: float
    """Seconds of the fastest repetition; its distance from `seconds` is the noise."""
    rank: int = 0
    kernel: AttentionKernel | None = None
    """Kernel that torch chose for attention."""

    @property
    def noise(self) -> float:
        """Relative excess of the typical repetition's seconds over the fastest repetition's."""
        return self.seconds / self.quiet_seconds - 1.0

    @classmethod
    def from_dict(cls, row: Mapping[str, Any]) -> Measurement:
        """Build a measurement from its fields as a dictionary, also after JSON turned the tuple `shape` into a list."""
        return cls(**{**row, "shape": tuple(row["shape"])})


def select(measurements: Iterable[Measurement], kind: Kind, name: str | None = None) -> list[Measurement]:
    """Measurements with the given kind and, if given, the given name."""
    return [row for row in measurements if row.kind == kind and name in (None, row.name)]


def quietest(rounds: Sequence[Sequence[Measurement]]) -> list[Measurement]:
    """Merge repeated rounds of timings into one measurement an operation, the mean of the fastest quarter of
    rounds (at least one).

    Rounds lie apart in time, so that a passing disturbance of the machine does not hit every timing of one thing.
    """
    fastest_rounds = max(1, len(rounds) // 4)
    means = []
    for repetitions in zip(*rounds, strict=True):
        assert len({(row.kind, row.name, row.shape, row.size) for row in repetitions}) == 1, "rounds differ"
        fastest = sorted(repetitions, key=lambda row: row.seconds)[:fastest_rounds]
        seconds, quiet = fmean(row.seconds for row in fastest), min(row.quiet_seconds for row in repetitions)
        means.append(replace(repetitions[0], seconds=seconds, quiet_seconds=quiet))
    return means


def merge(measurements: Iterable[Measurement]) -> list[Measurement]:
    """Merge the timings of processes that ran side by side into one measurement an operation, with the mean
    seconds."""
    groups = group_by(measurements, lambda row: (row.kind, row.name, row.shape, row.size))
    means = []
    for rows in groups.values():
        seconds, quiet = fmean(row.seconds for row in rows), fmean(row.quiet_seconds for row in rows)
        means.append(replace(rows[0], rank=0, seconds=seconds, quiet_seconds=quiet))
    return means
