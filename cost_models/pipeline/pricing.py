"""Prediction of step time, memory, uncertainty and traffic of one layout, from a placement of its blocks on
stages and the start and end of each action.

**The step** follows the docstring of `stage_costs`. Its parts are those of the busiest rank; the remainder is
divided into exposed transfers between stages (`pp_comm`: the timeline with and without its delay) and waiting
(`bubble`). The spans of a rank are

    passes      as in the schedule's timeline
    sync        gradients reduced after the rank's last pass
    offload     exposed moves to and from host memory
    optimizer   the update, once the last rank has finished its passes and sync
    overhead    of the entire step, once the last rank has updated

so the last span ends with the step.

**Scenarios** of a profile. A step is a maximum over paths of sums of stage costs, plus two more maxima: a
convex function of the costs. So for any set of scenarios

    mean of the steps in them ≥ the step at the mean of their costs                         (Jensen 1906)

and the mean chosen by a risk is at least the mean over any set of equally many scenarios
(`cost_models.risk`). The set may differ between rows; here it consists of the scenarios in which the row's
work takes longest, for a tight bound.

**Links.** A link is fully used for the seconds that the step's bytes take at its nominal bandwidth. These are
computed by the prices themselves, for a cluster on which every other link is free, without latency or
start-up, at full efficiency.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import NamedTuple

import numpy as np

from cost_models.arrays import Array, Ints
from cost_models.axes.columns import COLUMNS as AXIS_COLUMNS
from cost_models.axes.columns import LayoutColumns, over_distinct
from cost_models.axes.layout import Layout
from cost_models.axes.offload.price import tiers
from cost_models.axes.stages import blocks_by_policy
from cost_models.communication.by_axis import boundary_seconds
from cost_models.communication.topology import Level, axis_groups, levels_of, used_levels, with_one_level
from cost_models.compute.ends import end_seconds
from cost_models.compute.gemm import device_of
from cost_models.errors import InputError
from cost_models.estimate import (
    Breakdown,
    Estimate,
    PoolReplicas,
    Trust,
    deviation_on,
    fullest_pool,
    half_width,
    pair_error_of,
    uncovered_facts,
)
from cost_models.files import read_data
from cost_models.memory.activations import activation_bytes
from cost_models.operators.accumulation import loss_chunk
from cost_models.operators.flops import causal_flops, model_flops, recomputed_flops, utilisation
from cost_models.pipeline.pipeline import Pipeline, RankMemory, on_stages, stacked_parts
from cost_models.pipeline.pools import (
    replica_memory,
    replica_terms,
    require_full_pools,
    shares,
    terms_of_each,
    with_pools,
)
from cost_models.pipeline.seconds import HIDDEN_PARTS, LINK_AXES, MEMORY_PARTS, TIME_PARTS, Terms
from cost_models.pipeline.stage_costs import (
    BYTES,
    SECONDS,
    StageCosts,
    as_priced,
    costs_of,
    stage_costs,
    time_costs,
)
from cost_models.question import Question, by_uncertainty
from cost_models.risk import weigh, weighed_mask
from cost_models.schedules.actions import ActionTable
from cost_models.schedules.registry import build, shortened_table
from cost_models.schedules.timeline import compile_timeline

_PARTS = (*TIME_PARTS, *HIDDEN_PARTS)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedLayout:
    """Layout with the number of blocks on each stage, and the action table of its pipeline schedule."""

    layout: Layout
    blocks: Ints
    """Number of blocks of each virtual stage under each recompute policy, (S, P). If the model has K > 1
    kinds of blocks, (S, K·P): under each kind and policy."""
    table: ActionTable
    any_engine: bool

    def pipeline(self, costs: StageCosts) -> Pipeline:
        """Create the pipeline of this layout from stage `costs`, which have one row for all ranks or one row
        per rank."""
        layout, microbatches = self.layout, self.table.step_microbatches
        return Pipeline(costs, layout.pp, layout.vpp, layout.schedule, microbatches, self.any_engine)


def place_layout(layout: Layout, question: Question) -> PlacedLayout:
    """Place the layout's blocks on its stages, evenly unless `layers=` gives their numbers, and build the
    action table of its schedule.

    On a cluster of several pools the ranks fill these in the cluster's order unless the layout names them.

    Raises:
        InputError: the layout has no placement and the blocks do not divide, the placement has another sum, the ranks
            do not fill the pools, or the schedule cannot run.
    """
    layout = with_pools(question, layout)
    blocks, stages = question.model.num_layers, layout.num_stages
    if not layout.layers:
        if blocks % stages:
            raise InputError(
                f"{blocks} blocks do not divide into {stages} stages of `{layout}`",
                hint="give `layers=`, or let `plan` place them",
            )
        layout = layout.model_copy(update={"layers": (blocks // stages,) * stages})
    if (num_placed := sum(layout.layers)) != blocks:
        raise InputError(f"`{layout}` places {num_placed} blocks; `{question.model.name}` has {blocks}")
    m, any_engine = layout.microbatches(question.training.global_batch), not question.stack.torch_pipelining
    table = shortened_table(layout.schedule, layout.pp, layout.vpp, m, any_engine=any_engine)
    blocks_SP = question.kinds.in_sorts(blocks_by_policy(layout.layers, layout.stage_recompute))
    return PlacedLayout(layout=layout, blocks=blocks_SP, table=table, any_engine=any_engine)


@dataclass(frozen=True, kw_only=True)
class PricedRanks:
    """Placed layout with the cost coefficients of its pipeline ranks."""

    placement: PlacedLayout
    pipeline: Pipeline
    terms: Terms
    """Cost coefficients by part, in one row for all pipeline ranks or one row for each rank."""
    replicas: tuple[PoolReplicas, ...] = ()
    """Predictions for the replicas of each pool, if each replica lies within one of several pools; else
    empty. The other fields then describe the slowest pool."""

    @cached_property
    def seconds(self) -> dict[str, Array]:
        """Seconds per step that each rank spends on a part of the step time (compute, communication by axis ...), by
        part, (R,).

        Transfers between stages that block nobody, and waiting for them, belong to no rank and are left out.
        """
        pipeline, blocks_SP = self.pipeline, self.placement.blocks
        row_of_stage = pipeline.rank_of_stage % len(pipeline.costs)

        # coefficient → parts of time, (Q, rows) or, with recompute policies, (Q, rows, P), as rows of the cost table
        rows = {name: stacked_parts(self.terms[name], _PARTS, axis=0) for name in SECONDS}

        def column(name: str) -> Array:
            """Seconds by part of the coefficient `name` on every virtual stage, (Q, S) or, with policies, (Q,
            S, P)."""
            return rows[name][:, row_of_stage]

        def on_ranks(kind: str) -> Array:
            """Seconds by part of each rank's blocks for the affine coefficient `kind`, (Q, R)."""
            return pipeline.sum_by_rank(on_stages(column, kind, blocks_SP))

        compute = on_ranks("forward") + on_ranks("backward")
        if pipeline.splits_backward:
            compute = compute + pipeline.sum_by_rank(column("stage_weight"))
        once = on_ranks("sync") + rows["rank_sync"] + on_ranks("optimizer") + rows["rank_optimizer"]
        seconds_QR = pipeline.microbatches * compute + once + rows["step_overhead"]
        return dict(zip(_PARTS, seconds_QR, strict=True))

    def memory(self) -> tuple[Breakdown, ...]:
        """Bytes by part of each rank at the moment of the step at which its memory peaks."""
        columns = {name: stacked_parts(self.terms[name], MEMORY_PARTS, axis=-1) for name in BYTES}
        return RankMemory(columns, self.pipeline.table).breakdowns(self.placement.blocks)


