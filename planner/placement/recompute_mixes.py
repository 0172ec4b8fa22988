"""One stage a rank: the fastest way to recompute with which so many blocks fit there.

A rank with one stage keeps its memory to itself, so for each number of blocks only its fastest mix of policies that
fits is ever of use. For each set of policies a mix may name, its blocks under the last are tried one by one, and of the
others as many have the faster policy as memory allows.

Of several kinds of blocks every mix is tried, for each class of positions where a stage may begin.

Shape legend: R ranks (each one stage), B numbers of blocks, K blocks under the last policy of a set, P policies.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import combinations, product
from math import comb

import numpy as np

from cost_models.arrays import Array, Bools, Ints
from cost_models.axes.recompute import blocks_by_policy, first_in_full, named_blocks
from cost_models.specs.model.kinds import Kinds
from planner.placement.leaf import Leaf

_AT_ONCE = 250_000
"""Mixes that are weighed together."""


def fastest_mixes(leaf: Leaf, sizes: Sequence[int] | None = None) -> tuple[Array, Ints]:
    """(B, R) least seconds of one microbatch, infinite where nothing fits, and its blocks (B, R, P).

    `sizes` are the numbers of blocks to look at; without them all that a stage may hold. With several kinds of blocks
    rows are choices, `Leaf.numbered`: every class of positions for each number of blocks.
    """
    size_B = np.array(leaf.sizes if sizes is None else sizes, dtype=np.int64)
    if leaf.number is not None:
        seconds_NBR, blocks_NBRP = counted_mixes(leaf, np.array([leaf.number]), size_B)
        return seconds_NBR[0], blocks_NBRP[0]
    if leaf.kinds is not None:
        return _mixes_of_kinds(leaf, size_B)
    if leaf.recompute is not None:
        return _given_mixes(leaf, leaf.recompute, size_B)
    backward_RP = np.where(leaf.allowed, leaf.by_rank("layer_backward"), np.inf)
    fastest_R = backward_RP.argmin(axis=1)
    blocks_BRP, fits_BR = _mixes_of(leaf, (int(fastest_R[0]),), size_B)
    seconds_BR = np.where(fits_BR, _seconds(leaf, blocks_BRP), np.inf)
    if fits_BR.all() and (fastest_R == fastest_R[0]).all():
        return seconds_BR, blocks_BRP
    policies = np.flatnonzero(leaf.allowed).tolist()
    for count in range(1, len(policies) + 1):
        for chosen in combinations(policies, count):
            tried_BRP, fits_BR = _mixes_of(leaf, chosen, size_B)
            time_BR = np.where(fits_BR, _seconds(leaf, tried_BRP), np.inf)
            better_BR = time_BR < seconds_BR
            seconds_BR = np.where(better_BR, time_BR, seconds_BR)
            blocks_BRP = np.where(better_BR[..., None], tried_BRP, blocks_BRP)
    return seconds_BR, blocks_BRP


def counted_mixes(leaf: Leaf, number_N: Ints, size_B: Ints) -> tuple[Array, Ints]:
    """(N, B, R) and (N, B, R, P): the same where the first of a stage's blocks are recomputed in full, so many."""
    blocks = first_in_full(size_B, number_N[:, None])[..., None, :]
    begins = np.ones((1, len(size_B), 1), dtype=np.bool_)
    if leaf.kinds is not None:
        start_C = np.arange(leaf.classes)
        blocks = leaf.in_sorts(blocks[:, :, None], start_C[:, None])
        blocks = blocks.reshape(len(number_N), -1, 1, blocks.shape[-1])
        begins = (start_C + size_B[:, None] <= leaf.num_layers).reshape(1, -1, 1)
    blocks = np.broadcast_to(blocks, (*blocks.shape[:2], leaf.pp, blocks.shape[-1]))
    fits_NBR = (leaf.rank_bytes(blocks) <= leaf.memory_limit) & begins
    return np.where(fits_NBR, _seconds(leaf, blocks), np.inf), blocks


