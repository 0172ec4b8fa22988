"""Fastest mix of recompute policies on each rank with one stage, and good placements made of such mixes.

A rank with one stage has its memory to itself, so for each number of blocks only its fastest mix of policies
that fits is of use. For each set of policies that a mix may name, every number of blocks under the last one
is tried, and of the other blocks as many have the faster policy as memory allows. With several kinds of
blocks every mix is tried, for each class of positions at which a stage may begin.

Good placements are incumbents, which let the search discard almost everything else. The proof does not need
them: a poor incumbent costs time, never the optimum. They start from the least slowest rank that can hold all
blocks, followed by single moves. Interleaved layouts are decided by `planner.placement.patterns`.

Shape legend: R ranks (each one stage), B numbers of blocks, K blocks under the last policy of a set, or
candidate placements, P policies.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import combinations
from math import comb

import numpy as np

from cost_models.arrays import Array, Bools, Ints
from cost_models.axes.stages import blocks_by_policy, first_in_full, named_blocks
from planner.placement.leaf import Leaf, Placement

_AT_ONCE = 250_000
"""Maximum number of mixes that are compared in one batch."""


def fastest_mixes(leaf: Leaf, sizes: Sequence[int] | None = None) -> tuple[Array, Ints]:
    """Fastest mix of recompute policies for each of B block counts on each rank: seconds of one microbatch,
    (B, R), and blocks under each policy, (B, R, P). Seconds are infinite where no mix fits.

    `sizes` are the numbers of blocks to try; by default all that a stage may hold. With several kinds of blocks
    rows are choices, `Leaf.choice_indices`: every class of positions for each number of blocks.
    """
    size_B = np.array(leaf.sizes if sizes is None else sizes, dtype=np.int64)
    if leaf.kinds.number > 1 or leaf.recompute is not None or leaf.full_count is not None:
        return _fastest_enumerated(leaf, size_B)
    backward_RP = np.where(leaf.allowed, leaf.by_rank("layer_backward"), np.inf)
    fastest_R = backward_RP.argmin(axis=1)
    blocks_BRP = _fastest_mixes(leaf, (int(fastest_R[0]),), size_B)
    seconds_BR = _seconds(leaf, blocks_BRP)
    if np.isfinite(seconds_BR).all() and (fastest_R == fastest_R[0]).all():
        return seconds_BR, blocks_BRP
    policies = np.flatnonzero(leaf.allowed).tolist()
    sets = (chosen for count in range(1, len(policies) + 1) for chosen in combinations(policies, count))
    for policy_set in sets:
        tried_BRP = _fastest_mixes(leaf, policy_set, size_B)
        time_BR = _seconds(leaf, tried_BRP)
        better_BR = time_BR < seconds_BR
        seconds_BR = np.where(better_BR, time_BR, seconds_BR)
        blocks_BRP = np.where(better_BR[..., None], tried_BRP, blocks_BRP)
    return seconds_BR, blocks_BRP


def every_mix(size: int, allowed: Bools) -> Ints:
    """Number of blocks under each recompute policy in every split of `size` blocks among the allowed
    policies, (K, P)."""
    policies = np.flatnonzero(allowed).tolist()
    free = len(policies) - 1  # the last policy has the rest
    counts = np.indices((size + 1,) * free).reshape(free, -1 if free else 1).T
    counts = counts[counts.sum(axis=1) <= size]
    mixes_KP = np.zeros((len(counts), len(allowed)), dtype=np.int64)
    mixes_KP[:, policies[:-1]] = counts
    mixes_KP[:, policies[-1]] = size - counts.sum(axis=1)
    return mixes_KP


def _fastest_enumerated(leaf: Leaf, size_B: Ints) -> tuple[Array, Ints]:
    """Fastest mix of recompute policies, found by trying every mix: seconds of one microbatch, (B·C, R), and
    blocks of each kind under each policy, (B·C, R, K·P). Each number of blocks has C classes of positions."""
    rows, every_C, policies = [], np.arange(leaf.kinds.classes), int(leaf.allowed.sum())
    # for each number of blocks: all at once
    has_one_mix = policies == 1 or leaf.recompute is not None or leaf.full_count is not None
    for batch_B in [size_B] if has_one_mix else np.split(size_B, len(size_B)):
        starts_U, of_C = (every_C, every_C) if has_one_mix else leaf.kinds.distinct_starts(int(batch_B[0]))
        mixes = 1 if has_one_mix else comb(int(batch_B[0]) + policies - 1, policies - 1)
        seconds, blocks = [], []
        for part_U in np.array_split(starts_U, min(len(starts_U), -(-len(starts_U) * mixes // _AT_ONCE))):
            seconds_BCMR, blocks_BCMRP = priced_mixes(leaf, batch_B, part_U)
            best = seconds_BCMR.argmin(axis=2, keepdims=True)
            seconds.append(np.take_along_axis(seconds_BCMR, best, axis=2)[:, :, 0])
            blocks.append(np.take_along_axis(blocks_BCMRP, best[..., None], axis=2)[:, :, 0])
        seconds_BCR, blocks_BCR = (np.concatenate(part, axis=1)[:, of_C] for part in (seconds, blocks))
        has_room_BC = every_C + batch_B[:, None] <= leaf.num_layers  # else `of_C` is of other blocks
        seconds_BCR = np.where(has_room_BC[..., None], seconds_BCR, np.inf)
        rows.append((seconds_BCR.reshape(-1, leaf.pp), blocks_BCR.reshape(-1, *blocks_BCR.shape[2:])))
    all_seconds, all_blocks = zip(*rows, strict=True)
    return np.concatenate(all_seconds), np.concatenate(all_blocks)


def priced_mixes(leaf: Leaf, size_B: Ints, start_C: Ints, number_M: Ints | None = None) -> tuple[Array, Ints]:
    """Price M mixes of recompute policies for stages that begin at the blocks `start_C`: seconds of one
    microbatch, (B, C, M, R), and blocks, (B, C, M, R, K·P). Seconds are infinite where a mix does not fit.

    With `number_M`, or a number in the leaf, so many first blocks are recomputed in full. Else it is the mix that the
    leaf names, or every mix; then all sizes have equally many.
    """
    size, start, named_R = size_B[:, None, None, None], start_C[:, None, None], np.zeros(1, dtype=np.int64)
    if number_M is None and leaf.full_count is not None:
        number_M = np.array([leaf.full_count])
    if number_M is not None:
        mixes = first_in_full(size, number_M[:, None])
    elif leaf.recompute is not None:
        named_R = np.array([named_blocks(mix) for mix in leaf.recompute])  # and a rank has at least as many
        sizes_BR = np.maximum(size_B[:, None], named_R).tolist()
        mixes = np.stack([blocks_by_policy(sizes_R, leaf.recompute) for sizes_R in sizes_BR])[:, None, None]
    else:
        mixes = np.stack([every_mix(size, leaf.allowed) for size in size_B.tolist()])[:, None, :, None]
    blocks = leaf.kinds.in_sorts(mixes, start)
    blocks_BCMRP = np.broadcast_to(blocks, (*blocks.shape[:3], leaf.pp, blocks.shape[-1]))
    possible = (size >= named_R) & (start + size <= leaf.num_layers)
    return _seconds(leaf, blocks_BCMRP, possible), blocks_BCMRP


def _seconds(leaf: Leaf, blocks_BRP: Ints, possible_BR: Bools | bool = True) -> Array:
    """Seconds of forward plus backward of one microbatch on every rank, (..., R); infinite where blocks are not
    possible or do not fit."""
    fits_BR = (leaf.rank_bytes(blocks_BRP) <= leaf.memory_limit) & possible_BR
    return np.where(fits_BR, leaf.forward(blocks_BRP) + leaf.backward(blocks_BRP), np.inf)


def _fastest_mixes(leaf: Leaf, policy_set: tuple[int, ...], size_B: Ints) -> Ints:
    """For each of B block counts on each rank, the blocks under each policy in the fastest mix of the
    policies in `policy_set` that fits in memory, (B, R, P)."""
    backward_RP, kept_RP = leaf.by_rank("layer_backward"), leaf.by_rank("layer_activation")
    faster_first_RU = np.array(policy_set)[np.argsort(backward_RP[:, policy_set], axis=1, kind="stable")]
    # three policies: the slowest one repeats where the set has fewer
    policy_RU = faster_first_RU[:, np.minimum(np.arange(3), len(policy_set) - 1)]
    fast_R, next_R, last_R = leaf.memory.max_live * np.take_along_axis(kept_RP, policy_RU, axis=1).T
    room_BR = leaf.memory_limit - leaf.memory.peaks_besides_blocks(size_B[:, None], policy_set)
    last_K = np.arange(size_B[-1] + 1 if len(policy_set) == 3 else 1)
    rest_BK = size_B[:, None] - last_K
    rest_BRK = np.repeat(np.maximum(rest_BK, 0)[:, None, :], leaf.pp, axis=1)
    slack_BRK = room_BR[..., None] - last_R[:, None] * last_K - rest_BRK * next_R[:, None]
    saved_R1 = (fast_R - next_R)[:, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        affordable_BRK = np.floor(np.where(saved_R1 > 0, slack_BRK / saved_R1, np.inf))
    fast_BRK = np.clip(affordable_BRK, 0, rest_BRK).astype(np.int64)
    counts_BRKU = np.stack([fast_BRK, rest_BRK - fast_BRK, np.broadcast_to(last_K, fast_BRK.shape)], axis=-1)
    seconds_RU = np.take_along_axis(backward_RP, policy_RU, axis=1)
    spent_BRK = (counts_BRKU * seconds_RU[:, None, :]).sum(axis=-1)
    possible_BRK = (rest_BK[:, None, :] >= 0) & (slack_BRK - fast_BRK * saved_R1 >= 0)
    best_BR = np.where(possible_BRK, spent_BRK, np.inf).argmin(axis=-1)
    counts_BRU = np.take_along_axis(counts_BRKU, best_BR[..., None, None], axis=2)[:, :, 0]
    is_policy_RUP = np.eye(len(leaf.allowed), dtype=np.int64)[policy_RU]
    return np.asarray((counts_BRU[..., None] * is_policy_RUP).sum(axis=2))


ROUNDS = 4
"""Maximum number of rounds that each move one block from a rank to another."""
MOST_ACTIONS = 500_000
"""Maximum number of actions × placements in one round of moves, which then takes milliseconds."""


def good_placement(leaf: Leaf) -> tuple[Placement, float] | None:
    """Find a good, not always optimal, placement of a layout, with its step seconds; None where none fits.
    The best of a few balanced placements is improved by single moves.

    Sizes above twice the even share are tried only if nothing smaller fits.
    """
    best: tuple[Placement, float] | None = None
    usual_stop = min(leaf.sizes.stop, 2 * -(-leaf.num_layers // leaf.pp) + 2)
    for sizes in dict.fromkeys((range(leaf.sizes.start, usual_stop), leaf.sizes)):
        mixes = fastest_mixes(leaf, sizes)
        candidates_KR = _balanced_counts(leaf, mixes[0])
        for _ in range(ROUNDS):
            better = _fastest_placement(leaf, candidates_KR[(candidates_KR < sizes.stop).all(axis=1)], *mixes)
            if better is None or (best is not None and better[1] >= best[1]):
                break
            best, candidates_KR = better, _single_moves(leaf, np.array(better[0].layers))
        if best is not None:
            break
    return best


def _fastest_placement(
    leaf: Leaf, layers_KR: Ints, seconds_BR: Array, blocks_BRP: Ints
) -> tuple[Placement, float] | None:
    """Fastest of K candidate placements, with its step seconds; None where none fits. Every rank uses its
    fastest mix of policies that fits."""
    size_KR = leaf.choice_indices(layers_KR) - leaf.kinds.classes * leaf.sizes.start
    rank_R = np.arange(leaf.pp)
    fits_K = np.isfinite(seconds_BR[size_KR, rank_R]).all(axis=1)
    if not fits_K.any():
        return None
    blocks_KRP = blocks_BRP[size_KR[fits_K], rank_R]
    step_K = leaf.step_seconds(blocks_KRP)
    k = int(np.argmin(step_K))
    return Placement.of(blocks_KRP[k]), float(step_K[k])


def _balanced_counts(leaf: Leaf, seconds_BR: Array) -> Ints:
    """Candidate numbers of blocks on each rank for which the slowest rank is as fast as possible, (K, R).
    Ranks get the most blocks within its seconds, less the surplus in several orders."""
    low, classes = leaf.sizes.start, leaf.kinds.classes
    # the first rank begins the model, the others as most of them do
    usual_R = np.where(np.arange(leaf.pp) > 0, classes - 1, 0)
    seconds_BR = seconds_BR.reshape(-1, classes, leaf.pp)[:, usual_R, np.arange(leaf.pp)]
    limits = np.unique(seconds_BR[np.isfinite(seconds_BR)]).tolist()
    size_B1 = low + np.arange(len(seconds_BR))[:, None]

    def largest_counts(limit: float) -> Ints:
        """Largest number of blocks that each rank can have if they may take at most `limit` seconds, (R,); 0
        if no number is fast enough."""
        return np.asarray(np.where(seconds_BR <= limit, size_B1, 0).max(axis=0))

    def enough(limit: float) -> bool:
        """Whether the ranks together can have all blocks within `limit` seconds."""
        most_R = largest_counts(limit)
        return bool(most_R.sum() >= leaf.num_layers and most_R.all())

    first = bisect_left(limits, True, key=enough)
    if first == len(limits):
        return np.empty((0, leaf.pp), dtype=np.int64)
    ranks = list(range(leaf.pp))
    from_ends = sorted(ranks, key=lambda rank: (min(rank, leaf.pp - 1 - rank), rank))
    orders = [ranks, ranks[::-1], from_ends]
    most_R = largest_counts(limits[first])
    return np.stack([_reduced_to(most_R, leaf.num_layers, low, order) for order in orders])


def _reduced_to(most_R: Ints, total: int, low: int, order: list[int]) -> Ints:
    """Remove single blocks from the ranks of `order` in turn until `total` blocks are left; return each
    rank's number of blocks, (R,)."""
    layers_R = most_R.copy()
    while layers_R.sum() > total:
        for rank in order:
            if layers_R.sum() > total and layers_R[rank] > low:
                layers_R[rank] -= 1
    return layers_R


def _single_moves(leaf: Leaf, layers_R: Ints) -> Ints:
    """Number of blocks on each rank after every possible move of one block between two ranks, (K, R); empty
    if there are too many to evaluate."""
    giver_K, taker_K = np.indices((leaf.pp, leaf.pp)).reshape(2, -1)
    useful_K = (giver_K != taker_K) & (layers_R[giver_K] > leaf.sizes.start)
    giver_K, taker_K = giver_K[useful_K], taker_K[useful_K]
    if len(giver_K) * 2 * leaf.microbatches * leaf.pp > MOST_ACTIONS:
        return np.empty((0, leaf.pp), dtype=np.int64)
    block_RR = np.eye(leaf.pp, dtype=np.int64)
    return np.asarray(layers_R - block_RR[giver_K] + block_RR[taker_K])
