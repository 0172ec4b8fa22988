"""A lower bound for layouts with several chunks a rank: the lightest work of any pattern that fits, where it hurts.

    M ≥ Σ_{i<r} (T_i of chunk 0 + 2 c) + m Σ_chunks T_r        the same path as in `planner.bounds`, for every rank r

It is taken on the first rank, which waits for none, on the last, which waits for all and has the head, and on the last
of the fullest between them.

Shape legend: N layouts of one (pp, vpp, schedule), R ranks, C chunks of a rank, T patterns of one choice of sizes, P
policies.
"""

from __future__ import annotations

import numpy as np

from cost_models.specs.columns import Ints
from planner.chunks import blocks_of_chunks, blocks_recomputed, chunk_sizes
from planner.group import Bools, Floats, Group
from planner.placement import TOLERANCE

TABLE_ENTRIES = 4_000_000
"""Layouts × patterns × chunks handled at once: bounds memory."""


def chunk_bounds(group: Group) -> Floats:
    """(N,) seconds; infinite where no pattern fits."""
    least_N = np.full(len(group.costs), np.inf)
    for sizes_S in chunk_sizes(group.num_layers, group.pp * group.vpp):
        sizes_CR = sizes_S.reshape(group.vpp, group.pp)
        ends_TP = blocks_recomputed(group.allowed, int(sizes_CR.sum(axis=0).max()))
        step = max(1, TABLE_ENTRIES // (len(ends_TP) * group.vpp))
        for start in range(0, len(least_N), step):
            some = slice(start, start + step)
            bound = _chunk_bounds(group.rows(some), sizes_CR, ends_TP)
            least_N[some] = np.minimum(least_N[some], bound)
    return least_N


def _chunk_bounds(group: Group, sizes_CR: Ints, ends_TP: Ints) -> Floats:
    """(N,): the bound for one choice of sizes."""
    x, count_R = group.costs, sizes_CR.sum(axis=0)
    seconds_NP = np.where(group.allowed, group.block_seconds, 0.0)
    fixed_N1 = (x.stage_forward + x.stage_backward)[:, None]
    embedding_N1 = (x.embedding_forward + x.embedding_backward)[:, None]
    head_N1 = (x.head_forward + x.head_backward)[:, None]
    first_RTP = np.stack([blocks_of_chunks(ends_TP, sizes_C)[:, 0] for sizes_C in sizes_CR.T])
    fits_NT = np.ones((len(x), len(ends_TP)), dtype=np.bool_)
    longest_NT = np.zeros(fits_NT.shape)
    fullest = int(group.pp - 1 - np.argmax(count_R[::-1]))
    for rank in sorted({0, fullest, group.pp - 1}):
        blocks_TCP = blocks_of_chunks(ends_TP, sizes_CR[:, rank])
        fits_NT &= _fits(group, blocks_TCP, rank)
        way_NT = seconds_NP @ first_RTP[:rank].sum(axis=0).T + rank * (fixed_N1 + 2 * x.p2p[:, None])
        work_NT = group.vpp * fixed_N1 + seconds_NP @ blocks_TCP.sum(axis=1).T
        work_NT = work_NT + (embedding_N1 if rank == 0 else 0.0) + (head_N1 if rank == group.pp - 1 else 0.0)
        path_NT = way_NT + (embedding_N1 if rank else 0.0) + group.microbatches[:, None] * work_NT
        longest_NT = np.maximum(longest_NT, path_NT)
    least_N: Floats = np.where(fits_NT, longest_NT, np.inf).min(axis=1)
    least_N += group.tail(int(count_R[0]))
    return least_N


def _fits(group: Group, blocks_TCP: Ints, rank: int) -> Bools:
    """(N, T): which patterns fit on a rank at one moment."""
    x, blocks = group.costs, int(blocks_TCP[0].sum())
    used_TP: Bools = np.asarray(blocks_TCP.any(axis=1))
    working_NT = np.zeros((len(x), len(blocks_TCP)))
    kept_NT = np.zeros(working_NT.shape)
    for policy in np.flatnonzero(group.allowed).tolist():
        needed_NT = np.where(used_TP[:, policy], group.working[:, rank, policy, None], 0.0)
        working_NT = np.maximum(working_NT, needed_NT)
        held_NT = group.live[:, rank] @ blocks_TCP[..., policy].T.astype(np.float64)
        kept_NT += x.layer_activation[:, policy, None] * held_NT
    free_N = group.free_bytes[:, rank] - blocks * x.layer_static + TOLERANCE * x.memory_limit
    updatable_N = group.updatable[:, rank] >= blocks
    fits: Bools = (kept_NT + working_NT <= free_N[:, None]) & updatable_N[:, None]
    return fits
