"""Price one placed layout: run its schedule's timeline, and say which part of the step and of the memory is what.

The step follows the docstring of `stage_costs`. Its parts are those of the busiest rank; what is left is split into the
transfers between stages that nothing hides (`pp_comm`: the timeline with and without its delay) and waiting (`bubble`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import Layout
from cost_models.axes.recompute import blocks_by_policy
from cost_models.breakdown import Breakdown
from cost_models.errors import InputError
from cost_models.estimate import Estimate, Trust
from cost_models.memory.device import memory_limit
from cost_models.operators.flops import model_flops, recomputed_flops, utilisation
from cost_models.pipeline.costs import add_up
from cost_models.pipeline.memory_terms import MemoryTerms, memory_terms
from cost_models.pipeline.rank_memory import RankMemory
from cost_models.pipeline.stage_costs import StageCosts
from cost_models.pipeline.time_terms import HIDDEN_PARTS, TIME_PARTS, TimeTerms, time_terms
from cost_models.question import MixedQuestion, Question
from cost_models.schedules import (
    ActionTable,
    backward_halves,
    build,
    compile_timeline,
    live_profiles,
    pending_profiles,
    stages_of_rank,
)

Floats = npt.NDArray[np.float64]

_WORTH_NAMING = 0.05
"""Share of the step from which a part other than compute is said to bind it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """A placed layout with its coefficients: what the step and the memory of its ranks are computed from."""

    layout: Layout
    table: ActionTable
    blocks: npt.NDArray[np.int64]
    """(S, P): blocks of each virtual stage under each recompute policy."""

    @property
    def stage_ranks(self) -> npt.NDArray[np.int64]:
        """(S,) pipeline rank of each virtual stage."""
        return self.table.rank_of_stage

    def per_stage(
        self, block: float | Floats, first: float = 0.0, last: float = 0.0, stage: float = 0.0
    ) -> Floats:
        """(S,) an affine coefficient evaluated on every virtual stage; `block` is one value or one a policy."""
        values: Floats = stage + (self.blocks * np.asarray(block)).sum(axis=-1)
        values[0] += first
        values[-1] += last
        return values

    def per_rank(self, values_S: Floats) -> Floats:
        """(R,) sums over each rank's virtual stages."""
        return np.bincount(self.stage_ranks, weights=values_S, minlength=self.layout.pp).astype(np.float64)


def place(layout: Layout, question: Question) -> Placed:
    """A layout with its action table; blocks are spread evenly where the layout does not place them.

    Raises:
        InputError: the layout has no placement and the blocks do not divide, or the placement has another sum.
    """
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
    return Placed(
        layout=layout,
        table=build(
            layout.schedule,
            layout.pp,
            layout.vpp,
            microbatches,
            any_engine=not question.stack.torch_pipelining,
        ),
        blocks=blocks_by_policy(layout.layers, layout.stage_recompute),
    )


def estimate(question: Question, layout: Layout) -> Estimate:
    """Step time, MFU and memory of one layout under one question.

    Raises:
        InputError: the layout cannot be placed or scheduled.
    """
    if isinstance(question, MixedQuestion):
        from cost_models.pipeline.pool_estimating import (
            estimate_mixed,  # which is made of the functions below
        )

        return estimate_mixed(question, layout)
    placed = place(layout, question)
    columns = LayoutColumns.of([placed.layout])
    times, memories = time_terms(question, columns), memory_terms(question, columns)
    costs = add_up(times, memories, memory_limit(question, columns))
    seconds, parts = _step(placed, times, costs)
    model, training = question.model, question.training
    ran = placed.layout
    useful = model_flops(model, training, ran.tp)
    peak = question.cluster.gpu.peak[training.precision]
    spent = useful + recomputed_flops(model, training, ran)
    return Estimate(
        layout=ran,
        microbatches=placed.table.microbatches,
        step_seconds=seconds,
        time=parts,
        hidden_comm=_hidden(placed, times),
        rank_memory=rank_memory(placed, memories),
        memory_limit=float(costs.memory_limit[0]),
        mfu=utilisation(useful, seconds, ran.num_gpus, peak),
        hfu=utilisation(spent, seconds, ran.num_gpus, peak),
        tokens_per_second=training.tokens_per_step / seconds,
        bound_by=bound_by(parts),
        trust=trust_of(question),
    )


def trust_of(question: Question) -> Trust:
    """What the hardware profile says of itself."""
    hardware = question.hardware
    pairs = ((hardware.gpu, question.cluster.gpu.name), (hardware.stack, question.stack.name))
    differs = [name for name, here in pairs if name not in (here, "any")]
    its_own = all(name == here for name, here in pairs)
    return Trust(
        tier=hardware.tier,
        profile=hardware.name,
        error=hardware.median_error,
        runs=hardware.validated_runs,
        elsewhere=" and ".join(differs),
        unseen_error=None if its_own else hardware.unseen_error,
        memory_error=question.stack.memory_error,
    )


def stage_seconds(placed: Placed, terms: StageCosts, row: int = 0) -> tuple[Floats, Floats, Floats]:
    """(S,) seconds of one microbatch on every virtual stage: forward, backward, and the weight half of backward.

    The last is zero, and the second the whole pass, where the schedule does not split it.
    """
    t, r = terms, row
    forward = placed.per_stage(
        t.layer_forward[r], t.embedding_forward[r], t.head_forward[r], t.stage_forward[r]
    )
    backward = placed.per_stage(
        t.layer_backward[r], t.embedding_backward[r], t.head_backward[r], t.stage_backward[r]
    )
    weight = placed.per_stage(t.layer_weight[r], 0.0, t.head_weight[r])
    first, second = backward_halves(
        placed.layout.schedule,
        backward,
        weight,
        stage_backward=float(t.stage_backward[r]),
        stage_weight=float(t.stage_weight[r]),
    )
    return forward, first, second


