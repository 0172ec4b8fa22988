"""When nothing fits on several pools: the layout that comes closest, and where it overflows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from cost_models.axes.layout import Layout
from cost_models.errors import DoesNotFitError
from cost_models.pipeline.estimating import estimate
from cost_models.question import MixedQuestion
from cost_models.specs.choices import RECOMPUTE_POLICIES
from cost_models.units import format_bytes
from planner.placement.leaf import Floats, Leaf
from planner.placement.pool_shape import RankGroup

COMPARED = 48
"""Layouts, roughly the closest ones, whose ranks are filled one by one."""


def least_share(group: RankGroup) -> Floats:
    """(N,): memory that a pipeline needs at least, as a share of what its ranks have."""
    each_NR = group.of_ranks("layer_static")
    kept_NRP = group.of_ranks("layer_activation")[..., group.allowed]
    blocks_N = group.num_layers * (each_NR.min(axis=1) + kept_NRP.min(axis=(1, 2)))
    fixed_N = group.with_ends("static", group.of_ranks("static")).sum(axis=1)
    share_N: Floats = (fixed_N + blocks_N) / group.of_ranks("memory_limit").sum(axis=1)
    return share_N


def closest_first(fullness_N: Floats) -> Sequence[int]:
    """The rows worth comparing, by memory that all ranks together need at least as a share of what they have."""
    rows: list[int] = np.argsort(fullness_N, kind="stable")[:COMPARED].tolist()
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
    row = min(filled, key=lambda one: filled[one][1])
    leaf = leaf_of(row)
    weakest = RECOMPUTE_POLICIES[int(np.flatnonzero(leaf.allowed)[-1])]
    layout = layout_of(row).model_copy(update={"layers": filled[row][0], "recompute": (weakest,)})
    closest = estimate(question, layout)
    closest = closest if max_memory is None else closest.within(max_memory)
    rank, mixed = closest.fullest_rank, question.mixed
    return DoesNotFitError(
        f"no layout of {question.model.name} fits the {mixed.num_gpus:,} GPUs of `{mixed.name}`; the closest,"
        f" {closest.layout.brief}, needs {format_bytes(closest.peak_bytes)} of"
        f" {format_bytes(closest.memory_limit)} on pipeline rank {rank}, in pool `{closest.layout.pools[rank]}`",
        hint="use more GPUs, or shorter sequences",
    )


def evenly_full(leaf: Leaf) -> tuple[tuple[int, ...], float]:
    """Blocks that all recompute most, each next one where it leaves most room, and the share of the fullest rank."""
    policy = int(np.flatnonzero(leaf.allowed)[-1])
    blocks_RP = leaf.no_blocks
    blocks_RP[:, policy] = 1
    one_R = leaf.rank_bytes(blocks_RP)
    blocks_RP[:, policy] = 2
    each_R = (leaf.rank_bytes(blocks_RP) - one_R) / leaf.memory_limit
    full_R, layers_R = one_R / leaf.memory_limit, np.ones(leaf.pp, dtype=np.int64)
    for _ in range(leaf.num_layers - leaf.pp):
        rank = int(np.argmin(full_R + each_R))
        layers_R[rank] += 1
        full_R[rank] += each_R[rank]
    return tuple(layers_R.tolist()), float(full_R.max())
