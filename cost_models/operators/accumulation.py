"""Rules of a stack that prices and the executor share: how gradients of microbatches are added up, in which type and by
which kernels, and which layouts compute the loss in chunks of tokens.
"""

from __future__ import annotations

import numpy as np

from cost_models.arrays import Array, Bools
from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import Layout
from cost_models.question import Question
from cost_models.schedules.registry import ALWAYS_SPLIT, KEEPS_ALL_LOGITS, is_scheduled
from cost_models.specs.training import STATE_BYTES, StateDtype


def gradient_accumulation_bytes(question: Question, columns: LayoutColumns) -> Array:
    """(N,) bytes per parameter and microbatch to add a microbatch's gradients to the accumulation buffer.

    A fused stack adds inside the weight-gradient product. Otherwise a kernel reads the new gradient and the buffer and
    writes the buffer; where the buffer is simply the first microbatch's gradient, the first addition is saved.
    """
    if fuses_accumulation(question):
        return np.zeros(len(columns))
    return bytes_of_a_sum(question) * added_share(question, columns)


def bytes_of_a_sum(question: Question) -> float:
    """Bytes per parameter of a kernel that reads a new gradient and the buffer and writes the buffer."""
    return question.training.element_bytes + 2 * STATE_BYTES[gradient_dtype(question)]


def copied_bytes(
    question: Question, columns: LayoutColumns, trained: Array | float = 1.0
) -> tuple[Array, Array]:
    """(N,) bytes per parameter, forward and backward, that a rank moves itself around collectives over its replicas,
    where so many (N,) of each are trained.

    Gathered weights are read and written once more before each pass that gathers them. Gradients are read, and written
    in the type they are reduced in, so many times as often as they are reduced.
    """
    stack = question.stack
    weights = np.where(
        (columns.zero == 3) & (columns.shard > 1) & stack.zero3_gathers_every_microbatch,
        2 * question.training.element_bytes * stack.copies_gathered_weights,
        0.0,
    )
    microbatches = columns.microbatches(question.training.global_batch)
    each = reduces_every_microbatch(question, columns)
    once = question.training.element_bytes + STATE_BYTES[gradient_dtype(question)]
    passes = stack.gradient_passes / np.where(each, 1, microbatches)
    gradients = trained * np.where(columns.replicas > 1, once * passes, 0.0)
    return weights, weights + gradients


def reduces_every_microbatch(question: Question, columns: LayoutColumns) -> Bools:
    """(N,) layouts under ZeRO-2 and 3 whose gradients are scattered after each microbatch, so that only a shard waits.

    A stage of `torch.distributed.pipelining` puts that off until the last one (`stage.py`, backward_maybe_with_nosync).
    """
    stack = question.stack
    waits = stack.unsharded_gradients_until_sync | (stack.torch_pipelining & (columns.pp > 1))
    return (columns.zero >= 2) & ~waits


def added_share(question: Question, columns: LayoutColumns) -> Array:
    """(N,) share of a step's microbatches whose gradients are added to a buffer by a kernel of their own.

    A stack with a buffer of its own adds every one; otherwise the first microbatch's gradient becomes the buffer.
    """
    stack = question.stack
    microbatches = columns.microbatches(question.training.global_batch)
    buffered = accumulates_apart(question) | (stack.gradient_buffer & (columns.zero <= 1))
    return np.where(buffered, 1.0, (microbatches - 1) / microbatches)


def gradient_dtype(question: Question) -> StateDtype:
    """The type gradients are accumulated in: the training spec's wish, else the stack's way."""
    stack, training = question.stack, question.training
    apart = stack.bf16_accumulates_apart and training.precision == "bf16"
    if training.precision == "fp16" and stack.fp16_gradient_dtype is not None:
        return training.gradient_dtype or stack.fp16_gradient_dtype
    return training.gradient_dtype or ("fp32" if apart else stack.gradient_dtype)


def fuses_accumulation(question: Question) -> bool:
    """Whether weight-gradient products add to the accumulation buffer."""
    stack = question.stack
    return stack.fused_gradient_accumulation and gradient_dtype(question) in stack.fused_accumulation_dtypes


def accumulates_apart(question: Question) -> bool:
    """Whether gradients exist in the weight's type beside the tensor they are accumulated in."""
    return question.stack.bf16_accumulates_apart and question.training.precision == "bf16"


def chunks_loss(question: Question, columns: LayoutColumns) -> Bools:
    """(N,): layouts whose loss a stack with a `loss_chunk` computes in chunks.

    Those with more tokens in a microbatch than in a chunk. Not with the vocabulary split over tensor ranks, where the
    loss is split too. Not where the head's backward pass waits for something else: each microbatch that waits would
    hold a gradient of the whole output matrix. Not of an output with a bias, which chunks would have to add up as well,
    nor of an encoder or behind a vision tower, where the loss is of some tokens.
    """
    chunk = question.stack.loss_chunk
    of_some = question.model.encoder or question.model.tower or question.model.outputs
    if chunk is None or question.model.head_bias or of_some:
        return np.zeros(len(columns), dtype=np.bool_)
    several = columns.tokens(question.training.sequence_length) > chunk
    chunked: Bools = several & (columns.tp == 1) & ~is_scheduled(columns, ALWAYS_SPLIT | KEEPS_ALL_LOGITS)
    return chunked


def compiles_chunks(question: Question) -> bool:
    """Whether the loss of a chunk is compiled: logits are read twice, their gradient is written, and no copy is in
    fp32."""
    return question.stack.compiled and question.stack.compiles_loss


def loss_chunk(question: Question, layout: Layout) -> int | None:
    """Tokens of a chunk in this layout; None: all logits at once."""
    return question.stack.loss_chunk if chunks_loss(question, LayoutColumns.of([layout]))[0] else None
