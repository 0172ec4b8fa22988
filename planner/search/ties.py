"""The order of estimates, and which comes first of several whose steps take the same time."""

from __future__ import annotations

from cost_models.estimate import Estimate


def by_speed(estimate: Estimate) -> tuple[float, float, int, str]:
    """Sort key: the fastest first; of equally fast ones the smallest, then the one with the shortest name."""
    name = str(estimate.layout)
    return estimate.compared_seconds, estimate.peak_bytes, len(name), name
