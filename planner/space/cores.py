"""Cores of layouts: every mesh of the GPUs with the other axes that the search tries, before rules apply; and the ZeRO
stages, shard groups and shapes of a core, computed once for each family of cores that share them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain, pairwise, product

import numpy as np

from cost_models.arrays import Bools, Ints
from cost_models.axes.columns import COLUMNS, LayoutColumns, first_of_each
from cost_models.axes.layout import AXES, ZERO_STAGES
from cost_models.axes.pipeline import ENDS, goes_with
from cost_models.axes.recompute import allowed_recompute
from cost_models.question import Question
from cost_models.specs.choices import SCHEDULES
from planner.placement.chunks import covers
from planner.rules.legality import SIZED_RULES, legal_rows
from planner.space.axes import CLOSED, VALUES, Mesh, columns_that_affect, divisors
from planner.space.limits import needless_rows, tried_tensor_degrees
from planner.space.restrictions import Restrictions, allowed_rows

ONE_CHUNK = SCHEDULES.index("1f1b")
"""The shape that stands for all others where shapes do not matter."""
_COLUMNS = (*Mesh._fields, *chain.from_iterable(AXES[name].columns(name) for name in VALUES))


class _Options:
    """Values of axes that the restrictions leave to the search, cached."""

    def __init__(self, question: Question, restrictions: Restrictions) -> None:
        self._question, self._restrictions = question, restrictions
        self._permitted: dict[tuple[str, tuple[int, ...]], list[int]] = {}

    def permitted(self, axis: str, values: Sequence[int]) -> list[int]:
        """Values of a column that the restrictions permit."""
        key = (axis, tuple(values))
        if key not in self._permitted:
            numbers = np.array(values, dtype=np.int64)
            self._permitted[key] = numbers[self._restrictions.permits(axis, numbers)].tolist()
        return self._permitted[key]

    def inside(self, name: str, mesh: Mesh) -> list[tuple[int, ...]]:
        """Values of an axis's columns in a mesh.

        An axis of several columns, one whose values may mean the same and one that may say nothing are left to the
        restrictions on whole layouts.
        """
        if name in CLOSED and not self._restrictions.opens(name):
            return [tuple(word.simplest for _, word in AXES[name].columns(name).values())]
        values = VALUES[name](self._question, mesh)
        if name not in COLUMNS or name in ("order", "context"):
            return [value if isinstance(value, tuple) else (value,) for value in values]
        numbers = {value for value in values if not isinstance(value, tuple)}
        requested = self._restrictions.only.get(name, frozenset())
        return [(value,) for value in self.permitted(name, sorted(numbers | requested))]


def candidate_cores(question: Question, restrictions: Restrictions) -> LayoutColumns:
    """Cores of mbs1 from the divisors of GPUs, batch and experts; every legal one is among them."""
    options = _Options(question, restrictions)
    blocks = [np.empty((0, len(_COLUMNS)), dtype=np.int64)]
    for mesh in _meshes(question, restrictions, options):
        rows = product([mesh], *(options.inside(name, mesh) for name in VALUES))
        numbers = list(chain.from_iterable(chain.from_iterable(rows)))
        blocks.append(np.array(numbers, dtype=np.int64).reshape(-1, len(_COLUMNS)))
    table = np.ascontiguousarray(np.concatenate(blocks).T)
    tried = dict(zip(_COLUMNS, table, strict=True))

    def everywhere(value: int) -> Ints:
        return np.broadcast_to(np.int64(value), table.shape[1:])

    simplest = {name: everywhere(word.simplest) for name, word in COLUMNS.items()}
    cores = LayoutColumns(**simplest | {"schedule": everywhere(ONE_CHUNK)} | tried)
    return replace(cores, shard=cores.replicas)


def _meshes(question: Question, restrictions: Restrictions, options: _Options) -> Iterator[Mesh]:
    """Permitted meshes that batch, sequence and number of blocks allow."""
    cluster = question.cluster
    for tp in tried_tensor_degrees(question, restrictions):
        for cp in options.permitted("cp", divisors(cluster.num_gpus // tp)):
            if question.training.sequence_length % cp or (cp > 1 and not question.stack.context_kinds):
                continue
            for pp in options.permitted("pp", divisors(cluster.num_gpus // (tp * cp))):
                dp = cluster.num_gpus // (tp * cp * pp)
                room = pp <= question.model.num_layers and question.training.global_batch % dp == 0
                if room and options.permitted("dp", [dp]):
                    yield Mesh(tp, pp, cp, dp)


def microbatch_sizes(
    question: Question, restrictions: Restrictions, cores: LayoutColumns
) -> tuple[Ints, LayoutColumns]:
    """Index of the core, (N,), and the core itself with every legal microbatch size that divides its share of the
    batch."""
    of_degree = {}
    for dp in np.unique(cores.dp).tolist():
        sizes = np.array(divisors(question.training.global_batch // dp), dtype=np.int64)
        sizes = sizes[restrictions.permits("mbs", sizes)]
        of_degree[dp] = np.union1d(sizes[:1], sizes[-1:]) if restrictions.extreme_mbs else sizes
    sizes_of_core = [of_degree[dp] for dp in cores.dp.tolist()]
    core = np.repeat(np.arange(len(cores)), [len(sizes) for sizes in sizes_of_core])
    sized = replace(cores.rows(core), mbs=np.concatenate([np.empty(0, dtype=np.int64), *sizes_of_core]))
    legal = np.flatnonzero(~np.any([rule.broken(question, sized) for rule in SIZED_RULES], axis=0))
    return core[legal], sized.rows(legal)


ROWS_TOGETHER = 200_000
"""Rows that rules check at once: bounds memory."""


def families_of(cores: LayoutColumns, core: Ints, sized: LayoutColumns) -> tuple[LayoutColumns, Ints]:
    """One layout of every family, and (N,) the family of (N,) `sized` cores with their microbatch sizes, where
    these matter, as host memory may hold the activations; `core` says which of the cores each is."""
    if not (cores.offload_activations > 0).any():
        first, family = first_of_each([getattr(cores, name) for name in columns_that_affect("states")])
        return cores.rows(first), family[core]
    columns = [getattr(sized, name) for name in columns_that_affect("states")]
    first, family = first_of_each([*columns, np.where(sized.offload_activations > 0, sized.mbs, 0)])
    return sized.rows(first), family


def variants_of(
    question: Question, restrictions: Restrictions, families: LayoutColumns, fullest: LayoutColumns
) -> tuple[Ints, ...]:
    """Legal variants of each family, (V, 2) each; redundant variants are left out if they are redundant even in
    `fullest`, the families with their highest counts of blocks."""
    family: list[int] = []
    zero: list[int] = []
    shard: list[int] = []
    for index, replicas in enumerate(families.replicas.tolist()):
        groups = divisors(replicas)[1:] if question.stack.hybrid_shard else [replicas]
        for stage in question.stack.zero_stages:
            groups_of = groups if stage else [replicas]
            family += [index] * len(groups_of)
            zero += [stage] * len(groups_of)
            shard += groups_of
    rows = families.rows(np.array(family, dtype=np.int64))
    variants = {"zero": np.array(zero, dtype=np.int64), "shard": np.array(shard, dtype=np.int64)}
    full = replace(fullest.rows(np.array(family, dtype=np.int64)), **variants)
    rows = replace(rows, **variants)
    allowed = legal_unscheduled(question, restrictions, rows)
    allowed &= ~needless_rows(question, restrictions, full)
    legal = np.flatnonzero(allowed)
    table = np.stack([rows.zero, rows.shard], axis=1)[legal]
    borders = np.searchsorted(np.array(family, dtype=np.int64)[legal], np.arange(1, len(families)))
    return tuple(np.split(table, borders)) if len(families) else ()


def legal_unscheduled(question: Question, restrictions: Restrictions, rows: LayoutColumns) -> Bools:
    """Rows that satisfy restrictions and rules, (N,), except rules on the schedule and on the microbatch size."""
    legal = allowed_rows(question, restrictions, rows)
    remaining = np.flatnonzero(legal)
    legal[remaining] = legal_rows(question, rows.rows(remaining), shaped=False, hosts=False)
    return legal


def legal_at_any_stage(question: Question, restrictions: Restrictions, cores: LayoutColumns) -> Bools:
    """Cores that are legal with some ZeRO stage over all ranks, (N,)."""
    legal = np.zeros(len(cores), dtype=np.bool_)
    for start in range(0, len(cores), ROWS_TOGETHER):
        batch = np.arange(start, min(start + ROWS_TOGETHER, len(cores)))
        for zero in question.stack.zero_stages:
            remaining = batch[~legal[batch]]
            rows = replace(cores.rows(remaining), zero=np.full(len(remaining), zero))
            legal[remaining] = legal_unscheduled(question, restrictions, rows)
    return legal


def shapes_of(
    question: Question, restrictions: Restrictions, pipelines: LayoutColumns, variants: list[Ints]
) -> tuple[tuple[Ints, ...], ...]:
    """Legal shapes of each pipeline, (K, 2) for each ZeRO stage of its first core."""
    model, policies = question.model, set(restrictions.recompute(question))
    runs = [schedule for schedule in question.stack.schedules if policies & set(allowed_recompute(schedule))]
    pipeline, stage, shape, shard = [], [], [], []
    for index, pp in enumerate(pipelines.pp.tolist()):
        pairs = [(1, ONE_CHUNK)]
        if pp > 1:
            chunks = range(1, (model.num_layers + ENDS) // pp + 1)
            pairs = [
                (vpp, SCHEDULES.index(schedule))
                for schedule in runs
                for vpp in chunks
                if goes_with(schedule, vpp) and covers(schedule, model.num_layers, pp * vpp)
            ]
        for zero in range(ZERO_STAGES):
            groups = variants[index][variants[index][:, 0] == zero, 1]
            group = int(groups[0]) if len(groups) else int(pipelines.replicas[index])
            pipeline += [index] * len(pairs)
            stage += [zero] * len(pairs)
            shard += [group] * len(pairs)
            shape += pairs
    rows = replace(
        pipelines.rows(np.array(pipeline, dtype=np.int64)),
        zero=np.array(stage, dtype=np.int64),
        shard=np.array(shard, dtype=np.int64),
        vpp=np.array([vpp for vpp, _ in shape], dtype=np.int64),
        schedule=np.array([schedule for _, schedule in shape], dtype=np.int64),
    )
    legal = allowed_rows(question, restrictions, rows)
    remaining = np.flatnonzero(legal)
    legal[remaining] = legal_rows(question, rows.rows(remaining), hosts=False)
    table = np.array(shape, dtype=np.int64).reshape(-1, 2)
    of_pipeline, of_stage = np.array(pipeline, dtype=np.int64), rows.zero
    borders = np.searchsorted(
        of_pipeline * ZERO_STAGES + of_stage, np.arange(len(pipelines) * ZERO_STAGES + 1)
    )
    legal_K = [table[begin:end][legal[begin:end]] for begin, end in pairwise(borders.tolist())]
    return tuple(
        tuple(legal_K[index * ZERO_STAGES : (index + 1) * ZERO_STAGES]) for index in range(len(pipelines))
    )
