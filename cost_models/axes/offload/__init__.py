"""Offload: blocks whose states, weights or activations live in host memory, and how many come back at a time.

Of the blocks of every rank so many have their

    states      optimizer states (moments and master weights) on the host, where the CPU updates them
                (Ren et al. 2021, ZeRO-Offload),
    parked      the same states there, streamed to the device for its update,
    streamed    weights, gradients and states there; a ring of `ring` buffers holds the weights at work, the CPU updates
                (Sun et al. 2022, STRONGHOLD; Rajbhandari et al. 2021, ZeRO-Infinity),

and the rest stays on the device: the first blocks of a rank, which are wanted first. `activations` moves what every
block keeps for its backward pass, whatever holds its states. With `drive` the optimizer states that the CPU updates,
those of `states` and `streamed` blocks, lie on the host's drive and come through its memory chunk by chunk. A part
without a count means every block that is left.
"""

from __future__ import annotations

import numpy as np

from cost_models.arrays import Bools, Ints
from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import RESIDENCIES, Offload
from cost_models.axes.words import EVERY


def offloads(columns: LayoutColumns) -> Bools:
    """(N,): which layouts keep something of some block in host memory."""
    some: Bools = np.any([getattr(columns, f"offload_{part}") > 0 for part in Offload._fields], axis=0)
    return some


def named_blocks(columns: LayoutColumns) -> Ints:
    """(N,) blocks of a rank that have a residency with a count."""
    named: Ints = np.sum([counted_blocks(columns, part) for part in RESIDENCIES], axis=0)
    return named


def counted_blocks(columns: LayoutColumns, part: str) -> Ints:
    """(N,) blocks of a rank that a layout gives a residency by number."""
    counts: Ints = getattr(columns, f"offload_{part}")
    return np.where(counts >= EVERY, 0, counts)
