"""What a rank keeps between actions: microbatches whose backward pass is still to come, whole or in part.

Shape legend: R pipeline ranks, V chunks of one rank, A actions of a rank, K moments that can be its peak.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from cost_models.arrays import Ints
from cost_models.schedules.actions import BACKWARD, CACHED_TABLES, FORWARD, INPUT, WEIGHT, ActionTable


def live_profiles(table: ActionTable) -> tuple[Ints, ...]:
    """How many microbatches each chunk keeps for its backward pass, at the moments that can be a rank's peak.

    Returns for each rank an array (K, V): the distinct Pareto-maximal vectors of forwarded microbatches per chunk
    whose backward pass has not ended, over the rank's own order. Memory rises with every component, so one of them is
    the peak. Where backward is split a microbatch lives until its weight half, as PyTorch keeps the whole graph for
    it, and moments are maximal together with `pending_profiles`.
    """
    return _profiles(table)[0]


def pending_profiles(table: ActionTable) -> tuple[Ints, ...]:
    """How many microbatches of each chunk are between the two halves of their backward pass, at the same moments.

    Returns for each rank an array (K, V), zero where the schedule does not split: these hold, besides what is live,
    the gradients that their weight products will read.
    """
    return _profiles(table)[1]


@lru_cache(maxsize=CACHED_TABLES)
def _profiles(table: ActionTable) -> tuple[tuple[Ints, ...], tuple[Ints, ...]]:
    live_RAV = np.cumsum(_changes(table, {FORWARD: 1, BACKWARD: -1, WEIGHT: -1}), axis=1)
    if not table.splits_backward:
        # before another forward nothing is released, so only a forward that a backward follows can be maximal
        last_forward_RA = ~table.is_backward & np.roll(table.is_backward, -1, axis=1)
        more = table.left_out if table.is_queue else 0  # all wait for their backward pass
        moments = [live_AV[last_A] for live_AV, last_A in zip(live_RAV, last_forward_RA, strict=True)]
        live = tuple(_pareto_maximal(_distinct(live_AV) + more) for live_AV in moments)
        return live, tuple(_frozen(np.zeros_like(live_KV)) for live_KV in live)
    # (R, A, 2V): live microbatches, and those of them whose input half has run, before each release
    pending_RAV = np.cumsum(_changes(table, {INPUT: 1, WEIGHT: -1}), axis=1)
    both_RAW = np.concatenate([live_RAV, pending_RAV], axis=2)
    releases_RA = np.isin(table.kind, (BACKWARD, WEIGHT))
    moments = [
        both_AW[:-1][releases_A[1:]] for both_AW, releases_A in zip(both_RAW, releases_RA, strict=True)
    ]
    both = [_pareto_maximal(_distinct(both_AW)) for both_AW in moments]
    return (
        tuple(_frozen(both_KW[:, : table.vpp].copy()) for both_KW in both),
        tuple(_frozen(both_KW[:, table.vpp :].copy()) for both_KW in both),
    )


def _changes(table: ActionTable, by_kind: dict[int, int]) -> Ints:
    """(R, A, V): what each action adds to the count of its chunk."""
    change_RA = np.zeros_like(table.kind)
    for kind, change in by_kind.items():
        change_RA[table.kind == kind] = change
    change_RAV: Ints = change_RA[..., None] * (table.chunk[..., None] == np.arange(table.vpp))
    return change_RAV


def _distinct(vectors_AV: Ints) -> Ints:
    """The different rows, sorted; a set of tuples is much faster than `np.unique` over rows."""
    return np.array(sorted(set(map(tuple, vectors_AV.tolist()))))


def _pareto_maximal(vectors_KV: Ints) -> Ints:
    """The rows that no other row exceeds or equals in every component; rows must be distinct."""
    total_K = vectors_KV.sum(axis=1)
    kept = [
        row
        for row, (vector_V, total) in enumerate(zip(vectors_KV, total_K, strict=True))
        if not (vectors_KV[total_K > total] >= vector_V).all(axis=1).any()  # only a larger total can dominate
    ]
    return _frozen(vectors_KV[kept])


def _frozen(values: Ints) -> Ints:
    values.flags.writeable = False
    return values