def price_ranks(question: Question, layout: Layout) -> PricedRanks:
    """Place one layout's blocks and compute the cost coefficients of its pipeline ranks.

    Raises:
        InputError: the layout cannot be placed or scheduled, or its replicas do not fill the pools.
    """
    return price_ranks_of_each(question, [layout])[0]


def price_ranks_of_each(question: Question, layouts: Sequence[Layout]) -> list[PricedRanks]:
    """Place the blocks of several layouts and compute the cost coefficients of their pipeline ranks; equal
    layouts are priced once.

    Raises:
        InputError: as for `price_ranks`, of any of the layouts.
    """
    ranks = {one: _price_replicas(question, one) for one in layouts if question.has_pools and one.replicas}
    placements = {one: place_layout(one, question) for one in layouts if one not in ranks}
    terms_by_layout = terms_of_each(question, [one.layout for one in placements.values()])
    for (layout, place), terms in zip(placements.items(), terms_by_layout, strict=True):
        ranks[layout] = PricedRanks(placement=place, pipeline=place.pipeline(costs_of(terms)), terms=terms)
    return [ranks[layout] for layout in layouts]


def _price_replicas(question: Question, layout: Layout) -> PricedRanks:
    """Price a layout whose replicas each lie in one pool: cost coefficients of the slowest pool, and
    predictions for all pools.

    Raises:
        InputError: the replicas do not fill the pools, or there are too few microbatches for all.
    """
    require_full_pools(question, layout)
    placement = place_layout(layout, question)
    layout = placement.layout
    terms = replica_terms(question, LayoutColumns.of([layout]))
    pipelines = [placement.pipeline(costs_of(pool_costs)) for pool_costs in terms]
    shares_by_pool = shares(question, layout, pipelines, placement.blocks)
    ranks, replicas = list[PricedRanks](), list[PoolReplicas]()
    for pool, (pool_costs, counts) in enumerate(zip(terms, shares_by_pool, strict=True)):
        all_terms = pool_costs | replica_memory(question, pool, layout, max(counts))
        pipeline = replace(placement.pipeline(costs_of(all_terms)), microbatches=max(counts))
        ranks.append(PricedRanks(placement=placement, pipeline=pipeline, terms=all_terms))
        seconds, limit = float(pipeline.step_seconds(placement.blocks)), pipeline.cost("memory_limit")
        name, memory = question.pool_names[pool], ranks[-1].memory()
        own_replicas = PoolReplicas(
            pool=name, microbatches=counts, step_seconds=seconds, rank_memory=memory, memory_limit=limit
        )
        replicas.append(own_replicas)
    slowest = max(range(len(ranks)), key=lambda pool: replicas[pool].step_seconds)
    return replace(ranks[slowest], replicas=tuple(replicas))


