"""Bytes of a host's memory that its ranks keep there.

Every rank counts as the fullest. Pinned buffers are the memory itself: weights, gradients and states lie in it as they
travel.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from cost_models.axes.columns import Ints, LayoutColumns
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
from cost_models.memory.states import state_bytes
from cost_models.operators.parameters import parameters
from cost_models.question import Question
from cost_models.specs.choices import RECOMPUTE_POLICIES, Recompute

Array = npt.NDArray[np.float64]


def host_bytes(
    question: Question, columns: LayoutColumns, recompute: Sequence[Recompute] | None = None
) -> Array:
    """(N,) bytes in the memory of one host: states of its ranks' blocks, and the activations that they parked there.

    `recompute` are the policies of placed layouts; None: those that the training job allows.
    """
    if not offloads(columns).any():
        return np.zeros(len(columns))
    blocks = -(-question.model.num_layers // columns.pp)
    rank = of_fullest_rank(
        question, columns, lambda part, experts: _held_away(question, columns, part, experts=experts)
    )
    rank = rank * question.stack.host_buffers + buffer_bytes(question, columns)
    rank = rank + _staging(question, columns, blocks)
    policies = question.training.recompute if recompute is None else recompute
    rank = rank + _activations(question, columns, blocks, policies)
    each: Array = rank * np.minimum(columns.ranks, question.cluster.gpus_per_node)
    return each


def _held_away(question: Question, columns: LayoutColumns, part: str, *, experts: bool) -> Array:
    """(N,) bytes per parameter that are not on the device."""
    whole, left = (
        state_bytes(question, columns, experts=experts, held=held_on_device(question, columns, where))
        for where in (RESIDENT, part)
    )
    scattered = gradients_wait(question, columns) & (part in {"states", "streamed"})
    copied = whole.worked_on if part == "states" else 0.0  # weights on both sides
    away = whole.total - left.total + np.where(scattered, whole.reduced, 0.0) + copied
    return away - drive_traffic(question, columns, residency=part, experts=experts).held


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
    narrow = question.training.precision != "fp32"
    each = FP32 * incoming + question.training.element_bytes * outgoing * narrow
    return np.where(columns.zero < 2, question.stack.staging_buffers * each, 0.0)


def _activations(
    question: Question, columns: LayoutColumns, blocks: Ints, policies: Sequence[Recompute]
) -> Array:
    """(N,) bytes that a rank's blocks keep for the backward passes of all microbatches under way, with that of the
    policies that recomputes least."""
    away = rest_is(columns, "activations")
    if not away.any():
        return np.zeros(len(columns))
    live = np.minimum(columns.pp, columns.microbatches(question.training.global_batch))
    allowed = [RECOMPUTE_POLICIES.index(policy) for policy in policies]
    kept = activation_bytes(question, columns).block[:, allowed].max(axis=1)
    return np.where(away, live * blocks * kept, 0.0)
