"""Good placements found quickly: the incumbents that let the search discard almost everything else.

Nothing here is needed for the proof; a poor incumbent costs time, never the optimum. With one chunk a rank: the least
slowest rank that can hold all blocks, then single moves. Interleaved layouts are decided outright by
`planner.placement.chunks`.

Shape legend: R ranks (each one stage), B numbers of blocks, P policies, K candidate placements.
"""

from __future__ import annotations

import numpy as np

from cost_models.arrays import Array, Ints
from planner.placement.leaf import Leaf, Placement
from planner.placement.recompute_mixes import fastest_mixes

ROUNDS = 4
"""Maximum rounds of moving one block from a rank to another."""
MOST_ACTIONS = 500_000
"""Maximum actions × placements in one round of moves, which then takes milliseconds."""


def good_placement(leaf: Leaf) -> tuple[Placement, float] | None:
    """Best of a few balanced placements improved by single moves, and its step seconds; None where none fits.

    Sizes above twice the even share are tried only if nothing smaller fits.
    """
    low, even = leaf.sizes.start, -(-leaf.num_layers // leaf.pp)
    usual_sizes = range(low, min(leaf.sizes.stop, 2 * even + 2))
    placement = _among(leaf, usual_sizes)
    return placement if placement or usual_sizes == leaf.sizes else _among(leaf, leaf.sizes)


def _among(leaf: Leaf, sizes: range) -> tuple[Placement, float] | None:
    """Good placement with `sizes` blocks on each rank."""
    mixes = fastest_mixes(leaf, sizes)
    candidates_KR = _balanced(leaf, mixes[0])
    best: tuple[Placement, float] | None = None
    for _ in range(ROUNDS):
        better = _best(leaf, candidates_KR[(candidates_KR < sizes.stop).all(axis=1)], *mixes)
        if better is None or (best is not None and better[1] >= best[1]):
            break
        best = better
        candidates_KR = _moves(leaf, np.array(best[0].layers))
    return best


def _best(leaf: Leaf, layers_KR: Ints, seconds_BR: Array, blocks_BRP: Ints) -> tuple[Placement, float] | None:
    """Fastest candidate, every rank under the fastest mix of policies that fits, and its step seconds."""
    size_KR = leaf.choice_indices(layers_KR) - leaf.classes * leaf.sizes.start
    rank_R = np.arange(leaf.pp)
    fits_K = np.isfinite(seconds_BR[size_KR, rank_R]).all(axis=1)
    if not fits_K.any():
        return None
    blocks_KRP = blocks_BRP[size_KR[fits_K], rank_R]
    step_K = leaf.step_seconds(blocks_KRP)
    k = int(np.argmin(step_K))
    return Placement.of(blocks_KRP[k]), float(step_K[k])


def _balanced(leaf: Leaf, seconds_BR: Array) -> Ints:
    """Blocks of each rank, (K, R): the fastest slowest rank that can hold all blocks, less the surplus in several
    orders."""
    low = leaf.sizes.start
    if leaf.kinds is not None:  # the first rank begins the model, the others as most of them do
        usual_R = np.where(np.arange(leaf.pp) > 0, leaf.classes - 1, 0)
        seconds_BR = seconds_BR.reshape(-1, leaf.classes, leaf.pp)[:, usual_R, np.arange(leaf.pp)]
    limits = np.unique(seconds_BR[np.isfinite(seconds_BR)])

    def largest_counts(limit: float) -> Ints:
        within_BR = seconds_BR <= limit
        most_R = low + len(within_BR) - 1 - within_BR[::-1].argmax(axis=0)
        return np.where(within_BR.any(axis=0), most_R, 0)

    def enough(index: int) -> bool:
        most_R = largest_counts(limits[index])
        return bool(most_R.sum() >= leaf.num_layers and most_R.all())

    first, last = 0, len(limits) - 1
    if last < 0 or not enough(last):
        return np.empty((0, leaf.pp), dtype=np.int64)
    while first < last:
        middle = (first + last) // 2
        first, last = (first, middle) if enough(middle) else (middle + 1, last)
    ranks = list(range(leaf.pp))
    from_ends = sorted(ranks, key=lambda rank: (min(rank, leaf.pp - 1 - rank), rank))
    orders = [ranks, ranks[::-1], from_ends]
    return np.stack(
        [_reduced(largest_counts(limits[first]), leaf.num_layers, low, order) for order in orders]
    )


def _reduced(most_R: Ints, total: int, low: int, order: list[int]) -> Ints:
    """Take blocks off the ranks in turn until `total` blocks are left."""
    layers_R = most_R.copy()
    while layers_R.sum() > total:
        for rank in order:
            if layers_R.sum() > total and layers_R[rank] > low:
                layers_R[rank] -= 1
    return layers_R


def _moves(leaf: Leaf, layers_R: Ints) -> Ints:
    """Blocks of each rank after moving one block between two ranks, (K, R); empty if too many to evaluate."""
    ranks = np.arange(leaf.pp)
    giver_K, taker_K = (index.ravel() for index in np.meshgrid(ranks, ranks, indexing="ij"))
    useful_K = (giver_K != taker_K) & (layers_R[giver_K] > leaf.sizes.start)
    giver_K, taker_K = giver_K[useful_K], taker_K[useful_K]
    if len(giver_K) * 2 * leaf.microbatches * leaf.pp > MOST_ACTIONS:
        return np.empty((0, leaf.pp), dtype=np.int64)
    row = np.arange(len(giver_K))
    moved_KR = np.repeat(layers_R[None], len(giver_K), axis=0)
    moved_KR[row, giver_K] -= 1
    moved_KR[row, taker_K] += 1
    return moved_KR
