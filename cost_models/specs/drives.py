"""Drives of a host as a tier of memory, and how a software stack uses them."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from cost_models.base import LargeInt, Spec
from cost_models.specs.links import Rate
from cost_models.units import Bytes


class DriveSpec(Spec):
    """The drives of one host that hold what a run writes, all together (a RAID 0 of NVMe, say)."""

    capacity: Bytes
    """Bytes."""
    read: Rate
    """Bandwidth of long reads, bytes/s."""
    write: Rate
    """Bandwidth of long writes, bytes/s."""


class DriveUse(Spec):
    """How a stack keeps optimizer states on a drive (Rajbhandari et al. 2021, ZeRO-Infinity, section 5.1.2): a chunk is
    read, updated by the CPU and written back."""

    zero_stages: tuple[Literal[0, 1, 2, 3], ...] = Field(default=(0, 1, 2, 3), min_length=1)
    """ZeRO stages under which it can."""
    overlaps: bool = False
    """Whether one chunk is read or written while the CPU updates another; False: one after the other."""
    gradients: bool = False
    """Whether gradients lie there too, in fp32, from the backward pass to the update."""
    rereads_weights: bool = False
    """Whether fp32 weights that lie there are read once more, updated, on their way to those that passes use."""
    buffers: int = Field(default=0, ge=0, le=1000)
    """Buffers in host memory through which chunks go, of so many fp32 numbers each:"""
    chunk: LargeInt = 10**9
    """Parameters of a chunk."""
    block_chunks: int = Field(default=0, ge=0, le=1000)
    """Chunks in which a rank's states of a block come at least; 0: chunks know no blocks."""