class PredictedSpan(NamedTuple):
    """Action of one pipeline rank with its start and end, in seconds from the start of the step."""

    rank: int
    kind: str
    """Kind of pass in the action table (F, B, I or W), or else `sync`, `offload`, `optimizer` or
    `overhead`."""
    stage: int
    """Virtual stage of a pass; -1 for other actions."""
    microbatch: int
    """Number of a pass's microbatch; -1 for other actions."""
    start: float
    end: float


class PassSpans(NamedTuple):
    """Start and end of every action of a schedule's table, in seconds from the start of the step, (R, A)
    each."""

    table: ActionTable
    start: Array
    end: Array


def pass_spans(ranks: PricedRanks) -> PassSpans:
    """Start and end seconds of every forward and backward pass of a priced layout."""
    pipeline, blocks = ranks.pipeline, ranks.placement.blocks
    first, second = pipeline.halves(blocks)
    shape = (pipeline.schedule, pipeline.pp, pipeline.vpp, pipeline.microbatches)
    table = build(*shape, any_engine=pipeline.any_engine)
    timeline, forward = compile_timeline(table), pipeline.forward(blocks)
    return PassSpans(table, *timeline.spans(forward, first, pipeline.cost("p2p"), second))


def predicted_spans(question: Question, layout: Layout) -> tuple[PredictedSpan, ...]:
    """Predicted start and end of all actions of a step, ordered by pipeline rank and start. Actions of zero
    length are left out.

    Raises:
        InputError: the layout cannot be placed or scheduled.
    """
    ranks = price_ranks(question, layout)
    pipeline, blocks = ranks.pipeline, ranks.placement.blocks
    passes = pass_spans(ranks)
    spans = [
        PredictedSpan(rank, *action, start, end)
        for rank, (starts, ends) in enumerate(zip(passes.start.tolist(), passes.end.tolist(), strict=True))
        for action, start, end in zip(passes.table.actions(rank), starts, ends, strict=False)
    ]
    sync_R, optimizer_R = pipeline.once_a_step("sync", blocks), pipeline.once_a_step("optimizer", blocks)
    waits_R = np.broadcast_to(ranks.terms["rank_optimizer"].get("offload", np.zeros(1)), optimizer_R.shape)
    last_R = passes.end[:, -1]
    updating = float(np.max(last_R + sync_R))
    updated = updating + float(np.max(optimizer_R))
    for rank, waits in enumerate(waits_R.tolist()):
        tail = (
            ("sync", float(last_R[rank]), float(sync_R[rank])),
            ("offload", updating, waits),
            ("optimizer", updating + waits, float(optimizer_R[rank] - waits)),
            ("overhead", updated, pipeline.overhead),
        )
        spans += [PredictedSpan(rank, kind, -1, -1, start, start + seconds) for kind, start, seconds in tail]
    lasting = (span for span in spans if span.end > span.start)
    return tuple(sorted(lasting, key=lambda span: (span.rank, span.start)))


