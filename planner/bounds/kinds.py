"""What a rank takes at least where blocks are of several kinds: the lightest run of neighbouring blocks it may have.

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
from planner.placement.chunk_rows import ChunkRows
from planner.placement.leaf import TOLERANCE
from planner.placement.shared_shape import Group

BOUNDLESS = 1e30
"""Bytes that stand for memory without a limit."""


@lru_cache(maxsize=256)
def _runs(kinds: Kinds, pp: int, fewest: int, most: int) -> Ints:
    """(K, R, B, J): blocks of each kind in every run of `fewest` to `most` blocks that a rank may have; of ranks and
    counts with fewer runs one of them again.

    All ranks have `fewest` blocks at least, so some lie before a run and some behind it; where none does there are none
    left for others, and any run stands for it.
    """
    last = len(kinds.of_block)
    found: dict[tuple[int, int], Ints] = {}
    for rank in range(pp):
        for size in range(fewest, most + 1):
            end = last - (pp - 1 - rank) * fewest if rank < pp - 1 else last
            begin = np.arange(rank * fewest, max(rank * fewest, end - size) + 1)
            begin = begin[:1] if rank == 0 else begin[-1:] if rank == pp - 1 else begin
            upto = np.minimum(begin + size, last)
            found[rank, size] = np.unique((kinds.before[:, upto] - kinds.before[:, begin]).T, axis=0)
    widest = max(map(len, found.values()))
    runs = np.empty((kinds.number, pp, most - fewest + 1, widest), dtype=np.int64)
    for (rank, size), own in found.items():
        runs[:, rank, size - fewest] = own[np.arange(widest) % len(own)].T
    return runs


def lightest_runs(group: Group, kinds: Kinds) -> Array:
    """(N, R, B): least seconds of one microbatch in so many blocks of a rank; infinite where no run of them fits."""
    runs_KRBJ = _runs(kinds, group.pp, int(group.sizes[0]), int(group.sizes[-1])).astype(np.float64)
    each, live_NR = [one.costs for one in group.of_kinds], group.live[..., 0]
    slack_N = TOLERANCE * group.costs.memory_limit
    room_NR = (
        group.free_bytes - np.where(group.allowed, group.working, np.inf).min(axis=-1) + slack_N[:, None]
    )
    static = _of_runs(runs_KRBJ, [one.layer_static[:, None] for one in each])
    kept = [np.where(group.allowed, one.layer_activation, np.inf) for one in each]
    seconds = [one.block_seconds for one in group.of_kinds]
    least = _of_runs(runs_KRBJ, [own.min(axis=1)[:, None] * live_NR for own in kept])
    free_NR = group.update_bytes + slack_N[:, None]
    updated = _of_runs(runs_KRBJ, [(one.layer_static + one.layer_update)[:, None] for one in each])
    room_NRBJ = np.clip(room_NR[..., None, None] - static, -BOUNDLESS, BOUNDLESS)
    fits = (least <= room_NRBJ) & (updated <= free_NR[..., None, None])
    longest = np.zeros(fits.shape)
    for price in _prices(kept, seconds):
        dear = [
            (took + price[:, None] * one.costs.layer_activation).min(axis=1)[:, None]
            for one, took in zip(group.of_kinds, seconds, strict=True)
        ]
        paid = _of_runs(runs_KRBJ, dear) - (price[:, None] / live_NR)[..., None, None] * room_NRBJ
        np.maximum(longest, paid, out=longest)
    found: Array = np.where(fits, longest, np.inf).min(axis=-1)
    return found


def first_and_last(rows: ChunkRows, kinds: Kinds) -> tuple[Array, Array]:
    """(N,) each: seconds of a microbatch in the blocks of the first rank and of the last, where a rank has several
    chunks; infinite where they do not fit on the first.

    Whichever blocks a rank has, they take no less than as many of those that take least. A block is live as often as
    the first chunk's at most, all together as often as chunks are, at least; at a price of a byte what a block takes is
    concave in that, so no less than if some were live as often as the first chunk's and the others not at all.
    """
    each = rows.of_kinds
    most_live_N, _, all_live_N = rows.live
    live_N = (rows.largest * all_live_N - rows.missing * most_live_N) / most_live_N
    seconds = [one.block_seconds for one in each]
    fastest = [own.min(axis=1) for own in seconds]
    kept = [np.where(rows.allowed, one.costs.layer_activation, np.inf) for one in each]

    def least(blocks_N: Array | Ints, of_kinds: list[Array]) -> Array:
        return _lightest(blocks_N, np.stack(of_kinds), kinds)

    held_N = least(rows.blocks, [one.costs.layer_static for one in each])
    room_N = rows.free_bytes - rows.working - held_N + TOLERANCE * rows.costs.memory_limit
    room_N = np.clip(room_N, -BOUNDLESS, BOUNDLESS)
    fits_N = most_live_N * least(live_N, [own.min(axis=1) for own in kept]) <= room_N
    longest_N = np.zeros(len(rows))
    for price_N in _prices(kept, seconds):
        dear = [
            (took + price_N[:, None] * one.costs.layer_activation).min(axis=1)
            for one, took in zip(each, seconds, strict=True)
        ]
        more = [own - least_N for own, least_N in zip(dear, fastest, strict=True)]
        paid_N = least(rows.blocks, fastest) + least(live_N, more) - price_N / most_live_N * room_N
        longest_N = np.maximum(longest_N, paid_N)
    return np.where(fits_N, longest_N, np.inf), least(rows.blocks, fastest)


def paid_seconds(group: Group, blocks_CK: Ints, rank: int) -> Array:
    """(N,): least seconds of a microbatch in a rank's chunks of so many blocks of each kind; infinite where they do not
    fit. A chunk's blocks are live as often as the chunk is."""
    each = group.of_kinds
    live_NC = group.live[:, rank].reshape(len(group.costs), -1)
    kept = [np.where(group.allowed, one.costs.layer_activation, np.inf) for one in each]
    static = sum(
        (count * one.costs.layer_static for count, one in zip(blocks_CK.sum(axis=0), each, strict=True))
    )
    working_N = np.where(group.allowed, group.working[:, rank], np.inf).min(axis=-1)
    room_N = group.free_bytes[:, rank] - working_N - static + TOLERANCE * group.costs.memory_limit
    room_N = np.clip(room_N, -BOUNDLESS, BOUNDLESS)
    counted = [(chunk, kind) for chunk, kind in zip(*np.nonzero(blocks_CK), strict=True)]
    longest_N, needed_N = np.zeros((2, len(group.costs)))
    for chunk, kind in counted:
        needed_N = needed_N + blocks_CK[chunk, kind] * live_NC[:, chunk] * kept[kind].min(axis=1)
    for price_N in _prices(kept, [one.block_seconds for one in each]):
        paid_N = -price_N * room_N
        for chunk, kind in counted:
            dear_NP = (price_N * live_NC[:, chunk])[:, None] * each[kind].costs.layer_activation
            cheapest_N = np.where(group.allowed, each[kind].block_seconds + dear_NP, np.inf).min(axis=1)
            paid_N = paid_N + blocks_CK[chunk, kind] * cheapest_N
        longest_N = np.maximum(longest_N, paid_N)
    found: Array = np.where(needed_N <= room_N, longest_N, np.inf)
    return found


