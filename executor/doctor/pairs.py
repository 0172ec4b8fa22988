"""Who talks to whom, in rounds in which every process has one partner at most."""

from __future__ import annotations

Pairs = tuple[tuple[int, int], ...]


def rounds_of_pairs(ranks: int) -> list[Pairs]:
    """Neighbours, then two rounds of other pairs, so that the slow member of a slow pair is met again with others.

    0-1 2-3 …, then 1-2 3-4 … round the end, then each with the one half the way round; no pair twice.
    """
    half = (ranks + 1) // 2
    rounds = [
        [(first, first + 1) for first in range(0, ranks - 1, 2)],
        [(first, (first + 1) % ranks) for first in range(1, ranks, 2)],
        [(first, first + half) for first in range(ranks // 2)],
    ]
    seen: set[frozenset[int]] = set()
    kept: list[Pairs] = []
    for pairs in rounds:
        fresh = [tuple(sorted(pair)) for pair in pairs if frozenset(pair) not in seen and len(set(pair)) == 2]
        seen |= {frozenset(pair) for pair in fresh}
        if fresh:
            kept.append(tuple((low, high) for low, high in fresh))
    return kept


def batched(pairs: Pairs, at_once: int | None) -> list[Pairs]:
    """The pairs of a round, so many at a time; None: all."""
    size = at_once or max(1, len(pairs))
    return [pairs[first : first + size] for first in range(0, len(pairs), size)]
