"""Good placements found quickly: the incumbents that let the search discard almost everything else.

Nothing here is needed for the proof; a poor incumbent costs time, never the optimum.

Shape legend: S virtual stages, R ranks, B counts of blocks, T patterns of policies, K candidate placements.
"""

from __future__ import annotations

from itertools import combinations_with_replacement

import numpy as np

from cost_models.specs.columns import Ints
from planner.placement import Bools, Floats, Leaf, Placement

ROUNDS = 4
"""Rounds of moving one block from a rank to another."""
TIMELINE_BUDGET = 2_000_000
"""Actions × placements that one round of moves may evaluate: a few milliseconds."""


def good_placement(leaf: Leaf) -> tuple[Placement, float] | None:
    """The best of a few balanced placements, improved by single moves, with its step time; None: none of them fits."""
    layers_KS = _balanced(leaf) if leaf.vpp == 1 else _even(leaf)
    if not len(layers_KS):
        return None
    best = _best(leaf, layers_KS)
    if best is None or leaf.vpp > 1:
        return best
    for _ in range(ROUNDS):
        moved_KS = _moves(leaf, np.array(best[0].layers))
        better = _best(leaf, moved_KS) if len(moved_KS) else None
        if better is None or better[1] >= best[1]:
            break
        best = better
    return best


def _best(leaf: Leaf, layers_KS: Ints) -> tuple[Placement, float] | None:
    """The fastest of some sizes, each with the fastest policies that fit."""
    layers_KS = np.unique(layers_KS, axis=0)
    policies_KS, fits_K = fastest_policies(leaf, layers_KS)
    if not fits_K.any():
        return None
    layers_KS, policies_KS = layers_KS[fits_K], policies_KS[fits_K]
    seconds_K = leaf.step_seconds(layers_KS, policies_KS)
    k = int(np.argmin(seconds_K))
    return Placement(tuple(layers_KS[k].tolist()), tuple(policies_KS[k].tolist())), float(seconds_K[k])


def fastest_policies(leaf: Leaf, layers_KS: Ints) -> tuple[Ints, Bools]:
    """(K, S) policies and (K,) whether they fit.

    For each rank the fastest of the patterns that recompute most in its first chunks, which keep most microbatches.
    With one chunk a rank these are all its choices.
    """
    pattern_TS = _patterns(leaf)
    layers_KTS = np.broadcast_to(layers_KS[:, None], (len(layers_KS), *pattern_TS.shape))
    bytes_KTR = leaf.rank_bytes(layers_KTS, pattern_TS)
    backward_KTR = leaf.sum_by_rank(leaf.backward(layers_KTS, pattern_TS))
    cost_KTR = np.where(bytes_KTR <= leaf.memory_limit, backward_KTR, np.inf)
    best_KR = cost_KTR.argmin(axis=1)
    fits_K = np.isfinite(cost_KTR.min(axis=1)).all(axis=1)
    pattern_TCR = pattern_TS.reshape(-1, leaf.vpp, leaf.pp)
    policies_KCR = pattern_TCR[best_KR[:, None, :], np.arange(leaf.vpp)[:, None], np.arange(leaf.pp)]
    return policies_KCR.reshape(len(layers_KS), -1), fits_K


def _patterns(leaf: Leaf) -> Ints:
    """(T, S): policies by chunk, never recomputing less in an earlier chunk; each stage's own choice where it has one."""
    fastest_first_P = np.argsort(leaf.policy_cost("layer_backward"), kind="stable")
    used = [int(p) for p in fastest_first_P if leaf.allowed[:, p].any()]
    rank_CT = np.array(list(combinations_with_replacement(range(len(used)), leaf.vpp)), dtype=np.int64).T[::-1]
    chunk_TC = np.array(used, dtype=np.int64)[rank_CT].T
    pattern_TS = np.repeat(chunk_TC, leaf.pp, axis=1)
    fallback_S = np.array([next(p for p in used if leaf.allowed[stage, p]) for stage in range(leaf.num_stages)])
    return np.unique(
        np.where(leaf.allowed[np.arange(leaf.num_stages), pattern_TS], pattern_TS, fallback_S), axis=0
    )


