"""Tensors of the stage boundaries that a pipeline rank holds beyond the activations of its own blocks.

Gradients that wait between the two halves of a backward pass, for the products towards the weights.

PyTorch keeps the gradient of the output of every operator that has a parameter: of each matrix product, and of each
norm. What the products read on their other side is still live, as the whole graph is kept for the second half.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cost_models.arrays import Array
from cost_models.axes.columns import LayoutColumns, is_overlapped
from cost_models.operators.on_rank import added, handed_on, on_rank, tokens_on_rank
from cost_models.operators.parameters import head_rows
from cost_models.operators.tuning import job_operators
from cost_models.question import Question
from cost_models.schedules.registry import ALWAYS_SPLIT, is_scheduled


@dataclass(frozen=True, slots=True, kw_only=True)
class BoundaryBytes:
    """Bytes, each (N,)."""

    every_rank: Array
    first_rank: Array
    """What the rank with the first stage holds more (less, where negative): it sends no gradients back."""
    last_rank: Array
    """Likewise: the last stage sends no activations on and receives no gradients."""


def boundary_bytes(question: Question, columns: LayoutColumns) -> BoundaryBytes:
    """One buffer each way, or what a stack that retains them accumulates over the step's microbatches.

    `torch.distributed.pipelining` keeps the received gradient of every microbatch until the step ends; with several
    chunks a rank, or sends that nothing waits for (`overlap=pp`), also what it sent, both ways, so a stage holds three
    tensors a microbatch (the first two). Where every
    backward pass is split its inputs stay too: four a microbatch, two on the first stage and on the last. A microbatch
    that is live has no gradients yet; there are never more of these than the step has. Of two stacks, a stage holds the
    encoder's tokens of every microbatch that may be live.
    """
    tensor = handed_on(question, columns) * question.training.element_bytes
    tensor = tensor / np.where(columns.sp == 1, columns.tp, 1)
    piped, source = columns.pp > 1, question.model.source_share
    live = np.minimum(columns.pp * columns.vpp, columns.microbatches(question.training.global_batch))
    encoded = source / (1.0 + source) * tensor * live
    if not question.stack.retains_boundary_tensors:
        none = np.zeros(len(columns))
        every = np.where(piped, 2 * tensor, 0.0) + encoded
        return BoundaryBytes(every_rank=every, first_rank=none, last_rank=none)
    tensor = np.where(piped, tensor, 0.0)
    microbatches = columns.microbatches(question.training.global_batch)
    held = tensor * microbatches
    waiting = 2 * tensor * np.minimum((columns.vpp - 1) * columns.pp + 1, columns.vpp * microbatches)
    chunked = (columns.vpp > 1) | is_overlapped(columns, "pp", default=False)
    split = is_scheduled(columns, ALWAYS_SPLIT)
    every = np.where(chunked, 3 * columns.vpp * held - waiting, held)
    # inputs are counted with them, and fewer have gradients
    waits = tensor * (3 * columns.vpp - 2) * np.minimum(columns.pp, microbatches)
    return BoundaryBytes(
        every_rank=np.where(split, 4 * columns.vpp * held - waits, every) + encoded,
        first_rank=np.where(split, -2 * held, np.where(chunked, -held, 0.0)),
        last_rank=np.where(chunked | split, -2 * held, -held),
    )


def pending_bytes(question: Question, columns: LayoutColumns) -> tuple[Array, Array]:
    """(N,) bytes of one microbatch of a block and of the head: the outputs of all operators with parameters.

    For a GPT block that is 3 + 4 widths of h inside the tensor-parallel region and 1 + 1 + 2 outside. Where fp8 keeps
    products' inputs as multiplied, gradients wait so, too (Transformer Engine's `WeightGradStore`).
    """
    model, training = question.model, question.training
    element, tuning = training.element_bytes, training.tuning
    trained = [one for one in job_operators(model, tuning) if one.trained]
    outputs = [
        (one.share, one.kind, one.returns) for one in trained if one.weights and not one.shares_gradient
    ]
    cast = training.operand_bytes if question.stack.fp8_saves_inputs and training.narrow else element
    tokens = tokens_on_rank(question, columns, "whole")
    head = tokens * question.scored_share * (head_rows(model, columns.tp) / columns.tp)
    normed = tokens_on_rank(question, columns, "stream") * model.hidden_size
    block = added(
        (share, {to.place: (cast if kind == "gemm" else element) * to.width})
        for share, kind, to in outputs
        if to is not None
    )
    return on_rank(question, columns, block), element * (head + normed) * training.trains("head matrix")
