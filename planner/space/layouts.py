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

from cost_models import schedules
from cost_models.arrays import Array, Bools, Ints
from cost_models.axes.columns import LayoutColumns, first_of_each
from cost_models.axes.layout import ZERO_STAGES
from cost_models.pipeline.under_scenarios import scenarios_of
from cost_models.question import Question
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
    """Cores, and what goes with each."""

    question: Question
    cores: LayoutColumns
    """With shape 1f1b, zero0 and one shard group."""
    family: Ints
    """(N,): index into `variants`."""
    variants: tuple[Ints, ...]
    """(V, 2) zero and shard of each family."""
    pipeline: Ints
    """(N,): index into `shapes`."""
    shapes: tuple[tuple[Ints, ...], ...]
    """(K, 2) vpp and schedule of each pipeline, for each ZeRO stage."""
    counts: Boxes
    """(N,): the counts of blocks that each core stands for; its own are the least."""

    def __len__(self) -> int:
        """Layouts in all."""
        return int(self.sizes.sum())

    @cached_property
    def _stages(self) -> Ints:
        """(F, Z): variants of each family with each ZeRO stage."""
        counts = [np.bincount(own[:, 0], minlength=ZERO_STAGES) for own in self.variants]
        return np.array(counts, dtype=np.int64).reshape(-1, ZERO_STAGES)

    @cached_property
    def _shapes(self) -> Ints:
        """(K, Z): shapes of each pipeline with each ZeRO stage."""
        counts = [[len(own) for own in of_stage] for of_stage in self.shapes]
        return np.array(counts, dtype=np.int64).reshape(-1, ZERO_STAGES)

    @cached_property
    def sizes(self) -> Ints:
        """(N,): layouts of each core."""
        counts = np.zeros(len(self.cores), dtype=np.int64)
        for zero in np.flatnonzero(self._stages.any(axis=0) & self._shapes.any(axis=0)).tolist():
            counts += self._stages[:, zero][self.family] * self._shapes[:, zero][self.pipeline]
        return counts * self.counts.layouts

    def asked_of(self, question: Question) -> Space:
        """The same layouts for a question that differs in rates and in sizes of memory alone: no rule of legality reads
        these."""
        same = replace(self, question=question)
        vars(same).update(
            {name: getattr(self, name) for name in ("sizes", "microbatches", "may_start_empty")}
        )
        return same

    def held_to(self, question: Question) -> Space:
        """The same layouts for a question that differs in how surely a layout must fit alone: seconds stay known."""
        same = self.asked_of(question)
        vars(same).update({name: getattr(self, name) for name in ("remembered", "kept")})
        if question.confidence >= self.question.confidence:
            vars(same)["too_large"] = self.too_large
        return same

    @cached_property
    def remembered(self) -> dict[tuple[str, bytes], Array]:
        """(name, what it was computed for) → (N,) bounds of the cores that are known by now (`planner.bounds`)."""
        return {}

    @cached_property
    def kept(self) -> dict[Any, Any]:
        """What pricing cores found, whatever recompute policies a search may use (`planner.bounds.relaxed`)."""
        return {}

    @cached_property
    def too_large(self) -> dict[tuple[bytes, float], Bools]:
        """(recompute policies, memory limit) → (N,) cores that are known by now not to fit (`planner.bounds`)."""
        return {}

    def of_cores(self, some: Bools) -> Space:
        """The layouts of some cores."""
        kept = np.flatnonzero(some)
        return self._with_cores(self.cores.rows(kept), kept, self.counts.rows(kept))

    def _without_empty_cores(self) -> Space:
        filled = self.sizes > 0
        return self if filled.all() else self.of_cores(filled)

    def _with_cores(self, cores: LayoutColumns, index: Ints, counts: Boxes) -> Space:
        """The same with cores that have the families and pipelines of others."""
        return replace(
            self, cores=cores, family=self.family[index], pipeline=self.pipeline[index], counts=counts
        )

    @cached_property
    def written_out(self) -> Space:
        """The same layouts with a core for every combination of counts."""
        if self.counts.is_single.all():
            return self
        core, counts = self.counts.singles()
        cores = with_counts(self.cores.rows(core), counts)
        return self._with_cores(cores, core, Boxes(counts, counts, self.counts.room[core]))

    @cached_property
    def microbatches(self) -> Ints:
        """(N,): of each core."""
        return self.cores.microbatches(self.question.training.global_batch)

    @cached_property
    def may_start_empty(self) -> Bools:
        """(N,): whether some shape of a core has more stages than there are blocks."""
        most_K = [
            max((int(own[:, 0].max()) for own in of_stage if len(own)), default=1) for of_stage in self.shapes
        ]
        most = np.array(most_K, dtype=np.int64)[self.pipeline]
        return self.cores.pp * most > self.question.model.num_layers

    @cached_property
    def in_scenarios(self) -> tuple[Space, ...]:
        """The same layouts of the question in each scenario that it weighs; none where it weighs none."""
        return tuple(replace(self, question=one) for one in scenarios_of(self.question))

    @cached_property
    def splits_backward(self) -> bool:
        """Whether a schedule of some layout does."""
        met = {int(index) for by_stage in self.shapes for own in by_stage for index in own[:, 1]}
        return any(SCHEDULES[index] in schedules.SPLIT_BACKWARD for index in met)

    def zero_stages_of(self, cores: Ints) -> list[tuple[int, Bools]]:
        """ZeRO stage → (N,) which of these cores have a variant of it; stages that none has are left out."""
        own_NZ = self._stages[self.family[cores]] > 0
        return [(zero, own_NZ[:, zero]) for zero in range(ZERO_STAGES) if own_NZ[:, zero].any()]

    def rows(self, core: Ints, choice: Ints) -> LayoutColumns:
        """Layouts of (N,) cores, with the least of their counts, and (N, 4) zero, shard, vpp and schedule."""
        zero, shard, vpp, schedule = choice.T
        return replace(self.cores.rows(core), zero=zero, shard=shard, vpp=vpp, schedule=schedule)

    def smallest_rows(self) -> tuple[Ints, LayoutColumns]:
        """The core and one layout of every core and ZeRO stage, over as many ranks as can share: the least memory of
        its kind, with the least of its counts.

        In 1f1b, or where a pipeline cannot run that (it has few microbatches, or was fixed) in its first shape.
        """
        simplest = np.zeros((len(self.shapes), ZERO_STAGES, 2), dtype=np.int64)
        for index, of_stage in enumerate(self.shapes):
            for zero, own in enumerate(of_stage):
                if len(own):
                    simplest[index, zero] = min(
                        own.tolist(), key=lambda shape: (shape[1] != ONE_CHUNK, shape)
                    )
        every = np.arange(len(self.cores))
        found = [(stage, np.flatnonzero(has)) for stage, has in self.zero_stages_of(every)]
        core = np.concatenate([own for _, own in found])
        zero_N = np.repeat([stage for stage, _ in found], [len(own) for _, own in found])
        shape = simplest[self.pipeline[core], zero_N]
        choice = np.column_stack([zero_N, self.cores.replicas[core], shape])
        possible = shape[:, 0] > 0
        return core[possible], self.rows(core[possible], choice[possible])

    def all_rows(self) -> LayoutColumns:
        """Every layout written out."""
        space = self.written_out
        return space.rows_of(np.arange(len(space.cores)))

    def rows_of(self, cores: Ints) -> LayoutColumns:
        """Every layout of some cores, with the least of their counts."""
        return self.rows(*self.choices_of(cores))

    def choices_of(self, cores: Ints) -> tuple[Ints, Ints]:
        """(N,) core and (N, 4) zero, shard, vpp and schedule of every layout of some cores, core by core; cores of one
        kind have the same variants and shapes."""
        kinds = np.stack([self.family[cores], self.pipeline[cores]], axis=1)
        _, first, kind = np.unique(kinds, axis=0, return_index=True, return_inverse=True)
        tables = [self._table(int(core)) for core in cores[first].tolist()]
        sizes = np.array([len(table) for table in tables], dtype=np.int64)
        each = sizes[kind.reshape(-1)]
        start = np.cumsum(sizes) - sizes
        written = np.concatenate([np.empty((0, 4), dtype=np.int64), *tables])
        within = np.arange(each.sum()) - np.repeat(np.cumsum(each) - each, each)
        return np.repeat(cores, each), written[np.repeat(start[kind.reshape(-1)], each) + within]

    def _table(self, core: int) -> Ints:
        """(K, 4) zero, shard, vpp and schedule of each layout of a core."""
        shapes = self.shapes[int(self.pipeline[core])]
        rows = [
            np.concatenate([np.broadcast_to(own, shapes[own[0]].shape), shapes[own[0]]], axis=1)
            for own in self.variants[int(self.family[core])]
        ]
        return np.concatenate([np.empty((0, 4), dtype=np.int64), *rows])


