"""Replicas that each lie within one of several pools: every legal layout with a lower bound, and leaves for
placement.

They are searched with `--allow replicas`, together with the layouts whose stages lie in the pools
(`planner.search.pools`). Replicas synchronise once a step (`planner.rules.pools`).

All replicas have the same blocks on the same stages, so that gradients of a stage are summed over the ranks
that hold it. Covered are stages as equal as the blocks allow, smaller ones at the ends, each with the same
numbers of blocks recomputed in full and selectively (`planner.placement.patterns`). Each placement has its
own shares of microbatches.

The bound adds up rates. A replica of pool k that takes n microbatches ends after at least e_k + n b_k, where
b_k are its busiest stage's seconds per microbatch. In t seconds it takes at most (t - e_k) / b_k of them, and
all replicas, c_k in pool k, take M:

    t >= (M + sum c_k e_k / b_k) / sum c_k / b_k        and, as each takes some,    t >= e_k + n_least b_k

Shape legend: Z placements, S stages, P recompute policies, K pools, N layouts.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

import numpy as np

from cost_models.arrays import Array, Bools, Ints
from cost_models.axes.columns import LayoutColumns, is_scheduled
from cost_models.axes.layout import MOST_REPLICAS, Layout
from cost_models.axes.rule import unbroken
from cost_models.axes.stages import even_layers, policy_mask
from cost_models.errors import DoesNotFitError
from cost_models.estimate import fullest_pool, fullness
from cost_models.memory.activations import boundary_bytes
from cost_models.pipeline.pools import (
    counted_replicas,
    fewest_microbatches,
    in_pools,
    parts_in,
    replica_memory,
    replica_terms,
    shares,
)
from cost_models.pipeline.pricing import estimate
from cost_models.pipeline.stage_costs import StageCosts, add_up, costs_of
from cost_models.question import Question
from cost_models.schedules.registry import PLAIN, QUEUES
from cost_models.specs.choices import SCHEDULES, Recompute
from cost_models.units import format_bytes
from planner.bounds.steps import pipeline_seconds
from planner.placement.leaf import Leaf, leaf_fields
from planner.placement.rank_costs import RankCosts, groups_of
from planner.rules.legality import LATE_RULES
from planner.rules.pools import HIGHEST_ZERO, holds_replicas
from planner.search.candidates import joined
from planner.space.limits import limits_in_words
from planner.space.restrictions import Restrictions
from planner.space.space import legal_space


@dataclass(frozen=True, kw_only=True)
class ReplicaLeaf(Leaf):
    """One layout whose data-parallel replicas lie in different pools, before its blocks are placed. The fields
    of a leaf are those of a replica of the first pool. Costs are at the mean number of microbatches, and
    `microbatches` is the minimum of each replica."""

    has_replicas: ClassVar[bool] = True
    question: Question
    layout: Layout
    pools: tuple[Leaf, ...]
    """(K,): a replica of each pool with the minimum number of microbatches."""

    @cached_property
    def key(self) -> bytes:
        return str(self.layout).encode()

    @cached_property
    def _filled(self) -> dict[tuple[int, int], Leaf]:
        return {}

    def _with(self, pool: int, microbatches: int) -> Leaf:
        """Leaf of a replica of one pool with the given number of microbatches and the memory that these need."""
        key = (pool, microbatches)
        if key not in self._filled:
            costs = self.pools[pool].costs
            if self.question.stack.torch_pipelining:  # else bytes hang on those that are live alone
                memory = replica_memory(self.question, pool, self.layout, microbatches)
                costs = replace(costs, **add_up(memory), kinds=())
            self._filled[key] = replace(self.pools[pool], costs=costs, microbatches=microbatches)
        return self._filled[key]

    def fits(self, blocks_SP: Ints) -> Bools:
        """For each placement, whether every rank stays within its memory limit if no replica takes more
        microbatches than the minimum, (...,)."""
        least = [self._with(pool, self.microbatches) for pool in range(len(self.pools))]
        fits: Bools = np.all([leaf.fits(blocks_SP) for leaf in least], axis=0)
        return fits

    def busy_seconds(self, blocks_SP: Ints) -> Array:
        """Lower bound of the step time of placements over all shares of the microbatches, seconds (Z,)."""
        pools = []
        for pipeline in self.pools:
            each_ZS = pipeline.forward(blocks_SP) + pipeline.backward(blocks_SP)
            cycle = each_ZS.sum(axis=-1) + 2 * (self.pp - 1) * pipeline.cost("p2p")
            sync = pipeline.once_a_step("sync", blocks_SP)[..., 0] + pipeline.overhead
            tail = sync + pipeline.once_a_step("optimizer", blocks_SP).max(axis=-1)
            pools.append((cycle, each_ZS.max(axis=-1), tail))
        together = self.question.training.global_batch // self.layout.mbs
        replicas = np.array(counted_replicas(self.question, self.layout))[:, None]
        return summed_rates(self, pools, replicas, together, self.microbatches)

    def step_seconds(self, blocks_SP: Ints) -> Array:
        """Step time of placements at the best shares of the microbatches, seconds (Z,); infinite where some
        device does not hold its share."""
        return np.array([self._seconds(blocks) for blocks in blocks_SP])

    def _seconds(self, blocks_SP: Ints) -> float:
        taken = shares(self.question, self.layout, self.pools, blocks_SP)
        leaves = [self._with(pool, max(microbatches)) for pool, microbatches in enumerate(taken)]
        if not all(leaf.fits(blocks_SP) for leaf in leaves):
            return math.inf
        return max(float(leaf.step_seconds(blocks_SP)) for leaf in leaves)


def summed_rates(
    plain: Leaf | RankCosts,
    pools: Sequence[tuple[Array, Array, Array]],
    replicas: Ints,
    together: Ints | int,
    least: Ints | int,
) -> Array:
    """Lower bound of the step, seconds (N,), from the sum of the rates at which replicas in all pools process
    microbatches. It is the bound above for plain pipelines, with `replicas` (K, N or 1) in the pools; `pools`
    has for each pool the seconds (N,) of one microbatch down and up again, of one on the busiest rank, and
    after the last backward pass."""
    cycle_KN, busiest_KN, tail_KN = map(np.stack, zip(*pools, strict=True))
    none = np.zeros(1, dtype=np.int64)  # microbatches, so this is what a pipeline takes besides them
    start_up_KN = pipeline_seconds(plain.schedule, plain.pp, none, cycle_KN, busiest_KN)
    ends_KN, rate_KN = np.maximum(0.0, start_up_KN) + tail_KN, replicas / busiest_KN
    even: Array = (together + (rate_KN * ends_KN).sum(axis=0)) / rate_KN.sum(axis=0)
    alone: Array = (ends_KN + least * busiest_KN).max(axis=0)
    return np.maximum(even, alone)


def asks_for_replicas(question: Question, limits: Restrictions) -> bool:
    """Whether a search also covers layouts whose replicas each lie in one of several pools. No trainer gives
    replicas unequal shares of a batch."""
    return question.has_pools and "replicas" in limits.allowed and limits.trainer is None


def replica_layouts(question: Question, limits: Restrictions) -> LayoutColumns:
    """Legal layouts whose replicas each lie in one pool, priced at the mean number of microbatches of a
    replica; empty unless the restrictions allow replicas.

    Rules that know one number of microbatches are asked with a batch that all replicas divide.
    """
    gpus, batch = question.cluster.num_gpus, question.training.global_batch
    together = math.gcd(*(pool.cluster.num_gpus for pool in question.pools))
    tables = [LayoutColumns.of([Layout()]).rows(np.empty(0, dtype=np.int64))]
    for size in range(1, together + 1) if asks_for_replicas(question, limits) else ():
        dp = gpus // size
        only = plain_only(limits, dp={dp}, zero=set(range(HIGHEST_ZERO + 1)))
        if together % size or batch < dp or dp > MOST_REPLICAS or not all(only.values()):
            continue
        within = replace(limits, only=only, allowed=limits.allowed & {"overlap"})
        training = question.training
        if not training.optimizer_in_backward:  # at one microbatch per replica
            training = training.model_copy(update={"global_batch": batch * dp})
        columns = legal_space(replace(question, training=training), within).all_rows()
        enough = batch // columns.mbs >= _least(columns) * columns.dp
        runs = holds_replicas(question, columns) & (columns.pp <= question.model.num_layers) & enough
        tables.append(columns.rows(np.flatnonzero(runs & unbroken(LATE_RULES, question, columns))))
    return joined(tables)


def plain_only(limits: Restrictions, **values: set[int]) -> dict[str, frozenset[int]]:
    """Allowed values of axes under the restrictions, further limited to plain schedules, one stage a rank and
    the given values of the named axes."""
    may = {"schedule": {SCHEDULES.index(name) for name in PLAIN}, "vpp": {1}} | values
    return limits.only | {name: frozenset(limits.only.get(name, own)) & own for name, own in may.items()}


def _least(columns: LayoutColumns) -> Ints:
    """Minimum number of microbatches that a replica of each layout takes, (N,); see `fewest_microbatches`."""
    return np.where(is_scheduled(columns, QUEUES), 1, columns.pp)


COMPARED = 4
"""Number of layouts, those with the smallest parts of the model on a GPU, that are priced when nothing fits."""


class ReplicaSpace:
    """Layouts whose replicas each lie in one of several pools, with their costs in each pool."""

    def __init__(
        self,
        question: Question,
        columns: LayoutColumns,
        policies: Sequence[Recompute],
        max_memory: float | None = None,
    ) -> None:
        self.question, self.columns, self.policies = question, columns, policies
        self.allowed = policy_mask(policies)
        self._max_memory = max_memory
        terms = replica_terms(question, columns) if len(columns) else []
        self.costs = tuple(costs_of(pool).within(max_memory) for pool in terms)

    def layout(self, row: int) -> Layout:
        """Layout of one row, with the number of replicas in each pool, without a placement."""
        return in_pools(self.question, self.columns.layout(row))

    def leaf(self, row: int) -> ReplicaLeaf:
        """Layout of one row with its costs in every pool, ready to be placed."""
        rows, layout = np.array([row]), self.layout(row)
        least, any_engine = fewest_microbatches(layout), not self.question.stack.torch_pipelining
        leaves = [self._group(rows, costs).leaf for costs in self.costs]
        pools = tuple(replace(leaf, microbatches=least, any_engine=any_engine) for leaf in leaves)
        return ReplicaLeaf(**leaf_fields(pools[0]), question=self.question, layout=layout, pools=pools)

    def _group(self, rows: Ints, costs: StageCosts) -> RankCosts:
        """Costs by rank in one pool of the given rows, which share one schedule and pp."""
        return RankCosts.of_rows(self.question, self.columns.rows(rows), costs.rows(rows), self.allowed)

    def bounds(self) -> Array:
        """Lower bound of the step of every layout over its placements, seconds (N,); infinite where some rank
        does not hold the fewest blocks of a stage. Blocks are as even as they divide, under the fastest policy."""
        x, blocks = self.columns, self.question.model.num_layers
        seconds = np.empty(len(x))
        retained = np.zeros(len(x))
        if self.question.stack.torch_pipelining:  # for the mean number of microbatches: some take fewer
            retained, _, _ = boundary_bytes(self.question, x)
        for rows in groups_of(x):
            columns, pp = x.rows(rows), int(x.pp[rows[0]])
            fewest, most = blocks // pp, -(-blocks // pp)
            fits, pools = np.ones(len(rows), dtype=np.bool_), []
            for costs in self.costs:
                pool = self._group(rows, replace(costs, static=costs.static - retained))
                pool = replace(pool, microbatches=_least(columns))
                each_N1, fixed_NR = pool.least_block_seconds[:, None], pool.fixed_seconds
                fullest_N1 = fixed_NR.min(axis=1, keepdims=True) + most * each_N1
                rank_NR = np.maximum(fullest_N1, fixed_NR + fewest * each_N1)
                cycle = fixed_NR.sum(axis=1) + blocks * each_N1[:, 0] + pool.cycle_delay
                pools.append((cycle, rank_NR.max(axis=1), pool.tail(fewest)))
                fits &= (pool.blocks_that_fit.max(axis=-1) >= fewest).all(axis=1)
            replicas = np.stack(parts_in(self.question, columns.tp * columns.cp * pp))
            together = self.question.training.global_batch // columns.mbs
            bound = summed_rates(pool, pools, replicas, together, _least(columns))
            seconds[rows] = np.where(fits, bound, np.inf)
        return seconds

    def in_words(self) -> str:
        """Sentence part that describes the layouts of replicas that the search covers."""
        plain = ", ".join(name for name in self.question.stack.schedules if name in PLAIN)
        return (
            "whole replicas in every pool: all legal tp x pp x cp x ep x etp x mbs x"
            f" zero0-{HIGHEST_ZERO} x shard groups x sequence parallelism x schedule ({plain}), microbatches shared at"
            f" best; stages as equal as the blocks allow, recompute {' / '.join(self.policies)} of so many blocks of"
            f" every stage; {limits_in_words(self.question, Restrictions())}"
        )

    def nothing_fits(self) -> DoesNotFitError:
        """Error to raise when no placement of any layout of replicas fits in memory; it names the closest."""
        question, columns = self.question, self.columns
        smallest = np.lexsort((-columns.zero, columns.mbs, -columns.tp * columns.cp * columns.pp))[:COMPARED]
        priced = []
        for layout in map(self.layout, smallest.tolist()):
            layers = even_layers(question.model.num_layers, layout.pp)
            even = layout.model_copy(update={"layers": layers, "recompute": (self.policies[-1],)})
            priced.append(estimate(question, even).within(self._max_memory))
        closest = min(priced, key=lambda one: fullness(one.peak_bytes, one.memory_limit))
        where = fullest_pool(closest.replicas).pool
        return DoesNotFitError(
            f"no replicas of {question.model.name} fit the pools of `{question.cluster.name}`; the closest,"
            f" {closest.layout.brief}, needs {format_bytes(closest.peak_bytes)} of"
            f" {closest.limit_words} on pipeline rank {closest.fullest_rank}, in pool `{where}`",
            hint="use larger replicas, or shorter sequences",
        )
