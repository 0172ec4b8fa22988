"""All legal layouts of a model on a cluster, within what the user fixed or forbade, in three factors.

    core      tp pp cp dp ep etp mbs sp, the order of the axes, the way of context parallelism
    variant   zero and shard
    shape     vpp and schedule

A layout is one of each. Which variants are legal with a core depends on its tp cp dp ep etp alone, which shapes on its
pp and number of microbatches and on the ZeRO stage (the rules are asked once for each such case), so layouts are
counted without being written out, and the search writes out those it needs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product

import numpy as np

from cost_models import schedules
from cost_models.axes.columns import Ints, LayoutColumns
from cost_models.axes.context import CONTEXTS, USUAL_CONTEXT
from cost_models.axes.data import ZERO_STAGES
from cost_models.axes.distinct import first_of_each
from cost_models.axes.order import ORDERS, same_seats
from cost_models.axes.pipeline import ENDS, SCHEDULES, goes_with
from cost_models.axes.recompute import allowed_recompute
from cost_models.axes.rule import Bools
from cost_models.question import Question
from planner.placement.chunks import covers
from planner.rules.legality import legal_rows
from planner.space.restriction_words import parse_restrictions as parse_restrictions
from planner.space.restrictions import AXES as AXES
from planner.space.restrictions import Restrictions as Restrictions
from planner.space.restrictions import allowed_rows

ONE_CHUNK = SCHEDULES.index("1f1b")
"""The shape that stands for all others where shapes do not matter."""
ROWS_TOGETHER = 200_000
"""Rows that the rules are asked of at once: bounds memory."""


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
        return counts

    def _without_empty_cores(self) -> Space:
        kept = np.flatnonzero(self.sizes)
        if len(kept) == len(self.cores):
            return self
        return replace(
            self, cores=self.cores.rows(kept), family=self.family[kept], pipeline=self.pipeline[kept]
        )

    def shape_counts(self, cores: Ints, zero: Ints) -> Ints:
        """(N,): shapes that go with (N,) cores at (N,) ZeRO stages."""
        found: Ints = self._shapes[self.pipeline[cores], zero]
        return found

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
        more: Bools = (
            self.cores.pp * np.array(most_K, dtype=np.int64)[self.pipeline] > self.question.model.num_layers
        )
        return more

    @cached_property
    def splits_backward(self) -> bool:
        """Whether a schedule of some layout does."""
        met = {int(index) for by_stage in self.shapes for own in by_stage for index in own[:, 1]}
        return any(SCHEDULES[index] in schedules.SPLIT_BACKWARD for index in met)

    def zero_stages_of(self, cores: Ints) -> list[tuple[int, Bools]]:
        """ZeRO stage → (N,) which of these cores have a variant of it; stages that none has are left out."""
        own_NZ = self._stages[self.family[cores]] > 0
        return [(zero, own_NZ[:, zero]) for zero in range(ZERO_STAGES) if own_NZ[:, zero].any()]

    def rows(self, core: Ints, variant: Ints, shape: Ints) -> LayoutColumns:
        """Layouts from (N,) cores, (N, 2) variants and (N, 2) shapes, or one shape for all."""
        shape = np.broadcast_to(shape, variant.shape)
        return replace(
            self.cores.rows(core),
            zero=variant[:, 0],
            shard=variant[:, 1],
            vpp=shape[:, 0],
            schedule=shape[:, 1],
        )

    def smallest_rows(self) -> LayoutColumns:
        """One layout of every core and ZeRO stage, over as many ranks as can share: the least memory of its kind.

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
        variant = np.stack([zero_N, self.cores.replicas[core]], axis=1)
        possible = shape[:, 0] > 0
        return self.rows(core[possible], variant[possible], shape[possible])

    def all_rows(self) -> LayoutColumns:
        """Every layout written out."""
        return self.rows_of(np.arange(len(self.cores)))

    def rows_of(self, cores: Ints) -> LayoutColumns:
        """Every layout of some cores, written out core by core; cores of one kind have the same variants and shapes."""
        kinds = np.stack([self.family[cores], self.pipeline[cores]], axis=1)
        _, first, kind = np.unique(kinds, axis=0, return_index=True, return_inverse=True)
        tables = [self._table(int(core)) for core in cores[first].tolist()]
        sizes = np.array([len(table) for table in tables], dtype=np.int64)
        each = sizes[kind.reshape(-1)]
        start = np.cumsum(sizes) - sizes
        written = np.concatenate([np.empty((0, 4), dtype=np.int64), *tables])
        within = np.arange(each.sum()) - np.repeat(np.cumsum(each) - each, each)
        chosen = written[np.repeat(start[kind.reshape(-1)], each) + within]
        return self.rows(np.repeat(cores, each), chosen[:, :2], chosen[:, 2:])

    def _table(self, core: int) -> Ints:
        """(K, 4) zero, shard, vpp and schedule of each layout of a core."""
        shapes = self.shapes[int(self.pipeline[core])]
        rows = [
            np.concatenate([np.broadcast_to(own, shapes[own[0]].shape), shapes[own[0]]], axis=1)
            for own in self.variants[int(self.family[core])]
        ]
        return np.concatenate([np.empty((0, 4), dtype=np.int64), *rows])


