"""Whole replicas in several pools, searched exactly: every legal layout, best bound first, until none can be better.

They are searched where `--allow replicas` asks for them, after the layouts whose stages lie in the pools, whose times
they must beat; both together are one answer with one certificate. Replicas each lie in one pool and meet once a step
(`planner.rules.pools`).

All replicas have the same blocks on the same stages, so that gradients of a stage are summed over ranks that hold it.
Covered are stages as equal as the blocks allow, smaller ones at the ends, of which every one recomputes so many blocks
in full and so many selectively (`planner.placement.patterns`). Each placement has shares of microbatches of its own.

The bound adds up rates. A replica of pool k that takes n microbatches ends after e_k + n b_k at least, b_k its busiest
stage's seconds of one. In t seconds it takes (t - e_k) / b_k of them at most, and all replicas, c_k in pool k, have M:

    t >= (M + sum c_k e_k / b_k) / sum c_k / b_k        and, as each takes some,    t >= e_k + n_least b_k

Shape legend: Z placements, S stages, P recompute policies, K pools.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from cost_models.arrays import Array, Bools, Ints
from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import MOST_REPLICAS, Layout
from cost_models.axes.pipeline import even_layers
from cost_models.errors import DoesNotFitError, InfeasibleError, RunError
from cost_models.estimate import Estimate, fullest_pool, fullness
from cost_models.memory.activations import boundary_bytes
from cost_models.pipeline.estimating import estimate
from cost_models.pipeline.pipeline import Pipeline
from cost_models.pipeline.pools import (
    among_replicas,
    fewest_microbatches,
    in_pools,
    replica_terms,
    shares,
    with_microbatches,
)
from cost_models.pipeline.stage_costs import StageCosts, add_up
from cost_models.pipeline.terms import memory_terms
from cost_models.question import MixedQuestion, Question
from cost_models.schedules.registry import PLAIN, schedule_named
from cost_models.specs.choices import RECOMPUTE_POLICIES, SCHEDULES, Recompute, Schedule
from cost_models.units import format_bytes
from planner.bounds.boxes import within_late_rules
from planner.objectives import Certificate
from planner.placement.leaf import TOLERANCE, Placement, gap_of
from planner.placement.patterns import every_placement
from planner.rules.pools import ONCE_A_STEP, holds_replicas
from planner.search.branching import SearchResult, by_speed
from planner.search.candidates import joined
from planner.space.limits import limits_in_words
from planner.space.restrictions import Restrictions
from planner.space.space import legal_space

REPLICAS = "replicas"
"""What `--allow` opens."""


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
            if self.question.stack.torch_pipelining:  # else bytes hang on those that are live alone
                costs = replace(costs, **self._bytes(pool, microbatches), kinds=())
            limit = np.minimum(costs.memory_limit, self.max_memory)
            self._filled[key] = replace(
                self._pipelines[pool], costs=replace(costs, memory_limit=limit), microbatches=microbatches
            )
        return self._filled[key]

    def _bytes(self, pool: int, microbatches: int) -> dict[str, Array]:
        """Bytes of one replica by memory term, if it takes so many microbatches."""
        asked = with_microbatches(
            among_replicas(self.question.pools[pool], self.question), self.layout, microbatches
        )
        memories = memory_terms(asked, LayoutColumns.of([self.layout]))
        return add_up(memories)

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
    (both) of `planner.bounds.steps`."""
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


def asks_for_replicas(question: Question, limits: Restrictions) -> bool:
    """Whether a search covers whole replicas in pools too. No trainer gives replicas unequal shares of a batch."""
    return isinstance(question, MixedQuestion) and REPLICAS in limits.allowed and limits.trainer is None


def replica_layouts(question: MixedQuestion, limits: Restrictions) -> LayoutColumns:
    """Every legal layout whose replicas each lie in one pool, at its mean number of microbatches.

    Rules that know one number of microbatches are asked with a batch that all replicas divide.
    """
    gpus, batch = question.mixed.num_gpus, question.training.global_batch
    together = math.gcd(*(pool.cluster.num_gpus for pool in question.pools))
    found = [LayoutColumns.of([Layout()]).rows(np.empty(0, dtype=np.int64))]
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
    return joined(found)


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
        if self.question.stack.torch_pipelining:  # those of the mean number of microbatches: some take fewer
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


Stages = Callable[[Restrictions, float | None], SearchResult]
"""Searches the layouts whose stages lie in the pools, in the seconds given."""
Progress = Callable[[int, int, float, float], None]