def _given_mixes(leaf: Leaf, mixes: tuple[str, ...], size_B: Ints) -> tuple[Array, Ints]:
    """The mixes that were asked for, wherever they fit and a stage has the blocks that its mix names."""
    named_R, blocks_BRP = _as_named(leaf, mixes, size_B)
    fits_BR = (leaf.rank_bytes(blocks_BRP) <= leaf.memory_limit) & (size_B[:, None] >= named_R)
    return np.where(fits_BR, _seconds(leaf, blocks_BRP), np.inf), blocks_BRP


def _as_named(leaf: Leaf, mixes: tuple[str, ...], size_B: Ints) -> tuple[Ints, Ints]:
    """(R,) blocks that the mix of each rank names, and (B, R, P) what it makes of so many blocks, or of those."""
    named_R = np.array([named_blocks(mix) for mix in mixes])
    blocks_BRP = np.zeros((len(size_B), leaf.pp, len(leaf.allowed)), dtype=np.int64)
    for index, size in enumerate(size_B.tolist()):
        blocks_BRP[index] = blocks_by_policy(np.maximum(size, named_R).tolist(), mixes)
    return named_R, blocks_BRP


def every_mix(size: int, allowed: Bools) -> Ints:
    """(K, P): every way to split so many blocks among the policies."""
    policies = np.flatnonzero(allowed).tolist()
    found = np.array([own for own in product(range(size + 1), repeat=len(policies) - 1) if sum(own) <= size])
    mixes_KP = np.zeros((len(found), len(allowed)), dtype=np.int64)
    mixes_KP[:, policies[:-1]] = found
    mixes_KP[:, policies[-1]] = size - found.sum(axis=1)
    return mixes_KP


