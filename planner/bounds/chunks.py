"""Lower bounds for layouts whose placements are patterns: the least work of a pattern that fits, on the decisive ranks.

    M ≥ Σ_{i<r} (T_i of chunk 0 + 2 c) + m Σ_chunks T_r        the same path as in `planner.bounds.step`, for every
    rank r

Where backward passes are split, weight halves may run while the last microbatch is on its way up, and T_i is a forward
pass only. The sum is taken on the first rank, which waits for none, on the last, which waits for all, and on the last
of the fullest. The quick bound does without patterns: on the first rank, what does not fit without recompute is paid
for at the best rate of any policy.

Shape legend: N layouts of one (pp, vpp, schedule), for the quick bound of one schedule, R ranks, C chunks of a rank, T
patterns of one choice of sizes, P policies.
"""

from __future__ import annotations

import numpy as np

from cost_models.arrays import Array, Bools, Ints
from cost_models.schedules.registry import stages_of_rank
from cost_models.specs.model.kinds import Kinds
from planner.bounds.kinds import first_and_last, paid_seconds
from planner.placement.chunks import blocks_of_chunks, blocks_recomputed, chunk_sizes
from planner.placement.leaf import TOLERANCE
from planner.placement.rank_costs import RankCosts

TABLE_ENTRIES = 4_000_000
"""Layouts × patterns × chunks handled at once: bounds memory."""


def quick_chunk_bounds(rows: RankCosts) -> Array:
    """Quick bound of the step, seconds (N,); infinite where nothing fits on the first rank."""
    m_N, fixed_NR, x = rows.microbatches, rows.fixed_seconds, rows.costs
    first_N, last_N = first_and_last(rows, rows.kinds) if rows.kinds else _first_and_last(rows)
    first_N, last_N = m_N * (fixed_NR[:, 0] + first_N), _wait(rows) + m_N * (fixed_NR[:, -1] + last_N)
    fullest_N = m_N * (
        rows.vpp * (x.stage_forward + x.stage_backward)
        + rows.fullest_rank_value(lambda kind: kind.least_block_seconds)
    )
    longest_N: Array = np.max([first_N, last_N, fullest_N, _round_trip_bounds(rows)], axis=0)
    return longest_N + rows.tail(rows.fewest_on_rank)


