"""Costs and bounds of the layouts of a space, under the recompute policies and memory limit of a search."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from cost_models.arrays import Array, Bools, Ints
from cost_models.axes.columns import LayoutColumns
from cost_models.axes.offload import named_blocks
from cost_models.axes.recompute import allowed_recompute
from cost_models.pipeline.stage_costs import StageCosts
from cost_models.pipeline.under_scenarios import costs_under_scenarios
from cost_models.question import Question
from cost_models.schedules.registry import PLAIN, is_scheduled
from cost_models.specs.choices import RECOMPUTE_POLICIES, SCHEDULES, Recompute
from cost_models.specs.model.kinds import Kinds
from planner.bounds.boxes import least_costs
from planner.bounds.step import quick_bounds
from planner.placement.leaf import Leaf, priced
from planner.placement.rank_costs import RankCosts
from planner.placement.weighed_leaf import WeighedLeaf
from planner.space.counts import Boxes
from planner.space.layouts import Space


@dataclass(frozen=True, kw_only=True)
class Pricing:
    """Costs and quick bounds of rows of a space."""

    space: Space
    policies: tuple[Recompute, ...]
    """Recompute policies the search may use."""
    max_memory: float | None
    """Bytes of a device a plan may fill, where that is less than the device allows."""
    uses_full_counts: bool = False
    """See `Leaf.uses_full_counts`."""

    @property
    def question(self) -> Question:
        """Question of the space."""
        return self.space.question

    @property
    def _kinds(self) -> Kinds | None:
        """Kinds of blocks; None for a single kind."""
        kinds = self.question.kinds
        return kinds if kinds.number > 1 else None

    @property
    def allowed_at_all(self) -> Bools:
        """(P,): policies a stage may use under some schedule."""
        return np.array([policy in self.policies for policy in RECOMPUTE_POLICIES])

    def allowed(self, schedule: int) -> Bools:
        """(P,): policies a stage may use under a schedule."""
        schedule_policies = allowed_recompute(SCHEDULES[schedule])
        return np.array(
            [policy in self.policies and policy in schedule_policies for policy in RECOMPUTE_POLICIES]
        )

    def costs(self, columns: LayoutColumns, counts: Boxes) -> StageCosts:
        """Minimum costs of layouts that stand for boxes of counts, within the memory limit."""
        return self.limited(least_costs(self.question, columns, counts))

    def limited(self, costs: StageCosts) -> StageCosts:
        """Costs within the user's memory limit."""
        if self.max_memory is None:
            return costs
        return replace(costs, memory_limit=np.minimum(costs.memory_limit, self.max_memory))

    def bounds(self, columns: LayoutColumns, costs: StageCosts) -> Array:
        """(N,) quick bounds of layouts: those of one pipeline shape together, those in chunks of one schedule; infinite
        where the schedule runs under none of the policies, as in a space that was made for more of them."""
        bound = np.full(len(columns), np.inf)
        plain = is_scheduled(columns, PLAIN)
        for rows in groups_of(columns, np.flatnonzero(plain)):
            bound[rows] = quick_bounds(self.group(columns, costs, rows))
        for schedule in np.unique(columns.schedule[~plain]).tolist():
            if not self.allowed(schedule).any():
                continue
            rows = np.flatnonzero(columns.schedule == schedule)
            bound[rows] = quick_bounds(self.group(columns, costs, rows, one_shape=False))
        return bound

    def group(
        self, columns: LayoutColumns, costs: StageCosts, rows: Ints, *, one_shape: bool = True
    ) -> RankCosts:
        """Rows of one schedule, for the bounds; of several pipeline shapes for their quick bound in chunks."""
        columns = columns.rows(rows)
        schedule = int(columns.schedule[0])
        return RankCosts(
            costs=costs.rows(rows),
            pp=int(columns.pp[0]) if one_shape else columns.pp,
            vpp=int(columns.vpp[0]) if one_shape else columns.vpp,
            schedule=SCHEDULES[schedule],
            microbatches=columns.microbatches(self.question.training.global_batch),
            num_layers=self.question.model.num_layers,
            allowed=self.allowed(schedule),
            uses_full_counts=self.uses_full_counts,
            kinds=self._kinds,
        )

    def leaf(self, columns: LayoutColumns, costs: StageCosts, row: int) -> Leaf:
        """One layout, to be placed."""
        row_columns = columns.rows(slice(row, row + 1))
        leaf = Leaf(
            **priced(costs.rows(slice(row, row + 1)), self.question.kinds),
            pp=int(row_columns.pp[0]),
            vpp=int(row_columns.vpp[0]),
            schedule=SCHEDULES[row_columns.schedule[0]],
            microbatches=int(row_columns.microbatches(self.question.training.global_batch)[0]),
            num_layers=self.question.model.num_layers,
            allowed=self.allowed(int(row_columns.schedule[0])),
            uses_full_counts=self.uses_full_counts,
            least_blocks=int(named_blocks(row_columns)[0]),
        )
        if not self.space.in_scenarios:
            return leaf
        scenarios = costs_under_scenarios(self.question, row_columns)
        assert scenarios is not None
        return WeighedLeaf.of(leaf, scenarios, self.question.risk)


def groups_of(columns: LayoutColumns, rows: Ints | None = None) -> list[Ints]:
    """Rows that share pp, vpp and schedule, of some or all."""
    rows = np.arange(len(columns)) if rows is None else rows
    if not len(rows):
        return []
    keys = ((columns.schedule * (1 << 40)) + (columns.pp << 20) + columns.vpp)[rows]
    order = np.argsort(keys, kind="stable")
    return np.split(rows[order], np.flatnonzero(np.diff(keys[order])) + 1)