def legal_space(question: Question, restrictions: Restrictions) -> Space:
    """Everything that breaks no rule of `planner.rules.legality` and keeps to the restrictions."""
    wide = restrictions.without(("zero", "shard", "vpp", "schedule", "mbs"))
    cores = _candidates(question, restrictions)
    cores = cores.rows(np.flatnonzero(_legal_at_any_stage(question, wide, cores)))
    narrow = restrictions.without(("vpp", "schedule", "mbs"))
    first, family = first_of_each([cores.tp, cores.cp, cores.dp, cores.ep, cores.etp])
    variants = _variants(question, narrow, cores.rows(first))
    core, mbs = _microbatch_sizes(question, restrictions, cores)
    cores, family = replace(cores.rows(core), mbs=mbs), family[core]
    stages = np.array([np.bincount(own[:, 0], minlength=ZERO_STAGES) > 0 for own in variants])
    stages = stages.reshape(-1, ZERO_STAGES) @ (1 << np.arange(ZERO_STAGES))
    microbatches = cores.microbatches(question.training.global_batch)
    first, pipeline = first_of_each([cores.pp, microbatches, stages[family]])
    own = [variants[index] for index in family[first].tolist()]
    return Space(
        question=question,
        cores=cores,
        family=family,
        variants=variants,
        pipeline=pipeline,
        shapes=_shapes(question, restrictions, cores.rows(first), own),
    )._without_empty_cores()


def enumerate_layouts(question: Question, restrictions: Restrictions) -> LayoutColumns:
    """The same, every layout written out: for small questions."""
    return legal_space(question, restrictions).all_rows()


