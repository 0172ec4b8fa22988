"""From bounds of many layouts at once to the costs of single ones: what the search opens, best bound first.

    cores   ideal bound    → relaxed costs, a sharper bound
    cores   relaxed bound  → each of their shapes
    pairs   core and shape, bound of the pipeline under relaxed costs → each of their variants
    rows    layouts, bound of the pipeline under their own costs      → placed by the search

Opening replaces an entry by what it stands for. An entry whose bound cannot beat the k-th best layout is never opened,
and all its layouts are done with at once.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np
import numpy.typing as npt

from cost_models.costs import stage_costs
from cost_models.question import Question
from cost_models.schedules import allowed_recompute
from cost_models.specs.columns import Ints, LayoutColumns
from cost_models.specs.layout import SCHEDULES
from cost_models.specs.recompute import RECOMPUTE_POLICIES, Recompute
from cost_models.stage_costs import StageCosts
from planner.bounds import quick_bounds
from planner.group import Group
from planner.placement import Leaf
from planner.relaxed import core_bounds, ideal_seconds, relaxed_costs
from planner.restrictions import Bools
from planner.search_space import ONE_CHUNK, Space

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Pricing:
    """How rows of a space are priced."""

    space: Space
    policies: tuple[Recompute, ...]
    """Recompute policies the search may use."""
    max_memory: float | None
    """Bytes of a device a plan may fill, where that is less than the device allows."""

    @property
    def question(self) -> Question:
        """What was asked."""
        return self.space.question

    def allowed(self, schedule: int) -> Bools:
        """(P,): policies a stage may use under a schedule."""
        own = allowed_recompute(SCHEDULES[schedule])
        return np.array([policy in self.policies and policy in own for policy in RECOMPUTE_POLICIES])

    def limited(self, costs: StageCosts) -> StageCosts:
        """The same costs with no more memory than was allowed."""
        if self.max_memory is None:
            return costs
        return replace(costs, memory_limit=np.minimum(costs.memory_limit, self.max_memory))

    def bounds(self, columns: LayoutColumns, costs: StageCosts) -> Floats:
        """(N,) quick bounds of layouts, those of one pipeline shape together."""
        bound = np.empty(len(columns))
        for rows in groups_of(columns):
            bound[rows] = quick_bounds(self.group(columns, costs, rows))
        return bound

    def group(self, columns: LayoutColumns, costs: StageCosts, rows: Ints) -> Group:
        """Rows of one pipeline shape, for the bounds."""
        first = rows[0]
        own = columns.rows(rows)
        return Group(
            costs=costs.rows(rows),
            pp=int(columns.pp[first]),
            vpp=int(columns.vpp[first]),
            schedule=SCHEDULES[columns.schedule[first]],
            microbatches=own.microbatches(self.question.training.global_batch),
            num_layers=self.question.model.num_layers,
            allowed=self.allowed(int(columns.schedule[first])),
        )

    def leaf(self, columns: LayoutColumns, costs: StageCosts, row: int) -> Leaf:
        """One layout, to be placed."""
        own = columns.rows(slice(row, row + 1))
        return Leaf(
            costs=costs.rows(slice(row, row + 1)),
            pp=int(own.pp[0]),
            vpp=int(own.vpp[0]),
            schedule=SCHEDULES[own.schedule[0]],
            microbatches=int(own.microbatches(self.question.training.global_batch)[0]),
            num_layers=self.question.model.num_layers,
            allowed=self.allowed(int(own.schedule[0])),
        )


def groups_of(columns: LayoutColumns) -> list[Ints]:
    """Rows that share pp, vpp and schedule."""
    if not len(columns):
        return []
    keys = (columns.schedule * (1 << 40)) + (columns.pp << 20) + columns.vpp
    order = np.argsort(keys, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(keys[order])) + 1)


class Cores:
    """Cores under their ideal bound and, once that was opened, under their relaxed bound."""

    def __init__(self, pricing: Pricing) -> None:
        self._pricing = pricing
        self._allowed = np.array([policy in pricing.policies for policy in RECOMPUTE_POLICIES])
        self.bound = ideal_seconds(pricing.space, self._allowed)
        self.is_relaxed = np.zeros(len(self.bound), dtype=np.bool_)
        self.is_open = np.zeros(len(self.bound), dtype=np.bool_)

    def least(self) -> float:
        """The least bound of what is closed."""
        return float(np.min(self.bound, where=~self.is_open, initial=np.inf))

    def seeds(self) -> Ints:
        """Cores that are likely to hold a good layout: the best of every tp, pp and cp under their ideal bound."""
        cores = self._pricing.space.cores
        order = np.argsort(self.bound, kind="stable")
        kind = (cores.tp * (1 << 40) + cores.pp * (1 << 20) + cores.cp)[order]
        _, first = np.unique(kind, return_index=True)
        return order[np.sort(np.concatenate([first, np.arange(min(len(order), SEEDS))]))]

    def relax(self, cores: Ints) -> None:
        """Sharpen the bounds of some cores."""
        cores = cores[~self.is_relaxed[cores]]
        for start in range(0, len(cores), TOGETHER):
            some = cores[start : start + TOGETHER]
            shape = np.tile(np.array([[1, ONE_CHUNK]]), (len(some), 1))
            costs = self._pricing.limited(relaxed_costs(self._pricing.space, some, shape))
            sharper = core_bounds(self._pricing.space, some, costs, self._allowed)
            self.bound[some] = np.maximum(self.bound[some], sharper)
        self.is_relaxed[cores] = True

    def next(self, below: float, most: int) -> Ints:
        """Closed cores with the least bounds below a limit, relaxed first where they are not."""
        while True:
            rows = np.flatnonzero(~self.is_open & (self.bound < below))
            if len(rows) > most:
                rows = rows[np.argpartition(self.bound[rows], most)[:most]]
            if self.is_relaxed[rows].all():
                return rows
            self.relax(rows)


class Pairs:
    """Cores in one of their shapes, under the bound of their pipeline at relaxed costs."""

    def __init__(self, pricing: Pricing) -> None:
        self._pricing = pricing
        self.core = np.empty(0, dtype=np.int64)
        self.shape = np.empty((0, 2), dtype=np.int64)
        self.layouts = np.empty(0, dtype=np.int64)
        """Layouts of each."""
        self.bound = np.empty(0)
        self.is_open = np.empty(0, dtype=np.bool_)

    def add(self, cores: Ints) -> None:
        """All shapes of some cores."""
        shapes = [self._pricing.space.shapes_of(core) for core in cores.tolist()]
        core = np.repeat(cores, [len(shape) for shape, _ in shapes])
        shape = np.concatenate([self.shape[:0], *(shape for shape, _ in shapes)])
        layouts = np.concatenate([self.layouts[:0], *(count for _, count in shapes)])
        bound = np.empty(len(core))
        for start in range(0, len(core), TOGETHER):
            some = slice(start, start + TOGETHER)
            costs = self._pricing.limited(relaxed_costs(self._pricing.space, core[some], shape[some]))
            none = np.zeros((len(costs), 2), dtype=np.int64)
            bound[some] = self._pricing.bounds(self._pricing.space.rows(core[some], none, shape[some]), costs)
        self.core = np.concatenate([self.core, core])
        self.shape = np.concatenate([self.shape, shape])
        self.layouts = np.concatenate([self.layouts, layouts])
        self.bound = np.concatenate([self.bound, bound])
        self.is_open = np.concatenate([self.is_open, np.zeros(len(core), dtype=np.bool_)])

    def least(self) -> float:
        """The least bound of what is closed."""
        return float(np.min(self.bound, where=~self.is_open, initial=np.inf))

    def next(self, below: float, most: int) -> Ints:
        """Closed pairs with the least bounds below a limit."""
        rows = np.flatnonzero(~self.is_open & (self.bound < below))
        return rows if len(rows) <= most else rows[np.argpartition(self.bound[rows], most)[:most]]


class Rows:
    """Layouts that are written out, with their costs and bounds."""

    def __init__(self, pricing: Pricing) -> None:
        self._pricing = pricing
        none = np.empty(0, dtype=np.int64)
        self.columns = pricing.space.rows(none, none.reshape(0, 2), none.reshape(0, 2))
        self.costs = stage_costs(pricing.question, self.columns)
        self.bound = np.empty(0)
        """Proven lower bound of each; infinite where it fits nowhere; the best time where it is decided."""
        self.refined = np.empty(0, dtype=np.bool_)
        self.placed = np.empty(0, dtype=np.bool_)
        """Those that were given a good placement, or were found to have none quickly."""
        self.decided = np.empty(0, dtype=np.bool_)

    def __len__(self) -> int:
        return len(self.bound)

    def add(self, pairs: Pairs, chosen: Ints) -> None:
        """All variants of some pairs."""
        space = self._pricing.space
        core, shape = pairs.core[chosen], pairs.shape[chosen]
        variants = [
            space.variants_of(index, vpp, schedule)
            for index, (vpp, schedule) in zip(core.tolist(), shape.tolist(), strict=True)
        ]
        counts = [len(own) for own in variants]
        columns = space.rows(np.repeat(core, counts), np.concatenate(variants), np.repeat(shape, counts, axis=0))
        costs = self._pricing.limited(stage_costs(self._pricing.question, columns))
        closed = np.zeros(len(columns), dtype=np.bool_)
        self.columns = _joined(self.columns, columns)
        self.costs = _joined(self.costs, costs)
        self.bound = np.concatenate([self.bound, self._pricing.bounds(columns, costs)])
        self.refined = np.concatenate([self.refined, closed])
        self.placed = np.concatenate([self.placed, closed])
        self.decided = np.concatenate([self.decided, closed])

    def leaf(self, row: int) -> Leaf:
        """One layout, to be placed."""
        return self._pricing.leaf(self.columns, self.costs, row)


SEEDS = 64
"""Cores opened at the start, beside one of each kind, to have a time to beat early."""
TOGETHER = 50_000
"""Rows priced at once: bounds memory."""


def _joined[Columns: (LayoutColumns, StageCosts)](one: Columns, other: Columns) -> Columns:
    """The rows of both."""
    both = {
        field.name: np.concatenate([getattr(one, field.name), getattr(other, field.name)])
        for field in fields(one)
    }
    return type(one)(**both)