def step_seconds(placed: Placed, costs: StageCosts, row: int = 0, *, hand_over: bool = True) -> float:
    """Seconds of a step of the layout in that row of `costs`; without `hand_over`, if transfers took no time."""
    forward, backward, weight = stage_seconds(placed, costs, row)
    sync, optimizer = once_a_step(placed, costs, "sync", row), once_a_step(placed, costs, "optimizer", row)
    p2p = float(costs.p2p[row]) if hand_over else 0.0
    if placed.layout.pp == 1:  # nobody to wait for
        ends = np.array([placed.table.microbatches * float((forward + backward + weight).sum())])
    else:
        ends = compile_timeline(placed.table).rank_ends(forward, backward, p2p, weight)
    return float(np.max(ends + sync) + np.max(optimizer) + costs.step_overhead[row])


def _step(placed: Placed, times: TimeTerms, costs: StageCosts) -> tuple[float, Breakdown]:
    """Seconds of a step and their parts."""
    forward, backward, weight = stage_seconds(placed, costs)
    sync, optimizer = once_a_step(placed, costs, "sync"), once_a_step(placed, costs, "optimizer")
    seconds = step_seconds(placed, costs)
    m = placed.table.microbatches
    busy = m * placed.per_rank(forward + backward + weight) + sync + optimizer
    rank = int(np.argmax(busy))
    parts = {part: float(part_seconds(placed, times, part)[rank]) for part in TIME_PARTS}
    parts["pp_comm"] += seconds - step_seconds(placed, costs, hand_over=False)
    parts["bubble"] = max(0.0, seconds - sum(parts.values()))  # rounding must not make it negative
    return seconds, Breakdown.from_dict(parts)


def once_a_step(
    placed: Placed, costs: StageCosts, kind: Literal["sync", "optimizer"], row: int = 0
) -> Floats:
    """(R,) seconds of what every rank does once a step."""
    layer, first, last, rank = (
        float(getattr(costs, f"{place}_{kind}")[row]) for place in ("layer", "embedding", "head", "rank")
    )
    return placed.per_rank(placed.per_stage(layer, first, last)) + rank


def _part_of(term: dict[str, Floats], part: str) -> Floats | float:
    """One part of a term for the single layout: a number, or one a policy."""
    if part not in term:
        return 0.0
    value = term[part][0]
    return value if np.ndim(value) else float(value)


def part_seconds(placed: Placed, times: TimeTerms, part: str) -> Floats:
    """(R,) seconds each rank spends on one part in a step."""

    def at(name: str) -> Floats | float:
        return _part_of(getattr(times, name), part)

    def scalar(name: str) -> float:
        return float(at(name))

    def on_ranks(kind: str, stage: float = 0.0) -> Floats:
        first, last = scalar(f"embedding_{kind}"), scalar(f"head_{kind}")
        return placed.per_rank(placed.per_stage(at(f"layer_{kind}"), first, last, stage))

    compute = on_ranks("forward", scalar("stage_forward")) + on_ranks("backward", scalar("stage_backward"))
    if placed.table.splits_backward:
        compute = compute + placed.per_rank(placed.per_stage(0.0, stage=scalar("stage_weight")))
    once = on_ranks("sync") + scalar("rank_sync") + on_ranks("optimizer") + scalar("rank_optimizer")
    seconds: Floats = placed.table.microbatches * compute + once + scalar("step_overhead")
    return seconds


def rank_seconds(question: Question, layout: Layout) -> tuple[dict[str, float], ...]:
    """For each pipeline rank, part → seconds of a step in which it is busy with it: the estimate's, rank by rank.

    Transfers between stages and waiting for them belong to no rank and are left out.
    """
    placed = place(layout, question)
    times = time_terms(question, LayoutColumns.of([placed.layout]))
    seconds = {part: part_seconds(placed, times, part) for part in TIME_PARTS}
    return tuple({part: float(seconds[part][rank]) for part in TIME_PARTS} for rank in range(layout.pp))


def _hidden(placed: Placed, times: TimeTerms) -> Breakdown:
    """Communication of the busiest rank that runs behind its compute."""
    names = {part: part.replace("hidden", "comm") for part in HIDDEN_PARTS}
    return Breakdown.from_dict(
        {name: float(part_seconds(placed, times, part).max()) for part, name in names.items()}
    )


def rank_memory(placed: Placed, memories: MemoryTerms) -> tuple[Breakdown, ...]:
    """Parts of each rank's peak, taken at the moment of the step when it is highest."""
    memory, table = RankMemory(memories), placed.table
    live_R, pending_R = live_profiles(table), pending_profiles(table)
    return tuple(
        memory.peak(
            placed.blocks[stages],
            live_R[rank],
            pending_R[rank],
            first=0 in stages,
            last=table.num_stages - 1 in stages,
        )
        for rank, stages in enumerate(stages_of_rank(table.schedule, table.pp, table.vpp))
    )


def bound_by(parts: Breakdown) -> str:
    """The largest part that is not compute, where it is worth naming."""
    others = [(seconds, name) for name, seconds in parts if name != "compute"]
    seconds, name = max(others)
    return name if seconds >= _WORTH_NAMING * parts.total else "compute"
