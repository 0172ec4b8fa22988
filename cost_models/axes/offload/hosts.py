"""Bytes of a host's memory that its ranks keep there.

Every rank counts as the fullest. Pinned buffers are the memory itself: weights, gradients and states lie in it as they
travel. What torch's own allocator pins is of a power of two bytes (aten/src/ATen/core/CachingHostAllocator.h).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cost_models.arrays import Array, Ints
from cost_models.axes.columns import LayoutColumns
from cost_models.axes.offload import offloads
from cost_models.axes.offload.residency import (
    RESIDENT,
    gradients_wait,
    held,
    held_on_device,
    of_fullest_rank,
    rest_is,
)
from cost_models.axes.offload.traffic import FP32, buffer_bytes, drive_traffic
from cost_models.memory.activations import activation_bytes
from cost_models.memory.device import is_own_host
from cost_models.memory.states import state_bytes
from cost_models.operators.block import block_operators
from cost_models.operators.parameters import parameters
from cost_models.question import Question
from cost_models.specs.choices import RECOMPUTE_POLICIES, Recompute
from cost_models.specs.cluster import FULL

STAGING_BUFFERS = 2
"""Buffers of a block's size in host memory through which our executor's gradients go down, where they do not lie there,
and updated 16-bit weights come up, under ZeRO-0 and 1 (executor/axes/offload/link.py)."""


def host_bytes(
    question: Question, columns: LayoutColumns, recompute: Sequence[Recompute] | None = None
) -> Array:
    """(N,) bytes in the memory of one host: states of its ranks' blocks, and the activations that they parked there; or
    the weights of a reference model's blocks.

    `recompute` are the policies of placed layouts; None: that of those the training job allows that keeps least.
    """
    blocks = -(-question.model.num_layers // columns.pp)
    ranks_here = np.minimum(columns.ranks, question.cluster.gpus_per_node)
    if not offloads(columns).any():
        away = question.training.reference == "host"
        return away * blocks * reference_bytes(question, columns) * ranks_here
    rank = of_fullest_rank(
        question, columns, lambda part, experts: _held_away(question, columns, part, experts=experts)
    )
    rank = rank * question.stack.host_buffers + buffer_bytes(question, columns)
    rank = rank + _staging(question, columns, blocks)
    rank = rank + _activations(question, columns, blocks, recompute)
    return rank * ranks_here


def reference_bytes(question: Question, columns: LayoutColumns) -> Array:
    """(N,) bytes of a reference model's block, in the type of training: a rank's part, under ZeRO-3 its shard of it."""
    counts = parameters(question.model, columns.tp, ep=columns.ep, etp=columns.etp)
    own, routed = (np.where(columns.zero == 3, ranks, 1) for ranks in (columns.shard, columns.expert_shard))
    return question.training.element_bytes * (counts.block / own + counts.experts / routed)


def _held_away(question: Question, columns: LayoutColumns, part: str, *, experts: bool) -> Array:
    """(N,) bytes per parameter that are not on the device."""
    whole, left = (
        state_bytes(question, columns, experts=experts, held=held_on_device(question, columns, where))
        for where in (RESIDENT, part)
    )
    scattered = gradients_wait(question, columns) & (part in {"states", "streamed"})
    copied = whole.worked_on if part == "states" else 0.0  # weights on both sides
    away = whole.total - left.total + np.where(scattered, whole.reduced, 0.0) + copied
    away = away + _rounded_up(question, columns, part, experts=experts)
    return away - drive_traffic(question, columns, residency=part, experts=experts).held


def _rounded_up(question: Question, columns: LayoutColumns, part: str, *, experts: bool) -> Array:
    """(N,) bytes per parameter that gradients on the host take beyond fp32, each matrix's in a power of two of bytes.

    `fully_shard` pins those that it reduces once a step (_fsdp_collectives.py, foreach_reduce).
    """
    once = question.stack.unsharded_gradients_until_sync
    if part != "streamed" or not once or is_own_host(question.cluster):
        return np.zeros(len(columns))
    shard = columns.expert_shard if experts else columns.shard
    asked = taken = np.zeros(len(columns))
    for gemm in [one.gemm for one in block_operators(question.model) if one.gemm]:
        held = question.model.num_experts / columns.ep if gemm.routed else 1.0
        ranks = shard * np.where(gemm.split == "whole", 1, columns.etp if gemm.routed else columns.tp)
        for outputs in gemm.outputs if gemm.routed == experts else ():
            size = FP32 * held * gemm.inputs * outputs / ranks
            asked, taken = asked + size, taken + 2 ** np.ceil(np.log2(size))
    more = FP32 / shard * (taken / np.maximum(asked, 1.0) - 1)
    return np.where(columns.zero >= 2, more, 0.0)


def _staging(question: Question, columns: LayoutColumns, blocks: Ints) -> Array:
    """(N,) bytes of the buffers of a rank that gradients, and weights in 16 bits, pass through.

    Those of blocks with `states`, a rank's share, do on their way down and up; those of streamed blocks, whole, where
    they are added to what earlier microbatches left on the host. All share buffers of the largest's size.
    """
    counts = parameters(question.model, columns.tp, ep=columns.ep, etp=columns.etp)
    sizes = [(counts.block, columns.shard)]
    if question.model.has_experts:
        sizes.append((counts.experts, columns.expert_shard))
    several = columns.microbatches(question.training.global_batch) > 1
    of_states, of_streamed = (
        held(columns, part, blocks.astype(float)) > 0 for part in ("states", "streamed")
    )
    incoming = outgoing = np.zeros(len(columns))
    for size, ranks in sizes:
        share = size / np.where(columns.zero == 1, ranks, 1)
        incoming = np.maximum(incoming, np.where(of_streamed & several, size, of_states * share))
        outgoing = np.maximum(outgoing, of_states * share)
    narrow = question.training.precision not in FULL
    each = FP32 * incoming + question.training.element_bytes * outgoing * narrow
    return np.where(columns.zero < 2, STAGING_BUFFERS * question.stack.keeps_streamed_blocks * each, 0.0)


def _activations(
    question: Question, columns: LayoutColumns, blocks: Ints, used: Sequence[Recompute] | None
) -> Array:
    """(N,) bytes that a rank's blocks keep for the backward passes of all microbatches under way: all of them as under
    the used policy that recomputes least, or the least that they may keep."""
    away = rest_is(columns, "activations")
    if not away.any():
        return np.zeros(len(columns))
    live = np.minimum(columns.pp, columns.microbatches(question.training.global_batch))
    some = [RECOMPUTE_POLICIES.index(policy) for policy in used or question.training.recompute]
    each = activation_bytes(question, columns).block[:, some]
    kept = each.max(axis=1) if used else each.min(axis=1)
    return np.where(away, live * blocks * kept, 0.0)