def _mixes_of_kinds(leaf: Leaf, size_B: Ints) -> tuple[Array, Ints]:
    """(B·C, R) and (B·C, R, K·P): likewise, C classes of positions for each number of blocks."""
    assert leaf.kinds is not None
    found, every_C, policies = [], np.arange(leaf.classes), int(leaf.allowed.sum())
    alone = policies == 1 or leaf.recompute is not None  # one mix for each number of blocks: all together
    for some_B in [size_B] if alone else np.split(size_B, len(size_B)):
        starts_U, of_C = (every_C, every_C) if alone else leaf.kinds.distinct_starts(int(some_B[0]))
        mixes = 1 if alone else comb(int(some_B[0]) + policies - 1, policies - 1)
        parts = np.array_split(starts_U, min(len(starts_U), -(-len(starts_U) * mixes // _AT_ONCE)))
        seconds, chosen = zip(*(_fastest_from(leaf, some_B, some) for some in parts), strict=True)
        seconds_BCR, chosen_BCR = (np.concatenate(part, axis=1)[:, of_C] for part in (seconds, chosen))
        seconds_BCR = np.where((every_C + some_B[:, None] <= leaf.num_layers)[..., None], seconds_BCR, np.inf)
        found.append((seconds_BCR.reshape(-1, leaf.pp), chosen_BCR.reshape(-1, *chosen_BCR.shape[2:])))
    every_seconds, every = zip(*found, strict=True)
    return np.concatenate(every_seconds), np.concatenate(every)


def _fastest_from(leaf: Leaf, size_B: Ints, start_C: Ints) -> tuple[Array, Ints]:
    """(B, C, R) and (B, C, R, K·P): the fastest mix that fits of so many blocks from some positions on."""
    named_R = np.zeros(leaf.pp, dtype=np.int64)
    if leaf.recompute is not None:
        named_R, mixes_BRP = _as_named(leaf, leaf.recompute, size_B)
        blocks = leaf.in_sorts(mixes_BRP[:, None, None], start_C[:, None, None])
    else:
        assert leaf.kinds is not None
        allowed, sizes = tuple(leaf.allowed.tolist()), tuple(size_B.tolist())
        blocks = _mixes_by_sort(leaf.kinds, sizes, allowed, tuple(start_C.tolist()))
    blocks_BCMRP = np.broadcast_to(blocks, (*blocks.shape[:3], leaf.pp, blocks.shape[-1]))
    fits_BCMR = (leaf.rank_bytes(blocks_BCMRP) <= leaf.memory_limit) & (
        size_B[:, None, None, None] >= named_R
    )
    seconds_BCMR = np.where(fits_BCMR, _seconds(leaf, blocks_BCMRP), np.inf)
    best = seconds_BCMR.argmin(axis=2)[:, :, None]
    least_BCR = np.take_along_axis(seconds_BCMR, best, axis=2)[:, :, 0]
    return least_BCR, np.take_along_axis(blocks_BCMRP, best[..., None], axis=2)[:, :, 0]


@lru_cache(maxsize=64)
def _mixes_by_sort(
    kinds: Kinds, sizes: tuple[int, ...], allowed: tuple[bool, ...], starts: tuple[int, ...]
) -> Ints:
    """(B, C, M, 1, K·P): every mix of some numbers of blocks, all in as many ways, from each of some positions on."""
    mixes_BMP = np.stack([every_mix(size, np.array(allowed)) for size in sizes])
    return kinds.in_sorts(mixes_BMP[:, None, :, None], np.array(starts)[:, None, None])


def _seconds(leaf: Leaf, blocks_BRP: Ints) -> Array:
    return leaf.forward(blocks_BRP) + leaf.backward(blocks_BRP)


def _mixes_of(leaf: Leaf, chosen: tuple[int, ...], size_B: Ints) -> tuple[Ints, Bools]:
    """(B, R, P) the fastest mix of the chosen policies, and whether it fits (B, R)."""
    backward_RP, kept_RP = leaf.by_rank("layer_backward"), leaf.by_rank("layer_activation")
    faster_first_RU = np.array(chosen)[np.argsort(backward_RP[:, chosen], axis=1, kind="stable")]
    live_R = leaf.memory.most_live
    room_BR = leaf.memory_limit - leaf.memory.besides_blocks(size_B[:, None], chosen)

    def column(of_RP: Array, place: int) -> Array:
        policy_R = faster_first_RU[:, min(place, len(chosen) - 1)]
        return np.take_along_axis(of_RP, policy_R[:, None], axis=1)[:, 0]

    fast_R, next_R, last_R = (live_R * column(kept_RP, place) for place in range(3))
    last_K = np.arange(size_B[-1] + 1 if len(chosen) == 3 else 1)
    rest_BK = size_B[:, None] - last_K
    rest_BRK = np.repeat(np.maximum(rest_BK, 0)[:, None, :], leaf.pp, axis=1)
    room_BRK = room_BR[..., None] - last_R[:, None] * last_K
    slack_BRK = room_BRK - rest_BRK * next_R[:, None]
    saved_R1 = (fast_R - next_R)[:, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        affordable_BRK = np.floor(np.where(saved_R1 > 0, slack_BRK / saved_R1, np.inf))
    fast_BRK = np.clip(affordable_BRK, 0, rest_BRK).astype(np.int64)
    counts_BRKU = np.stack([fast_BRK, rest_BRK - fast_BRK, np.broadcast_to(last_K, fast_BRK.shape)], axis=-1)
    seconds_R = np.stack([column(backward_RP, place) for place in range(3)], axis=-1)
    spent_BRK = (counts_BRKU * seconds_R[:, None, :]).sum(axis=-1)
    possible_BRK = (rest_BK[:, None, :] >= 0) & (slack_BRK - fast_BRK * saved_R1 >= 0)
    best_BR1 = np.where(possible_BRK, spent_BRK, np.inf).argmin(axis=-1)[..., None]
    blocks_BRP = np.zeros((len(size_B), leaf.pp, len(leaf.allowed)), dtype=np.int64)
    for place in range(len(chosen)):
        count_BR1 = np.take_along_axis(counts_BRKU[..., place], best_BR1, axis=-1)
        policy_BR1 = np.broadcast_to(faster_first_RU[None, :, place, None], count_BR1.shape)
        np.put_along_axis(blocks_BRP, policy_BR1, count_BR1, axis=-1)
    if len(chosen) == 1:
        blocks_BRP[..., chosen[0]] = size_B[:, None]
    return blocks_BRP, leaf.rank_bytes(blocks_BRP) <= leaf.memory_limit
