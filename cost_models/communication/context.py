"""Context-parallel communication of a block: what attention needs from the other ranks of a sequence.

Each of the c ranks has the queries of b·s/c tokens and must see every key and value, 2·b·s·kv/t elements in all.

    ring        c − 1 steps; each passes on the keys and values of one rank while attention works on those before.
                Backward their gradients travel along: twice the bytes (Liu et al. 2023; TransformerEngine's `p2p`).
    all-gather  all keys and values at once, again in backward, where their gradients are reduced and scattered
                (Llama 3, arXiv 2407.21783, section 3.3.2).
    all-to-all  tokens are traded for heads before the kernel and back after it (Jacobs et al. 2023, Ulysses).

Tokens are dealt so that causal attention is the same work for every rank and step (two pieces, one from either end of
the sequence). Ring steps hide behind the kernel of the step before; the others are in sight. Left out: merging the
partial results of a ring, a pass over the output for each step.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cost_models.communication.collectives import (
    all_gather_seconds,
    all_to_all_seconds,
    point_to_point_seconds,
    reduce_scatter_seconds,
)
from cost_models.communication.topology import Groups
from cost_models.question import Question
from cost_models.specs.columns import LayoutColumns

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextSeconds:
    """Seconds per block and microbatch, each (N,); zero where cp is 1."""

    forward: Array
    """In sight."""
    backward: Array
    forward_hidden: Array
    """Behind the attention kernel."""
    backward_hidden: Array


def context_seconds(
    question: Question, columns: LayoutColumns, group: Groups, core_forward: Array, core_backward: Array
) -> ContextSeconds:
    """Costs over the context-parallel groups, given the (N,) seconds of the attention kernels to hide behind."""
    if (columns.cp == 1).all():
        none = np.zeros(len(columns))
        return ContextSeconds(forward=none, backward=none, forward_hidden=none, backward_hidden=none)
    model, profile = question.model, question.hardware
    sequence = question.training.sequence_length
    rank_elements = columns.tokens(sequence) / columns.tp * question.training.element_bytes
    keys_values = 2 * model.kv_size * rank_elements
    if question.stack.context_parallel == "ring":
        steps = columns.cp - 1
        forward = steps * point_to_point_seconds(keys_values, group, profile)
        backward = steps * point_to_point_seconds(2 * keys_values, group, profile)
        forward_hidden = np.minimum(forward, core_forward * steps / columns.cp)
        backward_hidden = np.minimum(backward, core_backward * steps / columns.cp)
    elif question.stack.context_parallel == "all-gather":
        forward = all_gather_seconds(columns.cp * keys_values, group, profile)
        backward = forward + reduce_scatter_seconds(columns.cp * keys_values, group, profile)
        forward_hidden = backward_hidden = np.zeros(len(columns))
    else:
        whole = columns.cp * rank_elements
        forward = all_to_all_seconds(whole * (model.query_size + 2 * model.kv_size), group, profile)
        forward = forward + all_to_all_seconds(whole * model.query_size, group, profile)
        backward, forward_hidden, backward_hidden = forward, np.zeros(len(columns)), np.zeros(len(columns))
    return ContextSeconds(
        forward=forward - forward_hidden,
        backward=backward - backward_hidden,
        forward_hidden=forward_hidden,
        backward_hidden=backward_hidden,
    )