def rank_seconds(leaf: Leaf) -> tuple[Floats, Ints]:
    """For one chunk a rank: (B, R) least seconds of one microbatch, infinite where nothing fits, and the policy (B, R)."""
    size_BS = np.repeat(np.array(leaf.sizes, dtype=np.int64)[:, None], leaf.pp, axis=1)
    seconds_BPR = []
    for policy in range(leaf.allowed.shape[1]):
        policies_BS = np.full_like(size_BS, policy)
        fits = (leaf.rank_bytes(size_BS, policies_BS) <= leaf.memory_limit) & leaf.allowed[:, policy]
        seconds_BPR.append(
            np.where(fits, leaf.forward(size_BS) + leaf.backward(size_BS, policies_BS), np.inf)
        )
    stacked_PBR = np.stack(seconds_BPR)
    return stacked_PBR.min(axis=0), stacked_PBR.argmin(axis=0)


def _balanced(leaf: Leaf) -> Ints:
    """(K, S): the least slowest rank that can hold all blocks, then what is too much taken off in several orders."""
    seconds_BR, _ = rank_seconds(leaf)
    low = leaf.sizes.start
    limits = np.unique(seconds_BR[np.isfinite(seconds_BR)])
    if not len(limits):
        return np.empty((0, leaf.pp), dtype=np.int64)

    def held(limit: float) -> Ints:
        within_BR = seconds_BR <= limit
        top_BR = np.where(within_BR, np.arange(len(seconds_BR))[:, None] + low, 0)
        most_R: Ints = top_BR.max(axis=0)
        return most_R

    first, last = 0, len(limits) - 1
    if held(limits[last]).sum() < leaf.num_layers or (held(limits[last]) == 0).any():
        return np.empty((0, leaf.pp), dtype=np.int64)
    while first < last:
        middle = (first + last) // 2
        most_R = held(limits[middle])
        if most_R.sum() >= leaf.num_layers and most_R.min() > 0:
            last = middle
        else:
            first = middle + 1
    most_R = held(limits[first])
    ranks = list(range(leaf.pp))
    orders = [ranks, ranks[::-1], sorted(ranks, key=lambda rank: (min(rank, leaf.pp - 1 - rank), rank))]
    return np.stack([_reduced(most_R, leaf.num_layers, low, order) for order in orders])


def _reduced(most_R: Ints, total: int, low: int, order: list[int]) -> Ints:
    """Take one block at a time off the ranks in turn until `total` are left."""
    layers_R = most_R.copy()
    while layers_R.sum() > total:
        for rank in order:
            if layers_R.sum() > total and layers_R[rank] > low:
                layers_R[rank] -= 1
    return layers_R


def _even(leaf: Leaf) -> Ints:
    """(K, S): as even as the blocks allow; the larger stages in the middle, at the front, at the back, or spread."""
    stages, low = leaf.num_stages, leaf.sizes.start
    larger = leaf.num_layers - low * stages
    middle = sorted(range(stages), key=lambda k: (-min(k, stages - 1 - k), k))
    spread = [int(i) for i in np.argsort([(k * larger) % stages for k in range(stages)], kind="stable")]
    by_rank = sorted(range(stages), key=lambda k: (k % leaf.pp in (0, leaf.pp - 1), k // leaf.pp, k))
    orders = [middle, list(range(stages)), list(range(stages))[::-1], spread, by_rank]
    layers_KS = np.full((len(orders), stages), low, dtype=np.int64)
    for row, order in enumerate(orders):
        layers_KS[row, order[:larger]] += 1
    return layers_KS


def _moves(leaf: Leaf, layers_S: Ints) -> Ints:
    """(K, S): one block from any rank to any other, as many as the budget for timelines allows."""
    stages = np.arange(leaf.num_stages)
    giver, taker = (index.ravel() for index in np.meshgrid(stages, stages, indexing="ij"))
    useful = (giver != taker) & (layers_S[giver] > leaf.sizes.start)
    giver, taker = giver[useful], taker[useful]
    most = TIMELINE_BUDGET // (2 * leaf.microbatches * leaf.num_stages)
    if len(giver) > most:
        giver, taker = giver[:0], taker[:0]
    row = np.arange(len(giver))
    moved_KS = np.repeat(layers_S[None], len(giver), axis=0)
    moved_KS[row, giver] -= 1
    moved_KS[row, taker] += 1
    return moved_KS
