"""A lower bound for interleaved layouts: the lightest work of any chunk pattern that fits, on the rank where it hurts.

    M ≥ Σ_{i<r} (T_i of chunk 0 + 2 c) + m Σ_chunks T_r        the same path as in `planner.bounds`, for every rank r

Shape legend: N layouts of one (pp, vpp), R ranks, C chunks of a rank, T patterns, P policies.
"""

from __future__ import annotations

import numpy as np

from cost_models.specs.columns import Ints
from planner.chunks import chunk_patterns
from planner.group import Bools, Floats, Group
from planner.placement import TOLERANCE

TABLE_ENTRIES = 4_000_000
"""Layouts × patterns × chunks handled at once: bounds memory."""


def chunk_bounds(group: Group) -> Floats:
    """(N,) seconds; infinite where no pattern fits."""
    patterns = chunk_patterns(group.allowed, group.vpp)
    step = max(1, TABLE_ENTRIES // patterns.size)
    parts = [
        _chunk_bounds(group.rows(slice(start, start + step))) for start in range(0, len(group.costs), step)
    ]
    return np.concatenate(parts) if parts else np.empty(0)


def _chunk_bounds(group: Group) -> Floats:
    x, size = group.costs, int(group.sizes[0])
    patterns = chunk_patterns(group.allowed, group.vpp)
    fixed = x.stage_forward + x.stage_backward
    first_NT = fixed[:, None] + size * group.block_seconds[:, patterns[:, 0]] + 2 * x.p2p[:, None]
    work_NT = group.vpp * fixed[:, None] + size * _sum_over_chunks(
        group, patterns, group.block_seconds, np.ones((len(x), group.vpp))
    )
    embedding, head = x.embedding_forward + x.embedding_backward, x.head_forward + x.head_backward
    # Rank 0 waits for none; the last rank waits for all and has the head; of those between, the last waits longest.
    ends = [(0, embedding), (group.pp - 2, 0 * fixed), (group.pp - 1, head)]
    pipeline_NT = np.max(
        [
            way * first_NT
            + (way > 0) * embedding[:, None]
            + group.microbatches[:, None] * (work_NT + own[:, None])
            for way, own in ends
        ],
        axis=0,
    )
    least_N: Floats = np.where(_fits(group, patterns), pipeline_NT, np.inf).min(axis=1)
    return least_N + group.least_tail


def _fits(group: Group, patterns: Ints) -> Bools:
    """(N, T): which patterns fit on the first rank, which keeps most microbatches, and on the last, at one moment."""
    x, size = group.costs, int(group.sizes[0])
    blocks = group.vpp * size
    fits = np.ones((len(group.microbatches), len(patterns)), dtype=np.bool_)
    for rank in (0, group.pp - 1):
        working_NT = group.working[:, rank, patterns[:, 0]]
        for policy in np.flatnonzero(group.allowed).tolist():
            used_T = (patterns == policy).any(axis=1)
            working_NT = np.maximum(working_NT, np.where(used_T, group.working[:, rank, policy, None], 0.0))
        kept_NT = size * _sum_over_chunks(group, patterns, x.layer_activation, group.live[:, rank])
        free_N = group.free_bytes[:, rank] - blocks * x.layer_static + TOLERANCE * x.memory_limit
        fits &= kept_NT + working_NT <= free_N[:, None]
        fits &= (blocks <= group.updatable[:, rank])[:, None]
    return fits


def _sum_over_chunks(group: Group, patterns: Ints, value_NP: Floats, weight_NC: Floats) -> Floats:
    """(N, T): Σ_c weight[c] · value[policy of chunk c], one matrix product a policy."""
    total_NT = np.zeros((len(weight_NC), len(patterns)))
    for policy in np.flatnonzero(group.allowed).tolist():
        total_NT += value_NP[:, policy, None] * (weight_NC @ (patterns == policy).T.astype(np.float64))
    return total_NT
