"""Candidate layouts of a question on several pools of GPUs, whose stages fill the pools in every order or,
with `--allow replicas`, whose replicas each lie within one pool.

The search treats them like those of one kind of GPU (`planner.search.candidates`), but has no bounds of unopened
rows: it opens one order of the pools after another, at last the replicas.

**Replicas** synchronise once a step (`planner.rules.pools`). All have the same blocks on the same stages, so
that gradients of a stage are summed over the ranks that hold it. Covered are stages as equal as the blocks
allow, smaller ones at the ends, each with the same numbers of blocks recomputed in full and selectively
(`planner.placement.patterns`). Each placement has its own shares of microbatches.

Their bound adds up rates. A replica of pool k that takes n microbatches ends after at least e_k + n b_k, where
b_k are its busiest stage's seconds per microbatch. In t seconds it takes at most (t - e_k) / b_k of them, and
all replicas, c_k in pool k, take M:

    t >= (M + sum c_k e_k / b_k) / sum c_k / b_k        and, as each takes some,    t >= e_k + n_least b_k

Shape legend: Z placements, S stages, R pipeline ranks, P recompute policies, K pools, N layouts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, partial
from itertools import islice, permutations
from math import factorial
from typing import ClassVar

import numpy as np

from cost_models.arrays import Array, Bools, Ints
from cost_models.axes.columns import LayoutColumns, is_scheduled
from cost_models.axes.layout import MOST_REPLICAS, Layout
from cost_models.axes.rule import unbroken
from cost_models.axes.stages import even_layers, policy_mask
from cost_models.errors import DoesNotFitError, InfeasibleError
from cost_models.estimate import Estimate, fullest_pool, fullness
from cost_models.memory.activations import boundary_bytes
from cost_models.pipeline.pools import (
    in_pools,
    pool_capacities,
    pool_terms,
    rank_costs,
    replica_memory,
    replica_terms,
    replicas_by_pool,
    shares,
)
from cost_models.pipeline.pricing import estimate
from cost_models.pipeline.stage_costs import StageCosts, add_up, costs_of
from cost_models.question import Question
from cost_models.schedules.registry import PLAIN, QUEUES
from cost_models.specs.choices import SCHEDULES
from cost_models.units import format_bytes
from planner.bounds.cores import host_overflow_error
from planner.bounds.steps import capacity_bounds, pipeline_seconds, quick_bounds
from planner.placement.leaf import Leaf
from planner.placement.rank_costs import RankCosts, groups_of
from planner.rules.legality import LATE_RULES
from planner.rules.pools import HIGHEST_ZERO, fills_pools, holds_replicas
from planner.search.candidates import join_rows
from planner.space.limits import limits_in_words
from planner.space.obstacles import fill_memory_evenly, least_share, nothing_legal
from planner.space.restrictions import Restrictions
from planner.space.space import legal_space

PRECISION = 1e-4
"""Relative precision of a capacity bound, finer than the bounds are tight."""
COMPARED_IN_POOLS = 48
"""Number of the layouts closest to fitting whose ranks are filled one by one when no layout fits."""
COMPARED_REPLICAS = 4
"""Number of layouts of replicas that are priced when no layout fits, those with the smallest parts of the
model on a GPU."""


class PoolCandidates:
    """Candidate layouts of a search on several pools of GPUs, one row each. Rows are each layout of `stages`
    in the first order of the pools, in the second and so on; then each of `replicas`."""

    def __init__(
        self, question: Question, limits: Restrictions, stages: LayoutColumns, replicas: LayoutColumns
    ) -> None:
        self.question, self.max_memory = question, limits.max_memory
        self._policies, self._stages = limits.recompute(question), stages
        self._uses_full_counts = limits.recomputes_by_count(question)
        self._replicas = ReplicaSpace(question, replicas, limits)
        self._num_stages = len(stages) * factorial(len(question.pools))
        self._opened = 0
        if len(stages):
            terms = pool_terms(question, stages)
            self._terms = replace(terms, costs=tuple(pool.within(self.max_memory) for pool in terms.costs))

    def __len__(self) -> int:
        return self._num_stages + len(self._replicas.columns)

    def least_unopened(self) -> float:
        """Lower bound of the rows not yet opened to the search, seconds: 0 until all rows are opened, then
        infinite."""
        return math.inf if self._opened == len(self) else 0.0

    def open(self, threshold: float) -> Array:
        """Open the layouts of the next order of the pools or, after the last order, those of replicas; return
        their quick lower bounds, seconds (N,)."""
        first = self._opened
        if first >= self._num_stages:
            self.open_all()
            return self._replicas.bounds()
        self._opened += len(self._stages)
        return self._by_group(np.arange(first, self._opened), quick_bounds)

    def open_all(self) -> None:
        """Open every layout to the search."""
        self._opened = len(self)

    def unopened_bounds(self) -> tuple[Array, Ints]:
        """Lower bound in seconds and number of the rows not yet opened to the search, as a single entry, (1,)
        each."""
        return np.zeros(1), np.array([len(self) - self._opened])

    def capacity_bounds(self, rows: Ints, cut_off: float) -> Array:
        """Lower bounds of the rows' steps that account for memory capacity, seconds (N,); 0 for layouts of
        replicas. Bounds above `cut_off` may be lowered to it."""
        bounds, in_stages = np.zeros(len(rows)), rows < self._num_stages
        bound = partial(capacity_bounds, cut_off=cut_off, precision=PRECISION)
        bounds[in_stages] = self._by_group(rows[in_stages], bound)
        return bounds

    def leaf(self, row: int) -> Leaf:
        """Costs of one row's layout as a `Leaf`, the problem of placing its blocks on stages."""
        if row >= self._num_stages:
            return self._replicas.leaf(row - self._num_stages)
        return self._group(np.array([row])).leaf

    def layout(self, row: int) -> Layout:
        """Layout of one row with the pools of its ranks or replicas, without a placement."""
        if row >= self._num_stages:
            return self._replicas.layout(row - self._num_stages)
        order, index = divmod(row, len(self._stages))
        layout = self._stages.layout(index)
        pools = next(islice(_pools_in_every_order(self.question, layout), order, None))
        return layout.model_copy(update={"pools": pools})

    def _group(self, rows: Ints) -> RankCosts:
        """Costs by rank of the given rows, which share one schedule, pp and order of pools, for the bounds."""
        layouts, pools = rows % len(self._stages), self.layout(int(rows[0])).pools
        pool_R = np.array([self.question.pool_names.index(pool) for pool in pools])
        costs, allowed = rank_costs(self._terms, layouts, pool_R), policy_mask(self._policies)
        columns = self._stages.rows(layouts)
        group = RankCosts.of_rows(self.question, columns, costs, allowed)
        return replace(group, uses_full_counts=self._uses_full_counts)

    def _by_group(self, rows: Ints, bound: Callable[[RankCosts], Array]) -> Array:
        """Lower bounds of some rows by the function `bound`, seconds (N,). It is called with rows of one
        schedule, pp and order of pools at a time."""
        values, order = np.empty(self._num_stages), rows // max(1, len(self._stages))
        for number in np.unique(order).tolist():
            group_rows = rows[order == number]
            for members in groups_of(self._stages.rows(group_rows % len(self._stages))):
                values[group_rows[members]] = bound(self._group(group_rows[members]))
        return values[rows]

    def in_words(self) -> str:
        """Description in words of the layouts and placements that the search covers on several pools of
        GPUs."""
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
        """Create the error that no placement of any layout fits in memory, with the closest layout."""
        if not self._num_stages:
            return self._replicas.nothing_fits()
        share_N = self._by_group(np.arange(self._num_stages), least_share)
        rows = np.argsort(share_N, kind="stable")[:COMPARED_IN_POOLS].tolist()
        filled = {row: fill_memory_evenly(self.leaf(row)) for row in rows}
        row = min(filled, key=lambda index: filled[index][1])
        update = {"layers": filled[row][0], "recompute": (self._policies[-1],)}
        closest = estimate(self.question, self.layout(row).model_copy(update=update)).within(self.max_memory)
        model, cluster = self.question.model.name, self.question.cluster
        subject = f"layout of {model} fits the {cluster.num_gpus:,} GPUs of `{cluster.name}`"
        words = _nothing_fits(subject, closest, closest.layout.pools[closest.fullest_rank])
        return DoesNotFitError(words, hint="use more GPUs, or shorter sequences", closest=closest)