def legal_space(question: Question, restrictions: Restrictions) -> Space:
    """Everything that breaks no rule of `planner.rules.legality` and keeps to the restrictions; rules that price
    what they ask are left to its price."""
    return shared(question, restrictions, _legal_space)


def _legal_space(question: Question, restrictions: Restrictions) -> Space:
    wide = restrictions.without(("zero", "shard", "vpp", "schedule", "mbs"))
    cores = candidate_cores(question, restrictions)
    counts = Boxes.beside(question, cores)
    if speaks_of_counts(restrictions.named):
        of_box, single = counts.singles()
        cores, counts = with_counts(cores.rows(of_box), single), Boxes(single, single, counts.room[of_box])
    legal = np.flatnonzero(legal_at_any_stage(question, wide, cores))
    cores, counts = cores.rows(legal), counts.rows(legal)
    narrow = restrictions.without(("vpp", "schedule", "mbs"))
    core, sized = microbatch_sizes(question, restrictions, cores)
    families, family = families_of(cores, core, sized)
    spoken = speaks_of_counts(restrictions.named)
    most = Boxes.of(families).most if spoken else Boxes.beside(question, families).most
    variants = variants_of(question, narrow, families, with_counts(families, most))
    cores, counts = sized, counts.rows(core)
    stages = np.array([np.bincount(own[:, 0], minlength=ZERO_STAGES) > 0 for own in variants])
    stages = stages.reshape(-1, ZERO_STAGES) @ (1 << np.arange(ZERO_STAGES))
    microbatches = cores.microbatches(question.training.global_batch)
    own = [getattr(cores, name) for name in columns_that_affect("pipeline") if not speaks_of_counts({name})]
    own += [offloaded > 0 for offloaded in counted_columns(cores)]  # how many decides no shape
    first, pipeline = first_of_each([*own, microbatches, stages[family]])
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
    """The same, every layout written out that late rules allow: for small questions."""
    rows = legal_space(question, restrictions).all_rows()
    kept = ~needless_rows(question, restrictions, rows)
    for rule in LATE_RULES:
        kept &= ~rule.broken(question, rows)
    return rows.rows(np.flatnonzero(kept))
