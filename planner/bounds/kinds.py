"""Minimum seconds of a rank where blocks are of several kinds: the lightest run of neighbouring blocks that it may
have.

Of a run so many blocks are of each kind; each may follow any recompute policy that leaves room for all. For every price
of a byte the sum over blocks of seconds and priced bytes at their least, less the price of the room, bounds the seconds
of a run (Lagrange); the prices at which a block of some kind would change its policy bound it tightest.

Shape legend: N layouts, R ranks, each one stage, B counts of blocks on a rank, J runs of as many blocks, K kinds, P
recompute policies.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import permutations

import numpy as np

from cost_models.arrays import Array, Ints
from cost_models.specs.model.kinds import Kinds
from planner.placement.leaf import TOLERANCE
from planner.placement.rank_costs import RankCosts

BOUNDLESS = 1e30
"""Bytes that stand for memory without a limit."""


@lru_cache(maxsize=256)
def _runs(kinds: Kinds, pp: int, fewest_blocks: int, most_blocks: int) -> Ints:
    """Blocks of each kind in every run of `fewest_blocks` to `most_blocks` blocks that a rank may have, (K, R, B, J);
    ranks and counts with fewer runs repeat a run.

    All ranks have at least `fewest_blocks` blocks, so blocks lie before and behind a run. Where a run leaves none for
    the other ranks, any run stands for it.
    """
    last = len(kinds.of_block)
    runs_of_size: dict[tuple[int, int], Ints] = {}
    for rank in range(pp):
        for size in range(fewest_blocks, most_blocks + 1):
            end = last - (pp - 1 - rank) * fewest_blocks if rank < pp - 1 else last
            begin = np.arange(rank * fewest_blocks, max(rank * fewest_blocks, end - size) + 1)
            begin = begin[:1] if rank == 0 else begin[-1:] if rank == pp - 1 else begin
            upto = np.minimum(begin + size, last)
            runs_of_size[rank, size] = np.unique((kinds.before[:, upto] - kinds.before[:, begin]).T, axis=0)
    widest = max(map(len, runs_of_size.values()))
    runs = np.empty((kinds.number, pp, most_blocks - fewest_blocks + 1, widest), dtype=np.int64)
    for (rank, size), counts in runs_of_size.items():
        runs[:, rank, size - fewest_blocks] = counts[np.arange(widest) % len(counts)].T
    return runs


def lightest_runs(group: RankCosts, kinds: Kinds) -> Array:
    """Minimum seconds of one microbatch in B blocks of a rank, (N, R, B); infinite where no run of blocks fits."""
    pp, _ = group.shape
    runs_KRBJ = _runs(kinds, pp, int(group.sizes[0]), int(group.sizes[-1])).astype(np.float64)
    costs, live_NR = [kind.costs for kind in group.of_kinds], group.live[..., 0]
    slack_N = TOLERANCE * group.costs.memory_limit
    room_NR = group.free_bytes - group.least_working + slack_N[:, None]
    static = _of_runs(runs_KRBJ, [kind.layer_static[:, None] for kind in costs])
    activations = [np.where(group.allowed, kind.layer_activation, np.inf) for kind in costs]
    seconds = [kind.block_seconds for kind in group.of_kinds]
    least_bytes = _of_runs(runs_KRBJ, [bytes_NP.min(axis=1)[:, None] * live_NR for bytes_NP in activations])
    free_NR = group.update_bytes + slack_N[:, None]
    updated = _of_runs(runs_KRBJ, [(kind.layer_static + kind.layer_update)[:, None] for kind in costs])
    room_NRBJ = np.clip(room_NR[..., None, None] - static, -BOUNDLESS, BOUNDLESS)
    fits = (least_bytes <= room_NRBJ) & (updated <= free_NR[..., None, None])
    longest = np.zeros(fits.shape)
    for price in _prices(activations, seconds):
        priced = [
            (block_seconds + price[:, None] * kind.costs.layer_activation).min(axis=1)[:, None]
            for kind, block_seconds in zip(group.of_kinds, seconds, strict=True)
        ]
        paid = _of_runs(runs_KRBJ, priced) - (price[:, None] / live_NR)[..., None, None] * room_NRBJ
        np.maximum(longest, paid, out=longest)
    lightest: Array = np.where(fits, longest, np.inf).min(axis=-1)
    return lightest


def first_and_last(rows: RankCosts, kinds: Kinds) -> tuple[Array, Array]:
    """Minimum seconds of a microbatch in the blocks of the first rank and of the last, (N,) each, where a rank has
    several chunks; infinite where the blocks do not fit on the first rank.

    Whichever blocks a rank has, they take no less than as many of those that take least. A block is live as often as
    the first chunk's at most, all together as often as chunks are, at least; at a price of a byte what a block takes is
    concave in that, so no less than if some were live as often as the first chunk's and the others not at all.
    """
    by_kind = rows.of_kinds
    most_live_N, all_live_N = rows.live_on_first
    live_N = (rows.largest_stage * all_live_N - rows.missing_blocks * most_live_N) / most_live_N
    seconds = [kind.block_seconds for kind in by_kind]
    fastest = [own.min(axis=1) for own in seconds]
    activations = [np.where(rows.allowed, kind.costs.layer_activation, np.inf) for kind in by_kind]

    def lightest(blocks_N: Array | Ints, of_kinds: list[Array]) -> Array:
        return _lightest(blocks_N, np.stack(of_kinds), kinds)

    held_N = lightest(rows.fewest_on_rank, [kind.costs.layer_static for kind in by_kind])
    room_N = rows.free_bytes[:, 0] - rows.least_working[:, 0] - held_N + TOLERANCE * rows.costs.memory_limit
    room_N = np.clip(room_N, -BOUNDLESS, BOUNDLESS)
    fits_N = most_live_N * lightest(live_N, [own.min(axis=1) for own in activations]) <= room_N
    longest_N = np.zeros(len(rows))
    for price_N in _prices(activations, seconds):
        priced = [
            (block_seconds + price_N[:, None] * kind.costs.layer_activation).min(axis=1)
            for kind, block_seconds in zip(by_kind, seconds, strict=True)
        ]
        added = [own - least_N for own, least_N in zip(priced, fastest, strict=True)]
        least_N = lightest(rows.fewest_on_rank, fastest)
        paid_N = least_N + lightest(live_N, added) - price_N / most_live_N * room_N
        longest_N = np.maximum(longest_N, paid_N)
    return np.where(fits_N, longest_N, np.inf), lightest(rows.fewest_on_rank, fastest)


def paid_seconds(group: RankCosts, blocks_CK: Ints, rank: int) -> Array:
    """Minimum seconds of a microbatch in a rank's chunks, (N,), with (C, K) blocks of each kind; infinite where they do
    not fit. A chunk's blocks are live as often as the chunk is."""
    by_kind = group.of_kinds
    live_NC = group.live[:, rank].reshape(len(group.costs), -1)
    activations = [np.where(group.allowed, rows.costs.layer_activation, np.inf) for rows in by_kind]
    static = sum(
        (count * rows.costs.layer_static for count, rows in zip(blocks_CK.sum(axis=0), by_kind, strict=True))
    )
    room_N = group.free_bytes[:, rank] - group.least_working[:, rank] - static
    room_N = room_N + TOLERANCE * group.costs.memory_limit
    room_N = np.clip(room_N, -BOUNDLESS, BOUNDLESS)
    present_kinds = [(chunk, kind) for chunk, kind in zip(*np.nonzero(blocks_CK), strict=True)]
    longest_N, needed_N = np.zeros((2, len(group.costs)))
    for chunk, kind in present_kinds:
        needed_N = needed_N + blocks_CK[chunk, kind] * live_NC[:, chunk] * activations[kind].min(axis=1)
    for price_N in _prices(activations, [rows.block_seconds for rows in by_kind]):
        paid_N = -price_N * room_N
        for chunk, kind in present_kinds:
            dear_NP = (price_N * live_NC[:, chunk])[:, None] * by_kind[kind].costs.layer_activation
            cheapest_N = np.where(group.allowed, by_kind[kind].block_seconds + dear_NP, np.inf).min(axis=1)
            paid_N = paid_N + blocks_CK[chunk, kind] * cheapest_N
        longest_N = np.maximum(longest_N, paid_N)
    least_N: Array = np.where(needed_N <= room_N, longest_N, np.inf)
    return least_N


