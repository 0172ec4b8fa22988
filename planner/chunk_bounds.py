"""A lower bound for interleaved layouts: the lightest work of any chunk pattern that fits, on the rank where it hurts.

    M ≥ Σ_{i<r} (T_i of chunk 0 + 2 c) + m Σ_chunks T_r        the same path as in `planner.bounds`, for every rank r

Shape legend: N layouts of one (pp, vpp), R ranks, C chunks of a rank, T patterns, P policies.
"""

from __future__ import annotations

import numpy as np

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
    pattern_TC = chunk_patterns(group.allowed, group.vpp)
    block_NTC = group.block_seconds[:, pattern_TC]
    fixed = x.stage_forward + x.stage_backward
    first_NT = fixed[:, None] + size * block_NTC[..., 0] + 2 * x.p2p[:, None]
    work_NT = group.vpp * fixed[:, None] + size * block_NTC.sum(axis=-1)
    ends = [  # rank 0 waits for none; the last rank waits for all and has the head; one between may be busiest
        (0, x.embedding_forward + x.embedding_backward),
        (group.pp - 2, 0 * fixed),
        (group.pp - 1, x.head_forward + x.head_backward),
    ]
    m_N1 = group.microbatches[:, None]
    embedding_N1 = (x.embedding_forward + x.embedding_backward)[:, None]
    pipeline_NT = np.max(
        [
            way * first_NT + (way > 0) * embedding_N1 + m_N1 * (work_NT + extra[:, None])
            for way, extra in ends
            if way >= 0
        ],
        axis=0,
    )
    pipeline_NT = np.where(_fits(group), pipeline_NT, np.inf)
    return pipeline_NT.min(axis=1) + group.least_tail


def _fits(group: Group) -> Bools:
    """(N, T): which patterns fit on the first rank, which keeps most microbatches, and on the last, at one moment."""
    x, size = group.costs, int(group.sizes[0])
    pattern_TC = chunk_patterns(group.allowed, group.vpp)
    activation_NTC = x.layer_activation[:, pattern_TC]
    working_NT = x.working[:, pattern_TC].max(axis=-1)
    slack_N1 = TOLERANCE * x.memory_limit[:, None]
    fits = np.ones(working_NT.shape, dtype=np.bool_)
    for rank in (0, group.pp - 1):
        kept_NT = size * np.einsum("nc,ntc->nt", group.live[:, rank], activation_NTC)
        blocks = group.vpp * size
        free_N1 = (group.free_bytes[:, rank] - blocks * x.layer_static)[:, None]
        fits &= kept_NT + working_NT <= free_N1 + slack_N1
        fits &= (blocks <= group.updatable[:, rank])[:, None]
    return fits
