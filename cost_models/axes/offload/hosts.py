"""Bytes that offloaded blocks take on a host: in its memory, and on its drives.

Every rank counts as the fullest. Weights, gradients and states are stored in pinned buffers, from which they
are copied directly. PyTorch's allocator of pinned memory rounds sizes to a power of two bytes
(aten/src/ATen/core/CachingHostAllocator.h).

With `drive`, states that the CPU updates are on the drive: moments, the master copy of 16-bit weights, and
for blocks with `states` the fp32 weights that the CPU updates if there is no such copy. Every step reads all
of it and writes it back, chunk by chunk, through buffers in host memory (Rajbhandari et al. 2021,
ZeRO-Infinity, section 5.1.2).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import get_args

import numpy as np

from cost_models.arrays import Array, Ints
from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import UPDATED_BY_CPU, Residency
from cost_models.axes.offload.residency import (
    block_parameters,
    blocks_with,
    end_parameters,
    gradients_wait,
    offloads,
    over_residencies,
    rank_parameters,
    rest_is,
    states_on_device,
)
from cost_models.memory.activations import activation_bytes
from cost_models.memory.device import is_own_host
from cost_models.memory.states import state_bytes
from cost_models.operators.block import block_operators
from cost_models.operators.parameters import Part
from cost_models.operators.record import products_of
from cost_models.question import Question
from cost_models.specs.choices import RECOMPUTE_POLICIES
from cost_models.specs.cluster import FULL
from cost_models.units import FP32_BYTES

STAGING_BUFFERS = 2
"""Block-sized buffers in host memory of the project's executor under ZeRO-0 and 1: for gradients that are not
stored on the host, and for updated 16-bit weights (executor/axes/offload/link.py)."""


def ranks_on_host(question: Question, columns: LayoutColumns) -> Ints:
    """(N,) number of ranks that share one host."""
    return np.minimum(columns.ranks, question.cluster.gpus_per_node)


ValueOf = Callable[[Question, LayoutColumns, Residency, Part], Array]
"""Function of question, layouts, residency and part of a block → (N,) value per parameter, such as bytes."""


def _fullest_rank(question: Question, columns: LayoutColumns, value_of: ValueOf) -> Array:
    """(N,) sum over the parameters of the rank with most parameters of `value_of`, a value per parameter by
    the residency of its block's states.

    Blocks are spread evenly; the larger of embedding and head is added if the ends are offloaded like blocks.
    """
    rank, blocks = np.zeros(len(columns)), -(-question.model.num_layers // columns.pp)
    for part, size in block_parameters(question, columns).items():
        values = {at: value_of(question, columns, at, part) for at in get_args(Residency)}
        layer, besides = over_residencies(columns, values)
        rank = rank + (blocks * layer + besides) * size
        if part == "block":
            ends = layer
    if question.stack.offloads_ends:
        rank = rank + end_parameters(question, columns) * ends
    return rank


# ---------------------------------------------------------------- host memory


def host_bytes(question: Question, columns: LayoutColumns, recompute: Sequence[str] | None = None) -> Array:
    """(N,) bytes used in the memory of one host by offloaded states and activations of its ranks, or by a
    reference model's weights.

    `recompute` are the policies of placed layouts; None: the policy that keeps least among those the job
    allows.
    """
    blocks, ranks_here = -(-question.model.num_layers // columns.pp), ranks_on_host(question, columns)
    if not offloads(columns).any():
        kept = question.training.reference == "host"
        return kept * blocks * reference_bytes(question, columns) * ranks_here
    rank = _fullest_rank(question, columns, _bytes_off_device) * question.stack.host_buffers
    rank = rank + drive_buffer_bytes(question, columns) + _staging_bytes(question, columns)
    if (away := rest_is(columns, "activations")).any():
        live = np.minimum(columns.pp, columns.microbatches(question.training.global_batch))
        used = [RECOMPUTE_POLICIES.index(policy) for policy in recompute or question.training.recompute]
        block_bytes = activation_bytes(question, columns).block[:, used]
        kept = block_bytes.max(axis=1) if recompute else block_bytes.min(axis=1)
        rank = rank + np.where(away, live * blocks * kept, 0.0)
    return rank * ranks_here


def reference_bytes(question: Question, columns: LayoutColumns) -> Array:
    """(N,) bytes of a rank's part of one block of a frozen reference model, in the training precision; under
    ZeRO-3 of the rank's shard."""
    shards = block_shards(question, columns, zero=3)
    return question.training.element_bytes * sum(shards, np.zeros(len(columns)))


def block_shards(question: Question, columns: LayoutColumns, *, zero: int) -> list[Array]:
    """(N,) parameters of a block on a rank, divided by ZeRO from stage `zero` on: a list of those outside
    routed experts and, in a mixture, those of routed experts."""
    sizes = block_parameters(question, columns).items()
    return [size / columns.shards(part, zero) for part, size in sizes]


def _bytes_off_device(question: Question, columns: LayoutColumns, residency: Residency, part: Part) -> Array:
    """(N,) bytes in host memory per parameter of a block whose states are offloaded in the way `residency`."""
    full = state_bytes(question, columns, part)
    on_device = states_on_device(question, columns, residency, part)
    scattered = gradients_wait(question, columns) & (residency in UPDATED_BY_CPU)
    copied = full.worked_on if residency == "states" else 0.0  # weights on both sides
    away = full.total - on_device.total + np.where(scattered, full.reduced, 0.0) + copied
    away = away + _rounding_bytes(question, columns, residency, part)
    return away - _bytes_on_drive(question, columns, residency, part)


