"""All legal layouts of a model on a cluster within the user's restrictions, as combinations of three parts
(core, variant and shape).

    core      all other axes: tp pp cp dp ep etp mbs sp, the order of the axes, the way of context parallelism ...
    variant   zero and shard
    shape     vpp and schedule

A layout is one of each. Candidate cores are every mesh of the GPUs with all values of the other axes, before
rules apply. The legal variants of a core depend only on its axes that affect `states`; the legal shapes on
those that affect `pipeline`, on its number of microbatches and the ZeRO stage. Rules are checked once for
each such case, so layouts are counted without being written out, and the search writes out those it needs.

A cloud of layouts with quick prices (`balanced_prices`) is for plots and for candidates of a spot check.

`SpaceCache` holds the spaces of one answer, many of whose searches cover the same layouts with another memory
limit or other recompute policies.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import chain, compress, product
from typing import Any, NamedTuple

import numpy as np

from cost_models.arrays import Array, Bools, Ints
from cost_models.axes.columns import COLUMNS, LayoutColumns, first_of_each
from cost_models.axes.layout import AXES, ZERO_STAGES, Layout
from cost_models.axes.rule import unbroken
from cost_models.axes.stages import ENDS, allowed_recompute, policy_mask
from cost_models.pipeline.pricing import scenarios_of
from cost_models.pipeline.stage_costs import stage_costs
from cost_models.question import Question
from cost_models.risk import EVEN
from cost_models.schedules.registry import SPLIT_BACKWARD, schedule_named
from cost_models.specs.choices import SCHEDULES, Schedule
from cost_models.specs.kinds import Kinds
from planner.placement.patterns import covers
from planner.placement.rank_costs import RankCosts, groups_of
from planner.rules.legality import LATE_RULES, SIZED_RULES, legal_rows
from planner.space.axes import (
    CLOSED,
    COUNTS,
    VALUES,
    Boxes,
    Mesh,
    columns_that_affect,
    counts_of,
    divisors,
    with_counts,
)
from planner.space.limits import needless_rows, tried_tensor_degrees
from planner.space.restrictions import Restrictions, allowed_rows

ONE_CHUNK = SCHEDULES.index("1f1b")
"""Schedule index that stands for all pipeline shapes where these do not matter."""
_COLUMNS = (*Mesh._fields, *chain.from_iterable(AXES[name].columns(name) for name in VALUES))


@dataclass(frozen=True, slots=True)
class Groups:
    """Table of integers, C columns wide, whose T rows lie in G consecutive groups."""

    rows: Ints
    """Rows of the table, (T, C)."""
    sizes: Ints
    """Number of table rows in each group, (G,)."""

    @property
    def of_rows(self) -> Ints:
        """Index of the group to which each row belongs, (T,)."""
        return np.repeat(np.arange(len(self.sizes)), self.sizes)

    def rows_of(self, groups: Ints) -> tuple[Ints, Ints]:
        """For each row of some groups, the position of its group in `groups`, (M,), and the row itself, (M,
        C)."""
        size = self.sizes[groups]
        index = np.repeat(np.arange(len(groups)), size)
        begin = np.cumsum(self.sizes) - self.sizes
        first = np.repeat(begin[groups] - np.cumsum(size) + size, size)
        return index, self.rows[first + np.arange(len(index))]


def candidate_cores(question: Question, limits: Restrictions) -> LayoutColumns:
    """List the cores (layouts without microbatch size, ZeRO and schedule), legal or not, whose degrees divide
    the GPUs, batch and experts."""

    permitted = cache(limits.permitted)

    def inside(name: str, mesh: Mesh) -> list[tuple[int, ...]]:
        """Values of an axis to try in a mesh (degrees of tp, pp, cp and dp), each a tuple with one number for
        each column of the axis.

        An axis of several columns, one whose values may mean the same and one that may say nothing are left to the
        restrictions on whole layouts.
        """
        if name in CLOSED and not limits.opens(name):
            return [tuple(word.simplest for word in AXES[name].columns(name).values())]
        values = VALUES[name](question, mesh)
        if name not in COLUMNS or name in ("order", "context"):
            return [value if isinstance(value, tuple) else (value,) for value in values]
        requested = {*values, *limits.only.get(name, ())}
        return [(value,) for value in permitted(name, tuple(sorted(requested)))]

    gpus, training = question.cluster.num_gpus, question.training
    meshes = (
        Mesh(tp, pp, cp, dp)
        for tp in tried_tensor_degrees(question, limits)
        for cp in permitted("cp", tuple(divisors(gpus // tp)))
        if training.sequence_length % cp == 0 and (cp == 1 or question.stack.context_kinds)
        for pp in permitted("pp", tuple(divisors(gpus // (tp * cp))))
        for dp in permitted("dp", (gpus // (tp * cp * pp),))
        if pp <= question.model.num_layers and training.global_batch % dp == 0
    )
    rows = chain.from_iterable(product([mesh], *(inside(name, mesh) for name in VALUES)) for mesh in meshes)
    numbers = np.fromiter(chain.from_iterable(chain.from_iterable(rows)), dtype=np.int64)
    table = np.ascontiguousarray(numbers.reshape(-1, len(_COLUMNS)).T)

    def everywhere(value: int) -> Ints:
        """Column with the same value in every row."""
        return np.broadcast_to(np.int64(value), table.shape[1:])

    simplest = {name: everywhere(word.simplest) for name, word in COLUMNS.items()}
    cores = LayoutColumns(**simplest | dict(zip(_COLUMNS, table, strict=True)))
    return replace(cores, shard=cores.replicas, schedule=everywhere(ONE_CHUNK))


def sized_cores(question: Question, limits: Restrictions, cores: LayoutColumns) -> tuple[Ints, LayoutColumns]:
    """Combine each core (layout without microbatch size, ZeRO and schedule) with every legal microbatch size;
    return the index of its core, (N,), and the combination. Sizes divide the share of the batch of a
    data-parallel rank."""
    of_degree = {}
    for dp in np.unique(cores.dp).tolist():
        sizes = limits.permitted("mbs", divisors(question.training.global_batch // dp))
        of_degree[dp] = sorted({*sizes[:1], *sizes[-1:]}) if limits.extreme_mbs else sizes
    sizes_of_core = [of_degree[dp] for dp in cores.dp.tolist()]
    core = np.repeat(np.arange(len(cores)), [len(sizes) for sizes in sizes_of_core])
    sized = replace(cores.rows(core), mbs=np.fromiter(chain.from_iterable(sizes_of_core), dtype=np.int64))
    legal = np.flatnonzero(unbroken(SIZED_RULES, question, sized))
    return core[legal], sized.rows(legal)


ROWS_TOGETHER = 200_000
"""Maximum number of rows that rules check in one batch, which bounds memory."""


def variants_of(question: Question, limits: Restrictions, families: LayoutColumns) -> Groups:
    """List the legal ZeRO stages and shard sizes of each family (cores with equal model states). Values that
    are redundant at the highest counts of offloaded blocks are left out."""
    is_hybrid = question.stack.hybrid_shard
    tried = [
        (family, zero, shard)
        for family, replicas in enumerate(families.replicas.tolist())
        for zero in question.stack.zero_stages
        for shard in (divisors(replicas)[1:] if zero and is_hybrid else [replicas])
    ]
    family, zero, shard = np.ascontiguousarray(np.array(tried, dtype=np.int64).reshape(-1, 3).T)
    rows = replace(families.rows(family), zero=zero, shard=shard)
    legal = legal_within(question, limits, rows)
    if limits.named_axes.isdisjoint(COUNTS):
        rows = with_counts(rows, Boxes.from_minimum(question, rows).high)
    legal &= ~needless_rows(question, limits, rows)
    sizes = np.bincount(family[legal], minlength=len(families))
    return Groups(np.stack([zero, shard], axis=1)[legal], sizes)


def legal_within(question: Question, limits: Restrictions, x: LayoutColumns, shaped: bool = False) -> Bools:
    """Whether each layout satisfies the restrictions and the rules of legality, (N,). Rules on schedule and
    microbatch size are checked only if `shaped`."""
    legal = allowed_rows(question, limits, x)
    remaining = np.flatnonzero(legal)
    legal[remaining] = legal_rows(question, x.rows(remaining), shaped=shaped, hosts=False)
    return legal


def legal_at_any_stage(question: Question, limits: Restrictions, cores: LayoutColumns) -> Bools:
    """Whether each core (layout without ZeRO stage and schedule) is legal with at least one ZeRO stage,
    sharded over all ranks, (N,)."""
    legal = np.zeros(len(cores), dtype=np.bool_)
    for start in range(0, len(cores), ROWS_TOGETHER):
        batch = np.arange(start, min(start + ROWS_TOGETHER, len(cores)))
        for zero in question.stack.zero_stages:
            remaining = batch[~legal[batch]]
            rows = replace(cores.rows(remaining), zero=np.full(len(remaining), zero))
            legal[remaining] = legal_within(question, limits, rows)
    return legal


def schedules_run(question: Question, limits: Restrictions) -> list[Schedule]:
    """Schedules of the question's stack that run under some recompute policy that the restrictions permit."""
    policies = set(limits.recompute(question))
    return [name for name in question.stack.schedules if policies & set(allowed_recompute(name))]


