"""Candidates of a question on several pools: layouts whose stages lie in the pools, in every order of these,
and, with `--allow replicas`, layouts whose replicas each lie within one pool.

The search treats them like those of one kind of GPU (`planner.search.candidates`), but has no bounds of closed
rows: it opens one order of the pools after another.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import permutations
from math import factorial

import numpy as np

from cost_models.arrays import Array, Bools, Ints
from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import Layout
from cost_models.axes.rule import unbroken
from cost_models.axes.stages import policy_mask
from cost_models.errors import DoesNotFitError, InfeasibleError
from cost_models.pipeline.pools import parts_in, pool_terms, rank_costs
from cost_models.pipeline.pricing import estimate
from cost_models.question import Question
from cost_models.schedules.registry import PLAIN
from cost_models.units import format_bytes
from planner.bounds.boxes import nothing_held
from planner.bounds.steps import capacity_bounds, quick_bounds
from planner.placement.leaf import Leaf
from planner.placement.rank_costs import RankCosts, groups_of
from planner.rules.legality import LATE_RULES
from planner.rules.pools import fills_pools
from planner.search.replicas import ReplicaSpace, plain_only, replica_layouts
from planner.space.limits import limits_in_words
from planner.space.obstacles import evenly_full, least_share, nothing_legal
from planner.space.restrictions import Restrictions
from planner.space.space import legal_space

PRECISION = 1e-4
"""Relative width of the interval that holds a capacity bound: finer than the bounds are tight."""
COMPARED_IN_POOLS = 48
"""Number of roughly closest layouts whose ranks are filled one by one when nothing fits."""


class PoolCandidates:
    """Candidate layouts of a search on several pools of GPUs, one row each. Rows are each layout of `stages` in
    the first order of the pools, in the second and so on; then each of `replicas`."""

    def __init__(
        self, question: Question, limits: Restrictions, stages: LayoutColumns, replicas: LayoutColumns
    ) -> None:
        self.question, self.max_memory = question, limits.max_memory
        self._policies, self._stages = limits.recompute(question), stages
        self._uses_full_counts = limits.recomputes_by_count(question)
        self._replicas = ReplicaSpace(question, replicas, self._policies, self.max_memory)
        self._orders = tuple(permutations(range(len(question.pools))))
        self._num_stages = len(stages) * len(self._orders)
        self._opened = 0
        if len(stages):
            terms = pool_terms(question, stages)
            costs = tuple(pool.within(self.max_memory) for pool in terms.costs)
            self._terms = replace(terms, costs=costs)
            self._ranks = np.stack(parts_in(question, stages.tp * stages.replicas))

    def __len__(self) -> int:
        return self._num_stages + len(self._replicas.columns)

    def least_closed(self) -> float:
        """Lowest bound of the rows not yet opened to the search, seconds; 0 until all rows are opened, then
        infinite."""
        return math.inf if self._opened == len(self) else 0.0

    def open(self, threshold: float) -> Array:
        """Make the rows of the next order of the pools available to the search, at last those of replicas;
        return their quick lower bounds, seconds (N,)."""
        first = self._opened
        if first >= self._num_stages:
            self.open_all()
            return self._replicas.bounds()
        self._opened += len(self._stages)
        return self._by_group(np.arange(first, self._opened), quick_bounds)

    def open_all(self) -> None:
        """Make every row available to the search."""
        self._opened = len(self)

    def closed_bounds(self) -> tuple[Array, Ints]:
        """Lower bound in seconds and number of layouts of the rows not yet opened to the search, as a single
        entry."""
        return np.zeros(1), np.array([len(self) - self._opened])

    def capacity_bounds(self, rows: Ints, cut_off: float) -> Array:
        """Finer lower bounds of the step of rows, seconds (N,), zero for replicas; bounds above `cut_off` may
        be the cut-off."""
        bounds, in_stages = np.zeros(len(rows)), rows < self._num_stages
        bound = partial(capacity_bounds, cut_off=cut_off, precision=PRECISION)
        bounds[in_stages] = self._by_group(rows[in_stages], bound)
        return bounds

    def leaf(self, row: int) -> Leaf:
        """Layout of one row with its costs, ready to be placed."""
        if row >= self._num_stages:
            return self._replicas.leaf(row - self._num_stages)
        return self._group(np.array([row])).leaf

    def layout(self, row: int) -> Layout:
        """Layout of one row with the pools of its ranks or replicas, without a placement."""
        if row >= self._num_stages:
            return self._replicas.layout(row - self._num_stages)
        pools = tuple(self.question.pool_names[pool] for pool in self._pool_of_rank(row).tolist())
        return self._stages.layout(row % len(self._stages)).model_copy(update={"pools": pools})

    def _pool_of_rank(self, row: int) -> Ints:
        """Index of the pool of each pipeline rank of a row, (R,)."""
        order, layout = divmod(row, len(self._stages))
        return np.repeat(self._orders[order], self._ranks[list(self._orders[order]), layout])

    def _group(self, rows: Ints) -> RankCosts:
        """Costs by rank of the given rows, which share one schedule, pp and order of pools, for the bounds."""
        layouts = rows % len(self._stages)
        columns = self._stages.rows(layouts)
        costs = rank_costs(self._terms, layouts, self._pool_of_rank(int(rows[0])))
        allowed = policy_mask(self._policies)
        return RankCosts.of_rows(self.question, columns, costs, allowed, self._uses_full_counts)

    def _by_group(self, rows: Ints, bound: Callable[[RankCosts], Array]) -> Array:
        """Result of `bound` for each row, seconds (N,), computed for groups of one schedule, pp and order of
        pools."""
        values = np.empty(len(rows))
        order, layout = np.divmod(rows, max(1, len(self._stages)))
        for number in np.unique(order).tolist():
            own = np.flatnonzero(order == number)
            for members in groups_of(self._stages.rows(layout[own])):
                values[own[members]] = bound(self._group(rows[own[members]]))
        return values

    def in_words(self) -> str:
        """Sentence part that describes the layouts and placements that the search covers on several pools."""
        plain = ", ".join(name for name in self.question.stack.schedules if name in PLAIN)
        sizes = " + ".join(f"{p.cluster.num_gpus} x {p.cluster.gpu.name}" for p in self.question.pools)
        stages = (
            "all legal tp x pp x cp x dp x ep x etp x mbs x ZeRO x shard groups x sequence parallelism x schedule"
            f" ({plain}) on {sizes}, every pipeline rank in one pool, the pools in every order, within limits:"
            f" {limits_in_words(self.question, Restrictions())};"
            f" recompute {' / '.join(self._policies)}; every number of blocks and every policy on each stage"
        )
        has_replicas = bool(len(self._replicas.columns))
        return " | ".join([stages] * bool(self._num_stages) + [self._replicas.in_words()] * has_replicas)

    def nothing_fits(self) -> InfeasibleError:
        """Error to raise when no placement of any layout fits in memory, with the layout that comes closest."""
        if not self._num_stages:
            return self._replicas.nothing_fits()
        share_N = self._by_group(np.arange(self._num_stages), least_share)
        rows = np.argsort(share_N, kind="stable")[:COMPARED_IN_POOLS].tolist()
        filled = {row: evenly_full(self.leaf(row)) for row in rows}
        row = min(filled, key=lambda index: filled[index][1])
        update = {"layers": filled[row][0], "recompute": (self._policies[-1],)}
        closest = estimate(self.question, self.layout(row).model_copy(update=update)).within(self.max_memory)
        rank, cluster = closest.fullest_rank, self.question.cluster
        return DoesNotFitError(
            f"no layout of {self.question.model.name} fits the {cluster.num_gpus:,} GPUs of `{cluster.name}`; the"
            f" closest, {closest.layout.brief}, needs {format_bytes(closest.peak_bytes)} of"
            f" {closest.limit_words} on pipeline rank {rank}, in pool `{closest.layout.pools[rank]}`",
            hint="use more GPUs, or shorter sequences",
            closest=closest,
        )


def pool_candidates(question: Question, limits: Restrictions) -> PoolCandidates:
    """Enumerate and price all candidate layouts on several pools of GPUs. Raises InfeasibleError if none is legal."""
    limits.recompute(question)
    stages, has_room = _stage_layouts(question, limits)
    replicas = replica_layouts(question, limits)
    if not len(stages) and not len(replicas):
        raise nothing_legal(question, limits)
    if not has_room.any() and not len(replicas):
        raise nothing_held(question, stages)
    return PoolCandidates(question, limits, stages.rows(np.flatnonzero(has_room)), replicas)


def count_layouts(question: Question, limits: Restrictions) -> int:
    """Number of layouts that the search covers; every order of several pools counts separately."""
    if not question.has_pools:
        return len(legal_space(question, limits))
    _, has_room = _stage_layouts(question, limits)
    orders = factorial(len(question.pools))
    return int(has_room.sum()) * orders + len(replica_layouts(question, limits))


def _stage_layouts(question: Question, limits: Restrictions) -> tuple[LayoutColumns, Bools]:
    """Legal layouts with one stage a rank whose pipeline ranks fill the pools of GPUs, and whether hosts and
    drives have room for what each offloads, (N,)."""
    space = legal_space(question, replace(limits, only=plain_only(limits)))
    rows = space.rows_of(np.flatnonzero(fills_pools(question, space.cores)))
    return rows, unbroken(LATE_RULES, question, rows)


def orders_of(question: Question, layout: Layout) -> Iterator[Layout]:
    """Yield copies of the layout with its pipeline ranks in every order of the pools; unchanged for a single
    pool, or if the layout names pools."""
    if layout.says_pools or not question.has_pools:
        yield layout
        return
    counts = parts_in(question, layout.tp * layout.data_ranks)
    for order in permutations(range(len(counts))):
        pools = tuple(question.pool_names[k] for k in order for _ in range(counts[k]))
        yield layout.model_copy(update={"pools": pools})