def _rounding_bytes(question: Question, columns: LayoutColumns, residency: Residency, part: Part) -> Array:
    """(N,) bytes per parameter by which gradient buffers in host memory exceed fp32 gradients, as each
    matrix's buffer is rounded up to a power of two.

    `fully_shard` pins the gradients that it reduces once a step (_fsdp_collectives.py, foreach_reduce).
    """
    requested = allocated = np.zeros(len(columns))
    once = question.stack.unsharded_gradients_until_sync
    if residency != "streamed" or not once or is_own_host(question.cluster):
        return requested
    shard = columns.shards(part)
    for _, gemm in products_of(block_operators(question.model)):
        experts_together = question.model.num_experts / columns.ep if gemm.routed else 1.0
        ranks = shard * np.where(gemm.split == "whole", 1, columns.etp if gemm.routed else columns.tp)
        for outputs in gemm.outputs if gemm.routed == (part == "experts") else ():
            size = FP32_BYTES * experts_together * gemm.inputs * outputs / ranks
            requested, allocated = requested + size, allocated + 2 ** np.ceil(np.log2(size))
    excess = FP32_BYTES / shard * (allocated / np.maximum(requested, 1.0) - 1)
    return np.where(columns.zero >= 2, excess, 0.0)


def _staging_bytes(question: Question, columns: LayoutColumns) -> Array:
    """(N,) bytes in host memory of a rank's staging buffers for gradients and 16-bit weights in transfer.

    Blocks with `states` need a rank's share of a block, for gradients and for updated weights; streamed
    blocks need an entire block, to add gradients to those of earlier microbatches. All share buffers of the
    largest size.
    """
    several = columns.microbatches(question.training.global_batch) > 1
    with_states, streamed = (blocks_with(question, columns, residency) > 0 for residency in UPDATED_BY_CPU)
    incoming = outgoing = np.zeros(len(columns))
    for part, size in block_parameters(question, columns).items():
        share = size / columns.shards(part, zero=1)
        incoming = np.maximum(incoming, np.where(streamed & several, size, with_states * share))
        outgoing = np.maximum(outgoing, with_states * share)
    narrow = question.training.precision not in FULL
    buffer = FP32_BYTES * incoming + question.training.element_bytes * outgoing * narrow
    return np.where(columns.zero < 2, STAGING_BUFFERS * question.stack.keeps_streamed_blocks * buffer, 0.0)


# ---------------------------------------------------------------- drives


def _bytes_on_drive(question: Question, columns: LayoutColumns, residency: Residency, part: Part) -> Array:
    """(N,) bytes stored on the drive, and written per step, for each parameter of a block offloaded in the
    way `residency`. They are zero if the CPU does not update the block."""
    if residency not in UPDATED_BY_CPU or not columns.offload_drive.any():
        return np.zeros(len(columns))
    states, use = state_bytes(question, columns, part), question.stack.drive
    gradients = use.gradients * (FP32_BYTES / columns.shards(part, zero=1))
    stored = states.optimizer + (states.worked_on if residency == "states" else 0.0)
    return np.where(columns.offload_drive > 0, stored + gradients, 0.0)


def drive_bytes(question: Question, columns: LayoutColumns) -> Array:
    """(N,) bytes used on the drives of one host, counting each rank as the rank with most parameters."""
    return _fullest_rank(question, columns, _bytes_on_drive) * ranks_on_host(question, columns)


def drive_step_bytes(question: Question, columns: LayoutColumns) -> tuple[Array, Array]:
    """(N,) bytes per step read from the drive, and bytes written, by a rank with an even share of the
    blocks."""
    read = written = np.zeros(len(columns))
    for part, (with_states, _, streamed) in rank_parameters(question, columns).items():
        reread = question.stack.drive.rereads_weights * (FP32_BYTES / columns.shards(part, zero=1))
        no_copy = state_bytes(question, columns, part).worked_on == 0
        for residency, size in zip(UPDATED_BY_CPU, (with_states, streamed), strict=True):
            stored = _bytes_on_drive(question, columns, residency, part)
            weights_there = (columns.offload_drive > 0) & ((residency == "states") | no_copy)
            read = read + size * (stored + np.where(weights_there, reread, 0.0))
            written = written + size * stored
    return read, written


def drive_buffer_bytes(question: Question, columns: LayoutColumns) -> Array:
    """(N,) bytes in host memory of a rank's buffers through which states on the drive pass, chunk by chunk.

    A buffer is no larger than the parameters that the rank updates, or, if a block has several chunks, than
    those of a block that it updates at a time: its experts, or all others.
    """
    use = question.stack.drive

    def updated(question: Question, columns: LayoutColumns, residency: Residency, part: Part) -> Array:
        on_drive = (columns.offload_drive > 0) & (residency in UPDATED_BY_CPU)
        return np.where(on_drive, 1 / columns.shards(part, zero=1), 0.0)

    buffer_size: Array = np.minimum(use.chunk, _fullest_rank(question, columns, updated))
    if use.block_chunks:
        of_block = np.max(block_shards(question, columns, zero=1), axis=0)
        buffer_size = np.minimum(buffer_size, of_block / use.block_chunks)
    return use.buffers * FP32_BYTES * buffer_size