_WORTH_NAMING = 0.05
"""Minimum share of the step time at which a part other than compute is reported as the bottleneck."""


def estimate(question: Question, layout: Layout) -> Estimate:
    """Predicted step time, MFU (over the peaks of all pools) and memory of one layout for one question.

    Raises:
        InputError: the layout cannot be placed or scheduled, or its ranks are not those of the pools.
    """
    return estimate_each(question, [layout])[0]


def estimate_each(question: Question, layouts: Sequence[Layout]) -> list[Estimate]:
    """Predicted step time and memory of several layouts, priced together; equal layouts are priced once.

    Raises:
        InputError: as for `estimate`, of any of the layouts.
    """
    return [_estimate_of(question, ranks) for ranks in price_ranks_of_each(question, layouts)]


def _estimate_of(question: Question, ranks: PricedRanks) -> Estimate:
    """Estimate of a layout from the cost coefficients of its pipeline ranks."""
    # parts of the busiest rank; rounding must not make waiting negative
    seconds, without_transfers, busy_R = ranks.pipeline.step_of(ranks.placement.blocks)
    by_part = {part: float(ranks.seconds[part][int(np.argmax(busy_R))]) for part in TIME_PARTS}
    by_part["pp_comm"] += seconds - without_transfers
    by_part["bubble"] = max(0.0, seconds - sum(by_part.values()))
    parts = Breakdown(by_part)
    model, training, ran = question.model, question.training, ranks.placement.layout
    useful = model_flops(model, training, ran.tp)
    spent = useful + recomputed_flops(model, training, ran, question.stack.drops)
    gpus, peak = ran.num_gpus, question.cluster.gpu.peak[training.precision]
    if question.has_pools:
        gpus = 1
        peak = sum(p.cluster.num_gpus * p.cluster.gpu.peak[training.precision] for p in question.pools)
    peaks, limits = ranks.memory(), tuple(ranks.pipeline.by_rank("memory_limit").tolist())
    microbatches = ranks.pipeline.microbatches
    if ranks.replicas:
        microbatches = max(max(pool.microbatches) for pool in ranks.replicas)
        pool = fullest_pool(ranks.replicas)
        peaks, limits = pool.rank_memory, (pool.memory_limit,) * ran.pp
    return Estimate(
        layout=ran,
        microbatches=microbatches,
        step_seconds=seconds,
        time=parts,
        # of the rank with most
        hidden_comm=Breakdown(
            {name: ranks.seconds[part].max().item() for part, name in HIDDEN_PARTS.items()}
        ),
        rank_memory=peaks,
        rank_limits=limits,
        mfu=utilisation(useful, seconds, gpus, peak),
        hfu=utilisation(spent, seconds, gpus, peak),
        causal_mfu=utilisation(causal_flops(model, training, ran.tp), seconds, gpus, peak),
        tokens_per_second=training.tokens_per_step / seconds,
        answers_per_second=training.answers and training.answers * training.tokens_per_step / seconds,
        bound_by=bound_by(parts),
        trust=trust_of(max(question.pools, key=lambda pool: by_uncertainty(pool.hardware))),
        replicas=ranks.replicas,
        confidence=question.confidence,
        weighed_seconds=weighed_seconds(question, ran),
        **tiers(question, ran),
    )


