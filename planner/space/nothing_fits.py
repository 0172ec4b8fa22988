"""Errors when nothing fits: the closest layout, what fills its memory, and where it overflows in pools."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from cost_models.arrays import Array, Ints
from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import Layout
from cost_models.axes.pipeline import even_layers
from cost_models.axes.recompute import allowed_recompute
from cost_models.errors import DoesNotFitError, InfeasibleError, Problem
from cost_models.estimate import Estimate
from cost_models.pipeline.estimating import estimate
from cost_models.pipeline.stage_costs import StageCosts
from cost_models.question import MixedQuestion, Question
from cost_models.risk import confident_share
from cost_models.specs.choices import RECOMPUTE_POLICIES, SCHEDULES, Recompute
from cost_models.units import GIB, counted, format_bytes
from planner.placement.leaf import Leaf
from planner.placement.rank_costs import RankCosts
from planner.rules.stack import question_objections
from planner.space.layouts import Restrictions
from planner.space.obstacles import obstacles

COMPARED = 4
"""Number of roughly closest layouts that are priced in full."""


def explain_infeasible(
    question: Question, columns: LayoutColumns, costs: StageCosts, policies: Sequence[Recompute]
) -> DoesNotFitError:
    """The error to raise when no placement of any layout fits."""
    closest = _closest(question, columns, costs, policies)
    limit = float(costs.memory_limit.max())
    states = _model_states(columns, costs, question.model.num_layers)
    gpus = question.cluster.num_gpus
    needed = math.ceil(states / limit) if limit else 0
    share = confident_share(question.confidence, question.memory_error)
    sure = f" with {100 * question.confidence:.4g} %" * (share < 1)
    if needed > gpus:
        hint = f"model states alone fill {counted(needed, 'GPU')} of this size"
    else:
        enough = limit + closest.peak_bytes - closest.memory_limit
        hint = f"{format_bytes(enough / share)} a GPU would do; or use more GPUs, or shorter sequences"
    return DoesNotFitError(
        f"no layout of {question.model.name} fits {format_bytes(limit / share)} x {counted(gpus, 'GPU')}{sure}",
        problems=_closest_in_words(closest, limit),
        hint=hint,
        state_bytes=states,
        least_bytes=closest.peak_bytes,
        closest=closest,
    )


def _closest_in_words(closest: Estimate, limit: float) -> list[Problem]:
    """Two lines: the layout, and the contents of its fullest rank as in `explain`, with the limit that communicators
    leave."""
    rank = closest.fullest_rank
    layout = closest.layout.model_copy(update={"layers": ()})
    of = f" of {closest.limit_words}" if closest.memory_limit < limit else ""
    parts = " + ".join(f"{name} {value / GIB:.1f}" for name, value in closest.rank_memory[rank] if value)
    return [
        Problem("closest", layout.brief),
        Problem("needs", f"{format_bytes(closest.peak_bytes)}{of} on pipeline rank {rank} = {parts}"),
    ]


def _closest(
    question: Question, columns: LayoutColumns, costs: StageCosts, policies: Sequence[Recompute]
) -> Estimate:
    """Estimate of the layout whose fullest rank overflows least, evenly placed under the leanest policy."""
    rough_NP = _rough_peak(columns, costs, question.model.num_layers)
    schedule_policies = [set(policies) & set(allowed_recompute(schedule)) for schedule in SCHEDULES]
    allowed = np.array([[policy in names for policy in RECOMPUTE_POLICIES] for names in schedule_policies])
    rough_NP = np.where(allowed[columns.schedule], rough_NP, np.inf)
    rows = np.argsort(rough_NP.min(axis=1), kind="stable")[:COMPARED].tolist()
    lightest = [RECOMPUTE_POLICIES[int(policy)] for policy in rough_NP[rows].argmin(axis=1)]
    priced = [
        estimate(question, _even(columns.layout(row), policy, question.model.num_layers))
        for row, policy in zip(rows, lightest, strict=True)
    ]
    return min(priced, key=lambda plan: (plan.peak_bytes - plan.memory_limit, str(plan.layout)))


def _rough_peak(columns: LayoutColumns, costs: StageCosts, num_layers: int) -> Array:
    """Bytes of a rank with an even share of blocks and one live microbatch per rank, without the ends, (N, P)."""
    blocks: Ints = -(-num_layers // columns.pp)
    static = costs.static + blocks * costs.layer_static
    live = columns.pp
    activations: Array = blocks[:, None] * live[:, None] * costs.layer_activation
    return static[:, None] + np.maximum(activations + costs.working, (blocks * costs.layer_update)[:, None])


def _even(layout: Layout, policy: Recompute, num_layers: int) -> Layout:
    layers = even_layers(num_layers, layout.num_stages)
    return layout.model_copy(update={"layers": layers, "recompute": (policy,)})


def _model_states(columns: LayoutColumns, costs: StageCosts, num_layers: int) -> float:
    """Minimum bytes of weights, gradients and optimizer states over all GPUs together, of any layout."""
    ends = costs.embedding_static + costs.head_static
    one_pipeline = columns.pp * costs.static + num_layers * costs.layer_static + ends
    total: Array = columns.tp * columns.replicas * one_pipeline
    return float(total.min())


def nothing_legal(question: Question, limits: Restrictions) -> InfeasibleError:
    """Error that says whether stack, question or restrictions leave no legal layout."""
    if refused := question_objections(question):
        problems = [Problem("", words.what) for words in refused[1:]]
        return InfeasibleError(refused[0].what, problems=problems, hint=refused[0].hint)
    place = f"on {counted(question.cluster.num_gpus, 'GPU')}"
    if isinstance(question, MixedQuestion):
        place = f"on the pools of `{question.mixed.name}`"
    message = f"no layout of {question.model.name} {place} is legal with global batch"
    message += f" {question.training.global_batch:,}"
    hint = "try a global batch that more GPUs divide"
    in_the_way = obstacles(question, Restrictions())
    if limits.flags and not in_the_way:
        in_the_way = obstacles(question, limits)
        message += f" under {' '.join(limits.flags)}"
        hint = "loosen --fix and --forbid" + ", or plan without --for" * (limits.trainer is not None)
    return InfeasibleError(
        message,
        problems=[Problem("", words.what) for words in in_the_way],
        hint=next((words.hint for words in in_the_way if words.hint), hint),
    )


COMPARED_IN_POOLS = 48
"""Number of roughly closest layouts whose ranks are filled one by one."""


def least_share(group: RankCosts) -> Array:
    """Minimum memory of a pipeline, as a share of its ranks' memory, (N,)."""
    x, by_rank = group.costs, group.by_rank
    kept_NRP = by_rank(x.layer_activation)[..., group.allowed]
    blocks_N = group.num_layers * (by_rank(x.layer_static).min(axis=1) + kept_NRP.min(axis=(1, 2)))
    fixed_NR = group.with_ends(*map(by_rank, (x.static, x.embedding_static, x.head_static)))
    share_N: Array = (fixed_NR.sum(axis=1) + blocks_N) / by_rank(x.memory_limit).sum(axis=1).clip(min=1.0)
    return share_N


