"""All legal layouts of a question with their costs: what the search walks through."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from cost_models.costs import stage_costs
from cost_models.errors import InfeasibleError
from cost_models.question import Question
from cost_models.specs.columns import Ints, LayoutColumns
from cost_models.specs.layout import SCHEDULES, Layout
from cost_models.specs.recompute import RECOMPUTE_POLICIES, Recompute
from cost_models.stage_costs import StageCosts
from planner.bounds import capacity_bounds, quick_bounds
from planner.group import Floats, Group
from planner.infeasible import explain_infeasible
from planner.legality import Bools
from planner.placement import Leaf
from planner.search_space import Restrictions, enumerate_layouts


@dataclass(frozen=True, kw_only=True)
class PricedSpace:
    """All legal layouts, priced."""

    columns: LayoutColumns
    costs: StageCosts
    microbatches: Ints
    num_layers: int
    policies: tuple[Recompute, ...]
    groups: list[Ints]
    """Rows that share pp, vpp and schedule."""
    question: Question
    max_memory: float | None

    @property
    def allowed(self) -> Bools:
        """(P,): policies the search may use."""
        return np.array([policy in self.policies for policy in RECOMPUTE_POLICIES])

    def group(self, rows: Ints) -> Group:
        """Rows of one group, for the bounds."""
        first = rows[0]
        return Group(
            costs=self.costs.rows(rows),
            pp=int(self.columns.pp[first]),
            vpp=int(self.columns.vpp[first]),
            schedule=SCHEDULES[self.columns.schedule[first]],
            microbatches=self.microbatches[rows],
            num_layers=self.num_layers,
            allowed=self.allowed,
        )

    def quick_bounds(self, rows: Ints) -> Floats:
        """Bounds of rows of one group that cost microseconds each."""
        return quick_bounds(self.group(rows))

    def capacity_bounds(self, rows: Ints) -> Floats:
        """Finer ones."""
        return capacity_bounds(self.group(rows))

    def layout(self, row: int) -> Layout:
        """A row, not placed."""
        return self.columns.layout(row)

    def nothing_fits(self) -> InfeasibleError:
        """The error to raise when no placement of any layout fits."""
        return explain_infeasible(self.question, self.columns, self.costs, self.policies)

    def in_words(self) -> str:
        """What the search covers."""
        return (
            "all legal tp x pp x vpp x dp x mbs x ZeRO x sequence parallelism x schedule"
            f" on {self.question.cluster.num_gpus} GPUs; recompute {' / '.join(self.policies)}; every number of blocks"
            " and every policy on each stage, or, where interleaved, equal stages and policies chunk by chunk"
        )

    def leaf(self, row: int) -> Leaf:
        """One layout, to be placed."""
        return Leaf(
            costs=self.costs.rows(slice(row, row + 1)),
            pp=int(self.columns.pp[row]),
            vpp=int(self.columns.vpp[row]),
            schedule=SCHEDULES[int(self.columns.schedule[row])],
            microbatches=int(self.microbatches[row]),
            num_layers=self.num_layers,
            allowed=self.allowed,
        )


def price_space(question: Question, limits: Restrictions) -> PricedSpace:
    """Enumerate and price; raises InfeasibleError where no layout is legal."""
    policies = limits.recompute(question.training)
    columns = enumerate_layouts(question, limits)
    if not len(columns):
        raise _nothing_legal(question, limits)
    costs = stage_costs(question, columns)
    if limits.max_memory is not None:
        costs = replace(costs, memory_limit=np.minimum(costs.memory_limit, limits.max_memory))
    keys = np.stack([columns.schedule, columns.pp, columns.vpp], axis=1)
    _, index = np.unique(keys, axis=0, return_inverse=True)
    order = np.argsort(index.reshape(-1), kind="stable")
    starts = np.flatnonzero(np.diff(index.reshape(-1)[order], prepend=-1))
    return PricedSpace(
        columns=columns,
        costs=costs,
        microbatches=columns.microbatches(question.training.global_batch),
        num_layers=question.model.num_layers,
        policies=policies,
        groups=np.split(order, starts[1:]),
        question=question,
        max_memory=limits.max_memory,
    )


def _nothing_legal(question: Question, limits: Restrictions) -> InfeasibleError:
    """Which of question and restrictions leaves nothing to choose from."""
    restricted = limits.flags
    blamed = restricted and len(enumerate_layouts(question, Restrictions()))
    gpus = question.cluster.num_gpus
    where = f"on {gpus:,} GPU{'s' * (gpus > 1)} is legal with global batch {question.training.global_batch:,}"
    what = f"no layout of {question.model.name} {where}"
    if not blamed:
        return InfeasibleError(what, hint="try a global batch that more GPUs divide")
    hint = "loosen --fix and --forbid" + ", or plan without --for" * (limits.trainer is not None)
    return InfeasibleError(f"{what} under {' '.join(restricted)}", hint=hint)