def trust_of(question: Question) -> Trust:
    """How reliable predictions with a question's hardware profile are: their errors against measured runs."""
    hardware, stack = question.hardware, question.stack
    pairs = ((hardware.gpu, {question.cluster.gpu.name}), (hardware.stack, {stack.name, stack.family}))
    differs = [name for name, here in pairs if name not in here | {"any"}]
    its_own = all(name in here for name, here in pairs)
    its_die = question.cluster.gpu.name in (hardware.gpu, *hardware.also_for)
    trust = partial(Trust, tier=hardware.tier, profile=hardware.name, memory_error=question.memory_error)
    if hardware.borrowed_from or (hardware.tier == "profile" and not its_die):
        errors, tested = read_data("errors/steps"), hardware.borrowed_from is not None
        error, runs, lender = errors["borrowed_error"], errors["borrowed_runs"], hardware.borrowed_from
        return trust(error=error, runs=runs, borrowed=lender or hardware.gpu, scaled_by_tests=tested)
    unseen, runs = None if its_own else hardware.unseen_error, hardware.validated_runs
    return trust(error=hardware.median_error, runs=runs, elsewhere=" and ".join(differs), unseen_error=unseen)


def bound_by(parts: Breakdown) -> str:
    """Name of the step's bottleneck: the largest part other than compute if that is at least 5 % of the step,
    else `compute`."""
    candidates = [(seconds, name) for name, seconds in parts.items() if name != "compute"]
    seconds, name = max(candidates)
    return name if seconds >= _WORTH_NAMING * parts.total else "compute"


def scenarios_of(question: Question) -> tuple[Question, ...]:
    """Copies of a question, each with the hardware constants of one scenario; empty if the question has no
    risk setting or its profile no scenarios."""
    hardware, scenarios = question.hardware, question.hardware.scenarios
    if scenarios is None or question.risk == "none" or question.has_pools:
        return ()
    factors, plain = scenarios.by_constant.items(), replace(question, risk="none")

    def scenario(at: int) -> Question:
        """Copy of the question without risk, with the profile's constants multiplied by the factors of
        scenario number `at`."""
        changed = {name: getattr(hardware, name) * factor[at] for name, factor in factors}
        return plain.updated("hardware", **changed)

    return tuple(map(scenario, range(scenarios.count)))


def costs_under_scenarios(question: Question, columns: LayoutColumns) -> StageCosts | None:
    """Stage costs of one layout, seconds, with a row for each scenario of hardware constants; None if the
    profile has no scenarios, or over several pools."""
    hardware, scenarios = question.hardware, question.hardware.scenarios
    if scenarios is None or question.has_pools:
        return None
    values = {name: getattr(hardware, name) * np.array(own) for name, own in scenarios.by_constant.items()}
    rows = columns.rows(np.zeros(scenarios.count, dtype=np.int64))
    return time_costs(question.updated("hardware", **values), rows)


def seconds_under_scenarios(question: Question, layout: Layout) -> Array | None:
    """Step seconds of a layout in each of K scenarios of hardware constants, (K,); None if the profile has no
    scenarios, or over several pools."""
    costs = costs_under_scenarios(question, LayoutColumns.of([layout]))
    if costs is None:
        return None
    placement = place_layout(layout, question)
    return placement.pipeline(costs).step_seconds_by_scenario(costs.in_sorts, placement.blocks)


def weighed_seconds(question: Question, layout: Layout) -> float | None:
    """Mean step seconds over the scenarios that the question's risk setting counts (all, or the slowest);
    None without a risk setting or scenarios."""
    steps_K = None if question.risk == "none" else seconds_under_scenarios(question, layout)
    return None if steps_K is None else float(weigh(steps_K, question.risk))


def step_deviation(question: Question, layout: Layout, seconds: float) -> float | None:
    """Standard deviation of log(true step time / predicted `seconds`); None without scenarios of hardware
    constants.

    It combines the spread over scenarios, the deviation that no constant explains, and for every axis, GPU or stack of
    the question that no run of the profile had, the error of one axis in the ratio of two times
    (`cost_models.estimate`).
    """
    steps_K, scenarios = seconds_under_scenarios(question, layout), question.hardware.scenarios
    if steps_K is None or scenarios is None:
        return None
    untried = deviation_on(uncovered_facts(question, layout), pair_error_of(question))
    return math.hypot(float(np.log(steps_K / seconds).std()), scenarios.unexplained, untried)