def closest_first(fullness_N: Array) -> Sequence[int]:
    """At most `COMPARED_IN_POOLS` rows that come closest to fitting: smallest share of memory first."""
    rows: list[int] = np.argsort(fullness_N, kind="stable")[:COMPARED_IN_POOLS].tolist()
    return rows


def nothing_fits(
    question: MixedQuestion,
    rows: Iterable[int],
    leaf_of: Callable[[int], Leaf],
    layout_of: Callable[[int], Layout],
    max_memory: float | None,
) -> DoesNotFitError:
    """The error to raise when no placement of any layout fits."""
    filled = {row: evenly_full(leaf_of(row)) for row in rows}
    row = min(filled, key=lambda index: filled[index][1])
    leaf = leaf_of(row)
    weakest = RECOMPUTE_POLICIES[int(np.flatnonzero(leaf.allowed)[-1])]
    layout = layout_of(row).model_copy(update={"layers": filled[row][0], "recompute": (weakest,)})
    closest = estimate(question, layout).within(max_memory)
    rank, mixed = closest.fullest_rank, question.mixed
    return DoesNotFitError(
        f"no layout of {question.model.name} fits the {mixed.num_gpus:,} GPUs of `{mixed.name}`; the closest,"
        f" {closest.layout.brief}, needs {format_bytes(closest.peak_bytes)} of"
        f" {closest.limit_words} on pipeline rank {rank}, in pool `{closest.layout.pools[rank]}`",
        hint="use more GPUs, or shorter sequences",
        closest=closest,
    )


def evenly_full(leaf: Leaf) -> tuple[tuple[int, ...], float]:
    """Blocks of each rank, all under the strongest recompute, each added where most room is left; and the fullest
    share."""
    policy = int(np.flatnonzero(leaf.allowed)[-1])
    blocks_RP = leaf.no_blocks
    blocks_RP[:, policy] = 1
    one_R, limit_R = leaf.rank_bytes(blocks_RP), leaf.memory_limit.clip(min=1.0)
    blocks_RP[:, policy] = 2
    each_R = (leaf.rank_bytes(blocks_RP) - one_R) / limit_R
    full_R, layers_R = one_R / limit_R, np.ones(leaf.pp, dtype=np.int64)
    for _ in range(leaf.num_layers - leaf.pp):
        rank = int(np.argmin(full_R + each_R))
        layers_R[rank] += 1
        full_R[rank] += each_R[rank]
    return tuple(layers_R.tolist()), float(full_R.max())