def _nothing_fits(subject: str, closest: Estimate, pool: str) -> str:
    """Headline of the error that nothing fits, with the bytes that the closest layout needs in a pool of
    GPUs."""
    needs = f"{format_bytes(closest.peak_bytes)} of {closest.limit_words}"
    place = f"on pipeline rank {closest.fullest_rank}, in pool `{pool}`"
    return f"no {subject}; the closest, {closest.layout.brief}, needs {needs} {place}"


def pool_candidates(question: Question, limits: Restrictions) -> PoolCandidates:
    """Enumerate and price all candidate layouts on several pools of GPUs. Raises InfeasibleError if none is legal."""
    stages, has_room = _stage_layouts(question, limits)
    replicas = replica_layouts(question, limits)
    if not has_room.any() and not len(replicas):
        raise host_overflow_error(question, stages) if len(stages) else nothing_legal(question, limits)
    return PoolCandidates(question, limits, stages.rows(np.flatnonzero(has_room)), replicas)


def count_layouts(question: Question, limits: Restrictions) -> int:
    """Count the layouts that the search covers; every order of several pools counts separately."""
    if not question.has_pools:
        return len(legal_space(question, limits))
    _, has_room = _stage_layouts(question, limits)
    return int(has_room.sum()) * factorial(len(question.pools)) + len(replica_layouts(question, limits))


