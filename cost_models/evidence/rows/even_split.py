"""Even placement of blocks on pipeline stages, for rows that do not say where blocks lie."""

from __future__ import annotations


def spread(blocks: int, stages: int) -> tuple[int, ...]:
    """Blocks of each virtual stage, as even as possible: the ends, with embedding and head, get fewer first.

    126 blocks on 8 stages: 15, 16 × 6, 15.
    """
    most = -(-blocks // stages)
    missing = most * stages - blocks
    counts = [most] * stages
    ends = [
        index
        for pair in zip(range(stages), range(stages - 1, -1, -1), strict=True)
        for index in reversed(pair)
    ]
    for index in list(dict.fromkeys(ends))[:missing]:
        counts[index] -= 1
    return tuple(counts)