def _lightest(blocks_N: Array | Ints, each_KN: Array, kinds: Kinds) -> Array:
    """(N,): what so many blocks have at least: those that have least, as many as there are of each kind."""
    order_KN = np.argsort(each_KN, axis=0, kind="stable")
    there_KN = np.cumsum(np.array(kinds.counts)[order_KN], axis=0)
    taken_KN = np.diff(np.minimum(there_KN, blocks_N), axis=0, prepend=0.0)
    total: Array = (taken_KN * np.take_along_axis(each_KN, order_KN, axis=0)).sum(axis=0)
    return total


def _of_runs(runs_KRBJ: Array, each: list[Array]) -> Array:
    """(N, R, B, J): what blocks of each kind have, (N, R) or (N, 1), in every run."""
    own = [value[..., None, None] * runs for value, runs in zip(each, runs_KRBJ, strict=True)]
    total: Array = sum(own[1:], start=own[0])
    return total


def _prices(kept: list[Array], seconds: list[Array]) -> list[Array]:
    """(N,) prices of a byte of one microbatch: none, and at which a block of some kind changes its policy."""
    found = [np.zeros(len(kept[0]))]
    for own, took in zip(kept, seconds, strict=True):
        for quick, slow in permutations(np.flatnonzero(np.isfinite(own).all(axis=0)).tolist(), 2):
            saved, longer = own[:, quick] - own[:, slow], took[:, slow] - took[:, quick]
            useful = (saved > 0) & (longer > 0)
            found.append(np.where(useful, longer / np.where(useful, saved, 1.0), 0.0))
    return found