def shapes_of(question: Question, limits: Restrictions, pipelines: LayoutColumns, shards: Ints) -> Groups:
    """List the legal pairs of vpp and schedule, a group for each pipeline and ZeRO stage. Rules are checked
    with the shard groups `shards` (K, Z)."""
    layers, runs = question.model.num_layers, schedules_run(question, limits)

    @cache
    def tried_shapes(pp: int) -> list[tuple[int, int]]:
        """Pipeline shapes (chunks per rank, index of the schedule) to try with pp ranks."""
        chunks = range(1, (layers + ENDS) // pp + 1)
        shapes = [
            (vpp, SCHEDULES.index(schedule))
            for schedule, vpp in product(runs, chunks)
            if schedule_named(schedule).runs_chunks(vpp) and covers(schedule, layers, pp * vpp)
        ]
        return shapes if pp > 1 else [(1, ONE_CHUNK)]

    tried = [
        (pipeline, zero, *shape)
        for pipeline, pp in enumerate(pipelines.pp.tolist())
        for zero in range(ZERO_STAGES)
        for shape in tried_shapes(pp)
    ]
    pipeline, zero, vpp, schedule = np.ascontiguousarray(np.array(tried, dtype=np.int64).reshape(-1, 4).T)
    shard, group = shards[pipeline, zero], pipeline * ZERO_STAGES + zero
    rows = replace(pipelines.rows(pipeline), zero=zero, shard=shard, vpp=vpp, schedule=schedule)
    legal = legal_within(question, limits, rows, shaped=True)
    sizes = np.bincount(group[legal], minlength=ZERO_STAGES * len(pipelines))
    return Groups(np.stack([vpp, schedule], axis=1)[legal], sizes)


@dataclass(frozen=True, kw_only=True)
class Space:
    """Search space of legal layouts: cores (layouts without ZeRO stage and schedule), and for each core its
    ZeRO variants and pipeline shapes."""

    question: Question
    cores: LayoutColumns
    """Cores of the space, each a layout with schedule 1f1b, ZeRO stage 0 and one shard group."""
    family: Ints
    """Index of each core's family in `variants`, (N,)."""
    variants: Groups
    """ZeRO stages and shard sizes, a group for each family (cores with equal model states)."""
    pipeline: Ints
    """Index of each core's pipeline, (N,), whose shapes at ZeRO stage z are group `pipeline` · `ZERO_STAGES`
    + z."""
    shapes: Groups
    """Pairs of vpp and schedule, a group for each pipeline and ZeRO stage."""
    counts: Boxes
    """Ranges of the numbers of offloaded blocks that each of N cores stands for; the core itself has the
    minimum."""

    def __len__(self) -> int:
        """Total number of layouts."""
        return int(self.sizes.sum())

    @cached_property
    def _stages(self) -> Ints:
        """Number of ZeRO variants of each family with each ZeRO stage, (F, Z)."""
        stage = self.variants.of_rows * ZERO_STAGES + self.variants.rows[:, 0]
        return np.bincount(stage, minlength=len(self.variants.sizes) * ZERO_STAGES).reshape(-1, ZERO_STAGES)

    @cached_property
    def sizes(self) -> Ints:
        """Number of layouts of each core, (N,)."""
        shapes, counts = self.shapes.sizes.reshape(-1, ZERO_STAGES), np.zeros(len(self.cores), dtype=np.int64)
        for zero in np.flatnonzero(self._stages.any(axis=0) & shapes.any(axis=0)).tolist():
            counts += self._stages[:, zero][self.family] * shapes[:, zero][self.pipeline]
        return counts * self.counts.layouts

    def with_question(self, question: Question, *, keeps_memo: bool = False) -> Space:
        """Copy of the space for a question that differs only in rates, memory sizes and minimum probability
        of fitting, which no rule of legality reads. With `keeps_memo`, for a difference in confidence alone,
        the copy shares the memo."""
        space = replace(self, question=question)
        shared = ["sizes", "microbatches", "may_have_empty_stage", *["memo"] * keeps_memo]
        vars(space).update({name: getattr(self, name) for name in shared})
        return space

    @cached_property
    def memo(self) -> dict[Any, Any]:
        """Cache of bounds and costs of the cores, filled by `planner.bounds.cores`."""
        return {}

    def of_cores(self, mask: Bools) -> Space:
        """Copy of the space with only the cores where a mask (N,) is true."""
        index = np.flatnonzero(mask)
        return self._with_cores(self.cores.rows(index), index, self.counts.rows(index))

    def _with_cores(self, cores: LayoutColumns, index: Ints, counts: Boxes) -> Space:
        """Copy of the space with other cores, which have the variants and shapes of the cores at `index`."""
        family, pipeline = self.family[index], self.pipeline[index]
        return replace(self, cores=cores, family=family, pipeline=pipeline, counts=counts)

    @cached_property
    def microbatches(self) -> Ints:
        """Number of microbatches of each core, (N,)."""
        return self.cores.microbatches(self.question.training.global_batch)

    @cached_property
    def may_have_empty_stage(self) -> Bools:
        """Whether each core can have more pipeline stages than blocks, so that the first stage has none, (N,)."""
        most_chunks = np.ones(len(self.shapes.sizes) // ZERO_STAGES, dtype=np.int64)
        np.maximum.at(most_chunks, self.shapes.of_rows // ZERO_STAGES, self.shapes.rows[:, 0])
        return self.cores.pp * most_chunks[self.pipeline] > self.question.model.num_layers

    @cached_property
    def in_scenarios(self) -> tuple[Space, ...]:
        """Copies of the space, one for each hardware scenario that the question's risk weighs; empty without
        scenarios."""
        return tuple(replace(self, question=one) for one in scenarios_of(self.question))

    @cached_property
    def splits_backward(self) -> bool:
        """Whether some schedule of the space splits backward passes."""
        return any(SCHEDULES[index] in SPLIT_BACKWARD for index in np.unique(self.shapes.rows[:, 1]).tolist())

    def zero_stages_of(self, cores: Ints) -> list[tuple[int, Bools]]:
        """ZeRO stages that occur in the given cores, each with a mask of the cores that have it, (N,)."""
        own_NZ = self._stages[self.family[cores]] > 0
        return [(zero, own_NZ[:, zero]) for zero in range(ZERO_STAGES) if own_NZ[:, zero].any()]

    def rows(self, core: Ints, choice: Ints) -> LayoutColumns:
        """Layout columns of N cores combined with the zero, shard, vpp and schedule of `choice`, (N, 4), and
        the minimum of offloaded blocks."""
        zero, shard, vpp, schedule = choice.T
        return replace(self.cores.rows(core), zero=zero, shard=shard, vpp=vpp, schedule=schedule)

    def smallest_rows(self) -> tuple[Ints, LayoutColumns]:
        """For every core and ZeRO stage, the index of the core, (N,), and the layout that needs least memory.
        It is sharded over all ranks, with the minimum of offloaded blocks.

        In 1f1b, or where a pipeline cannot run that (it has few microbatches, or was fixed) in its first shape.
        """
        shapes, group = self.shapes.rows, self.shapes.of_rows
        last_first = np.lexsort((shapes[:, 1], shapes[:, 0], shapes[:, 1] != ONE_CHUNK, group))[::-1]
        simplest = np.full(len(self.shapes.sizes), -1)
        simplest[group[last_first]] = last_first
        simplest_NZ = simplest.reshape(-1, ZERO_STAGES)[self.pipeline]
        shape_NZ = np.where(self._stages[self.family] > 0, simplest_NZ, -1)
        zero, core = np.nonzero(shape_NZ.T >= 0)
        choice = np.column_stack([zero, self.cores.replicas[core], shapes[shape_NZ[core, zero]]])
        return core, self.rows(core, choice)

    def all_rows(self) -> LayoutColumns:
        """Layout columns of every layout in the space, with every combination of numbers of offloaded
        blocks."""
        space = self
        if not self.counts.is_single.all():
            index, cores, counts = self.counts.singles(self.cores)
            space = self._with_cores(cores, index, counts)
        return space.rows(*space.choices_of(np.arange(len(space.cores))))

    def choices_of(self, cores: Ints) -> tuple[Ints, Ints]:
        """List every layout of the given cores: the index of its core, (N,), and its zero, shard, vpp and
        schedule, (N, 4)."""
        core, variant = self.variants.rows_of(self.family[cores])
        of_variant, shape = self.shapes.rows_of(self.pipeline[cores[core]] * ZERO_STAGES + variant[:, 0])
        return cores[core[of_variant]], np.column_stack([variant[of_variant], shape])


def legal_space(question: Question, limits: Restrictions) -> Space:
    """Create the space of all layouts that satisfy the rules of `planner.rules.legality` and the
    restrictions, or take it from the shared cache. Rules that need prices are applied when layouts are
    priced."""
    return shared_spaces().of(question, limits)


def _legal_space(question: Question, limits: Restrictions) -> Space:
    """Create the space of all legal layouts within the restrictions."""
    cores = candidate_cores(question, limits)
    counts = Boxes.from_minimum(question, cores)
    if not limits.named_axes.isdisjoint(COUNTS):
        _, cores, counts = counts.singles(cores)
    core_limits = limits.without(("zero", "shard", "vpp", "schedule", "mbs"))
    legal = np.flatnonzero(legal_at_any_stage(question, core_limits, cores))
    core, cores = sized_cores(question, limits, cores.rows(legal))
    # a family is equal in all columns that affect model states; microbatch sizes matter to activations on hosts
    keys = [getattr(cores, name) for name in columns_that_affect("states")]
    first, family = first_of_each([*keys, np.where(cores.offload_activations > 0, cores.mbs, 0)])
    variants = variants_of(question, limits.without(("vpp", "schedule", "mbs")), cores.rows(first))
    shard_FZ = np.zeros((len(first), ZERO_STAGES), dtype=np.int64)
    zero, shard = variants.rows[::-1].T  # the first of each stage last
    shard_FZ[variants.of_rows[::-1], zero] = shard
    stages = (shard_FZ > 0) @ (1 << np.arange(ZERO_STAGES))
    keys = [getattr(cores, name) for name in columns_that_affect("pipeline") if name not in COUNTS]
    keys += [*(counts_of(cores) > 0).T]  # the count affects no shape
    microbatches = cores.microbatches(question.training.global_batch)
    first, pipeline = first_of_each([*keys, microbatches, stages[family]])
    shards = shard_FZ[family[first]]
    shards = np.where(shards > 0, shards, cores.replicas[first, None])
    space = Space(
        question=question,
        cores=cores,
        family=family,
        variants=variants,
        pipeline=pipeline,
        shapes=shapes_of(question, limits, cores.rows(first), shards),
        counts=counts.rows(legal[core]),
    )
    filled = space.sizes > 0
    return space if filled.all() else space.of_cores(filled)


def enumerate_layouts(question: Question, limits: Restrictions) -> LayoutColumns:
    """List every legal layout of a small question as columns, except layouts that overflow hosts or drives or
    use a drive needlessly."""
    rows = legal_space(question, limits).all_rows()
    is_covered = unbroken(LATE_RULES, question, rows) & ~needless_rows(question, limits, rows)
    return rows.rows(np.flatnonzero(is_covered))


MOST_ROWS = 20_000
"""Maximum number of layouts in a sample for a plot; if there are more, every n-th is taken."""


def cloud(question: Question, limits: Restrictions, like: Layout) -> LayoutColumns:
    """Sample legal layouts within the restrictions for a plot, on few axes. Degrees cp and ep are 1 or as in
    the plan `like`, and etp, shard and order keep their defaults, unless the user restricts them."""
    degrees = {axis: frozenset({1, getattr(like, axis)}) for axis in ("cp", "ep")}
    plain = frozenset({"etp", "shard", "order"}) - limits.named_axes
    only = {axis: values for axis, values in degrees.items() if axis not in limits.named_axes}
    limits = replace(limits, only={**limits.only, **only}, unused=limits.unused | plain)
    columns = enumerate_layouts(question, limits)
    stride = max(1, -(-len(columns) // MOST_ROWS))
    return columns.rows(np.arange(0, len(columns), stride))


class BalancedPrices(NamedTuple):
    """Step seconds and peak bytes of layouts with evenly spread blocks, (N, P) each; seconds are infinite under
    policies that the training spec forbids."""

    step_seconds: Array
    peak_bytes: Array


def balanced_prices(question: Question, x: LayoutColumns) -> BalancedPrices:
    """Quick prices (step time and peak memory) of N legal layouts with evenly spread blocks, under each
    recompute policy. They serve plots and candidates, not proofs.

    Blocks are divided evenly, in fractions if necessary, with one recompute policy everywhere, and the pipeline
    is that of a slowest rank,

        step = m · T_slowest + (Σ T − T_slowest) / v + transfers there and back + synchronisation + optimizer

    (T: one microbatch, forward and backward, on one rank), which is the timeline of GPipe and 1F1B for equal
    ranks.

    Shape legend: N layouts, R ranks, P recompute policies in the order of `RECOMPUTE_POLICIES`.
    """
    costs = replace(stage_costs(question, x), kinds=())  # costs of mean blocks
    allowed = policy_mask(question.training.recompute)
    seconds = np.full((len(x), len(allowed)), np.inf)
    size, one_kind = np.full_like(seconds, np.inf), Kinds((0,) * question.model.num_layers)
    for rows in groups_of(x):
        group = replace(RankCosts.of_rows(question, x.rows(rows), costs.rows(rows), allowed), kinds=one_kind)
        seconds[rows], size[rows] = _step_seconds(group), _peak_bytes(group)
    return BalancedPrices(seconds, size)


def _step_seconds(group: RankCosts) -> Array:
    """Step time of layouts with evenly spread blocks, by the formula of `balanced_prices`, seconds (N, P)."""
    blocks = group.num_layers / group.pp
    rank_NRP = group.fixed_seconds[..., None] + blocks * group.by_rank(group.block_seconds)
    slowest_NP, all_NP = rank_NRP.max(axis=1), rank_NRP.sum(axis=1)
    fill_NP = np.where(np.isinf(slowest_NP), np.inf, all_NP - np.where(np.isinf(slowest_NP), 0.0, slowest_NP))
    tail_N = group.cycle_delay + group.tail(np.full(len(group.costs), blocks))
    seconds: Array = group.microbatches[:, None] * slowest_NP + fill_NP / group.vpp + tail_N[:, None]
    return seconds


def _peak_bytes(group: RankCosts) -> Array:
    """Peak bytes of the fullest rank with evenly spread blocks, in training or in the optimizer step, (N, P)."""
    x, blocks = group.costs, group.num_layers / group.pp
    fixed_NR = x.memory_limit[:, None] - group.free_bytes
    static_NR = fixed_NR + blocks * x.layer_static[:, None]
    kept_NRP = group.live.sum(axis=-1)[..., None] * (blocks / group.vpp) * x.layer_activation[:, None, :]
    training_NP = (static_NR[..., None] + kept_NRP + group.working).max(axis=1)
    update_N = x.static + x.rank_update + blocks * (x.layer_static + x.layer_update)
    ends_N = np.maximum(x.embedding_static + x.embedding_update, x.head_static + x.head_update)
    if group.pp == 1:
        ends_N = x.embedding_static + x.embedding_update + x.head_static + x.head_update
    peak: Array = np.maximum(training_NP, (update_N + ends_N)[:, None])
    return peak


_DEGREES = ("tp", "pp")
"""Names of the degrees whose restriction only selects cores of the unrestricted space."""
_MOST_CORES = 2_000_000
"""Maximum number of cores (layouts without ZeRO stage and schedule) in all cached spaces together, some 200
bytes each."""


def _key(question: Question, limits: Restrictions) -> tuple[Question, Restrictions, frozenset[str]]:
    """Cache key of a question and restrictions, without parts that no legality rule reads, such as memory
    limit and confidence. Instead of recompute policies it has the schedules that run under them."""
    runs = schedules_run(question, limits)
    free = replace(limits, max_memory=None, confidence=None, forbidden_recompute=frozenset())
    return replace(question, confidence=EVEN), free, frozenset(runs)


class SpaceCache:
    """Cache of the latest search spaces."""

    def __init__(self) -> None:
        self._entries: list[tuple[tuple[Question, Restrictions, frozenset[str]], Space]] = []

    @contextmanager
    def shared(self) -> Iterator[None]:
        """Make `legal_space` use this cache within a `with` block."""
        token = _SHARED.set(self)
        try:
            yield
        finally:
            _SHARED.reset(token)

    def of(self, question: Question, limits: Restrictions) -> Space:
        """Space of a question's legal layouts: cached, selected from a cached space of all degrees, or new."""
        key, wider_key = _key(question, limits), _key(question, limits.without(_DEGREES))
        space = next((space for known, space in self._entries if known == key), None)
        wider = next((space for known, space in self._entries if known == wider_key), None)
        if space is None and wider is not None:
            tried = [(name, getattr(wider.cores, name)) for name in _DEGREES]
            # tensor ranks over nodes are there where they are asked for alone
            if all(limits.only.get(name, frozenset()) <= {*degrees.tolist()} for name, degrees in tried):
                mask = np.logical_and.reduce([limits.permits(name, degrees) for name, degrees in tried])
                return wider.of_cores(mask).with_question(question)
        if space is None:
            space = _legal_space(question, limits)
        elif space.question != question:
            space = space.with_question(question, keeps_memo=True)
        entries = [(known, other) for known, other in self._entries if known != key]
        num_cores = np.cumsum([len(space.cores), *(len(other.cores) for _, other in entries)])
        self._entries = [(key, space), *compress(entries, num_cores[1:] <= _MOST_CORES)]
        return space


_SHARED: ContextVar[SpaceCache | None] = ContextVar("_SHARED", default=None)


def shared_spaces() -> SpaceCache:
    """Cache of search spaces of the current context, or a new cache if there is none."""
    return _SHARED.get() or SpaceCache()
