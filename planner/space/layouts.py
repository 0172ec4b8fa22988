"""All legal layouts of a model on a cluster, within what the user fixed or forbade, in three factors.

    core      all other axes: tp pp cp dp ep etp mbs sp, the order of the axes, the way of context parallelism ...
    variant   zero and shard
    shape     vpp and schedule

A layout is one of each. Which variants are legal with a core depends on its axes that touch `states` alone, which
shapes on those that touch `pipeline`, its number of microbatches and the ZeRO stage (the rules are asked once for each
such case), so layouts are counted without being written out, and the search writes out those it needs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from cost_models.arrays import Array, Bools, Ints
from cost_models.axes.columns import LayoutColumns, first_of_each
from cost_models.axes.layout import ZERO_STAGES
from cost_models.pipeline.under_scenarios import scenarios_of
from cost_models.question import Question
from cost_models.schedules.registry import SPLIT_BACKWARD
from cost_models.specs.choices import SCHEDULES
from planner.rules.legality import LATE_RULES
from planner.space.axes import columns_that_affect
from planner.space.cores import (
    ONE_CHUNK,
    candidate_cores,
    families_of,
    legal_at_any_stage,
    microbatch_sizes,
    shapes_of,
    variants_of,
)
from planner.space.counts import Boxes, counted_columns, speaks_of_counts, with_counts
from planner.space.limits import needless_rows
from planner.space.restriction_words import parse_restrictions as parse_restrictions
from planner.space.restrictions import Restrictions as Restrictions
from planner.space.shared import shared


@dataclass(frozen=True, kw_only=True)
class Space:
    """Cores with their variants and shapes."""

    question: Question
    cores: LayoutColumns
    """Cores as layouts with shape 1f1b, zero0 and one shard group."""
    family: Ints
    """Index into `variants`, (N,)."""
    variants: tuple[Ints, ...]
    """ZeRO stage and shard of each family, (V, 2) each."""
    pipeline: Ints
    """Index into `shapes`, (N,)."""
    shapes: tuple[tuple[Ints, ...], ...]
    """vpp and schedule of each pipeline, (K, 2) for each ZeRO stage."""
    counts: Boxes
    """Counts of blocks that each core stands for, (N,); the core itself has the least."""

    def __len__(self) -> int:
        """Number of layouts."""
        return int(self.sizes.sum())

    @cached_property
    def _stages(self) -> Ints:
        """Number of variants of each family with each ZeRO stage, (F, Z)."""
        counts = [np.bincount(own[:, 0], minlength=ZERO_STAGES) for own in self.variants]
        return np.array(counts, dtype=np.int64).reshape(-1, ZERO_STAGES)

    @cached_property
    def _shapes(self) -> Ints:
        """Number of shapes of each pipeline with each ZeRO stage, (K, Z)."""
        counts = [[len(own) for own in of_stage] for of_stage in self.shapes]
        return np.array(counts, dtype=np.int64).reshape(-1, ZERO_STAGES)

    @cached_property
    def sizes(self) -> Ints:
        """Number of layouts of each core, (N,)."""
        counts = np.zeros(len(self.cores), dtype=np.int64)
        for zero in np.flatnonzero(self._stages.any(axis=0) & self._shapes.any(axis=0)).tolist():
            counts += self._stages[:, zero][self.family] * self._shapes[:, zero][self.pipeline]
        return counts * self.counts.layouts

    def with_rates(self, question: Question) -> Space:
        """Space of a question that differs only in rates and memory sizes, which no rule of legality reads."""
        space = replace(self, question=question)
        vars(space).update(
            {name: getattr(self, name) for name in ("sizes", "microbatches", "may_start_empty")}
        )
        return space

    def with_confidence(self, question: Question) -> Space:
        """Space of a question that differs only in confidence of fitting; bounds in seconds are shared."""
        space = self.with_rates(question)
        vars(space).update({name: getattr(self, name) for name in ("bound_cache", "priced_cache")})
        if question.confidence >= self.question.confidence:
            vars(space)["infeasible_cores"] = self.infeasible_cores
        return space

    @cached_property
    def bound_cache(self) -> dict[tuple[str, bytes], Array]:
        """Cache (name, policies) → bounds of the cores, (N,) (`planner.bounds`)."""
        return {}

    @cached_property
    def priced_cache(self) -> dict[Any, Any]:
        """Cache of priced cores for any recompute policies (`planner.bounds.relaxed`)."""
        return {}

    @cached_property
    def infeasible_cores(self) -> dict[tuple[bytes, float], Bools]:
        """Cache (recompute policies, memory limit) → cores known not to fit, (N,) (`planner.bounds`)."""
        return {}

    def of_cores(self, mask: Bools) -> Space:
        """Space of selected cores."""
        index = np.flatnonzero(mask)
        return self._with_cores(self.cores.rows(index), index, self.counts.rows(index))

    def _without_empty_cores(self) -> Space:
        filled = self.sizes > 0
        return self if filled.all() else self.of_cores(filled)

    def _with_cores(self, cores: LayoutColumns, index: Ints, counts: Boxes) -> Space:
        """Space of new cores, which have the families and pipelines of the cores at `index`."""
        return replace(
            self, cores=cores, family=self.family[index], pipeline=self.pipeline[index], counts=counts
        )

    @cached_property
    def expanded_counts(self) -> Space:
        """Space with a core for every combination of counts."""
        if self.counts.is_single.all():
            return self
        core, counts = self.counts.singles()
        cores = with_counts(self.cores.rows(core), counts)
        return self._with_cores(cores, core, Boxes(counts, counts, self.counts.room[core]))

    @cached_property
    def microbatches(self) -> Ints:
        """Number of microbatches of each core, (N,)."""
        return self.cores.microbatches(self.question.training.global_batch)

    @cached_property
    def may_start_empty(self) -> Bools:
        """Whether some shape of a core has more stages than blocks, (N,)."""
        most_K = [
            max((int(own[:, 0].max()) for own in of_stage if len(own)), default=1) for of_stage in self.shapes
        ]
        most_chunks = np.array(most_K, dtype=np.int64)[self.pipeline]
        return self.cores.pp * most_chunks > self.question.model.num_layers

    @cached_property
    def in_scenarios(self) -> tuple[Space, ...]:
        """Space of the question in each weighed scenario; empty without scenarios."""
        return tuple(replace(self, question=one) for one in scenarios_of(self.question))

    @cached_property
    def splits_backward(self) -> bool:
        """Whether some schedule of the space splits backward passes."""
        schedules_used = {int(index) for by_stage in self.shapes for own in by_stage for index in own[:, 1]}
        return any(SCHEDULES[index] in SPLIT_BACKWARD for index in schedules_used)

    def zero_stages_of(self, cores: Ints) -> list[tuple[int, Bools]]:
        """Pairs of ZeRO stage and cores that have a variant of the stage, (N,); stages without cores are left out."""
        own_NZ = self._stages[self.family[cores]] > 0
        return [(zero, own_NZ[:, zero]) for zero in range(ZERO_STAGES) if own_NZ[:, zero].any()]

    def rows(self, core: Ints, choice: Ints) -> LayoutColumns:
        """Layouts of cores (N,) at their least counts, with (N, 4) zero, shard, vpp and schedule."""
        zero, shard, vpp, schedule = choice.T
        return replace(self.cores.rows(core), zero=zero, shard=shard, vpp=vpp, schedule=schedule)

    def smallest_rows(self) -> tuple[Ints, LayoutColumns]:
        """Index of the core, (N,), and a layout of every core and ZeRO stage with the least memory: sharded over all
        ranks, at the least counts.

        In 1f1b, or where a pipeline cannot run that (it has few microbatches, or was fixed) in its first shape.
        """
        simplest = np.zeros((len(self.shapes), ZERO_STAGES, 2), dtype=np.int64)
        for index, of_stage in enumerate(self.shapes):
            for zero, own in enumerate(of_stage):
                if len(own):
                    simplest[index, zero] = min(
                        own.tolist(), key=lambda shape: (shape[1] != ONE_CHUNK, shape)
                    )
        all_cores = np.arange(len(self.cores))
        stages = [(stage, np.flatnonzero(has)) for stage, has in self.zero_stages_of(all_cores)]
        core = np.concatenate([own for _, own in stages])
        zero_N = np.repeat([stage for stage, _ in stages], [len(own) for _, own in stages])
        shape = simplest[self.pipeline[core], zero_N]
        choice = np.column_stack([zero_N, self.cores.replicas[core], shape])
        possible = shape[:, 0] > 0
        return core[possible], self.rows(core[possible], choice[possible])

    def all_rows(self) -> LayoutColumns:
        """Every layout written out."""
        space = self.expanded_counts
        return space.rows_of(np.arange(len(space.cores)))

    def rows_of(self, cores: Ints) -> LayoutColumns:
        """Every layout of the cores, at their least counts."""
        return self.rows(*self.choices_of(cores))

    def choices_of(self, cores: Ints) -> tuple[Ints, Ints]:
        """Core (N,) and zero, shard, vpp and schedule (N, 4) of every layout of the cores, core by core; cores of one
        kind have the same variants and shapes."""
        kinds = np.stack([self.family[cores], self.pipeline[cores]], axis=1)
        _, first, kind = np.unique(kinds, axis=0, return_index=True, return_inverse=True)
        tables = [self._table(int(core)) for core in cores[first].tolist()]
        sizes = np.array([len(table) for table in tables], dtype=np.int64)
        size_N = sizes[kind.reshape(-1)]
        start = np.cumsum(sizes) - sizes
        written = np.concatenate([np.empty((0, 4), dtype=np.int64), *tables])
        offset_N = np.arange(size_N.sum()) - np.repeat(np.cumsum(size_N) - size_N, size_N)
        return np.repeat(cores, size_N), written[np.repeat(start[kind.reshape(-1)], size_N) + offset_N]

    def _table(self, core: int) -> Ints:
        """zero, shard, vpp and schedule of each layout of a core, (K, 4)."""
        shapes = self.shapes[int(self.pipeline[core])]
        rows = [
            np.concatenate([np.broadcast_to(own, shapes[own[0]].shape), shapes[own[0]]], axis=1)
            for own in self.variants[int(self.family[core])]
        ]
        return np.concatenate([np.empty((0, 4), dtype=np.int64), *rows])


def legal_space(question: Question, restrictions: Restrictions) -> Space:
    """Space of all layouts that satisfy the rules of `planner.rules.legality` and the restrictions; rules that need
    prices are applied when layouts are priced."""
    return shared(question, restrictions, _legal_space)


def _legal_space(question: Question, restrictions: Restrictions) -> Space:
    core_limits = restrictions.without(("zero", "shard", "vpp", "schedule", "mbs"))
    cores = candidate_cores(question, restrictions)
    counts = Boxes.from_minimum(question, cores)
    if speaks_of_counts(restrictions.named_axes):
        of_box, single = counts.singles()
        cores, counts = with_counts(cores.rows(of_box), single), Boxes(single, single, counts.room[of_box])
    legal = np.flatnonzero(legal_at_any_stage(question, core_limits, cores))
    cores, counts = cores.rows(legal), counts.rows(legal)
    narrow = restrictions.without(("vpp", "schedule", "mbs"))
    core, sized = microbatch_sizes(question, restrictions, cores)
    families, family = families_of(cores, core, sized)
    spoken = speaks_of_counts(restrictions.named_axes)
    most_counts = Boxes.of(families).most if spoken else Boxes.from_minimum(question, families).most
    variants = variants_of(question, narrow, families, with_counts(families, most_counts))
    cores, counts = sized, counts.rows(core)
    stages = np.array([np.bincount(keys[:, 0], minlength=ZERO_STAGES) > 0 for keys in variants])
    stages = stages.reshape(-1, ZERO_STAGES) @ (1 << np.arange(ZERO_STAGES))
    microbatches = cores.microbatches(question.training.global_batch)
    keys = [getattr(cores, name) for name in columns_that_affect("pipeline") if not speaks_of_counts({name})]
    keys += [offloaded > 0 for offloaded in counted_columns(cores)]  # how many decides no shape
    first, pipeline = first_of_each([*keys, microbatches, stages[family]])
    of_first = [variants[index] for index in family[first].tolist()]
    return Space(
        question=question,
        cores=cores,
        family=family,
        variants=variants,
        pipeline=pipeline,
        shapes=shapes_of(question, restrictions, cores.rows(first), of_first),
        counts=counts,
    )._without_empty_cores()


def enumerate_layouts(question: Question, restrictions: Restrictions) -> LayoutColumns:
    """All legal layouts that late rules allow, written out: for small questions."""
    rows = legal_space(question, restrictions).all_rows()
    is_covered = ~needless_rows(question, restrictions, rows)
    for rule in LATE_RULES:
        is_covered &= ~rule.broken(question, rows)
    return rows.rows(np.flatnonzero(is_covered))
