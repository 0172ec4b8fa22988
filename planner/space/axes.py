"""Behaviour of each axis of layouts in a search: values to try, properties of a layout that depend on the
axis, reasons to leave it closed, and boxes (ranges of numbers of offloaded blocks).

An axis that is in none of these tables keeps its default; `planner.space.space` chooses the degrees of the
mesh, microbatch sizes, ZeRO stages, shard groups and schedules.

Counts are of blocks that offload keeps in host memory; the search tries hundreds in every mesh. It searches boxes of
counts, one entry for all counts between two corners, prices the corners of a box for a bound of the whole box
(`planner.bounds.cores`), and halves the boxes that may hold the best.

Shape legend: N layouts or boxes, R columns that count.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Literal, NamedTuple

import numpy as np

from cost_models.arrays import Bools, Ints
from cost_models.axes.columns import USUAL_CONTEXT, LayoutColumns
from cost_models.axes.layout import AXES, NOWHERE, RESIDENCIES, USUAL_RING, Offload, same_seats
from cost_models.axes.words import EVERY, UNSAID
from cost_models.question import Question
from cost_models.specs.choices import CONTEXTS, ORDERS, OVERLAPS
from planner.rules.legality import UNPRICED_OFFLOAD, is_offload_unpriced
from planner.rules.stack import overlappable_axes

Matter = Literal["states", "pipeline", "blocks"]
"""Property of a layout that depends on some axes, one of `states` (legal ZeRO stages and shard groups),
`pipeline` (legal chunks and schedules) and `blocks` (seconds in which a block computes and its tensor ranks
communicate)."""


class Mesh(NamedTuple):
    """Degrees of tensor, pipeline, context and data parallelism; their product is the number of GPUs."""

    tp: int
    pp: int
    cp: int
    dp: int


def divisors(number: int) -> list[int]:
    """Divisors of a number in rising order."""
    small = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    return sorted({*small, *(number // d for d in small)})


def max_counted_blocks(question: Question, pp: Ints) -> Ints:
    """Maximum number of blocks per rank that a layout may offload by explicit counts with pp stages, (N,). It
    is one less than the blocks of the smallest rank, as all blocks are written without a count."""
    return (question.model.num_layers - 1) // pp


def _expert_tensor_degrees(question: Question, mesh: Mesh) -> list[int]:
    """Expert tensor-parallel degrees (etp) that the search tries in a mesh: divisors of tp if the stack
    supports other degrees than tp."""
    shares = question.model.has_experts and question.stack.expert_tensor_parallel
    return divisors(mesh.tp) if shares else [mesh.tp]


def _orders(question: Question, mesh: Mesh) -> list[int]:
    """Rank orders that the search tries in a mesh (degrees of tp, pp, cp and dp), as indices into `ORDERS`;
    of orders that place ranks alike, only the first."""
    seats = same_seats(mesh.cp, mesh.dp, mesh.pp)
    return sorted({seats[ORDERS.index(order)] for order in question.stack.axis_orders})


def _context_ways(question: Question, mesh: Mesh) -> list[int]:
    """Kinds of context parallelism that the search tries in a mesh (degrees of tp, pp, cp and dp), as indices
    into `CONTEXTS`. The stack's default is unnamed."""
    kinds, default = question.stack.context_kinds, question.stack.context_parallel
    return [USUAL_CONTEXT, *(CONTEXTS.index(way) for way in kinds if way != default and mesh.cp > 1)]


def _offloads(question: Question, mesh: Mesh) -> Sequence[tuple[int, ...]]:
    """Numbers of blocks to offload in each way (residency) that the search tries in a mesh (degrees of tp,
    pp, cp and dp). They are all blocks with one residency, or none, or a count of one residency, of streamed
    blocks together with blocks whose states are on the host, and of both together with resident ones; each
    with and without activations, and with and without a drive if hosts have one.

    A count of one stands for every possible count (`countable`). Empty if the device's memory is the host's,
    and over several pools.
    """
    if question.cluster.gpu.kind == "cpu" or question.has_pools or is_offload_unpriced(question):
        return [NOWHERE]
    has, room = question.stack.residencies, int(max_counted_blocks(question, np.array(mesh.pp)))
    counts = [1, EVERY] if room else [EVERY]
    cases = [NOWHERE, *(NOWHERE._replace(**{part: n}) for part in RESIDENCIES if part in has for n in counts)]
    if room and {"states", "streamed"} <= set(has):
        cases += [Offload(states=EVERY, streamed=1)]
        cases += [Offload(states=1, streamed=1)] if room > 1 else []
    if "activations" in has:
        cases += [one._replace(activations=EVERY) for one in cases]
    if "drive" in has and question.cluster.drive is not None:
        cases += [one._replace(drive=EVERY) for one in cases if one.states or one.streamed]
    return cases


