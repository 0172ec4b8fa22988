"""Candidate layouts of a search on one kind of GPU, with their costs and bounds, opened best bound first.

    cores   ideal bound, then relaxed bound (`planner.bounds.cores`)     → each of their layouts, priced
    rows    layouts under the bound of their pipeline at their own costs   → placed by `planner.search.branching`

A core whose bound cannot beat the k-th best layout is never opened, which decides all its layouts at once. Where counts
of blocks are open (`planner.space.axes`), a row stands for a box of them and is halved before it is placed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

import numpy as np

from cost_models.arrays import Array, Ints
from cost_models.axes.columns import LayoutColumns, is_scheduled
from cost_models.axes.layout import Layout
from cost_models.axes.offload.residency import named_blocks
from cost_models.axes.stages import policies_by_schedule, policy_mask
from cost_models.errors import InfeasibleError
from cost_models.pipeline.pricing import costs_under_scenarios
from cost_models.pipeline.stage_costs import StageCosts, costs_by_kind
from cost_models.question import Question
from cost_models.schedules.registry import PLAIN
from cost_models.specs.choices import SCHEDULES
from planner.bounds.cores import (
    best_known_bounds,
    fullest_layouts,
    host_overflow_error,
    least_costs,
    relaxed_bounds,
)
from planner.bounds.steps import capacity_bounds, quick_bounds
from planner.placement.leaf import TOLERANCE, Leaf
from planner.placement.rank_costs import RankCosts, groups_of
from planner.space.axes import Boxes, with_counts
from planner.space.limits import limits_in_words
from planner.space.obstacles import explain_infeasible, nothing_legal
from planner.space.restrictions import Restrictions
from planner.space.space import Space, legal_space

SEED_CORES = 64
"""Number of cores (layouts before ZeRO stage and schedule are chosen) opened first, for an early good
plan."""
FIRST_OPENED, MOST_OPENED = 128, 20_000
"""Number of entries (layouts or boxes of layouts) opened in the first batch, and the maximum, as batches
double every time."""
FIRST_RELAXED, MOST_RELAXED = 4096, 65_536
"""Number of cores in the first batch of relaxed bounds, and the maximum, as batches double every time."""
FEWEST_PARTS = 256
"""Minimum number of boxes (ranges of numbers of offloaded blocks) priced together, as pricing one takes as
long as pricing many."""
TIES = 4 * TOLERANCE
"""Relative margin above the time to beat within which a layout may tie with the best and has to be opened."""
PRICED_TOGETHER = 50_000
"""Maximum number of rows priced in one batch, which bounds memory."""


@dataclass(frozen=True, slots=True)
class Unopened:
    """Table of N entries that have a lower bound but are not opened yet; an entry is a layout, or a box
    (layouts that differ only in numbers of offloaded blocks)."""

    core: Ints
    """Index of each entry's core (layout before ZeRO stage and schedule are chosen), (N,)."""
    choice: Ints
    """ZeRO stage, shard groups, vpp and schedule of each entry, (N, 4)."""
    counts: Boxes
    bound: Array
    """Lower bound of each entry's step, seconds (N,)."""

    def rows(self, index: Ints) -> Unopened:
        """Select the entries at the given indices."""
        return Unopened(self.core[index], self.choice[index], self.counts.rows(index), self.bound[index])


Table = TypeVar("Table", LayoutColumns, StageCosts, Unopened)


