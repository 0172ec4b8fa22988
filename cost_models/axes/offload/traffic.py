"""Bytes that offloaded blocks move in a step: over the link to host memory, and from the host's drives and back.

Weights of streamed blocks come up as they are kept, for the forward and for the backward pass of every microbatch, but
for those that stayed in the ring:
`fully_shard` casts what it has fetched (torch/distributed/fsdp/_fully_shard/_fsdp_param.py, all_gather_inputs), and so
does FSDP 1 (torch/distributed/fsdp/_flat_param.py, _use_low_precision_shard); with a master copy 16 bits come.

Gradients that leave the device do so after every microbatch that reduces them. The CPU adds them to those before
(`_fsdp_collectives.py`, foreach_reduce: in the parameter's type), or the device does: DeepSpeed brings what was there
up, and sends the sum in fp32 once more when the last has come (zero/stage3.py, partition_grads; under ZeRO-1 and 2
stage_1_and_2.py, copy_grads_in_partition, whose only microbatch goes down in fp32 at once).

With `drive` the states that the CPU updates lie there: moments, the master copy beside 16-bit weights, and of blocks
with `states` the fp32 weights that the CPU updates where no such copy is kept. Every step reads all of it and writes
it back, chunk by chunk, through buffers in host memory (Rajbhandari et al. 2021, ZeRO-Infinity, section 5.1.2).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from cost_models.arrays import Array
from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import UPDATED_BY_CPU
from cost_models.axes.offload.residency import gradients_leave, of_fullest_rank, parameters_by_residency
from cost_models.memory.states import state_bytes, updates_parameters
from cost_models.operators.accumulation import gradient_dtype
from cost_models.operators.parameters import parameters
from cost_models.question import Question
from cost_models.specs.cluster import FULL
from cost_models.specs.training import STATE_BYTES

FP32 = 4.0
ADDED_BYTES = 12.0
"""Bytes of host memory that adding two gradients moves: both are read, one is written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientTraffic:
    """Of a parameter of the rank's whole model, (N,) each."""

    down: Array
    up: Array
    sums: Array
    """Times that the CPU adds a gradient to what was there."""
    trips: Array
    """Times that it goes down."""

    @property
    def last_sum(self) -> Array:
        """Of `sums` what the last trip adds."""
        return self.sums / np.maximum(self.trips - 1, 1)


def gradient_traffic(
    question: Question, columns: LayoutColumns, *, residency: str, experts: bool
) -> GradientTraffic:
    """What the gradient of a parameter with `states` or `streamed` moves in a step."""
    stack = question.stack
    ranks = columns.expert_shard if experts else columns.shard
    shard = np.where(columns.zero >= (1 if residency == "states" else 2), ranks, 1)
    waits = stack.unsharded_gradients_until_sync & (columns.zero >= 2)
    every = ~waits & (True if residency == "streamed" else gradients_leave(question, columns))
    trips = np.where(every, columns.microbatches(question.training.global_batch), 1)
    in_full = updates_parameters(question, columns, experts=experts) | (question.training.precision in FULL)
    size = np.where(in_full, FP32, STATE_BYTES[gradient_dtype(question)])
    if not stack.offloads_gradients:
        return GradientTraffic(
            down=trips * size / shard, up=np.zeros(len(columns)), sums=(trips - 1) / shard, trips=trips
        )
    at_once = (columns.zero < 3) & (trips == 1)
    fetched = np.where(columns.zero == 3, trips, trips - 1)
    return GradientTraffic(
        down=(np.where(at_once, 0, trips * size) + FP32) / shard,
        up=fetched * size / shard,
        sums=np.zeros(len(columns)),
        trips=trips,
    )


def stays_in_ring(question: Question, columns: LayoutColumns, streamed: Array) -> Array:
    """(N,) share of a step's passes through a rank's streamed blocks whose weights are there from the pass before.

    Passes of a rank with one stage go back and forth (`axes.offload.window`): each but the step's first begins on the
    blocks that the ring holds.
    """
    stays = question.stack.keeps_streamed_blocks & (columns.zero < 2) & (columns.vpp == 1)
    passes = 2 * columns.microbatches(question.training.global_batch)
    share = np.minimum(columns.ring, streamed) / np.maximum(streamed, 1.0) * (passes - 1) / passes
    return np.where(stays, share, 0.0)


def weight_traffic(question: Question, columns: LayoutColumns, *, experts: bool) -> Array:
    """(N,) bytes that come up for every parameter of a rank's streamed blocks in a step, of which none stays."""
    passes = 2 * columns.microbatches(question.training.global_batch)
    return passes * state_bytes(question, columns, experts=experts).stored


class DriveTraffic(NamedTuple):
    """Bytes of a parameter of a rank's whole model, (N,) each: on the drive, and there and back in a step."""

    held: Array
    read: Array
    written: Array


def drive_bytes(question: Question, columns: LayoutColumns) -> Array:
    """(N,) bytes on the drives of one host, each of whose ranks counts as the fullest."""
    if not columns.offload_drive.any():
        return np.zeros(len(columns))
    rank = of_fullest_rank(
        question,
        columns,
        lambda part, experts: drive_traffic(question, columns, residency=part, experts=experts).held,
    )
    return rank * np.minimum(columns.ranks, question.cluster.gpus_per_node)


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
