"""Which of several estimates comes first where steps take the same time."""

from __future__ import annotations

from cost_models.estimate import Estimate


def by_speed(estimate: Estimate) -> tuple[float, float, int, str]:
    """Sorts the fastest first; of equally fast ones the smaller, and of those the one with the shorter name."""
    name = str(estimate.layout)
    return estimate.step_seconds, estimate.peak_bytes, len(name), name