def _candidates(question: Question, restrictions: Restrictions) -> LayoutColumns:
    """Cores of mbs1 from the divisors of GPUs, batch and experts; every legal one is among them."""
    model, cluster, stack = question.model, question.cluster, question.stack

    def permitted(axis: str, values: Sequence[int]) -> list[int]:
        numbers = np.array(values, dtype=np.int64)
        return [int(number) for number in numbers[restrictions.permits(axis, numbers)]]

    fixed = restrictions.only
    experts = permitted("ep", divisors(model.num_experts) if model.has_experts else [1])
    blocks = []
    for tp in permitted("tp", divisors(cluster.gpus_per_node)):
        if cluster.num_gpus % tp:
            continue
        sequence_parallel = permitted("sp", [0, 1] if tp > 1 else [0])
        splits = divisors(tp) if model.has_experts and stack.expert_tensor_parallel else [tp]
        splits = permitted("etp", sorted({*splits, *fixed.get("etp", set())}))
        for cp in permitted("cp", divisors(cluster.num_gpus // tp)):
            if question.training.sequence_length % cp or (cp > 1 and not stack.context_kinds):
                continue
            for pp in permitted("pp", divisors(cluster.num_gpus // (tp * cp))):
                dp = cluster.num_gpus // (tp * cp * pp)
                if pp > model.num_layers or question.training.global_batch % dp or not permitted("dp", [dp]):
                    continue
                axes = [
                    [tp],
                    [pp],
                    [cp],
                    [dp],
                    sequence_parallel,
                    experts,
                    splits,
                    _orders(question, cp, dp, pp),
                    _contexts(question, cp),
                ]
                blocks.append(np.array(list(product(*axes)), dtype=np.int64).reshape(-1, len(axes)))
    table = np.concatenate([np.empty((0, 9), dtype=np.int64), *blocks])
    tp_N, pp_N, cp_N, dp_N, sp_N, ep_N, etp_N, order_N, context_N = np.ascontiguousarray(table.T)

    def everywhere(value: int) -> Ints:
        return np.broadcast_to(np.int64(value), tp_N.shape)

    return LayoutColumns(
        tp=tp_N,
        pp=pp_N,
        cp=cp_N,
        dp=dp_N,
        mbs=everywhere(1),
        sp=sp_N,
        ep=ep_N,
        etp=etp_N,
        order=order_N,
        context=context_N,
        vpp=everywhere(1),
        schedule=everywhere(ONE_CHUNK),
        zero=everywhere(0),
        shard=dp_N * cp_N,
    )


def _microbatch_sizes(
    question: Question, restrictions: Restrictions, cores: LayoutColumns
) -> tuple[Ints, Ints]:
    """The core and the size, for every microbatch size that each core's share of the batch divides into."""
    of_degree = {}
    for dp in np.unique(cores.dp).tolist():
        sizes = np.array(divisors(question.training.global_batch // dp), dtype=np.int64)
        of_degree[dp] = sizes[restrictions.permits("mbs", sizes)]
    own = [of_degree[dp] for dp in cores.dp.tolist()]
    core = np.repeat(np.arange(len(cores)), [len(sizes) for sizes in own])
    return core, np.concatenate([np.empty(0, dtype=np.int64), *own])


def _orders(question: Question, cp: int, dp: int, pp: int) -> list[int]:
    """Those of the software stack, each seating of the ranks once."""
    seats = same_seats(cp, dp, pp)
    return sorted({seats[ORDERS.index(order)] for order in question.stack.axis_orders})


def _contexts(question: Question, cp: int) -> list[int]:
    """Those of the software stack, its usual way without its name."""
    if cp == 1:
        return [USUAL_CONTEXT]
    others = [way for way in question.stack.context_kinds if way != question.stack.context_parallel]
    return [USUAL_CONTEXT, *(CONTEXTS.index(way) for way in others)]


def _legal_at_any_stage(question: Question, restrictions: Restrictions, cores: LayoutColumns) -> Bools:
    """(N,): which cores are legal with some ZeRO stage over all ranks."""
    legal = np.zeros(len(cores), dtype=np.bool_)
    for start in range(0, len(cores), ROWS_TOGETHER):
        some = np.arange(start, min(start + ROWS_TOGETHER, len(cores)))
        for zero in question.stack.zero_stages:
            left = some[~legal[some]]
            rows = replace(cores.rows(left), zero=np.full(len(left), zero))
            legal[left] = _legal(question, restrictions, rows)
    return legal


def _legal(question: Question, restrictions: Restrictions, rows: LayoutColumns) -> Bools:
    """(N,): which rows keep to restrictions and rules, those of the schedule aside."""
    legal = allowed_rows(question, restrictions, rows)
    left = np.flatnonzero(legal)
    legal[left] = legal_rows(question, rows.rows(left), scheduled=False)
    return legal


def _variants(question: Question, restrictions: Restrictions, families: LayoutColumns) -> tuple[Ints, ...]:
    """(V, 2) the legal variants of each family."""
    family: list[int] = []
    zero: list[int] = []
    shard: list[int] = []
    for index, replicas in enumerate(families.replicas.tolist()):
        groups = divisors(replicas)[1:] if question.stack.hybrid_shard else [replicas]
        for stage in question.stack.zero_stages:
            own = groups if stage else [replicas]
            family += [index] * len(own)
            zero += [stage] * len(own)
            shard += own
    rows = families.rows(np.array(family, dtype=np.int64))
    rows = replace(rows, zero=np.array(zero, dtype=np.int64), shard=np.array(shard, dtype=np.int64))
    legal = np.flatnonzero(_legal(question, restrictions, rows))
    both = np.stack([rows.zero, rows.shard], axis=1)[legal]
    borders = np.searchsorted(np.array(family, dtype=np.int64)[legal], np.arange(1, len(families)))
    return tuple(np.split(both, borders)) if len(families) else ()


def _shapes(
    question: Question, restrictions: Restrictions, pipelines: LayoutColumns, variants: list[Ints]
) -> tuple[tuple[Ints, ...], ...]:
    """(K, 2) the legal shapes of each pipeline, for each ZeRO stage its first core has."""
    model, policies = question.model, set(restrictions.recompute(question.training))
    runs = [schedule for schedule in question.stack.schedules if policies & set(allowed_recompute(schedule))]
    pipeline, stage, shape, shard = [], [], [], []
    for index, pp in enumerate(pipelines.pp.tolist()):
        own = [(1, ONE_CHUNK)]
        if pp > 1:
            chunks = range(1, (model.num_layers + ENDS) // pp + 1)
            own = [
                (vpp, SCHEDULES.index(schedule))
                for schedule in runs
                for vpp in chunks
                if goes_with(schedule, vpp) and covers(schedule, model.num_layers, pp * vpp)
            ]
        for zero in range(ZERO_STAGES):
            groups = variants[index][variants[index][:, 0] == zero, 1]
            known = int(groups[0]) if len(groups) else int(pipelines.replicas[index])
            pipeline += [index] * len(own)
            stage += [zero] * len(own)
            shard += [known] * len(own)
            shape += own
    rows = replace(
        pipelines.rows(np.array(pipeline, dtype=np.int64)),
        zero=np.array(stage, dtype=np.int64),
        shard=np.array(shard, dtype=np.int64),
        vpp=np.array([vpp for vpp, _ in shape], dtype=np.int64),
        schedule=np.array([schedule for _, schedule in shape], dtype=np.int64),
    )
    legal = allowed_rows(question, restrictions, rows)
    left = np.flatnonzero(legal)
    legal[left] = legal_rows(question, rows.rows(left))
    table = np.array(shape, dtype=np.int64).reshape(-1, 2)
    of_pipeline, of_stage = np.array(pipeline, dtype=np.int64), rows.zero
    borders = np.searchsorted(
        of_pipeline * ZERO_STAGES + of_stage, np.arange(len(pipelines) * ZERO_STAGES + 1)
    )
    return tuple(
        tuple(
            table[begin:end][legal[begin:end]]
            for begin, end in zip(
                borders[index * ZERO_STAGES : (index + 1) * ZERO_STAGES],
                borders[index * ZERO_STAGES + 1 : (index + 1) * ZERO_STAGES + 1],
                strict=True,
            )
        )
        for index in range(len(pipelines))
    )


def divisors(number: int) -> list[int]:
    """In rising order."""
    small = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    return sorted({*small, *(number // d for d in small)})