def _overlaps(question: Question, mesh: Mesh) -> list[tuple[int, ...]]:
    """Combinations of overlapped communication that the search tries in a mesh (degrees of tp, pp, cp and
    dp), as flags for `OVERLAPS`. They are the stack's default, and every subset of the axes that the stack
    can overlap."""
    ranks = {"tp": mesh.tp, "pp": mesh.pp, "dp": mesh.dp * mesh.cp}
    if max(ranks.values()) == 1:
        return [(UNSAID,) * len(OVERLAPS)]
    has = [axis in overlappable_axes(question.stack) and ranks[axis] > 1 for axis in OVERLAPS]
    return [(UNSAID,) * len(OVERLAPS), *product(*([0, 1] if one else [0] for one in has))]


VALUES: dict[str, Callable[[Question, Mesh], Sequence[int] | Sequence[tuple[int, ...]]]] = {
    "sp": lambda question, mesh: (0, 1) if mesh.tp > 1 else (0,),
    "ep": lambda question, mesh: divisors(question.model.num_experts) if question.model.has_experts else (1,),
    "etp": _expert_tensor_degrees,
    "order": _orders,
    "context": _context_ways,
    "offload": _offloads,
    "ring": lambda question, mesh: (USUAL_RING,),
    "overlap": _overlaps,
}
"""Function from question and mesh to the values to try for each axis, by axis, as numbers of the axis's
columns. The first axes vary slowest."""


def _opens_no_replicas(question: Question, trainer: str | None) -> str:
    """Reason why `--allow replicas` has no effect on a question; empty if it has one."""
    if not question.has_pools:
        return f"it puts replicas in different pools, and `{question.cluster.name}` has one"
    return f"{trainer} gives every replica as many microbatches" if trainer else ""


def _opens_no_offload(question: Question, trainer: str | None) -> str:
    """Reason why `--allow offload` has no effect on a question; empty if it has one."""
    cluster, stack = question.cluster, question.stack
    on_cpu = any(pool.cluster.gpu.kind == "cpu" for pool in question.pools)
    no_memory = f"cluster `{cluster.name}` does not say how much memory a host has (`--host-memory`)"
    reasons = (
        (is_offload_unpriced(question), UNPRICED_OFFLOAD),
        (on_cpu, f"the memory of devices of `{cluster.name}` is the host's"),
        (not stack.residencies, f"software stack `{stack.name}` keeps nothing of a block in host memory"),
        (question.has_pools, "over several pools it is not searched"),
        (cluster.host_memory is None, no_memory),
    )
    return next((reason for holds, reason in reasons if holds), "")


CLOSED: dict[str, Callable[[Question, str | None], str]] = {
    "offload": _opens_no_offload,
    "overlap": lambda question, trainer: "",
    "replicas": _opens_no_replicas,
}
"""Function that returns the reason why `--allow` has no effect for a question and trainer (empty if it has one), by
name of a closed axis (an axis left at its simplest value unless `--allow` or a restriction names it)."""

_AFFECTS: dict[str, tuple[Matter, ...]] = {
    **dict.fromkeys(("tp", "cp", "ep", "etp"), ("states", "blocks")),
    **dict.fromkeys(("mbs", "sp", "context"), ("blocks",)),
    **dict.fromkeys(("dp", "ring"), ("states",)),
    **dict.fromkeys(("vpp", "zero", "shard", "schedule", "order"), ()),
    "pp": ("pipeline",),
    "offload": ("states", "pipeline"),
}
"""Properties of a layout that depend on each axis, by axis, by default all. Layouts that do not differ in
the relevant axes are computed once."""


def columns_that_affect(matter: Matter) -> tuple[str, ...]:
    """Names of the layout columns on which a property (`states`, `pipeline` or `blocks`) of a layout depends."""
    touching = (name for name in AXES if matter in _AFFECTS.get(name, (matter,)))
    return tuple(column for name in touching for column in AXES[name].columns(name))


COUNTS = tuple(f"offload_{part}" for part in RESIDENCIES)
"""Names of the R columns that count the offloaded blocks of a rank."""


