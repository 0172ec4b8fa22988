"""How much an examination measures, and which pairs of ranks talk in which round.

In a round every process has one partner at most.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files

import torch
import yaml


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Sizes and repetitions of every check."""

    dtype: torch.dtype
    side: int
    """Rows, columns and inner dimension of the product."""
    copied_bytes: int
    places: int
    """Pairs of buffers that are copied in turn: on a CPU some pages are slower than others as long as they are kept."""
    launches: int
    """Kernels of one timed call."""
    small_bytes: int
    large_bytes: int
    small_repeats: int
    large_repeats: int
    passes: int
    """How often everything is measured; the least of each counts, and how far they are apart is the noise."""
    pairs_at_once: int | None
    """Pairs that talk at the same time; None: all, as in training. Processes of a CPU would wait for its cores."""
    budget_seconds: float
    """For the repetitions of one check in a pass."""


def sizes_of(device: str) -> Sizes:
    """Sizes for a kind of device: `cpu` or `cuda`."""
    said = yaml.safe_load((files("executor.doctor") / "sizes.yaml").read_text(encoding="utf-8"))[device]
    return Sizes(**said | {"dtype": getattr(torch, said["dtype"])})


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
    """The pairs of a round in batches of `at_once`; None: all together."""
    size = at_once or max(1, len(pairs))
    return [pairs[first : first + size] for first in range(0, len(pairs), size)]