class UniformCandidates:
    """Candidate layouts of a search on one kind of GPU; the search opens them (prices each on its own) in
    order of lower bounds."""

    def __init__(self, question: Question, limits: Restrictions, space: Space | None = None) -> None:
        """Prepare the candidate layouts of `space`, by default of all legal layouts."""
        space = space or legal_space(question, limits)
        if not len(space):
            raise nothing_legal(question, limits)
        self.question, self.space, self._limits = question, space, limits
        self.max_memory, self._policies = limits.max_memory, limits.recompute(question)
        self._uses_full_counts = limits.recomputes_by_count(question)
        self._allowed, self._allowed_SP = policy_mask(self._policies), policies_by_schedule(self._policies)
        self._core_bound = best_known_bounds(space, self._allowed)
        """Lower bound of each core's step, seconds (N,), first the ideal bound, then the sharper relaxed
        bound, infinite once the core is open."""
        self._core_sizes = space.sizes.copy()
        """Number of layouts of each unopened core, (N,); 0 once the core is open."""
        self._is_relaxed = np.zeros(len(self._core_bound), dtype=np.bool_)
        core, choice = space.choices_of(np.empty(0, dtype=np.int64))
        self.unopened = Unopened(core, choice, space.counts.rows(core), np.empty(0))
        self._columns = space.rows(core, choice)
        self._costs = costs_by_kind([{}] * question.kinds.number, question.kinds, 0)
        self._seeded, self._batch, self._relaxed_together = False, FIRST_OPENED, FIRST_RELAXED

    def __len__(self) -> int:
        return len(self.space)

    def least_unopened(self) -> float:
        """Smallest lower bound of all layouts not yet opened, seconds; infinite if all are opened."""
        return float(min(self._core_bound.min(initial=np.inf), self.unopened.bound.min(initial=np.inf)))

    def unopened_bounds(self) -> tuple[Array, Ints]:
        """For every core or entry not yet opened, its lower bound in seconds and its number of layouts."""
        bound = np.concatenate([self._core_bound, self.unopened.bound])
        return bound, np.concatenate([self._core_sizes, self.unopened.counts.layouts])

    def open(self, threshold: float) -> Array:
        """Open the unopened cores or entries with the smallest lower bounds below `threshold` seconds. Returns
        the quick bounds of the new rows, (N,), which may be none. The first call opens seeds, for an early
        incumbent."""
        if not self._seeded:
            self._seeded = True
            return self.open_cores(self._seeds(), threshold)
        bound = self.unopened.bound
        if self._core_bound.min(initial=np.inf) <= bound.min(initial=np.inf):
            cores = self._lowest_cores(threshold)
            self._batch = min(2 * self._batch, MOST_OPENED)
            return self.open_cores(cores, threshold)
        return self.halve(lowest(bound, np.flatnonzero(bound < threshold), self._batch), threshold)

    def bounds(self, columns: LayoutColumns, costs: StageCosts) -> Array:
        """Quick lower bounds of the steps of N layouts, seconds (N,). Those of one pipeline shape are
        computed together, those in chunks by schedule; infinite where the schedule runs under none of the
        policies, as in a space that was made for more of them."""
        bound = np.full(len(columns), np.inf)
        plain = is_scheduled(columns, PLAIN)
        for rows in groups_of(columns, np.flatnonzero(plain)):
            bound[rows] = quick_bounds(self.group(columns, costs, rows))
        for schedule in np.unique(columns.schedule[~plain]).tolist():
            rows = np.flatnonzero(columns.schedule == schedule)
            if self._allowed_SP[schedule].any():
                bound[rows] = quick_bounds(self.group(columns, costs, rows))
        return bound

    def group(self, x: LayoutColumns, costs: StageCosts, rows: Ints) -> RankCosts:
        """Costs by pipeline rank of the selected rows, which share one schedule. They have several pipeline
        shapes only for quick bounds in chunks."""
        columns, allowed = x.rows(rows), self._allowed_SP[x.schedule[rows[0]]]
        group = RankCosts.of_rows(self.question, columns, costs.rows(rows), allowed)
        return replace(group, uses_full_counts=self._uses_full_counts)

    def _seeds(self) -> Ints:
        """Indices of up to `SEED_CORES` cores (layouts without ZeRO stage and schedule) that are opened
        first. They have the lowest relaxed bounds among those with the best ideal bound, overall or of their
        (tp, pp, cp)."""
        cores, order = self.space.cores, np.argsort(self._core_bound, kind="stable")
        mesh = (cores.tp * (1 << 40) + cores.pp * (1 << 20) + cores.cp)[order]
        _, first = np.unique(mesh, return_index=True)
        likely = order[np.union1d(first, np.arange(min(len(order), SEED_CORES)))]
        self._relax(likely)
        best: Ints = likely[np.argsort(self._core_bound[likely], kind="stable")][:SEED_CORES]
        return best[np.isfinite(self._core_bound[best])]

    def _relax(self, cores: Ints) -> None:
        """Raise the bounds of some cores (layouts without ZeRO stage and schedule) to their relaxed bounds."""
        for start in range(0, len(cores), PRICED_TOGETHER):
            batch = cores[start : start + PRICED_TOGETHER]
            sharper = relaxed_bounds(self.space, batch, self._allowed, self.max_memory)
            self._core_bound[batch] = np.maximum(self._core_bound[batch], sharper)
        self._is_relaxed[cores] = True

    def _lowest_cores(self, threshold: float) -> Ints:
        """Indices of the unopened cores with the smallest relaxed bounds below `threshold` seconds."""
        while True:
            unopened = np.flatnonzero(self._core_bound < threshold)
            rows = lowest(self._core_bound, unopened, self._batch)
            if self._is_relaxed[rows].all():
                return rows
            unrelaxed = unopened[~self._is_relaxed[unopened]]
            batch = lowest(self._core_bound, unrelaxed, self._relaxed_together)
            self._relax(np.sort(batch))  # neighbouring cores share more
            self._relaxed_together = min(2 * self._relaxed_together, MOST_RELAXED)

    def open_cores(self, cores: Ints, threshold: float) -> Array:
        """Price every layout of some cores; return the quick bounds, seconds (N,), of those that may take
        less than `threshold` seconds."""
        self._core_bound[cores], self._core_sizes[cores] = np.inf, 0
        core, choice = self.space.choices_of(cores)
        return self._price(core, choice, self.space.counts.rows(core), threshold)

    def halve(self, rows: Ints, threshold: float) -> Array:
        """Split boxes (ranges of numbers of offloaded blocks with one common bound) into halves, or into
        smaller parts where boxes are few. Single layouts that may take less than `threshold` seconds are
        opened, and their quick bounds returned."""
        parents = self.unopened.rows(rows)
        self.unopened = self.unopened.rows(np.setdiff1d(np.arange(len(self.unopened.core)), rows))
        core, choice, counts = parents.core, parents.choice, parents.counts
        while True:
            part, counts = counts.halves()
            core, choice = core[part], choice[part]
            if len(core) >= FEWEST_PARTS or counts.is_single.all():
                return self._price(core, choice, counts, threshold)

    def _price(self, core: Ints, choice: Ints, counts: Boxes, threshold: float) -> Array:
        """Price N layouts or boxes of layouts, and add each to the opened rows or to the unopened entries.
        Single layouts that may take less than `threshold` seconds, or tie, become rows, whose quick bounds
        are returned; the others stay unopened."""
        bounds, columns_of, costs_of, unopened = (
            [np.empty(0)],
            [self._columns],
            [self._costs],
            [self.unopened],
        )
        for start in range(0, len(core), PRICED_TOGETHER):
            batch = np.arange(start, min(start + PRICED_TOGETHER, len(core)))
            boxes = counts.rows(batch)
            columns = with_counts(self.space.rows(core[batch], choice[batch]), boxes.low)
            costs = least_costs(self.question, columns, boxes).within(self.max_memory)
            bound = self.bounds(columns, costs)
            is_row = boxes.is_single & (bound < threshold * (1 + TIES))
            rows, priced = np.flatnonzero(is_row), Unopened(core[batch], choice[batch], boxes, bound)
            columns_of.append(columns.rows(rows))
            costs_of.append(costs.rows(rows))
            unopened.append(priced.rows(np.flatnonzero(~is_row)))
            bounds.append(bound[rows])
        self._columns = join_rows(columns_of)
        self._costs = join_rows([costs for costs in costs_of if len(costs)] or costs_of[:1])
        self.unopened = join_rows(unopened)
        return np.concatenate(bounds)

    def open_all(self) -> None:
        """Open every layout of the space, even layouts that overflow host memory."""
        columns = self._columns = self.space.all_rows()
        self._costs = least_costs(self.question, columns, Boxes.of(columns)).within(self.max_memory)

    def capacity_bounds(self, rows: Ints, cut_off: float) -> Array:
        """Lower bounds of the steps of some rows that account for memory capacity, seconds (N,); bounds above
        `cut_off` may be lowered to it."""
        bound = np.empty(len(rows))
        for members in groups_of(self._columns.rows(rows)):
            group = self.group(self._columns, self._costs, rows[members])
            bound[members] = capacity_bounds(group, cut_off)
        return bound

    def leaf(self, row: int) -> Leaf:
        """Costs of one row's layout as a `Leaf`, the problem of placing its blocks on stages."""
        rows, columns = np.array([row]), self._columns.rows(np.array([row]))
        leaf = self.group(self._columns, self._costs, rows).leaf
        leaf = replace(leaf, least_blocks=int(named_blocks(columns)[0]))
        scenarios = costs_under_scenarios(self.question, columns) if self.space.in_scenarios else None
        if scenarios is not None:
            leaf = replace(leaf, scenarios=scenarios.in_sorts, risk=self.question.risk)
        return leaf

    def layout(self, row: int) -> Layout:
        """Layout of one row, without a placement."""
        return self._columns.layout(row)

    def nothing_fits(self) -> InfeasibleError:
        """Create the error that no placement of any layout fits in memory."""
        core, columns = self.space.smallest_rows()
        columns, has_room = fullest_layouts(self.question, columns, self.space.counts.rows(core))
        if not has_room.any():
            return host_overflow_error(self.question, columns)
        core, columns = core[has_room], columns.rows(np.flatnonzero(has_room))
        costs = least_costs(self.question, columns, Boxes.of(columns)).within(self.max_memory)
        return explain_infeasible(self.question, columns, costs, self._policies)

    def in_words(self) -> str:
        """Description in words of the layouts that the search covers."""
        used = [SCHEDULES[index] for index in np.unique(self.space.shapes.rows[:, 1]).tolist()]
        mixes = (
            f"any number of blocks of a stage under each of recompute {' / '.join(self._policies)}, or where stages"
            " are of such sizes all ranks as many of their first blocks"
        )
        if self._uses_full_counts:
            mixes = "any number of first blocks recomputed in full, of every stage the same"
        return (
            "all legal tp x pp x vpp x cp x dp x ep x etp x mbs x ZeRO x shard groups x sequence parallelism x axis"
            f" orders x ways of context parallelism x schedules ({', '.join(used)}) on"
            f" {self.question.cluster.num_gpus} GPUs, within limits:"
            f" {limits_in_words(self.question, self._limits)}; {mixes}"
            + "; in plain pipelines each stage recomputes as is fastest at mean costs of the scenarios"
            * bool(self.space.in_scenarios)
        )


def lowest(bound: Array, rows: Ints, max_count: int) -> Ints:
    """Select up to `max_count` of the indices `rows` with the lowest bounds, in no particular order."""
    return rows if len(rows) <= max_count else rows[np.argpartition(bound[rows], max_count)[:max_count]]


def join_rows(tables: Sequence[Table]) -> Table:
    """Concatenate the rows of several tables."""
    first, columns = tables[0], dict[str, Any]()
    for field in fields(first):
        parts = [getattr(table, field.name) for table in tables]
        if isinstance(parts[0], Boxes):
            columns[field.name] = Boxes.joined(parts)
        elif isinstance(parts[0], tuple):  # one table per kind of block
            columns[field.name] = tuple(map(_joined_kinds, zip(*parts, strict=True)))
        else:
            columns[field.name] = np.concatenate(parts)
    return type(first)(**columns)


def _joined_kinds(tables: Sequence[Mapping[str, Array]]) -> dict[str, Array]:
    """Concatenate the rows of several tables about one kind of block. A table is a map from column names to
    values."""
    return {name: np.concatenate([table[name] for table in tables]) for name in tables[0]}
