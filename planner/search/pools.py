"""Candidates of a question on several pools: all legal layouts in every order of the pools, with their costs.

The search treats them as it does those of one kind of GPU (`planner.search.candidates`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import permutations
from math import factorial

import numpy as np

from cost_models.arrays import Array, Bools, Ints
from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import Layout
from cost_models.errors import InfeasibleError
from cost_models.pipeline.pools import PoolTerms, pool_terms, rank_costs, ranks_in
from cost_models.pipeline.stage_costs import StageCosts
from cost_models.question import MixedQuestion, Question
from cost_models.schedules.registry import PLAIN
from cost_models.specs.choices import RECOMPUTE_POLICIES, SCHEDULES, Recompute
from planner.bounds.boxes import nothing_held, within_late_rules
from planner.bounds.steps import capacity_bounds, ideal_bounds, quick_bounds
from planner.placement.leaf import Leaf
from planner.placement.rank_costs import RankCosts
from planner.rules.pools import fills_pools
from planner.search.candidates import Tally
from planner.search.replicas import count_replicas
from planner.space.limits import limits_in_words
from planner.space.obstacles import closest_first, least_share, nothing_fits, nothing_legal
from planner.space.restrictions import Restrictions
from planner.space.space import legal_space

OPENED_TOGETHER = 2048
"""Rows that get a quick bound in one batch."""
PRECISION = 1e-4
"""Relative width of the interval that holds a capacity bound: finer than the bounds are tight."""


@dataclass(kw_only=True)
class PoolCandidates:
    """The candidates of a question on several pools: a row for each legal layout in each order of the pools."""

    question: MixedQuestion
    columns: LayoutColumns
    terms: PoolTerms
    """Cost terms of the layouts, whatever the order of the pools."""
    base: Ints
    """(N,) index into `terms`: the layout of each row."""
    order: Ints
    """(N,) index into `orders`: the order of the pools of each row."""
    orders: tuple[tuple[int, ...], ...]
    """Every order in which a pipeline may pass through the pools."""
    ranks: Ints
    """(K, N) number of pipeline ranks in each pool."""
    policies: tuple[Recompute, ...]
    uses_full_counts: bool
    max_memory: float | None
    key: Ints
    """(N,) group of each row; rows of one group share schedule, pp and order."""
    ideal: Array
    """(N,) first lower bound of each row, seconds."""

    def __post_init__(self) -> None:
        self._closed = np.argsort(self.ideal, kind="stable")
        """Rows that are not written out, least bound first."""
        self._rows = np.empty(0, dtype=np.int64)
        """Rows that are written out, in the order of opening: the search counts them in this order."""

    @property
    def allowed(self) -> Bools:
        """Recompute policies that the search may use, (P,)."""
        return np.array([policy in self.policies for policy in RECOMPUTE_POLICIES])

    def pool_of_rank(self, row: int) -> Ints:
        """Pool of each pipeline rank of a row, (R,)."""
        order = self.orders[self.order[row]]
        return np.repeat(order, [self.ranks[k, row] for k in order])

    def rank_costs(self, rows: Ints) -> StageCosts:
        """Costs of rows of one group, one for each of their pipeline ranks."""
        costs = rank_costs(self.terms, self.base[rows], self.pool_of_rank(int(rows[0])))
        if self.max_memory is None:
            return costs
        return replace(costs, memory_limit=np.minimum(costs.memory_limit, self.max_memory))

    def group(self, rows: Ints) -> RankCosts:
        """Rows of one group with their costs, for the bounds."""
        first = rows[0]
        return RankCosts(
            costs=self.rank_costs(rows),
            pp=int(self.columns.pp[first]),
            vpp=1,
            schedule=SCHEDULES[self.columns.schedule[first]],
            microbatches=self.columns.rows(rows).microbatches(self.question.training.global_batch),
            num_layers=self.question.model.num_layers,
            allowed=self.allowed,
        )

    def __len__(self) -> int:
        return len(self.columns)

    def least_closed(self) -> float:
        """Minimum first bound of the closed rows, seconds; infinite where none is left."""
        return float(self.ideal[self._closed[0]]) if len(self._closed) else math.inf

    def open(self, threshold: float) -> Array:
        """Open up to `OPENED_TOGETHER` rows, lowest bound first; returns the quick bounds, seconds (N,)."""
        batch = self._closed[:OPENED_TOGETHER]
        batch = batch[self.ideal[batch] < threshold]
        self._closed = self._closed[len(batch) :]
        self._rows = np.concatenate([self._rows, batch])
        return np.maximum(self._by_group(batch, quick_bounds), self.ideal[batch])

    def open_all(self) -> None:
        """Open every row, in their own order."""
        self._closed, self._rows = self._closed[:0], np.arange(len(self))

    def tally(self, threshold: float) -> Tally:
        """Count the closed rows; bounds of `threshold` seconds or more mean pruned."""
        closed_bounds = self.ideal[self._closed]
        undecided, infeasible = int((closed_bounds < threshold).sum()), int(np.isinf(closed_bounds).sum())
        return Tally(infeasible, len(closed_bounds) - undecided - infeasible, undecided)

    def capacity_bounds(self, rows: Ints, cut_off: float) -> Array:
        """Finer lower bounds of open rows, seconds (N,); bounds above `cut_off` may be the cut-off."""
        return self._by_group(self._rows[rows], lambda group: capacity_bounds(group, cut_off, PRECISION))

    def _by_group(self, rows: Ints, bound: Callable[[RankCosts], Array]) -> Array:
        values = np.empty(len(rows))
        order = np.argsort(self.key[rows], kind="stable")
        starts = np.flatnonzero(np.diff(self.key[rows][order], prepend=-1))
        for members in np.split(order, starts[1:]) if len(rows) else ():
            values[members] = bound(self.group(rows[members]))
        return values

    def leaf(self, row: int) -> Leaf:
        """One open row with its costs, ready to be placed."""
        return self._leaf(int(self._rows[row]))

    def layout(self, row: int) -> Layout:
        """The layout of one open row, without a placement."""
        return self._layout(int(self._rows[row]))

    def _leaf(self, row: int) -> Leaf:
        return Leaf(
            costs=self.rank_costs(np.array([row])),
            pp=int(self.columns.pp[row]),
            vpp=1,
            schedule=SCHEDULES[self.columns.schedule[row]],
            microbatches=int(self.columns.microbatches(self.question.training.global_batch)[row]),
            num_layers=self.question.model.num_layers,
            allowed=self.allowed,
            uses_full_counts=self.uses_full_counts,
        )

    def _layout(self, row: int) -> Layout:
        names = self.question.names
        pools = tuple(names[k] for k in self.pool_of_rank(row).tolist())
        return self.columns.layout(row).model_copy(update={"pools": pools})

    def in_words(self) -> str:
        """Description of what the search covers."""
        plain = ", ".join(name for name in self.question.stack.schedules if name in PLAIN)
        sizes = " + ".join(f"{p.cluster.num_gpus} x {p.cluster.gpu.name}" for p in self.question.pools)
        return (
            "all legal tp x pp x cp x dp x ep x etp x mbs x ZeRO x shard groups x sequence parallelism x schedule"
            f" ({plain}) on {sizes}, every pipeline rank in one pool, the pools in every order, within limits:"
            f" {limits_in_words(self.question, Restrictions())};"
            f" recompute {' / '.join(self.policies)}; every number of blocks and every policy on each stage"
        )

    def nothing_fits(self) -> InfeasibleError:
        """The error to raise when no placement of any layout fits, with the layout that comes closest."""
        share_N = self._by_group(np.arange(len(self)), least_share)
        rows = closest_first(share_N)
        return nothing_fits(self.question, rows, self._leaf, self._layout, self.max_memory)


def pool_candidates(question: MixedQuestion, limits: Restrictions) -> PoolCandidates:
    """Enumerate and bound every layout; raises InfeasibleError where none is legal."""
    policies = limits.recompute(question)
    columns, has_room = _layouts(question, limits)
    if not len(columns):
        raise nothing_legal(question, limits)
    if not has_room.any():
        raise nothing_held(question, columns)
    columns = columns.rows(np.flatnonzero(has_room))
    orders = tuple(permutations(range(len(question.pools))))
    base = np.tile(np.arange(len(columns)), len(orders))
    order = np.repeat(np.arange(len(orders)), len(columns))
    all_columns = columns.rows(base)
    terms, ranks = pool_terms(question, columns), ranks_in(question, columns)
    allowed = np.array([policy in policies for policy in RECOMPUTE_POLICIES])
    ideal = ideal_bounds(
        terms,
        columns,
        ranks,
        global_batch=question.training.global_batch,
        num_layers=question.model.num_layers,
        allowed=allowed,
        max_memory=limits.max_memory,
    )
    return PoolCandidates(
        question=question,
        columns=all_columns,
        terms=terms,
        base=base,
        order=order,
        orders=orders,
        ranks=ranks[:, base],
        policies=policies,
        uses_full_counts=limits.counts_blocks(question),
        max_memory=limits.max_memory,
        key=np.unique(
            np.stack([all_columns.schedule, all_columns.pp, order], axis=1), axis=0, return_inverse=True
        )[1].reshape(-1),
        ideal=ideal[base],
    )


def count_layouts(question: Question, limits: Restrictions) -> int:
    """Number of layouts that the search covers; every order of several pools counts separately."""
    if not isinstance(question, MixedQuestion):
        return len(legal_space(question, limits))
    _, has_room = _layouts(question, limits)
    return int(has_room.sum()) * factorial(len(question.pools)) + count_replicas(question, limits)


def _layouts(question: MixedQuestion, limits: Restrictions) -> tuple[LayoutColumns, Bools]:
    """Legal layouts with one stage a rank whose pipeline ranks fill the pools, and whether late rules allow them,
    (N,)."""
    plain = {SCHEDULES.index(name) for name in PLAIN}
    only = limits.only | {
        "schedule": frozenset(limits.only.get("schedule", plain)) & plain,
        "vpp": frozenset(limits.only.get("vpp", {1})) & {1},
    }
    space = legal_space(question, replace(limits, only=only))
    rows = space.rows_of(np.flatnonzero(fills_pools(question, space.cores)))
    return rows, within_late_rules(question, rows)


def orders_of(question: Question, layout: Layout) -> Iterator[Layout]:
    """The layout in every order of the pools; unchanged for a single pool, or if it names the pools of its ranks."""
    if layout.says_pools or not isinstance(question, MixedQuestion):
        yield layout
        return
    counts = ranks_in(question, LayoutColumns.of([layout]))[:, 0].tolist()
    for order in permutations(range(len(counts))):
        pools = tuple(question.names[k] for k in order for _ in range(counts[k]))
        yield layout.model_copy(update={"pools": pools})
