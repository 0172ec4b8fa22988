"""Which blocks of a rank live where, as `Layout.offload` counts them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

from cost_models.axes.layout import Layout
from cost_models.axes.words import EVERY

Residency = Literal["resident", "states", "parked", "streamed"]
RESIDENT: Residency
STATES: Residency
PARKED: Residency
STREAMED: Residency
RESIDENT, STATES, PARKED, STREAMED = get_args(Residency)


def residencies(layout: Layout, blocks: int) -> list[Residency]:
    """Residency of each of a rank's blocks, in model order: those that stay first, which are wanted first.

    A rank with fewer blocks than counts name, in a pipeline of uneven stages, has the last of them.
    """
    counts: dict[Residency, int] = {
        part: getattr(layout.offload, part) for part in (STATES, PARKED, STREAMED)
    }
    named = sum(count for count in counts.values() if count < EVERY)
    left = max(0, blocks - named)
    every = [part for part, count in counts.items() if count >= EVERY]
    lives: list[Residency] = [RESIDENT] * (0 if every else left)
    for part, count in counts.items():
        lives += [part] * (left if count >= EVERY else count)
    return lives[len(lives) - blocks :]


def blocks_of_stages(layout: Layout, stages: Sequence[int]) -> dict[int, list[int]]:
    """Virtual stage → its blocks by their place in the model."""
    return {
        stage: list(range(sum(layout.layers[:stage]), sum(layout.layers[: stage + 1]))) for stage in stages
    }


def residency_of_blocks(layout: Layout, stages: Sequence[int]) -> dict[int, Residency]:
    """Block by its place in the model → where it lives, for the blocks of one rank's virtual stages."""
    blocks = [block for held in blocks_of_stages(layout, stages).values() for block in held]
    return dict(zip(blocks, residencies(layout, len(blocks)), strict=True))
