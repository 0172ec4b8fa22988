"""The layouts of one question on one kind of GPU, opened best bound first.

    cores   ideal bound, then relaxed bound (`planner.bounds.relaxed`)     → each of their layouts, priced
    rows    layouts under the bound of their pipeline at their own costs   → placed by `planner.search.branching`

A core whose bound cannot beat the k-th best layout is never opened, which decides all its layouts at once. Where counts
of blocks are open (`planner.space.counts`), a row stands for a box of them and is halved before it is placed.

`count_below` and `nearest_below` go on from where a search ended: how many layouts may take less than some seconds, and
which these are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeVar

import numpy as np

from cost_models.arrays import Array, Bools, Ints
from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import Layout
from cost_models.errors import InfeasibleError
from cost_models.pipeline.stage_costs import StageCosts, stage_costs
from cost_models.question import Question
from cost_models.specs.choices import SCHEDULES
from planner.bounds.boxes import most_held, nothing_held
from planner.bounds.pricing import Pricing, groups_of
from planner.bounds.relaxed import known_seconds, relaxed_bounds
from planner.bounds.step import capacity_bounds
from planner.placement.chunks import best_pattern
from planner.placement.heuristics import good_placement
from planner.placement.leaf import TOLERANCE, Leaf
from planner.search.branching import BranchAndBound
from planner.search.candidates import Tally
from planner.space.counts import Boxes, with_counts
from planner.space.layouts import Space, legal_space
from planner.space.limits import limits_in_words
from planner.space.nothing_fits import explain_infeasible, nothing_legal
from planner.space.restrictions import Restrictions

SEED_CORES = 64
"""Cores opened first, for an early incumbent."""
FIRST_OPENED, MOST_OPENED = 128, 20_000
"""Entries opened in one batch: few at first, twice as many each time."""
FIRST_RELAXED, MOST_RELAXED = 4096, 65_536
"""Cores relaxed in one batch: few at first, twice as many each time."""
FEWEST_PARTS = 256
"""Boxes of counts priced together, where halving some leaves fewer: pricing one takes as long as pricing many."""
TIES = 4 * TOLERANCE
"""Relative margin above the time to beat within which a layout may tie with the best and has to be opened."""
PRICED_TOGETHER = 50_000
"""Rows priced in one batch, which bounds memory."""
MOST_NEAR = 100_000
"""Layouts from which on no more are looked at for the nearest."""
PLACED_FOR_EACH = 3
"""Layouts that are placed for each that is wanted, at most: some fit nowhere."""

Columns = TypeVar("Columns", LayoutColumns, StageCosts)


class Cores:
    """Cores under their ideal bound and, once relaxed, under their sharper relaxed bound."""

    def __init__(self, pricing: Pricing) -> None:
        self._pricing = pricing
        self.bound = known_seconds(pricing.space, pricing.allowed_at_all)
        self.is_relaxed = np.zeros(len(self.bound), dtype=np.bool_)
        self.is_open = np.zeros(len(self.bound), dtype=np.bool_)
        self._batch = FIRST_RELAXED

    def least_closed(self) -> float:
        """Least bound of the closed cores, seconds; infinite where none is left."""
        return float(np.min(self.bound, where=~self.is_open, initial=np.inf))

    def seeds(self) -> Ints:
        """Cores that are likely to hold a good layout: of the best of every (tp, pp, cp) and of all under their ideal
        bounds those with the least relaxed bounds."""
        cores = self._pricing.space.cores
        order = np.argsort(self.bound, kind="stable")
        mesh = (cores.tp * (1 << 40) + cores.pp * (1 << 20) + cores.cp)[order]
        _, first = np.unique(mesh, return_index=True)
        likely = order[np.union1d(first, np.arange(min(len(order), SEED_CORES)))]
        self._relax(likely)
        best: Ints = likely[np.argsort(self.bound[likely], kind="stable")][:SEED_CORES]
        return best[np.isfinite(self.bound[best])]

    def _relax(self, cores: Ints) -> None:
        """Replace ideal bounds of some cores by relaxed ones."""
        cores = cores[~self.is_relaxed[cores]]
        for start in range(0, len(cores), PRICED_TOGETHER):
            some = cores[start : start + PRICED_TOGETHER]
            sharper = relaxed_bounds(
                self._pricing.space, some, self._pricing.allowed_at_all, self._pricing.max_memory
            )
            self.bound[some] = np.maximum(self.bound[some], sharper)
        self.is_relaxed[cores] = True

    def lowest(self, below: float, most: int) -> Ints:
        """At most `most` closed cores with the least bounds below a limit, relaxed first where they are not."""
        while True:
            closed = np.flatnonzero(~self.is_open & (self.bound < below))
            rows = _lowest(self.bound, closed, most)
            if self.is_relaxed[rows].all():
                return rows
            some = _lowest(self.bound, closed[~self.is_relaxed[closed]], self._batch)
            self._relax(np.sort(some))  # neighbours have more in common
            self._batch = min(2 * self._batch, MOST_RELAXED)


@dataclass(frozen=True, slots=True)
class Closed:
    """Closed layouts of open cores, or boxes of layouts that differ in counts of blocks."""

    core: Ints
    """(N,)"""
    choice: Ints
    """(N, 4) zero, shard, vpp and schedule"""
    counts: Boxes
    bound: Array
    """(N,) seconds"""

    def rows(self, index: Ints) -> Closed:
        """Some of them."""
        return Closed(self.core[index], self.choice[index], self.counts.rows(index), self.bound[index])

    @classmethod
    def joined(cls, some: Sequence[Closed]) -> Closed:
        """All of them, one after the other."""
        core, choice, bound = (
            np.concatenate([getattr(part, name) for part in some]) for name in ("core", "choice", "bound")
        )
        return cls(core, choice, Boxes.joined([part.counts for part in some]), bound)


class UniformCandidates:
    """The candidates of a question on one kind of GPU."""

    def __init__(self, question: Question, limits: Restrictions, space: Space | None = None) -> None:
        """Of a `space` that is known, or else of what is legal."""
        space = space or legal_space(question, limits)
        if not len(space):
            raise nothing_legal(question, limits)
        self._pricing = Pricing(
            space=space,
            policies=limits.recompute(question),
            max_memory=limits.max_memory,
            counted=limits.counts_blocks(question),
        )
        self._limits = limits
        self._cores = Cores(self._pricing)
        core, choice = space.choices_of(np.empty(0, dtype=np.int64))
        self.closed = Closed(core, choice, space.counts.rows(core), np.empty(0))
        self._columns = space.rows(core, choice)
        self._costs = stage_costs(question, self._columns)
        self._seeded, self._batch = False, FIRST_OPENED

    @property
    def question(self) -> Question:
        """The question whose layouts these are."""
        return self._pricing.question

    @property
    def max_memory(self) -> float | None:
        """Bytes a plan may fill of each device, where that is less than the device allows; None: no such limit."""
        return self._pricing.max_memory

    def __len__(self) -> int:
        return len(self._pricing.space)

    def least_closed(self) -> float:
        """Least bound of the closed cores and layouts, seconds."""
        return min(self._cores.least_closed(), float(self.closed.bound.min(initial=np.inf)))

    def open(self, below: float) -> Array:
        """Open the entries with the least bounds; the first time some of every kind, for an early incumbent."""
        if not self._seeded:
            self._seeded = True
            return self.open_cores(self._cores.seeds(), below)
        if self._cores.least_closed() <= self.closed.bound.min(initial=np.inf):
            cores = self._cores.lowest(below, self._batch)
            self._batch = min(2 * self._batch, MOST_OPENED)
            return self.open_cores(cores, below)
        bound = self.closed.bound
        return self.halve(_lowest(bound, np.flatnonzero(bound < below), self._batch), below)

    def open_cores(self, cores: Ints, below: float) -> Array:
        """Price every layout of some cores; returns the quick bounds of those that may take less than `below`."""
        self._cores.is_open[cores] = True
        core, choice = self._pricing.space.choices_of(cores)
        return self._price(core, choice, self._pricing.space.counts.rows(core), below)

    def halve(self, rows: Ints, below: float) -> Array:
        """Replace closed boxes of counts by their halves, or smaller parts where there are few; single layouts that may
        take less than `below` seconds are opened, and their quick bounds returned."""
        chosen = self.closed.rows(rows)
        self.closed = self.closed.rows(np.setdiff1d(np.arange(len(self.closed.core)), rows))
        core, choice, counts = chosen.core, chosen.choice, chosen.counts
        while True:
            part, counts = counts.halves()
            core, choice = core[part], choice[part]
            if len(core) >= FEWEST_PARTS or counts.is_single.all():
                return self._price(core, choice, counts, below)

    def _price(self, core: Ints, choice: Ints, counts: Boxes, below: float) -> Array:
        """Price (N,) layouts, or boxes of them: single ones that may take less than `below` seconds, or tie, become
        rows, whose quick bounds are returned; the others stay closed."""
        opened = [np.empty(0)]
        for start in range(0, len(core), PRICED_TOGETHER):
            some = np.arange(start, min(start + PRICED_TOGETHER, len(core)))
            boxes = counts.rows(some)
            columns = with_counts(self._pricing.space.rows(core[some], choice[some]), boxes.least)
            costs = self._pricing.costs(columns, boxes)
            bound = self._pricing.bounds(columns, costs)
            is_row = boxes.is_single & (bound < below * (1 + TIES))
            rows, closed = np.flatnonzero(is_row), np.flatnonzero(~is_row)
            self._columns = joined(self._columns, columns.rows(rows))
            self._costs = joined(self._costs, costs.rows(rows))
            priced = Closed(core[some], choice[some], boxes, bound)
            self.closed = Closed.joined([self.closed, priced.rows(closed)])
            opened.append(bound[rows])
        return np.concatenate(opened)

    def open_all(self) -> None:
        """Write out every layout, with what hosts cannot hold."""
        self._columns = self._pricing.space.all_rows()
        self._costs = self._pricing.costs(self._columns, Boxes.of(self._columns))

    def tally(self, below: float) -> Tally:
        """Count the layouts of closed entries; those whose bound is `below` seconds or more are pruned."""
        closed = ~self._cores.is_open
        layouts = np.concatenate([self._pricing.space.sizes[closed], self.closed.counts.layouts])
        bound = np.concatenate([self._cores.bound[closed], self.closed.bound])
        infeasible, late = np.isinf(bound), bound >= below

        def total(entries: Bools) -> int:
            return int(layouts[entries].sum())

        return Tally(total(infeasible), total(late & ~infeasible), total(~late & ~infeasible))

    def capacity_bounds(self, rows: Ints, cut_off: float) -> Array:
        """(N,) finer lower bounds of rows; a bound need not be computed beyond `cut_off` seconds."""
        bound = np.empty(len(rows))
        for some in groups_of(self._columns.rows(rows)):
            group = self._pricing.group(self._columns, self._costs, rows[some])
            bound[some] = capacity_bounds(group, cut_off)
        return bound

    def leaf(self, row: int) -> Leaf:
        """One row with its costs, ready to be placed."""
        return self._pricing.leaf(self._columns, self._costs, row)

    def layout(self, row: int) -> Layout:
        """The layout of one row, without a placement."""
        return self._columns.layout(row)

    def nothing_fits(self) -> InfeasibleError:
        """The error to raise when no placement of any layout fits."""
        core, columns = self._pricing.space.smallest_rows()
        columns, held = most_held(self.question, columns, self._pricing.space.counts.rows(core))
        if not held.any():
            return nothing_held(self.question, columns)
        core, columns = core[held], columns.rows(np.flatnonzero(held))
        costs = self._pricing.costs(columns, Boxes.of(columns))
        return explain_infeasible(self.question, columns, costs, self._pricing.policies)

    def in_words(self) -> str:
        """What the search covers, in words."""
        shapes = np.concatenate([own for by_stage in self._pricing.space.shapes for own in by_stage])
        used = [SCHEDULES[index] for index in np.unique(shapes[:, 1]).tolist()]
        policies = " / ".join(self._pricing.policies)
        mixes = f"any number of blocks of a stage under each of recompute {policies}"
        alike = ", or where stages are of such sizes all ranks as many of their first blocks"
        if self._pricing.counted:
            mixes, alike = "any number of first blocks recomputed in full, of every stage the same", ""
        return (
            "all legal tp x pp x vpp x cp x dp x ep x etp x mbs x ZeRO x shard groups x sequence parallelism x axis"
            f" orders x ways of context parallelism x schedules ({', '.join(used)}) on"
            f" {self.question.cluster.num_gpus} GPUs, within limits:"
            f" {limits_in_words(self.question, self._limits)}; {mixes}{alike}"
            + "; in plain pipelines each stage recomputes as is fastest at mean costs of the scenarios"
            * bool(self._pricing.space.in_scenarios)
        )


def count_below(
    search: BranchAndBound, seconds: float, most: int, has_time: Callable[[], bool]
) -> int | None:
    """Number of layouts whose bound is below some seconds; None where there are more than `most` or time is over.

    What the search left closed for a smaller time to beat is opened; bounds that it stopped at that time are computed
    further.
    """
    candidates, rows = search.candidates, search.rows
    while candidates.least_closed() < seconds:
        rows.add(candidates.open(seconds))
        if int((rows.first_bound < seconds).sum()) > most or not has_time():
            return None
    near = rows.first_bound < seconds
    stopped = rows.first_bound >= search.kth_seconds
    some = np.flatnonzero(near & (~rows.refined | stopped))
    rows.refine(some, candidates.capacity_bounds(some, seconds))
    return int((rows.first_bound < seconds).sum())


def nearest_below(
    searches: Sequence[BranchAndBound], seconds: float, most: int, first: Layout, has_time: Callable[[], bool]
) -> list[Layout]:
    """At most `most` layouts that take less than some seconds, those with the least bounds, each with a good placement
    and other degrees or another microbatch than `first` and one another. The result does not depend on search order."""
    for search in searches:
        count_below(search, seconds, MOST_NEAR, has_time)
    near = sorted(
        (float(search.rows.first_bound[row]), number, str(search.candidates.layout(row)), row)
        for number, search in enumerate(searches)
        for row in np.flatnonzero(search.rows.first_bound < seconds).tolist()
    )
    layouts, degrees, placed = list[Layout](), {_degrees(first)}, 0
    for _, number, _, row in near:
        candidates = searches[number].candidates
        layout = candidates.layout(row)
        if _degrees(layout) in degrees:
            continue
        if len(layouts) == most or placed == PLACED_FOR_EACH * most or not has_time():
            break
        leaf, placed = candidates.leaf(row), placed + 1
        solution = good_placement(leaf) if leaf.is_plain else best_pattern(leaf, seconds)
        if solution and solution[1] < seconds:
            degrees.add(_degrees(layout))
            layouts.append(solution[0].on(layout))
    return layouts


def _degrees(layout: Layout) -> tuple[int, ...]:
    return layout.tp, layout.pp, layout.cp, layout.dp, layout.ep, layout.expert_tp, layout.mbs


def _lowest(bound: Array, rows: Ints, most: int) -> Ints:
    """At most `most` of `rows`, those with the least bounds, in no order."""
    return rows if len(rows) <= most else rows[np.argpartition(bound[rows], most)[:most]]


def joined(first: Columns, second: Columns) -> Columns:
    """The rows of both tables, one after the other."""
    both: dict[str, Any] = {}
    for field in fields(first):
        top, bottom = getattr(first, field.name), getattr(second, field.name)
        if isinstance(top, tuple):  # a table for each kind of block
            both[field.name] = tuple(
                {name: np.concatenate([upper[name], lower[name]]) for name in upper}
                for upper, lower in zip(top, bottom, strict=True)
            )
        else:
            both[field.name] = np.concatenate([top, bottom])
    return type(first)(**both)