def _lightest(blocks_N: Array | Ints, each_KN: Array, kinds: Kinds) -> Array:
    """Minimum sum over `blocks_N` blocks, (N,): blocks of the cheapest kinds first, as many as the model has of
    each."""
    order_KN = np.argsort(each_KN, axis=0, kind="stable")
    there_KN = np.cumsum(np.array(kinds.counts)[order_KN], axis=0)
    taken_KN = np.diff(np.minimum(there_KN, blocks_N), axis=0, prepend=0.0)
    total: Array = (taken_KN * np.take_along_axis(each_KN, order_KN, axis=0)).sum(axis=0)
    return total


def _of_runs(runs_KRBJ: Array, value_of_kinds: list[Array]) -> Array:
    """Sum over the blocks of every run, (N, R, B, J), of a value per kind, (N, R) or (N, 1)."""
    sums = [value[..., None, None] * runs for value, runs in zip(value_of_kinds, runs_KRBJ, strict=True)]
    total: Array = sum(sums[1:], start=sums[0])
    return total


def _prices(activations: list[Array], seconds: list[Array]) -> list[Array]:
    """Prices of a byte of one microbatch, (N,) each: zero, and each price at which a block of some kind changes its
    policy."""
    prices = [np.zeros(len(activations[0]))]
    for bytes_NP, seconds_NP in zip(activations, seconds, strict=True):
        for quick, slow in permutations(np.flatnonzero(np.isfinite(bytes_NP).all(axis=0)).tolist(), 2):
            saved, longer = bytes_NP[:, quick] - bytes_NP[:, slow], seconds_NP[:, slow] - seconds_NP[:, quick]
            useful = (saved > 0) & (longer > 0)
            prices.append(np.where(useful, longer / np.where(useful, saved, 1.0), 0.0))
    return prices
