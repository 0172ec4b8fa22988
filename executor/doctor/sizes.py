"""How much an examination measures: short calls on a CPU, which others do not interrupt, large ones on a GPU."""

from __future__ import annotations

from dataclasses import dataclass

import torch


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


_SIZES = {
    "cpu": Sizes(
        dtype=torch.float32,
        side=256,
        copied_bytes=2**25,
        places=4,
        launches=100,
        small_bytes=2**12,
        large_bytes=2**20,
        small_repeats=20,
        large_repeats=12,
        passes=5,
        pairs_at_once=1,
        budget_seconds=0.06,
    ),
    "cuda": Sizes(
        dtype=torch.bfloat16,
        side=8192,
        copied_bytes=2**31,
        places=1,
        launches=200,
        small_bytes=2**12,
        large_bytes=2**28,
        small_repeats=20,
        large_repeats=5,
        passes=5,
        pairs_at_once=None,
        budget_seconds=0.2,
    ),
}


def sizes_of(device: str) -> Sizes:
    """Those of a kind of device: `cpu` or `cuda`."""
    return _SIZES[device]
