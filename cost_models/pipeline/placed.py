"""A placed layout on the ranks of its pipeline: every coefficient split into its parts, and its step span by span.

    passes      as the schedule's timeline has them
    sync        gradients reduced after the rank's last pass
    offload     what a rank waits for moves to and from host memory
    optimizer   the update, once the last rank is so far
    overhead    of the whole step, once the last rank has updated

so the last span ends with the step (`cost_models.pipeline.stage_costs`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from cost_models.arrays import Array, Ints
from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import Layout
from cost_models.axes.recompute import blocks_by_policy
from cost_models.errors import InputError
from cost_models.estimate import Breakdown, PoolReplicas
from cost_models.pipeline.peak import RankMemory, parts_of
from cost_models.pipeline.pipeline import Pipeline
from cost_models.pipeline.pools import (
    replica_memory,
    replica_terms,
    require_full_pools,
    shares,
    terms_of_each,
    with_pools,
)
from cost_models.pipeline.stage_costs import StageCosts, costs_of
from cost_models.pipeline.time_pieces import HIDDEN_PARTS, TIME_PARTS, Terms
from cost_models.question import MixedQuestion, Question
from cost_models.schedules.actions import IDLE, KINDS, ActionTable
from cost_models.schedules.registry import build, shortened
from cost_models.schedules.timeline import compile_timeline

_PARTS = {part: number for number, part in enumerate((*TIME_PARTS, *HIDDEN_PARTS))}


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """A layout that says where every block lies, and its schedule's table."""

    layout: Layout
    blocks: Ints
    """(S, P): blocks of each virtual stage under each recompute policy; of several kinds (S, K·P), by sort."""
    table: ActionTable
    any_engine: bool

    def pipeline(self, costs: StageCosts) -> Pipeline:
        """Pipeline with the costs of its ranks: one row, or one for each rank."""
        return Pipeline(
            costs=costs,
            pp=self.layout.pp,
            vpp=self.layout.vpp,
            schedule=self.layout.schedule,
            microbatches=self.table.step_microbatches,
            any_engine=self.any_engine,
        )


def place(layout: Layout, question: Question) -> Placed:
    """Placed layout with its action table; blocks are spread evenly where the layout does not place them.

    On a cluster of several pools these follow one another as in the cluster where the layout does not say.

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
    if sum(layout.layers) != blocks:
        raise InputError(
            f"`{layout}` places {sum(layout.layers)} blocks; `{question.model.name}` has {blocks}"
        )
    microbatches = layout.microbatches(question.training.global_batch)
    any_engine = not question.stack.torch_pipelining
    return Placed(
        layout=layout,
        blocks=question.kinds.in_sorts(blocks_by_policy(layout.layers, layout.stage_recompute)),
        table=shortened(layout.schedule, layout.pp, layout.vpp, microbatches, any_engine=any_engine),
        any_engine=any_engine,
    )


@dataclass(frozen=True, kw_only=True)
class PricedRanks:
    """A placed layout with the coefficients of its ranks."""

    placed: Placed
    pipeline: Pipeline
    terms: Terms
    """One row, or one for each rank."""
    replicas: tuple[PoolReplicas, ...] = ()
    """Replicas of each pool, where whole replicas lie in several; other fields describe the slowest pool."""

    @property
    def limits(self) -> tuple[float, ...]:
        """Bytes that a device of each rank may fill."""
        return tuple(self.pipeline.by_rank("memory_limit").tolist())

    @cached_property
    def seconds(self) -> dict[str, Array]:
        """Part → (R,) seconds each rank spends on it in a step."""
        pipeline, blocks_SP = self.pipeline, self.placed.blocks
        row_of_stage = (
            pipeline.rank_of_stage if len(pipeline.costs) > 1 else np.zeros_like(pipeline.rank_of_stage)
        )

        def of_rows(name: str) -> Array:
            """(Q, ·): the parts of a coefficient; (Q, ·, P) where it differs by policy."""
            term = self.terms[name]
            shape = np.broadcast_shapes(*(value.shape[1:] for value in term.values()))
            values_Q = np.zeros((len(_PARTS), len(pipeline.costs), *shape))
            for part, value in term.items():
                values_Q[_PARTS[part]] = value if value.ndim > len(shape) else value[:, None]
            return values_Q

        def on_ranks(kind: str, stage: str | None = None) -> Array:
            """(Q, R): an affine coefficient, with every block where it lies."""
            layer_QS = of_rows(f"layer_{kind}")[:, row_of_stage]
            each_QSP = layer_QS if layer_QS.ndim == 3 else layer_QS[..., None]
            stage_QS = of_rows(stage)[:, row_of_stage] if stage else 0.0
            values_QS: Array = stage_QS + (blocks_SP * each_QSP).sum(axis=-1)
            values_QS[..., 0] += of_rows(f"embedding_{kind}")[:, row_of_stage[0]]
            values_QS[..., -1] += of_rows(f"head_{kind}")[:, row_of_stage[-1]]
            return pipeline.sum_by_rank(values_QS)

        compute = on_ranks("forward", "stage_forward") + on_ranks("backward", "stage_backward")
        if pipeline.splits_backward:
            compute = compute + pipeline.sum_by_rank(of_rows("stage_weight")[:, row_of_stage])
        once = on_ranks("sync") + of_rows("rank_sync") + on_ranks("optimizer") + of_rows("rank_optimizer")
        seconds_QR = pipeline.microbatches * compute + once + of_rows("step_overhead")
        return dict(zip(_PARTS, seconds_QR, strict=True))

    def memory(self) -> tuple[Breakdown, ...]:
        """Parts of each rank's peak, taken at the moment of the step when it is highest."""
        return RankMemory(parts_of(self.terms), self.placed.table).breakdowns(self.placed.blocks)