def _stage_layouts(question: Question, limits: Restrictions) -> tuple[LayoutColumns, Bools]:
    """Legal layouts with one stage per rank whose pipeline ranks fill the pools of GPUs. Also whether hosts
    and drives have room for each layout's offloaded data, (N,)."""
    space = legal_space(question, replace(limits, only=_plain_only(limits)))
    rows = space.rows(*space.choices_of(np.flatnonzero(fills_pools(question, space.cores))))
    return rows, unbroken(LATE_RULES, question, rows)


def orders_of(question: Question, layout: Layout) -> list[Layout]:
    """Copies of the layout, one for each order of the pools in which its pipeline ranks can lie. Only the
    layout itself for a single pool, or if the layout names pools."""
    if layout.pools_field or not question.has_pools:
        return [layout]
    return [layout.model_copy(update={"pools": pools}) for pools in _pools_in_every_order(question, layout)]


def _pools_in_every_order(question: Question, layout: Layout) -> Iterator[tuple[str, ...]]:
    """Yield the pool of each pipeline rank for every order of the pools."""
    pools = zip(question.pool_names, pool_capacities(question, layout.tp * layout.data_ranks), strict=True)
    return (tuple(name for name, ranks in order for _ in range(ranks)) for order in permutations(pools))


@dataclass(frozen=True, kw_only=True)
class ReplicaLeaf(Leaf):
    """Placement problem of one layout whose data-parallel replicas lie in different pools. The fields of a
    leaf are those of a replica of the first pool. Costs are at the mean number of microbatches, and
    `microbatches` is the minimum of each replica."""

    has_replicas: ClassVar[bool] = True
    question: Question
    layout: Layout
    pools: tuple[Leaf, ...]
    """Leaf (layout to be placed) of a replica in each of K pools, with the minimum number of microbatches."""
    _filled: dict[tuple[int, int], Leaf] = field(default_factory=dict, init=False, repr=False, compare=False)
    """Leaf (layout to be placed) of a replica, by index of its pool and number of its microbatches."""

    @cached_property
    def key(self) -> bytes:
        """Cache key of the placement problem, the layout's name as bytes."""
        return str(self.layout).encode()

    def _with_microbatches(self, pool: int, microbatches: int) -> Leaf:
        """Placement problem of one replica in a pool for the given number of microbatches, with the memory
        that these need."""
        replica, key = self.pools[pool], (pool, microbatches)
        if key not in self._filled:
            costs = replica.costs
            if self.question.stack.torch_pipelining:  # else bytes hang on those that are live alone
                memory = replica_memory(self.question, pool, self.layout, microbatches)
                costs = replace(costs, **add_up(memory), kinds=())
            self._filled[key] = replace(replica, costs=costs, microbatches=microbatches)
        return self._filled[key]

    def fits(self, blocks_SP: Ints) -> Bools:
        """Whether every rank stays within its memory limit in each placement, (...,), if every replica takes
        the minimum number of microbatches."""
        leaves = [self._with_microbatches(pool, self.microbatches) for pool in range(len(self.pools))]
        return np.asarray(np.all([leaf.fits(blocks_SP) for leaf in leaves], axis=0))

    def busy_seconds(self, blocks_SP: Ints) -> Array:
        """Lower bound of the step time of each placement, seconds (Z,), over all divisions of the
        microbatches among replicas."""
        pools = []
        for pipeline in self.pools:
            each_ZS = pipeline.forward(blocks_SP) + pipeline.backward(blocks_SP)
            cycle = each_ZS.sum(axis=-1) + 2 * (self.pp - 1) * pipeline.cost("p2p")
            sync = pipeline.once_a_step("sync", blocks_SP)[..., 0] + pipeline.overhead
            tail = sync + pipeline.once_a_step("optimizer", blocks_SP).max(axis=-1)
            pools.append((cycle, each_ZS.max(axis=-1), tail))
        total = self.question.training.global_batch // self.layout.mbs
        counts = np.array(replicas_by_pool(self.question, self.layout))[:, None]
        return summed_rates(self, pools, counts, total)

    def step_seconds(self, blocks_SP: Ints) -> Array:
        """Step time of each placement with the best division of microbatches among replicas, seconds (Z,);
        infinite where a device lacks memory."""
        return np.array([self._seconds(blocks) for blocks in blocks_SP])

    def _seconds(self, blocks_SP: Ints) -> float:
        """Step time of one placement with the best division of microbatches among replicas, seconds; infinite
        where memory overflows."""
        by_pool = shares(self.question, self.layout, self.pools, blocks_SP)
        leaves = [
            self._with_microbatches(pool, max(microbatches)) for pool, microbatches in enumerate(by_pool)
        ]
        if not all(leaf.fits(blocks_SP) for leaf in leaves):
            return math.inf
        return max(float(leaf.step_seconds(blocks_SP)) for leaf in leaves)


