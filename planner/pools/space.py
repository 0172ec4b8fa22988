"""All legal layouts of a question on several pools with their costs, in every order of the pools.

One search walks through these and those of one kind of GPU (`planner.candidates`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import permutations
from math import factorial

import numpy as np

from cost_models.costs import add_up, stage_costs
from cost_models.errors import InfeasibleError
from cost_models.pools.terms import PoolTerms, pool_terms, rank_terms, ranks_in
from cost_models.question import MixedQuestion, Question
from cost_models.specs.columns import Ints, LayoutColumns
from cost_models.specs.layout import SCHEDULES, Layout
from cost_models.specs.recompute import RECOMPUTE_POLICIES, Recompute
from cost_models.stage_costs import StageCosts
from planner.candidates import Tally
from planner.placement import Bools, Floats, Leaf
from planner.pools import bounds
from planner.pools.group import RankGroup
from planner.pools.infeasible import closest_first, least_share, nothing_fits
from planner.pools.legality import fills_pools
from planner.search_space import Restrictions, enumerate_layouts


@dataclass(kw_only=True)
class MixedSpace:
    """Every legal layout in every order of the pools: a row for each."""

    question: MixedQuestion
    columns: LayoutColumns
    terms: PoolTerms
    """Of the layouts, whatever the order."""
    base: Ints
    """(N,) the layout of each row in `terms`."""
    order: Ints
    """(N,) index into `orders`."""
    orders: tuple[tuple[int, ...], ...]
    """Pools in the order in which a pipeline passes through them."""
    ranks: Ints
    """(K, N) pipeline ranks in each pool."""
    policies: tuple[Recompute, ...]
    max_memory: float | None
    groups: list[Ints]
    """Rows that share schedule, pp and order."""
    _is_open: bool = False

    @property
    def allowed(self) -> Bools:
        """(P,): policies the search may use."""
        return np.array([policy in self.policies for policy in RECOMPUTE_POLICIES])

    def pool_of_rank(self, row: int) -> Ints:
        """(R,): the pool of each pipeline rank."""
        order = self.orders[self.order[row]]
        return np.repeat(order, [self.ranks[k, row] for k in order])

    def rank_costs(self, rows: Ints) -> StageCosts:
        """Costs of rows of one group: a row for each of their ranks."""
        times, memories, limit = rank_terms(self.terms, self.base[rows], self.pool_of_rank(int(rows[0])))
        if self.max_memory is not None:
            limit = np.minimum(limit, self.max_memory)
        return add_up(times, memories, limit)

    def group(self, rows: Ints) -> RankGroup:
        """Rows of one group, for the bounds."""
        first = rows[0]
        return RankGroup(
            costs=self.rank_costs(rows),
            pp=int(self.columns.pp[first]),
            schedule=SCHEDULES[self.columns.schedule[first]],
            microbatches=self.columns.rows(rows).microbatches(self.question.training.global_batch),
            num_layers=self.question.model.num_layers,
            allowed=self.allowed,
        )

    def __len__(self) -> int:
        return len(self.columns)

    def least_closed(self) -> float:
        """All rows are written out at once; before that nothing is known of them."""
        return math.inf if self._is_open else 0.0

    def open(self, below: float) -> Floats:
        """Bounds of all rows, which cost microseconds each."""
        self._is_open = True
        bound = np.empty(len(self))
        for rows in self.groups:
            bound[rows] = bounds.quick_bounds(self.group(rows))
        return bound

    def tally(self, below: float) -> Tally:
        """Nothing stays closed."""
        return Tally(0, 0, 0 if self._is_open else len(self))

    def capacity_bounds(self, rows: Ints) -> Floats:
        """(N,) finer bounds."""
        bound = np.empty(len(rows))
        for group in self.groups:
            mine = np.flatnonzero(np.isin(rows, group, assume_unique=True))
            if len(mine):
                bound[mine] = bounds.capacity_bounds(self.group(rows[mine]))
        return bound

    def leaf(self, row: int) -> Leaf:
        """One layout in one order, to be placed."""
        return Leaf(
            costs=self.rank_costs(np.array([row])),
            pp=int(self.columns.pp[row]),
            vpp=1,
            schedule=SCHEDULES[self.columns.schedule[row]],
            microbatches=int(self.columns.microbatches(self.question.training.global_batch)[row]),
            num_layers=self.question.model.num_layers,
            allowed=self.allowed,
        )

    def layout(self, row: int) -> Layout:
        """A row, not placed."""
        names = self.question.names
        pools = tuple(names[k] for k in self.pool_of_rank(row).tolist())
        return self.columns.layout(row).model_copy(update={"pools": pools})

    def in_words(self) -> str:
        """What the search covers."""
        sizes = " + ".join(f"{p.cluster.num_gpus} x {p.cluster.gpu.name}" for p in self.question.pools)
        return (
            "all legal tp x pp x dp x mbs x ZeRO x sequence parallelism x schedule (1f1b, gpipe) on"
            f" {sizes}, every pipeline rank in one pool, the pools in every order;"
            f" recompute {' / '.join(self.policies)}; every number of blocks and every policy on each stage"
        )

    def nothing_fits(self) -> InfeasibleError:
        """The error to raise when no placement of any layout fits, with the layout that comes closest."""
        share_N = np.empty(len(self.columns))
        for rows in self.groups:
            share_N[rows] = least_share(self.group(rows))
        return nothing_fits(self.question, closest_first(share_N), self.leaf, self.layout, self.max_memory)


def price_pools(question: MixedQuestion, limits: Restrictions) -> MixedSpace:
    """Enumerate and price; raises InfeasibleError where no layout is legal."""
    policies = limits.recompute(question.training)
    columns = _layouts(question, limits)
    if not len(columns):
        restricted = limits.fix_words or limits.forbid_words
        raise InfeasibleError(
            f"no layout of {question.model.name} on the pools of `{question.mixed.name}` is legal with global"
            f" batch {question.training.global_batch:,}" + " under these restrictions" * bool(restricted),
            hint="loosen --fix and --forbid"
            if restricted
            else "tp x cp x dp must divide every pool: size the pools alike, or with a common divisor",
        )
    orders = tuple(permutations(range(len(question.pools))))
    base = np.tile(np.arange(len(columns)), len(orders))
    order = np.repeat(np.arange(len(orders)), len(columns))
    every = columns.rows(base)
    return MixedSpace(
        question=question,
        columns=every,
        terms=pool_terms(question, columns),
        base=base,
        order=order,
        orders=orders,
        ranks=ranks_in(question, every),
        policies=policies,
        max_memory=limits.max_memory,
        groups=_groups(np.stack([every.schedule, every.pp, order], axis=1)),
    )


def count_layouts(question: Question, limits: Restrictions) -> int:
    """How many layouts the search covers, each order of several pools one of its own."""
    if not isinstance(question, MixedQuestion):
        return len(enumerate_layouts(question, limits))
    return len(_layouts(question, limits)) * factorial(len(question.pools))


def _layouts(question: MixedQuestion, limits: Restrictions) -> LayoutColumns:
    columns = enumerate_layouts(question, limits)
    return columns.rows(np.flatnonzero(fills_pools(question, columns)))


def _groups(keys: Ints) -> list[Ints]:
    """Rows with the same keys."""
    _, index = np.unique(keys, axis=0, return_inverse=True)
    order = np.argsort(index.reshape(-1), kind="stable")
    starts = np.flatnonzero(np.diff(index.reshape(-1)[order], prepend=-1))
    return np.split(order, starts[1:])


def orders_of(question: MixedQuestion, layout: Layout) -> Iterator[Layout]:
    """The layout as it is, or where it does not name the pools of its ranks, in every order of them."""
    if layout.pools:
        yield layout
        return
    counts = ranks_in(question, LayoutColumns.of([layout]))[:, 0].tolist()
    for order in permutations(range(len(counts))):
        pools = tuple(question.names[k] for k in order for _ in range(counts[k]))
        yield layout.model_copy(update={"pools": pools})


def layout_costs(question: Question, layout: Layout) -> StageCosts:
    """One row of costs, or on several pools one for each rank of a layout that names their pools."""
    columns = LayoutColumns.of([layout])
    if not isinstance(question, MixedQuestion):
        return stage_costs(question, columns)
    pool_R = np.array([question.names.index(name) for name in layout.pools])
    return add_up(*rank_terms(pool_terms(question, columns), np.zeros(1, dtype=np.int64), pool_R))