def price_ranks(question: Question, layout: Layout) -> PricedRanks:
    """A layout, placed, with what each of its ranks costs.

    Raises:
        InputError: the layout cannot be placed or scheduled, or its replicas do not fill the pools.
    """
    (priced,) = price_ranks_of_each(question, [layout])
    return priced


def price_ranks_of_each(question: Question, layouts: Sequence[Layout]) -> list[PricedRanks]:
    """Placed and priced ranks of several layouts, whose coefficients are computed together.

    Raises:
        InputError: of one of them, as above.
    """
    found: dict[int, PricedRanks] = {}
    for number, layout in enumerate(layouts):
        if isinstance(question, MixedQuestion) and layout.replicas:
            found[number] = _price_replicas(question, layout)
    placed = {number: place(one, question) for number, one in enumerate(layouts) if number not in found}
    each = terms_of_each(question, [one.layout for one in placed.values()])
    for (number, one), (terms, limit) in zip(placed.items(), each, strict=True):
        pipeline = one.pipeline(costs_of(terms, limit))
        found[number] = PricedRanks(placed=one, pipeline=pipeline, terms=terms)
    return [found[number] for number in range(len(layouts))]


def _price_replicas(question: MixedQuestion, layout: Layout) -> PricedRanks:
    """Priced ranks of the slowest pool, with the replicas of every pool.

    Raises:
        InputError: the replicas do not fill the pools, or there are too few microbatches for all.
    """
    require_full_pools(question, layout)
    placed = place(layout, question)
    layout = placed.layout
    terms = replica_terms(question, LayoutColumns.of([layout]))
    taken = shares(question, layout, [placed.pipeline(own.costs) for own in terms], placed.blocks)
    pools: list[PricedRanks] = []
    for pool, (own, microbatches) in enumerate(zip(terms, taken, strict=True)):
        most = max(microbatches)
        table = shortened(layout.schedule, layout.pp, layout.vpp, most, any_engine=placed.any_engine)
        there, all_terms = (
            replace(placed, table=table),
            own.terms | replica_memory(question, pool, layout, most),
        )
        pipeline = there.pipeline(costs_of(all_terms, own.limit))
        pools.append(PricedRanks(placed=there, pipeline=pipeline, terms=all_terms))
    seconds = [float(one.pipeline.step_seconds(placed.blocks)) for one in pools]
    replicas = tuple(
        PoolReplicas(
            pool=name,
            microbatches=microbatches,
            step_seconds=step,
            rank_memory=one.memory(),
            memory_limit=one.limits[0],
        )
        for name, microbatches, step, one in zip(question.names, taken, seconds, pools, strict=True)
    )
    return replace(pools[int(np.argmax(seconds))], replicas=replicas)