Times = tuple[Array, Array, Array]
"""Seconds (N,) of a replica for one microbatch down and up its pipeline, for one microbatch on its busiest
rank, and after the last backward pass."""


def summed_rates(replica: Leaf | RankCosts, pools: Sequence[Times], counts: Ints, total: Ints | int) -> Array:
    """Lower bound of the step if the replicas in all pools share `total` microbatches in the fastest way,
    seconds (N,). Pool k has `counts` replicas, (K, N or 1), all plain pipelines like `replica`, each with its
    minimum of microbatches; the formula stands at the top of the module."""
    cycle_KN, busiest_KN, tail_KN = map(np.stack, zip(*pools, strict=True))
    none = np.zeros(1, dtype=np.int64)  # microbatches, so this is what a pipeline takes besides them
    start_up_KN = pipeline_seconds(replica.schedule, replica.pp, none, cycle_KN, busiest_KN)
    ends_KN, rate_KN = np.maximum(0.0, start_up_KN) + tail_KN, counts / busiest_KN
    even: Array = (total + (rate_KN * ends_KN).sum(axis=0)) / rate_KN.sum(axis=0)
    single: Array = (ends_KN + replica.microbatches * busiest_KN).max(axis=0)
    return np.maximum(even, single)


def asks_for_replicas(question: Question, limits: Restrictions) -> bool:
    """Whether a search also covers layouts whose replicas each lie in one of several pools. No trainer gives
    replicas unequal shares of a batch."""
    return question.has_pools and "replicas" in limits.allowed and limits.trainer is None