def _first_and_last(rows: RankCosts) -> tuple[Array, Array]:
    """Minimum seconds of a microbatch in the blocks of the first rank and of the last, (N,) each; infinite where the
    blocks do not fit on the first rank."""
    x, (most_live_N, all_live_N) = rows.costs, rows.live_on_first
    seconds_NP, least_N = rows.block_seconds, rows.block_seconds.min(axis=1)
    fastest_N1 = seconds_NP.argmin(axis=1)[:, None]
    kept_N1 = np.take_along_axis(x.layer_activation, fastest_N1, axis=1)
    live_N = rows.largest_stage * all_live_N - rows.missing_blocks * most_live_N
    room_N = rows.free_bytes[:, 0] - rows.least_working[:, 0] - rows.fewest_on_rank * x.layer_static
    short_N = live_N * kept_N1[:, 0] - room_N - TOLERANCE * x.memory_limit
    saved_NP, longer_NP = kept_N1 - x.layer_activation, seconds_NP - least_N[:, None]
    saved_NP = np.where(rows.allowed, saved_NP, 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        rate_N = np.where(saved_NP > 0, longer_NP / saved_NP, np.inf).min(axis=1) / most_live_N
        recompute_N = np.where(short_N > 0, short_N * rate_N, 0.0)
    fits_N = (short_N <= live_N * saved_NP.max(axis=1)) & (rows.fewest_on_rank <= rows.updatable[:, 0])
    work_N = rows.fewest_on_rank * least_N
    shared_N = recompute_N - np.where(
        rows.smaller_stages > 0, np.where(rows.allowed, longer_NP, 0.0).max(axis=1), 0.0
    )
    return np.where(fits_N, work_N + recompute_N, np.inf), work_N + np.maximum(shared_N, 0.0)


def _round_trip_bounds(rows: RankCosts) -> Array:
    """Seconds of one microbatch down all stages and up again, plus the first stage's passes of all others, (N,)."""
    x, layers, stages = rows.costs, rows.num_layers, rows.pp * rows.vpp
    forward = layers * x.layer_forward + stages * x.stage_forward + x.embedding_forward + x.head_forward
    block_N = np.where(rows.allowed, x.layer_backward, np.inf).min(axis=1)
    backward = layers * block_N + stages * x.stage_backward + x.head_backward
    first_N, last_N = (
        rows.lightest_costs.layer_forward,
        np.where(rows.allowed, rows.lightest_costs.layer_backward, np.inf).min(axis=1),
    )
    other_passes = np.maximum(
        x.stage_forward + rows.smallest_stage * first_N, x.stage_backward + rows.smallest_stage * last_N
    )
    if rows.splits_backward:
        backward = backward - layers * x.layer_weight - x.head_weight
        other_passes = x.stage_forward + rows.smallest_stage * first_N
    crossings = stages - 1 - rows.is_v_shaped
    total: Array = forward + backward + 2 * crossings * x.p2p + (rows.microbatches - 1) * other_passes
    return total


def _wait(rows: RankCosts) -> Array:
    """Minimum seconds that the last rank waits before its first action, (N,): a pass of every rank before it."""
    x, passes = rows.lightest_costs, rows.costs.stage_forward + rows.costs.p2p
    block = x.layer_forward
    if not rows.splits_backward:
        passes, block = passes + x.stage_backward + x.p2p, rows.block_seconds.min(axis=1)
    # stages before the last rank's first one; only the very first may have no block
    smaller = np.minimum(rows.smaller_stages, np.where(rows.smallest_stage == 0, 1, rows.pp - 1))
    return (rows.pp - 1) * passes + ((rows.pp - 1) * rows.largest_stage - smaller) * block


def chunk_bounds(group: RankCosts) -> Array:
    """Bound of the step over all patterns, seconds (N,); infinite where no pattern fits."""
    if group.kinds is not None:
        return _bounds_of_kinds(group, group.kinds)
    (pp, vpp), least_N = group.shape, np.full(len(group), np.inf)
    stage_of_RC = stages_of_rank(group.schedule, pp, vpp)
    for sizes_S in chunk_sizes(group.num_layers, pp * vpp):
        sizes_CR = sizes_S[stage_of_RC.T]
        fitting = np.flatnonzero(_may_fit(group, sizes_CR))
        if not len(fitting):
            continue
        ends_TP = blocks_recomputed(group.allowed, sizes_CR, group.uses_full_counts)
        step = max(1, TABLE_ENTRIES // (len(ends_TP) * vpp))
        for start in range(0, len(fitting), step):
            batch = fitting[start : start + step]
            bound = _chunk_bounds(group.rows(batch), sizes_CR, ends_TP)
            least_N[batch] = np.minimum(least_N[batch], bound)
    return least_N


def _bounds_of_kinds(group: RankCosts, kinds: Kinds) -> Array:
    """Bound of the step with several kinds of blocks, seconds (N,). Sizes say which blocks lie on which rank. On the
    first rank and on the rank with most work, what does not fit is paid for at a price of a byte, at which every block
    follows the policy that is cheapest for it (Lagrange; `planner.bounds.kinds`)."""
    pp, vpp = group.shape
    stage_of_RC = stages_of_rank(group.schedule, pp, vpp)
    least_KN = np.stack([kind.least_block_seconds for kind in group.of_kinds])
    least_N = np.full(len(group), np.inf)
    for sizes_S in chunk_sizes(group.num_layers, pp * vpp):
        blocks_RCK = kinds.in_sorts(sizes_S[:, None])[stage_of_RC]
        work_RN = blocks_RCK.sum(axis=1) @ least_KN + group.fixed_seconds.T
        longest_N = work_RN.max(axis=0)
        for rank in sorted({0, int(work_RN.mean(axis=1).argmax())}):
            paid_N = paid_seconds(group, blocks_RCK[rank], rank)
            longest_N = np.maximum(longest_N, group.fixed_seconds[:, rank] + paid_N)
        least_N = np.minimum(least_N, longest_N)
    longest: Array = np.maximum(
        quick_chunk_bounds(group), group.microbatches * least_N + group.tail(group.fewest_on_rank)
    )
    return longest


def _may_fit(group: RankCosts, sizes_CR: Ints) -> Bools:
    """Layouts with memory for these sizes if every block keeps as little as any policy does, (N,). A cheap filter:
    patterns are hundreds of thousands where blocks are hundreds."""
    x = group.costs
    least_N = np.where(group.allowed, x.layer_activation, np.inf).min(axis=1)
    may = np.ones(len(x), dtype=np.bool_)
    for rank, sizes_C in enumerate(sizes_CR.T):
        kept_N = least_N * (group.live[:, rank] @ sizes_C.astype(np.float64))
        held_N = sizes_C.sum() * x.layer_static
        may &= (
            kept_N + group.least_working[:, rank] + held_N
            <= group.free_bytes[:, rank] + TOLERANCE * x.memory_limit
        )
    return may


def _chunk_bounds(group: RankCosts, sizes_CR: Ints, ends_TP: Ints) -> Array:
    """Bound of the step for one choice of sizes, seconds (N,)."""
    x, count_R = group.costs, sizes_CR.sum(axis=0)
    seconds_NP = np.where(group.allowed, group.block_seconds, 0.0)
    stage_N1 = (x.stage_forward + x.stage_backward)[:, None]
    step_N1, way_NP = stage_N1 + 2 * x.p2p[:, None], seconds_NP
    if group.splits_backward:
        step_N1 = (x.stage_forward + x.p2p)[:, None]
        way_NP = np.repeat(x.layer_forward[:, None], seconds_NP.shape[1], axis=1)
    first_RTP = np.stack(
        [blocks_of_chunks(ends_TP, sizes_C, group.uses_full_counts)[:, 0] for sizes_C in sizes_CR.T]
    )
    fits_NT = np.ones((len(x), len(ends_TP)), dtype=np.bool_)
    longest_NT = np.zeros(fits_NT.shape)
    pp, _ = group.shape
    fullest = int(pp - 1 - np.argmax(count_R[::-1]))
    for rank in sorted({0, fullest, pp - 1}):
        blocks_TCP = blocks_of_chunks(ends_TP, sizes_CR[:, rank], group.uses_full_counts)
        fits_NT &= _fits(group, blocks_TCP, rank)
        waits_NT = way_NP @ first_RTP[:rank].sum(axis=0).T + rank * step_N1
        work_NT = group.fixed_seconds[:, rank, None] + seconds_NP @ blocks_TCP.sum(axis=1).T
        longest_NT = np.maximum(longest_NT, waits_NT + group.microbatches[:, None] * work_NT)
    longest_NT = np.maximum(longest_NT, _round_trip_bounds(group)[:, None])
    least_N: Array = np.where(fits_NT, longest_NT, np.inf).min(axis=1)
    return least_N + group.tail(int(count_R.min() if group.splits_backward else count_R[0]))


def _fits(group: RankCosts, blocks_TCP: Ints, rank: int) -> Bools:
    """Patterns that fit on a rank at one moment, (N, T)."""
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