def rank_seconds(question: Question, layout: Layout) -> tuple[dict[str, float], ...]:
    """For each pipeline rank, part → seconds of a step in which it is busy with it: the estimate's, rank by rank.

    Transfers between stages and waiting for them belong to no rank and are left out.
    """
    ranks = price_ranks(question, layout)
    return tuple({part: float(ranks.seconds[part][rank]) for part in TIME_PARTS} for rank in range(layout.pp))


class PredictedSpan(NamedTuple):
    """One thing one pipeline rank does; seconds from the start of the step."""

    rank: int
    kind: str
    """Of a pass as in the action table; else `sync`, `offload`, `optimizer`, `overhead`."""
    stage: int
    """Virtual stage of a pass, else -1."""
    microbatch: int
    """Microbatch of a pass, else -1."""
    start: float
    end: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PassSpans:
    """(R, A) start and end of every action of a table, in seconds."""

    table: ActionTable
    start: Array
    end: Array


def pass_spans(question: Question, layout: Layout) -> PassSpans:
    """When every pass of a placed layout starts and ends.

    Raises:
        InputError: the layout cannot be placed or scheduled.
    """
    return _pass_spans(price_ranks(question, layout))


def _pass_spans(ranks: PricedRanks) -> PassSpans:
    pipeline, blocks = ranks.pipeline, ranks.placed.blocks
    first, second = pipeline.halves(blocks)
    table = build(
        pipeline.schedule, pipeline.pp, pipeline.vpp, pipeline.microbatches, any_engine=pipeline.any_engine
    )
    whole = compile_timeline(table)
    start, end = whole.spans(pipeline.forward(blocks), first, pipeline.cost("p2p"), second)
    return PassSpans(table=table, start=start, end=end)


def predicted_spans(question: Question, layout: Layout) -> tuple[PredictedSpan, ...]:
    """The whole step, rank by rank in order of time; spans of no length are left out.

    Raises:
        InputError: the layout cannot be placed or scheduled.
    """
    ranks = price_ranks(question, layout)
    pipeline, blocks = ranks.pipeline, ranks.placed.blocks
    passes = _pass_spans(ranks)
    table = passes.table
    stage, microbatch, begin, end = table.stage, table.microbatch, passes.start, passes.end
    spans = [
        PredictedSpan(
            at[0], KINDS[kind], int(stage[at]), int(microbatch[at]), float(begin[at]), float(end[at])
        )
        for at, kind in np.ndenumerate(table.kind)
        if kind != IDLE
    ]
    sync_R, optimizer_R = pipeline.once_a_step("sync", blocks), pipeline.once_a_step("optimizer", blocks)
    waits_R = np.broadcast_to(ranks.terms["rank_optimizer"].get("offload", np.zeros(1)), optimizer_R.shape)
    last_R = passes.end[:, -1]
    updating = float(np.max(last_R + sync_R))
    updated = updating + float(np.max(optimizer_R))
    for rank, waits in enumerate(waits_R.tolist()):
        own = (
            ("sync", float(last_R[rank]), float(sync_R[rank])),
            ("offload", updating, waits),
            ("optimizer", updating + waits, float(optimizer_R[rank] - waits)),
            ("overhead", updated, pipeline.overhead),
        )
        spans += [PredictedSpan(rank, kind, -1, -1, start, start + seconds) for kind, start, seconds in own]
    lasting = (span for span in spans if span.end > span.start)
    return tuple(sorted(lasting, key=lambda span: (span.rank, span.start)))
