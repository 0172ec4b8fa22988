"""How layouts of a space are priced: under which recompute policies and limits, singly and in groups for the bounds."""

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
from cost_models.schedules import PLAIN, is_scheduled
from cost_models.specs.choices import RECOMPUTE_POLICIES, SCHEDULES, Recompute
from cost_models.specs.model.kinds import Kinds
from planner.bounds.boxes import least_costs
from planner.bounds.chunks import quick_chunk_bounds
from planner.bounds.step import quick_bounds
from planner.placement.chunk_rows import ChunkRows
from planner.placement.leaf import Leaf, priced
from planner.placement.shared_shape import Group
from planner.placement.weighed_leaf import WeighedLeaf
from planner.space.counts import Boxes
from planner.space.layouts import Space


@dataclass(frozen=True, kw_only=True)
class Pricing:
    """How rows of a space are priced."""

    space: Space
    policies: tuple[Recompute, ...]
    """Recompute policies the search may use."""
    max_memory: float | None
    """Bytes of a device a plan may fill, where that is less than the device allows."""
    counted: bool = False
    """See `Leaf.counted`."""

    @property
    def question(self) -> Question:
        """What was asked."""
        return self.space.question

    @property
    def _kinds(self) -> Kinds | None:
        """Which block is of which kind, where there are several."""
        kinds = self.question.kinds
        return kinds if kinds.number > 1 else None

    @property
    def allowed_at_all(self) -> Bools:
        """(P,): policies a stage may use under some schedule."""
        return np.array([policy in self.policies for policy in RECOMPUTE_POLICIES])

    def allowed(self, schedule: int) -> Bools:
        """(P,): policies a stage may use under a schedule."""
        own = allowed_recompute(SCHEDULES[schedule])
        return np.array([policy in self.policies and policy in own for policy in RECOMPUTE_POLICIES])

    def costs(self, columns: LayoutColumns, counts: Boxes) -> StageCosts:
        """Least costs of layouts that stand for boxes of counts, with no more memory than was allowed."""
        return self.limited(least_costs(self.question, columns, counts))

    def limited(self, costs: StageCosts) -> StageCosts:
        """The same costs with no more memory than was allowed."""
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
            bound[rows] = quick_chunk_bounds(self._in_chunks(columns.rows(rows), costs.rows(rows)))
        return bound

    def _in_chunks(self, own: LayoutColumns, costs: StageCosts) -> ChunkRows:
        """Layouts of one schedule with several chunks a rank, for their quick bound."""
        return ChunkRows(
            costs=costs,
            pp=own.pp,
            vpp=own.vpp,
            schedule=SCHEDULES[own.schedule[0]],
            microbatches=own.microbatches(self.question.training.global_batch),
            num_layers=self.question.model.num_layers,
            allowed=self.allowed(int(own.schedule[0])),
            kinds=self._kinds,
        )

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
            counted=self.counted,
            kinds=self._kinds,
        )

    def leaf(self, columns: LayoutColumns, costs: StageCosts, row: int) -> Leaf:
        """One layout, to be placed."""
        own = columns.rows(slice(row, row + 1))
        leaf = Leaf(
            **priced(costs.rows(slice(row, row + 1)), self.question.kinds),
            pp=int(own.pp[0]),
            vpp=int(own.vpp[0]),
            schedule=SCHEDULES[own.schedule[0]],
            microbatches=int(own.microbatches(self.question.training.global_batch)[0]),
            num_layers=self.question.model.num_layers,
            allowed=self.allowed(int(own.schedule[0])),
            counted=self.counted,
            fewest=int(named_blocks(own)[0]),
        )
        if not self.space.in_scenarios:
            return leaf
        each = costs_under_scenarios(self.question, own)
        assert each is not None
        return WeighedLeaf.of(leaf, each, self.question.risk)


def groups_of(columns: LayoutColumns, some: Ints | None = None) -> list[Ints]:
    """Rows that share pp, vpp and schedule, of some or all."""
    some = np.arange(len(columns)) if some is None else some
    if not len(some):
        return []
    keys = ((columns.schedule * (1 << 40)) + (columns.pp << 20) + columns.vpp)[some]
    order = np.argsort(keys, kind="stable")
    return np.split(some[order], np.flatnonzero(np.diff(keys[order])) + 1)