def replica_layouts(question: Question, limits: Restrictions) -> LayoutColumns:
    """List the legal layouts whose replicas each lie in one pool; empty unless the restrictions allow
    replicas.

    Rules that know one number of microbatches are asked with a batch that all replicas divide.
    """
    gpus, batch = question.cluster.num_gpus, question.training.global_batch
    divisor = math.gcd(*(pool.cluster.num_gpus for pool in question.pools))
    tables = [LayoutColumns.of([Layout()]).rows(slice(0))]
    for size in range(1, divisor + 1) if asks_for_replicas(question, limits) else ():
        dp, sized = gpus // size, question
        only = _plain_only(limits, dp={dp}, zero=set(range(HIGHEST_ZERO + 1)))
        if divisor % size or batch < dp or dp > MOST_REPLICAS or not all(only.values()):
            continue
        if not question.training.optimizer_in_backward:  # at one microbatch per replica
            sized = question.updated("training", global_batch=batch * dp)
        pinned = replace(limits, only=only, allowed=limits.allowed & {"overlap"})
        columns = legal_space(sized, pinned).all_rows()
        enough = batch // columns.mbs >= _min_microbatches(columns) * columns.dp
        runs = holds_replicas(question, columns) & (columns.pp <= question.model.num_layers) & enough
        tables.append(columns.rows(np.flatnonzero(runs & unbroken(LATE_RULES, question, columns))))
    return join_rows(tables)


def _plain_only(limits: Restrictions, **values: set[int]) -> dict[str, frozenset[int]]:
    """Allowed values of each axis under the restrictions, limited to plain schedules, one stage per rank and
    the given `values`."""
    may = {"schedule": {SCHEDULES.index(name) for name in PLAIN}, "vpp": {1}} | values
    return limits.only | {name: frozenset(limits.only.get(name, own)) & own for name, own in may.items()}


def _min_microbatches(columns: LayoutColumns) -> Ints:
    """Minimum number of microbatches that each replica of a layout takes, (N,). The reason is given at
    `fewest_microbatches`."""
    return np.where(is_scheduled(columns, QUEUES), 1, columns.pp)