_FARTHEST = 50.0
"""Maximum of log(step time / predicted step time), a cap that keeps `exp` finite."""


def step_interval(
    question: Question, layout: Layout, seconds: float, share: float
) -> tuple[float, float] | None:
    """Lower and upper end, in seconds, of the interval that contains the true step time with probability
    `share`; None without scenarios of hardware constants."""
    deviation, scenarios = step_deviation(question, layout, seconds), question.hardware.scenarios
    if deviation is None or scenarios is None:
        return None
    log_width = half_width(share) * deviation
    longest = seconds * math.exp(min(scenarios.slower * log_width, _FARTHEST))
    return seconds * math.exp(-scenarios.faster * log_width), longest


def weighed_costs(question: Question, columns: LayoutColumns) -> StageCosts:
    """Stage costs of N layouts, with seconds averaged over scenarios of hardware constants if the question
    has a risk setting. Bytes do not depend on the scenario.

    Raises:
        InputError: the GPU has no rate for the training precision.
    """
    cases = scenarios_of(question)
    if not cases:
        return stage_costs(question, columns)
    rows = as_priced(question, columns)
    return over_distinct(rows, AXIS_COLUMNS, partial(_weighed_costs, question, cases))


def _weighed_costs(question: Question, cases: tuple[Question, ...], rows: LayoutColumns) -> StageCosts:
    """Stage costs of N layouts, seconds averaged over the scenarios `cases` that the risk setting counts for
    each layout."""
    costs_by_scenario = [time_costs(case, rows) for case in cases]
    m, layers = rows.microbatches(question.training.global_batch), question.model.num_layers
    work_KN = np.stack([_work_seconds(own, m, layers, rows.pp) for own in costs_by_scenario])
    counted_KN = weighed_mask(work_KN, question.risk)
    count = max(1, int(counted_KN[:, :1].sum()))

    def mean(by_scenario_K: Sequence[Array]) -> Array:
        """Mean of one column over the scenarios that count, (N,) or (N, P)."""
        total = np.zeros_like(by_scenario_K[0])
        for value, number in zip(by_scenario_K, counted_KN, strict=True):
            total += value * (number if value.ndim == 1 else number[:, None])
        return total / count

    def means(columns_K: Sequence[Mapping[str, Array]]) -> dict[str, Array]:
        """Mean of every column in seconds over the scenarios that count."""
        return {name: mean([own[name] for own in columns_K]) for name in columns_K[0] if name in SECONDS}

    base, by_scenario = stage_costs(question, rows), [own.kinds for own in costs_by_scenario]
    kinds = tuple(own | means(columns_K) for own, *columns_K in zip(base.kinds, *by_scenario, strict=True))
    return replace(base, **means([vars(own) for own in costs_by_scenario]), kinds=kinds)


def _work_seconds(costs: StageCosts, m: Ints, layers: int, pp: Ints) -> Array:
    """Mean seconds per step and pipeline rank of work without waiting, (N,), by which scenarios are ranked.
    Scenarios are ranked by these."""
    block = costs.layer_forward + costs.layer_backward[:, 0]
    ends = costs.embedding_forward + costs.embedding_backward + costs.head_forward + costs.head_backward
    stage = costs.stage_forward + costs.stage_backward
    once = costs.rank_sync + costs.rank_optimizer + costs.step_overhead
    once = once + layers / pp * (costs.layer_sync + costs.layer_optimizer)
    return m * ((layers * block + ends) / pp + stage) + once


@dataclass(frozen=True, slots=True, kw_only=True)
class LossPart:
    """Time and memory of the output layer and the loss on the last pipeline stage."""

    seconds: float
    """Seconds of forward and backward pass of one microbatch."""
    bytes: float
    """Bytes of logits and their derivatives; a loss in chunks also holds the gradient of the output matrix."""
    chunk: int | None
    """Number of tokens whose logits exist at the same time; None: all tokens of a microbatch."""