@dataclass(frozen=True, slots=True)
class Boxes:
    """Ranges of the numbers of offloaded blocks, one box (hyperrectangle) for each of N layouts. Each count
    goes from `low` to `high`; the sum of the counts is at most `room`."""

    low: Ints
    """Minimum number of offloaded blocks by column of counts, (N, R)."""
    high: Ints
    """Maximum number of offloaded blocks by column of counts, (N, R)."""
    room: Ints
    """Maximum sum of the numbers of offloaded blocks, (N,)."""

    def __len__(self) -> int:
        return len(self.room)

    @classmethod
    def from_minimum(cls, question: Question, columns: LayoutColumns) -> Boxes:
        """Create boxes from the offload counts of the given layouts up to the largest possible counts."""
        minimum, room = counts_of(columns), max_counted_blocks(question, columns.pp)
        explicit = minimum % EVERY
        remainder = explicit.sum(axis=1)[:, None] - explicit
        return cls(minimum, np.where(explicit > 0, room[:, None] - remainder, minimum), room)

    @classmethod
    def of(cls, columns: LayoutColumns) -> Boxes:
        """Create boxes that hold exactly the offload counts of the given layouts."""
        counts = counts_of(columns)
        return cls(counts, counts, (counts % EVERY).sum(axis=1))

    @classmethod
    def joined(cls, parts: Sequence[Boxes]) -> Boxes:
        """Concatenate several `Boxes`."""
        low, high, room = zip(*((part.low, part.high, part.room) for part in parts), strict=True)
        return cls(np.concatenate(low), np.concatenate(high), np.concatenate(room))

    def rows(self, index: Ints) -> Boxes:
        """Select the boxes at the given indices."""
        return Boxes(self.low.take(index, axis=0), self.high.take(index, axis=0), self.room[index])

    @property
    def layouts(self) -> Ints:
        """Number of combinations of offload counts in each box, (N,). With two columns of counts a box is a
        rectangle cut by a line, which leaves out a triangle less what of it is outside the rectangle."""
        long, high = np.sort(self.high - self.low + 1, axis=1)[:, :-3:-1].T
        over = (self.high % EVERY).sum(axis=1) - self.room
        sides = np.maximum([over, over - long, over - high, over - long - high], 0)
        combinations: Ints = long * high - np.array([1, -1, -1, 1]) @ (sides * (sides + 1) // 2)
        return combinations

    @property
    def is_single(self) -> Bools:
        """Whether each box holds only one combination of counts, (N,)."""
        single: Bools = (self.low == self.high).all(axis=1)
        return single

    def corners(self, columns: LayoutColumns) -> list[LayoutColumns]:
        """Layouts at the corners of the boxes: for each combination of `low` and `high` counts, a table of N
        layouts. Single counts repeat corners."""
        open_R: Bools = np.any(self.low < self.high, axis=0)
        ends = product(*((False, True) if is_open else (False,) for is_open in open_R.tolist()))
        return [with_counts(columns, np.where(np.array(is_high), self.high, self.low)) for is_high in ends]

    def halves(self) -> tuple[Ints, Boxes]:
        """Split each box in two along its longest side; return the index of the original box, (M,), and the M
        halves. Single boxes stay."""
        boxes = np.arange(len(self))
        side = (self.high - self.low).argmax(axis=1)
        middle = (self.low[boxes, side] + self.high[boxes, side]) // 2
        lower, upper = self.high.copy(), self.low.copy()
        lower[boxes, side], upper[boxes, side] = middle, middle + 1
        halves = Boxes.joined([replace(self, high=lower), replace(self, low=upper)])
        explicit = halves.low % EVERY
        spare = halves.room - explicit.sum(axis=1)
        # at the least counts of other columns
        high = np.where(halves.low < EVERY, np.minimum(halves.high, explicit + spare[:, None]), halves.high)
        nonempty = np.flatnonzero((halves.low <= high).all(axis=1))
        return np.tile(boxes, 2)[nonempty], replace(halves, high=high).rows(nonempty)

    def singles(self, columns: LayoutColumns) -> tuple[Ints, LayoutColumns, Boxes]:
        """List every combination of offload counts in the boxes: the index of its box, (K,), the layout with
        these counts, and a box that holds only this combination."""
        bounds = zip(self.low.tolist(), self.high.tolist(), self.room.tolist(), strict=True)
        combinations = [
            (box, *counts)
            for box, (lows, highs, room) in enumerate(bounds)
            for counts in product(*(range(low, high + 1) for low, high in zip(lows, highs, strict=True)))
            if sum(count % EVERY for count in counts) <= room
        ]
        table = np.array(combinations, dtype=np.int64).reshape(-1, 1 + len(COUNTS))
        index, counts = table[:, 0], table[:, 1:]
        return index, with_counts(columns.rows(index), counts), Boxes(counts, counts, self.room[index])


def with_counts(columns: LayoutColumns, counts: Ints) -> LayoutColumns:
    """Copies of the layouts with the given counts of offloaded blocks, (N, R)."""
    return replace(columns, **{name: counts[:, at] for at, name in enumerate(COUNTS)})


def counts_of(columns: LayoutColumns) -> Ints:
    """Counts of offloaded blocks for each residency, (N, R)."""
    counts: Ints = np.stack([getattr(columns, name) for name in COUNTS], axis=1)
    return counts
