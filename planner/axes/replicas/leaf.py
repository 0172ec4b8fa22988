"""One layout of whole replicas in several pools, before placement: what every placement of its blocks takes and needs.

All replicas have the same blocks on the same stages, so that gradients of a stage are summed over ranks that hold it.
Covered are stages as equal as the blocks allow, smaller ones at the ends, of which every one recomputes so many blocks
in full and so many selectively (`planner.placement.chunks`). Each placement has shares of microbatches of its own.

The bound adds up rates. A replica of pool k that takes n microbatches ends after e_k + n b_k at least, b_k its busiest
stage's seconds of one. In t seconds it takes (t - e_k) / b_k of them at most, and all replicas, c_k in pool k, have M:

    t >= (M + sum c_k e_k / b_k) / sum c_k / b_k        and, as each takes some,    t >= e_k + n_least b_k

Shape legend: Z placements, S stages, P recompute policies, K pools.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from functools import cached_property

import numpy as np

from cost_models.arrays import Array, Bools, Ints
from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import Layout
from cost_models.axes.replicas.price import among_replicas, fewest_microbatches, with_microbatches
from cost_models.axes.replicas.ranks import shares
from cost_models.pipeline.pipeline import Pipeline
from cost_models.pipeline.stage_costs import StageCosts
from cost_models.pipeline.terms.memory_terms import MemoryTerms, memory_terms, total
from cost_models.question import MixedQuestion
from cost_models.schedules import schedule_named
from cost_models.specs.choices import Schedule
from planner.placement.chunks import every_placement
from planner.placement.leaf import TOLERANCE, Placement


@dataclass(frozen=True, kw_only=True)
class ReplicaLeaf:
    """One layout, its coefficients in each pool, and what may be chosen on it."""

    question: MixedQuestion
    layout: Layout
    costs: tuple[StageCosts, ...]
    """(K,) of one row each, at the mean number of microbatches."""
    allowed: Bools
    """(P,): recompute policies that the blocks may use."""
    max_memory: float = math.inf
    """Bytes that a plan may fill of each device."""

    @cached_property
    def replicas(self) -> tuple[int, ...]:
        """(K,) replicas of each pool."""
        return tuple(self.layout.replicas.count(name) for name in self.question.names)

    @cached_property
    def least(self) -> int:
        """Microbatches that each replica takes at least."""
        return fewest_microbatches(self.layout)

    @cached_property
    def _pipelines(self) -> tuple[Pipeline, ...]:
        return tuple(
            Pipeline(
                costs=own,
                pp=self.layout.pp,
                vpp=self.layout.vpp,
                schedule=self.layout.schedule,
                microbatches=self.least,
                any_engine=not self.question.stack.torch_pipelining,
            )
            for own in self.costs
        )

    @cached_property
    def placements(self) -> Ints:
        """(Z, S, P): every placement the search covers."""
        stage_of = self._pipelines[0].stage_of
        return every_placement(self.question.model.num_layers, stage_of, self.allowed)

    @cached_property
    def _filled(self) -> dict[tuple[int, int], Pipeline]:
        return {}

    def _with(self, pool: int, microbatches: int) -> Pipeline:
        """The pipeline of a replica that takes so many microbatches, with the memory that these need."""
        key = (pool, microbatches)
        if key not in self._filled:
            costs = self.costs[pool]
            if self.question.stack.retains_boundary_tensors:  # else bytes hang on those that are live alone
                costs = replace(costs, **self._bytes(pool, microbatches), kinds=())
            limit = np.minimum(costs.memory_limit, self.max_memory)
            self._filled[key] = replace(
                self._pipelines[pool], costs=replace(costs, memory_limit=limit), microbatches=microbatches
            )
        return self._filled[key]

    def _bytes(self, pool: int, microbatches: int) -> dict[str, Array]:
        """Bytes of one replica by memory term (the fields of `MemoryTerms`), if it takes so many microbatches."""
        asked = with_microbatches(
            among_replicas(self.question.pools[pool], self.question), self.layout, microbatches
        )
        memories = memory_terms(asked, LayoutColumns.of([self.layout]))
        return {field.name: total(getattr(memories, field.name)) for field in fields(MemoryTerms)}

    def may_fit(self, blocks_ZSP: Ints) -> Bools:
        """(Z,): placements that fit if no replica takes more microbatches than it must."""
        fits = [self._fits(self._with(pool, self.least), blocks_ZSP) for pool in range(len(self._pipelines))]
        every: Bools = np.all(fits, axis=0)
        return every

    @staticmethod
    def _fits(pipeline: Pipeline, blocks_ZSP: Ints) -> Bools:
        within_ZR: Bools = pipeline.rank_bytes(blocks_ZSP) <= pipeline.by_rank("memory_limit")
        return np.asarray(within_ZR.all(axis=-1))

    def bounds(self, blocks_ZSP: Ints) -> Array:
        """(Z,) seconds: no shares of the microbatches let a step end sooner."""
        ends, busiest = zip(*(_affine(one, blocks_ZSP) for one in self._pipelines), strict=True)
        together = self.question.training.global_batch // self.layout.mbs
        return summed_rates(np.stack(ends), np.stack(busiest), self.replicas, together, self.least)

    def price(self, blocks_SP: Ints) -> tuple[float, bool]:
        """Seconds of a step under one placement, at its best shares, and whether every device holds it then."""
        taken = shares(self.question, self.layout, self._pipelines, blocks_SP)
        pipelines = [self._with(pool, max(own)) for pool, own in enumerate(taken)]
        seconds = max(float(one.step_seconds(blocks_SP)) for one in pipelines)
        return seconds, all(bool(self._fits(one, blocks_SP[None])[0]) for one in pipelines)


def summed_rates(
    ends_KN: Array,
    busiest_KN: Array,
    replicas: tuple[int, ...] | Ints,
    together: Ints | int,
    least: Ints | int,
) -> Array:
    """(N,) seconds: the bound above, `replicas` (K,) or (K, N)."""
    rate_KN = np.asarray(replicas, dtype=np.float64).reshape(len(ends_KN), -1) / busiest_KN
    even: Array = (together + (rate_KN * ends_KN).sum(axis=0)) / rate_KN.sum(axis=0)
    alone: Array = (ends_KN + least * busiest_KN).max(axis=0)
    return np.maximum(even, alone)


def start_up(schedule: Schedule, pp: Ints | int, cycle: Array, busiest: Array) -> Array:
    """Seconds that a plain pipeline takes beside its microbatches on the busiest rank, at least: the paths (queue) and
    (both) of `planner.bounds.step`."""
    pairs = schedule_named(schedule).steady == "pairs"
    missed = (pp + 1) / 2 if pairs else 1
    return np.maximum(0.0, cycle - missed * busiest)


def _affine(pipeline: Pipeline, blocks_ZSP: Ints) -> tuple[Array, Array]:
    """(Z,) seconds that every step takes and (Z,) seconds more for each microbatch, at least."""
    each_ZS = pipeline.forward(blocks_ZSP) + pipeline.backward(blocks_ZSP)
    busiest = each_ZS.max(axis=-1)
    cycle = each_ZS.sum(axis=-1) + 2 * (pipeline.pp - 1) * pipeline.cost("p2p")
    tail = pipeline.once_a_step("sync", blocks_ZSP)[..., 0] + pipeline.overhead
    tail = tail + pipeline.once_a_step("optimizer", blocks_ZSP).max(axis=-1)
    return start_up(pipeline.schedule, pipeline.pp, cycle, busiest) + tail, busiest


def place_replicas(leaf: ReplicaLeaf, cut_off: float = math.inf) -> tuple[Placement, float] | None:
    """The best of all covered placements with its step time; None where none fits, or none takes less than `cut_off`
    seconds. They are priced in the order of their bounds until none that is left can be better."""
    placements = leaf.placements
    placements = placements[leaf.may_fit(placements)] if len(placements) else placements
    bounds = leaf.bounds(placements) if len(placements) else np.empty(0)
    best: tuple[Placement, float] | None = None
    for index in np.argsort(bounds, kind="stable").tolist():
        least = min(cut_off, best[1] if best else math.inf)
        if bounds[index] >= least * (1 - TOLERANCE):
            break
        seconds, fits = leaf.price(placements[index])
        if fits and seconds < least * (1 - TOLERANCE):
            best = Placement.of(placements[index]), seconds
    return best
