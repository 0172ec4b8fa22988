"""The layouts of whole replicas in several pools: which there are, and a bound for each before any is placed.

Their replicas each lie in one pool and meet once a step (`planner.axes.replicas.rules`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from cost_models.arrays import Array, Bools, Ints
from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import Layout
from cost_models.axes.pipeline import even_layers
from cost_models.axes.replicas import MOST_REPLICAS
from cost_models.axes.replicas.price import in_pools, replica_terms
from cost_models.errors import DoesNotFitError
from cost_models.estimate import fullest_pool, fullness
from cost_models.memory.boundaries import boundary_bytes
from cost_models.pipeline.estimating import estimate
from cost_models.pipeline.stage_costs import StageCosts
from cost_models.question import MixedQuestion, Question
from cost_models.schedules import PLAIN
from cost_models.specs.choices import RECOMPUTE_POLICIES, SCHEDULES, Recompute
from cost_models.units import format_bytes
from planner.axes.replicas.leaf import ReplicaLeaf, start_up, summed_rates
from planner.axes.replicas.rules import ONCE_A_STEP, holds_replicas
from planner.bounds.boxes import within_late_rules
from planner.placement.leaf import TOLERANCE
from planner.space.layouts import Restrictions, legal_space
from planner.space.limits import limits_in_words

REPLICAS = "replicas"
"""What `--allow` opens."""


def asks_for_replicas(question: Question, limits: Restrictions) -> bool:
    """Whether a search covers whole replicas in pools too. No trainer gives replicas unequal shares of a batch."""
    return isinstance(question, MixedQuestion) and REPLICAS in limits.allowed and limits.trainer is None


def replica_layouts(question: MixedQuestion, limits: Restrictions) -> LayoutColumns:
    """Every legal layout whose replicas each lie in one pool, at its mean number of microbatches.

    Rules that know one number of microbatches are asked with a batch that all replicas divide.
    """
    gpus, batch = question.mixed.num_gpus, question.training.global_batch
    together = math.gcd(*(pool.cluster.num_gpus for pool in question.pools))
    found = []
    for size in (size for size in range(1, together + 1) if together % size == 0):
        dp = gpus // size
        training = question.training
        if not training.optimizer_in_backward:  # which leaves each replica one microbatch
            training = training.model_copy(update={"global_batch": batch * dp})
        within = _within(limits, dp)
        if within is None or batch < dp or dp > MOST_REPLICAS:
            continue
        columns = legal_space(replace(question, training=training), within).all_rows()
        found.append(columns.rows(np.flatnonzero(_may_run(question, columns))))
    return _joined(found)


def _joined(found: Sequence[LayoutColumns]) -> LayoutColumns:
    none = LayoutColumns.of([Layout()]).rows(np.empty(0, dtype=np.int64))
    names = LayoutColumns.__dataclass_fields__
    return LayoutColumns(
        **{name: np.concatenate([getattr(one, name) for one in (none, *found)]) for name in names}
    )


def _within(limits: Restrictions, dp: int) -> Restrictions | None:
    """The restrictions for so many replicas; None where they allow none."""
    may = {
        "dp": {dp},
        "zero": set(range(ONCE_A_STEP + 1)),
        "schedule": {SCHEDULES.index(name) for name in PLAIN},
        "vpp": {1},
    }
    only = {name: frozenset(limits.only.get(name, values)) & values for name, values in may.items()}
    if not all(only.values()):
        return None
    return replace(limits, only=limits.only | only, allowed=limits.allowed & {"overlap"})


def _may_run(question: MixedQuestion, columns: LayoutColumns) -> Bools:
    """(N,): layouts of whole replicas in pools, with blocks for every stage and microbatches for every replica."""
    together = question.training.global_batch // columns.mbs
    blocks = columns.pp <= question.model.num_layers
    enough = together >= _least(columns) * columns.dp
    return holds_replicas(question, columns) & blocks & enough & within_late_rules(question, columns)


def _least(columns: LayoutColumns) -> Ints:
    """(N,) microbatches that a replica takes at least: see `fewest_microbatches`."""
    needs = np.array([name in PLAIN and name != "gpipe" for name in SCHEDULES])
    return np.where(needs[columns.schedule], columns.pp, 1)


def count_replicas(question: Question, limits: Restrictions) -> int:
    """How many such layouts a search covers."""
    if not (isinstance(question, MixedQuestion) and asks_for_replicas(question, limits)):
        return 0
    return len(replica_layouts(question, limits))


@dataclass(frozen=True, kw_only=True)
class ReplicaSpace:
    """The layouts with what they cost in each pool."""

    question: MixedQuestion
    columns: LayoutColumns
    costs: tuple[StageCosts, ...]
    policies: tuple[Recompute, ...]
    max_memory: float

    @property
    def allowed(self) -> Bools:
        """(P,)."""
        return np.array([policy in self.policies for policy in RECOMPUTE_POLICIES])

    def leaf(self, row: int) -> ReplicaLeaf:
        """One layout with its costs, ready to be placed."""
        return ReplicaLeaf(
            question=self.question,
            layout=in_pools(self.question, self.columns.layout(row)),
            costs=tuple(own.rows(np.array([row])) for own in self.costs),
            allowed=self.allowed,
            max_memory=self.max_memory,
        )

    def bounds(self) -> Array:
        """(N,) seconds that no placement of a layout undercuts: blocks as even as they divide, the fastest policy."""
        x, blocks = self.columns, self.question.model.num_layers
        ends, busiest = np.empty((2, len(self.costs), len(x)))
        fewest, most = blocks // x.pp, -(-blocks // x.pp)
        pools: Ints = np.array([pool.cluster.num_gpus for pool in self.question.pools])
        for k, c in enumerate(self.costs):
            each = c.layer_forward + np.where(self.allowed, c.layer_backward, np.inf).min(axis=1)
            stage = c.stage_forward + c.stage_backward
            first, last = c.embedding_forward + c.embedding_backward, c.head_forward + c.head_backward
            heavier = np.where(x.pp == 1, first + last, np.maximum(first, last))
            busiest[k] = stage + np.maximum(most * each, fewest * each + heavier)
            work = x.pp * stage + blocks * each + first + last
            cycle = work + 2 * (x.pp - 1) * c.p2p
            sync = c.rank_sync + fewest * c.layer_sync + c.embedding_sync
            tail = sync + c.rank_optimizer + most * c.layer_optimizer + c.step_overhead
            begin = np.empty(len(x))
            for name in PLAIN:
                rows = x.schedule == SCHEDULES.index(name)
                begin[rows] = start_up(name, x.pp[rows], cycle[rows], busiest[k, rows])
            ends[k] = begin + tail
        replicas = pools[:, None] // (x.tp * x.cp * x.pp)
        together = self.question.training.global_batch // x.mbs
        seconds = summed_rates(ends, busiest, replicas, together, _least(x))
        return np.where(self._may_fit(fewest), seconds, np.inf)

    def _may_fit(self, fewest_N: Ints) -> Bools:
        """(N,): whether every pool's first rank holds the fewest blocks that a stage has, recomputing most."""
        x, fits = self.columns, np.ones(len(self.columns), dtype=np.bool_)
        live = np.where(x.schedule == SCHEDULES.index("gpipe"), 1, x.pp)
        retained = np.zeros(len(x))
        if (
            self.question.stack.retains_boundary_tensors
        ):  # those of the mean number of microbatches: some take fewer
            boundaries = boundary_bytes(self.question, x)
            retained = boundaries.every_rank + boundaries.first_rank
        for c in self.costs:
            kept = np.where(self.allowed, c.layer_activation, np.inf).min(axis=1)
            working = np.where(self.allowed, c.working, np.inf).min(axis=1)
            static = c.static + c.embedding_static - retained
            first = static + fewest_N * (c.layer_static + live * kept) + working
            fits &= first <= (1 + TOLERANCE) * np.minimum(c.memory_limit, self.max_memory)
        return fits