def search_replicas(
    question: MixedQuestion,
    limits: Restrictions,
    *,
    top: int,
    to_beat: Sequence[float] = (),
    time_limit: float | None = None,
    on_progress: Progress | None = None,
    keep_on_interrupt: bool = False,
) -> SearchResult:
    """The `top` fastest of them that are faster than the `top`-th of `to_beat`, perhaps none, and the proof; its bound
    is infinite where nothing fits."""
    start = time.monotonic()
    space = _space(question, limits)
    columns = space.columns
    bounds = space.bounds() if len(columns) else np.empty(0)
    best: dict[int, tuple[Placement, float]] = {}
    infeasible = decided = 0
    interrupted, order = False, np.argsort(bounds, kind="stable")

    def kth() -> float:
        times = sorted([*to_beat, *(seconds for _, seconds in best.values())])
        return times[top - 1] if len(times) >= top else math.inf

    try:
        for row in order.tolist():
            out_of_time = time_limit is not None and time.monotonic() - start > time_limit
            if bounds[row] >= kth() * (1 - TOLERANCE) or out_of_time:
                break
            found = place_replicas(space.leaf(row), kth())
            decided += 1
            if found is not None:
                best[row] = found
            infeasible += found is None and math.isinf(kth())
            if on_progress is not None:
                on_progress(decided, len(columns), kth(), float(bounds[row]))
    except KeyboardInterrupt:
        if not (keep_on_interrupt and (best or to_beat)):
            raise
        interrupted = True
    priced = [_priced(space, row, placement) for row, (placement, _) in best.items()]
    ranked = sorted(priced, key=by_speed)[:top]
    left, worst = bounds[order[decided:]], kth()
    never, undecided = int(np.isinf(left).sum()), int((left < worst * (1 - TOLERANCE)).sum())
    certificate = Certificate(
        top=top,
        space=in_words(question, space.policies),
        layouts=len(columns),
        infeasible=infeasible + never,
        pruned=len(left) - never - undecided,
        solved=decided - infeasible,
        undecided=undecided,
        bound=min([worst, *left[:1].tolist(), *(one.step_seconds for one in ranked[:1])]),
        gap=0.0,
        seconds=time.monotonic() - start,
    )
    return SearchResult(estimates=tuple(ranked), certificate=certificate, interrupted=interrupted)


def _space(question: MixedQuestion, limits: Restrictions) -> ReplicaSpace:
    columns = replica_layouts(question, limits)
    return ReplicaSpace(
        question=question,
        columns=columns,
        costs=tuple(own.costs for own in replica_terms(question, columns)) if len(columns) else (),
        policies=limits.recompute(question),
        max_memory=math.inf if limits.max_memory is None else limits.max_memory,
    )


def _priced(space: ReplicaSpace, row: int, placement: Placement) -> Estimate:
    layout = in_pools(space.question, space.columns.layout(row))
    update = {"layers": placement.layers, "recompute": placement.recompute}
    priced = estimate(space.question, Layout(**layout.model_copy(update=update).model_dump()))
    return priced.within(space.max_memory)


def search_beside_stages(
    stages: Stages,
    question: MixedQuestion,
    limits: Restrictions,
    *,
    top: int,
    time_limit: float | None,
    on_progress: Progress | None,
    keep_on_interrupt: bool,
) -> SearchResult:
    """The best layouts of both kinds.

    Raises:
        InfeasibleError: nothing fits, nor would whole replicas.
        RunError: time ran out before anything was placed.
    """
    start = time.monotonic()
    nothing: InfeasibleError | RunError | None = None
    first: SearchResult | None = None
    try:
        first = stages(replace(limits, allowed=limits.allowed - {REPLICAS}), time_limit and time_limit / 2)
    except (InfeasibleError, RunError) as error:
        nothing = error
    if first is not None and first.interrupted:
        return _together(first, None, count_replicas(question, limits), top)
    found = search_replicas(
        question,
        limits,
        top=top,
        to_beat=[one.compared_seconds for one in first.estimates] if first else (),
        time_limit=None if time_limit is None else max(0.0, time_limit - (time.monotonic() - start)),
        on_progress=on_progress,
        keep_on_interrupt=keep_on_interrupt,
    )
    if first is not None:
        return _together(first, found, 0, top)
    assert nothing is not None
    if (
        not found.estimates
        and found.certificate.layouts
        and not isinstance(nothing, DoesNotFitError | RunError)
    ):
        raise nothing_holds_replicas(question, limits)  # though no stages could lie there
    if not found.estimates:
        raise nothing
    unanswered = isinstance(nothing, RunError)
    proof = found.certificate
    update = {"bound": 0.0 if unanswered else proof.bound}
    best = found.estimates[0].compared_seconds
    update["gap"] = gap_of(best, update["bound"])
    return replace(found, certificate=proof.model_copy(update=update))


def _together(first: SearchResult, second: SearchResult | None, unasked: int, top: int) -> SearchResult:
    """One answer of both; of `unasked` layouts nothing is known."""
    results = [one for one in (first, second) if one is not None]
    estimates = sorted((one for result in results for one in result.estimates), key=by_speed)[:top]
    proofs = [one.certificate for one in results]
    bound = 0.0 if unasked else min(one.bound for one in proofs)
    counts = ("layouts", "infeasible", "pruned", "solved", "undecided", "seconds")
    sums = {name: sum(getattr(one, name) for one in proofs) for name in counts}
    best = estimates[0]
    merged = sums | {
        "space": " | ".join(one.space for one in proofs),
        "layouts": sums["layouts"] + unasked,
        "undecided": sums["undecided"] + unasked,
        "bound": bound,
        "gap": gap_of(best.compared_seconds, bound),
        "settled": None if best.replicas else first.certificate.settled,
    }
    return SearchResult(
        estimates=tuple(estimates),
        certificate=first.certificate.model_copy(update=merged),
        interrupted=any(one.interrupted for one in results),
    )
