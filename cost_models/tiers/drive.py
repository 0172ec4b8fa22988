"""Bytes of optimizer states on the drives of a host, and what of them a step reads and writes.

With `drive` the states that the CPU updates lie there: moments, the master copy beside 16-bit weights, and of blocks
with `states` the fp32 weights that the CPU updates where no such copy is kept. Every step reads all of it and writes
it back, chunk by chunk, through buffers in host memory (Rajbhandari et al. 2021, ZeRO-Infinity, section 5.1.2).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from cost_models.axes.columns import LayoutColumns
from cost_models.axes.offload import UPDATED_BY_CPU
from cost_models.memory.states import state_bytes
from cost_models.operators.parameters import parameters
from cost_models.question import Question
from cost_models.specs.cluster import ClusterSpec
from cost_models.tiers.residency import of_fullest_rank, parameters_by_residency

Array = npt.NDArray[np.float64]

USABLE = 0.9
"""Share of a host's drives that states may fill: the rest is the file system's, checkpoints' and data's."""
FP32 = 4.0


class DriveTraffic(NamedTuple):
    """Bytes of a parameter of a rank's whole model, (N,) each: on the drive, and there and back in a step."""

    held: Array
    read: Array
    written: Array


def usable_drive(cluster: ClusterSpec) -> float:
    """Bytes of one host's drives that states may fill; nothing where nobody says that it has any."""
    return 0.0 if cluster.drive is None else USABLE * cluster.drive.capacity


def drive_bytes(question: Question, columns: LayoutColumns) -> Array:
    """(N,) bytes on the drives of one host, each of whose ranks counts as the fullest."""
    if not columns.offload_drive.any():
        return np.zeros(len(columns))
    rank = of_fullest_rank(
        question,
        columns,
        lambda part, experts: drive_traffic(question, columns, residency=part, experts=experts).held,
    )
    each: Array = rank * np.minimum(columns.ranks, question.cluster.gpus_per_node)
    return each


def drive_step_bytes(question: Question, columns: LayoutColumns) -> tuple[Array, Array]:
    """(N,) bytes that a rank with an even share of the blocks reads from the drive in a step, and that it writes."""
    read = written = np.zeros(len(columns))
    for experts, parameters_of in parameters_by_residency(question, columns):
        for part in UPDATED_BY_CPU:
            of = drive_traffic(question, columns, residency=part, experts=experts)
            read = read + parameters_of[part] * of.read
            written = written + parameters_of[part] * of.written
    return read, written


def buffer_bytes(question: Question, columns: LayoutColumns) -> Array:
    """(N,) bytes of a rank's host memory through which chunks go: no larger than what the rank updates."""
    use = question.stack.drive
    if not columns.offload_drive.any() or not use.buffers:
        return np.zeros(len(columns))

    def updated(part: str, experts: bool) -> Array:
        shard = _shard(columns, experts=experts)
        return np.where(columns.offload_drive > 0, 1 / shard if part in UPDATED_BY_CPU else 0.0, 0.0)

    most: Array = np.minimum(use.chunk, of_fullest_rank(question, columns, updated))
    if use.block_chunks:
        most = np.minimum(most, _updated_of_a_block(question, columns) / use.block_chunks)
    return use.buffers * FP32 * most


def _updated_of_a_block(question: Question, columns: LayoutColumns) -> Array:
    """(N,) parameters of a block that a rank updates at a time: its experts, or all others."""
    counts = parameters(question.model, columns.tp, ep=columns.ep, etp=columns.etp)
    others = counts.block / _shard(columns, experts=False)
    return np.maximum(others, counts.experts / _shard(columns, experts=True))


def drive_traffic(
    question: Question, columns: LayoutColumns, *, residency: str, experts: bool
) -> DriveTraffic:
    """What a parameter has on the drive, and moves there and back in a step; with some residencies nothing."""
    nothing = np.zeros(len(columns))
    if residency not in UPDATED_BY_CPU or not columns.offload_drive.any():
        return DriveTraffic(nothing, nothing, nothing)
    use, there = question.stack.drive, columns.offload_drive > 0
    whole = state_bytes(question, columns, experts=experts)
    fp32 = FP32 / _shard(columns, experts=experts)
    own = whole.optimizer + (whole.worked_on if residency == "states" else 0.0)
    own = np.where(there, own + use.gradients * fp32, 0.0)
    weights_there = (residency == "states") | (whole.worked_on == 0)
    again = np.where(there & weights_there, use.rereads_weights * fp32, 0.0)
    return DriveTraffic(held=own, read=own + again, written=own)


def _shard(columns: LayoutColumns, *, experts: bool) -> Array:
    """(N,) ranks over which the states of a parameter are shared."""
    return np.where(columns.zero >= 1, columns.expert_shard if experts else columns.shard, 1).astype(float)