COMPARED = 4
"""Layouts, those with the smallest parts of the model on a GPU, that are priced when nothing fits."""


def nothing_holds_replicas(question: MixedQuestion, limits: Restrictions) -> DoesNotFitError:
    """The error to raise when no placement of any layout fits, with the one that comes closest."""
    columns = replica_layouts(question, limits)
    weakest = limits.recompute(question)[-1]
    smallest = np.lexsort((-columns.zero, columns.mbs, -columns.tp * columns.cp * columns.pp))[:COMPARED]
    priced = []
    for row in smallest.tolist():
        layout = in_pools(question, columns.layout(row))
        layers = even_layers(question.model.num_layers, layout.pp)
        even = layout.model_copy(update={"layers": layers, "recompute": (weakest,)})
        priced.append(estimate(question, even).within(limits.max_memory))
    closest = min(priced, key=lambda one: fullness(one.peak_bytes, one.memory_limit))
    where = fullest_pool(closest.replicas).pool
    return DoesNotFitError(
        f"no replicas of {question.model.name} fit the pools of `{question.mixed.name}`; the closest,"
        f" {closest.layout.brief}, needs {format_bytes(closest.peak_bytes)} of"
        f" {closest.limit_words} on pipeline rank {closest.fullest_rank}, in pool `{where}`",
        hint="use larger replicas, or shorter sequences",
    )


def leaf_of(
    question: MixedQuestion, layout: Layout, allowed: Bools, max_memory: float = math.inf
) -> ReplicaLeaf:
    """One layout, its replicas in the pools, ready to be placed."""
    return ReplicaLeaf(
        question=question,
        layout=in_pools(question, layout),
        costs=tuple(own.costs for own in replica_terms(question, LayoutColumns.of([layout]))),
        allowed=allowed,
        max_memory=max_memory,
    )


def in_words(question: MixedQuestion, policies: Sequence[Recompute]) -> str:
    """What the search covers, in words."""
    plain = ", ".join(name for name in question.stack.schedules if name in PLAIN)
    return (
        f"whole replicas in every pool: all legal tp x pp x cp x ep x etp x mbs x zero0-{ONCE_A_STEP} x shard groups x"
        f" sequence parallelism x schedule ({plain}), microbatches shared at best; stages as equal as the blocks allow,"
        f" recompute {' / '.join(policies)} of so many blocks of every stage;"
        f" {limits_in_words(question, Restrictions())}"
    )