class ReplicaSpace:
    """Layouts whose replicas each lie in one of several pools, with their costs in each pool."""

    def __init__(self, question: Question, columns: LayoutColumns, limits: Restrictions) -> None:
        self.question, self.columns, self._max_memory = question, columns, limits.max_memory
        self.policies = limits.recompute(question)
        terms = replica_terms(question, columns) if len(columns) else []
        self.costs = tuple(costs_of(pool).within(limits.max_memory) for pool in terms)

    def layout(self, row: int) -> Layout:
        """Layout of one row, with the number of replicas in each pool, without a placement."""
        return in_pools(self.question, self.columns.layout(row))

    def leaf(self, row: int) -> ReplicaLeaf:
        """Placement problem of one row's layout, with its costs in every pool."""
        question, layout = self.question, self.layout(row)
        leaves = [self._group(np.array([row]), costs).leaf for costs in self.costs]
        pools = tuple(replace(leaf, any_engine=not question.stack.torch_pipelining) for leaf in leaves)
        first = {part.name: getattr(pools[0], part.name) for part in fields(Leaf)}
        return ReplicaLeaf(**first, question=question, layout=layout, pools=pools)

    def _group(self, rows: Ints, costs: StageCosts) -> RankCosts:
        """Costs by rank in one pool of the given rows, which share one schedule and pp, at the minimum number of
        microbatches of a replica."""
        columns = self.columns.rows(rows)
        group = RankCosts.of_rows(self.question, columns, costs.rows(rows), policy_mask(self.policies))
        return replace(group, microbatches=_min_microbatches(columns))

    def bounds(self) -> Array:
        """Lower bound of the step of every layout over its placements, seconds (N,); infinite where a rank
        lacks memory for the minimum of blocks. Blocks are as even as they divide, under the fastest policy.
        """
        x, blocks = self.columns, self.question.model.num_layers
        seconds, retained = np.empty(len(x)), np.zeros(len(x))
        if self.question.stack.torch_pipelining:  # for the mean number of microbatches: some take fewer
            retained, _, _ = boundary_bytes(self.question, x)
        for rows in groups_of(x):
            columns, pp = x.rows(rows), int(x.pp[rows[0]])
            fewest, largest = blocks // pp, -(-blocks // pp)
            fits, pools = np.ones(len(rows), dtype=np.bool_), []
            for costs in self.costs:
                pool = self._group(rows, replace(costs, static=costs.static - retained))
                each_N1, fixed_NR = pool.least_block_seconds[:, None], pool.fixed_seconds
                fullest_N1 = fixed_NR.min(axis=1, keepdims=True) + largest * each_N1
                rank_NR = np.maximum(fullest_N1, fixed_NR + fewest * each_N1)
                cycle = fixed_NR.sum(axis=1) + blocks * each_N1[:, 0] + pool.cycle_delay
                pools.append((cycle, rank_NR.max(axis=1), pool.tail(fewest)))
                fits &= (pool.blocks_that_fit.max(axis=-1) >= fewest).all(axis=1)
            counts = np.stack(pool_capacities(self.question, columns.tp * columns.cp * pp))
            total = self.question.training.global_batch // columns.mbs
            seconds[rows] = np.where(fits, summed_rates(pool, pools, counts, total), np.inf)
        return seconds

    def in_words(self) -> str:
        """Description in words of the layouts of replicas that the search covers."""
        plain = ", ".join(name for name in self.question.stack.schedules if name in PLAIN)
        return (
            "whole replicas in every pool: all legal tp x pp x cp x ep x etp x mbs x"
            f" zero0-{HIGHEST_ZERO} x shard groups x sequence parallelism x schedule ({plain}), microbatches shared at"
            f" best; stages as equal as the blocks allow, recompute {' / '.join(self.policies)} of so many blocks of"
            f" every stage; {limits_in_words(self.question, Restrictions())}"
        )

    def nothing_fits(self) -> DoesNotFitError:
        """Create the error that no layout of replicas fits in memory, with the closest layout."""
        question, x = self.question, self.columns
        smallest = np.lexsort((-x.zero, x.mbs, -x.tp * x.cp * x.pp))[:COMPARED_REPLICAS]
        priced = []
        for layout in map(self.layout, smallest.tolist()):
            layers = even_layers(question.model.num_layers, layout.pp)
            even = layout.model_copy(update={"layers": layers, "recompute": (self.policies[-1],)})
            priced.append(estimate(question, even).within(self._max_memory))
        closest = min(priced, key=lambda estimate: fullness(estimate.peak_bytes, estimate.memory_limit))
        subject = f"replicas of {question.model.name} fit the pools of `{question.cluster.name}`"
        words = _nothing_fits(subject, closest, fullest_pool(closest.replicas).pool)
        return DoesNotFitError(words, hint="use larger replicas, or shorter sequences")
