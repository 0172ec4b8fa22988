"""A cloud of layouts for plots, not for proofs: plain axes only, with a quick price for each layout.

Blocks are divided evenly, in fractions if necessary, with one recompute policy everywhere, and the pipeline
is that of a slowest rank,

    step = m · T_slowest + (Σ T − T_slowest) / v + transfers there and back + synchronisation + optimizer

(T: one microbatch, forward and backward, on one rank), which is the timeline of GPipe and 1F1B for equal
ranks.

Shape legend: N layouts, R ranks, P recompute policies in the order of `RECOMPUTE_POLICIES`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from cost_models.arrays import Array
from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import Layout
from cost_models.axes.stages import policy_mask
from cost_models.pipeline.stage_costs import stage_costs
from cost_models.question import Question
from cost_models.specs.kinds import Kinds
from planner.placement.rank_costs import RankCosts, groups_of
from planner.space.restrictions import Restrictions
from planner.space.space import enumerate_layouts

MOST_ROWS = 20_000
"""Maximum layouts of a cloud; if there are more, every n-th is taken."""
_PLAIN = ("etp", "shard", "order")
"""Axes that keep their defaults unless the user restricts them."""


def cloud(question: Question, limits: Restrictions, like: Layout | None = None) -> LayoutColumns:
    """Sample of legal layouts within the restrictions, for a plot; cp and ep are 1 or those of the plan `like`."""
    named_axes = limits.named_axes
    degrees = {axis: {1} if like is None else {1, getattr(like, axis)} for axis in ("cp", "ep")}
    only = {axis: frozenset(values) for axis, values in degrees.items() if axis not in named_axes}
    plain = frozenset(axis for axis in _PLAIN if axis not in named_axes)
    limits = replace(limits, only={**limits.only, **only}, unused=limits.unused | plain)
    columns = enumerate_layouts(question, limits)
    stride = max(1, -(-len(columns) // MOST_ROWS))
    return columns.rows(np.arange(0, len(columns), stride))


@dataclass(frozen=True, slots=True, kw_only=True)
class BalancedPrices:
    """Step seconds and peak bytes of layouts with evenly spread blocks, (N, P) each; seconds are infinite under
    policies that the training spec forbids."""

    step_seconds: Array
    peak_bytes: Array


def balanced_prices(question: Question, columns: LayoutColumns) -> BalancedPrices:
    """Step time and peak memory of N legal layouts with evenly spread blocks, under each recompute policy."""
    costs = replace(stage_costs(question, columns), kinds=())  # costs of mean blocks
    allowed = policy_mask(question.training.recompute)
    seconds = np.full((len(columns), len(allowed)), np.inf)
    size, alike = np.full_like(seconds, np.inf), Kinds((0,) * question.model.num_layers)
    for rows in groups_of(columns):
        group = RankCosts.of_rows(question, columns.rows(rows), costs.rows(rows), allowed)
        group = replace(group, kinds=alike)
        seconds[rows], size[rows] = _step_seconds(group), _peak_bytes(group)
    return BalancedPrices(step_seconds=seconds, peak_bytes=size)


def _step_seconds(group: RankCosts) -> Array:
    blocks = group.num_layers / group.pp
    rank_NRP = group.fixed_seconds[..., None] + blocks * group.by_rank(group.block_seconds)
    slowest_NP, all_NP = rank_NRP.max(axis=1), rank_NRP.sum(axis=1)
    fill_NP = np.where(np.isinf(slowest_NP), np.inf, all_NP - np.where(np.isinf(slowest_NP), 0.0, slowest_NP))
    tail_N = group.cycle_delay + group.tail(np.full(len(group.costs), blocks))
    seconds: Array = group.microbatches[:, None] * slowest_NP + fill_NP / group.vpp + tail_N[:, None]
    return seconds


def _peak_bytes(group: RankCosts) -> Array:
    """Peak bytes of the fullest rank, in training or in the optimizer step, (N, P)."""
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