def loss_part(question: Question, layout: Layout) -> LossPart | None:
    """Price the output layer and the loss on the last stage; None on a cluster of several pools of GPUs."""
    if question.has_pools:
        return None
    columns = LayoutColumns.of([layout])
    ends = end_seconds(question, columns, device_of(question, uncast=True))
    tensors = activation_bytes(question, columns)
    size = float(tensors.log_probabilities[0] + tensors.loss_gradients[0] + tensors.released_logits[0])
    seconds = float(ends.head_forward[0] + ends.head_backward[0])
    return LossPart(seconds=seconds, bytes=size, chunk=loss_chunk(question, layout))


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkUse:
    """Traffic per step of one parallel axis over the links of one network level, on the pipeline rank that
    sends most."""

    level: Level
    axis: str
    share: float
    """Fraction of the step during which the axis keeps the link busy, bytes / (bandwidth × step seconds)."""
    gpu_bytes: float
    """Bytes per step over one GPU's share of the link."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossing:
    """Parallel axes that send over the outermost links of a network of several levels, and axes that do not."""

    level: Level
    inside: str
    """Name of the level just inside the outermost one."""
    uses: tuple[LinkUse, ...]
    """Traffic of each axis that uses the outermost links, the busiest axis first."""
    stay: tuple[str, ...]
    """Axes of degree above 1 that do not use the outermost links."""


def link_use(question: Question, estimate: Estimate) -> tuple[LinkUse, ...]:
    """Traffic of every parallel axis on every network level, innermost level first; for a cluster with one
    pool of GPUs."""
    levels = range(len(levels_of(question.cluster)))
    return tuple(one for at in levels for one in _level_use(question, estimate, at))


def crossing(question: Question, estimate: Estimate) -> Crossing | None:
    """Traffic of each parallel axis over the outermost links, as between buildings; None if one network joins
    all nodes, and for several pools."""
    if question.has_pools:
        return None
    levels = used_levels(question.cluster)
    if sum(level.network for level in levels) < 2:
        return None
    uses = _level_use(question, estimate, len(levels) - 1)
    across = {use.axis for use in uses}
    columns = LayoutColumns.of([estimate.layout])
    degrees = {axis: int(getattr(columns, axis)[0]) for axis in LINK_AXES} | {"dp": int(columns.replicas[0])}
    busiest_first = tuple(sorted(uses, key=lambda use: -use.share))
    stay = tuple(axis for axis in LINK_AXES if degrees[axis] > 1 and axis not in across)
    return Crossing(level=levels[-1], inside=levels[-2].name, uses=busiest_first, stay=stay)


def _level_use(question: Question, estimate: Estimate, at: int) -> tuple[LinkUse, ...]:
    """Traffic of each parallel axis that uses the links of network level `at`, counted from the GPUs
    outwards."""
    level, layout = levels_of(question.cluster)[at], estimate.layout
    # question in which only this level's links take time, and only for their bytes
    update = {"link_efficiency": 1.0, "network_efficiency": 1.0, "collective_seconds": 0.0, "collectives": ()}
    hardware = question.hardware.model_copy(update=update)
    one_level = replace(question, cluster=with_one_level(question.cluster, at), hardware=hardware)
    of_rank, columns = price_ranks(one_level, layout).seconds, LayoutColumns.of([layout])
    groups = axis_groups(one_level.cluster, columns)
    # a domain sends activations to the next stage and gradients to the one before, unless at an end
    ways = 2 if layout.vpp > 1 or groups.pp.reach[at].domains[0] > 2 else 1
    transfers = ways * estimate.microbatches * layout.vpp
    uses: list[LinkUse] = []
    for axis in LINK_AXES:
        if axis == "pp":
            seconds = transfers * float(boundary_seconds(one_level, columns, groups)[0])
        else:
            seconds = float(np.max(of_rank[f"{axis}_comm"] + of_rank[f"{axis}_hidden"]))
        if seconds > 0:
            share, gpu_bytes = seconds / estimate.step_seconds, seconds * level.bandwidth
            uses.append(LinkUse(level=level, axis=axis, share=share, gpu_bytes=gpu_bytes))
    return tuple(uses)
