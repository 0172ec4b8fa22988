"""Rules of a stack for adding up gradients of microbatches (data type and kernels) and for computing the loss
in chunks of tokens, for prices and executor alike."""

from __future__ import annotations

import numpy as np

from cost_models.arrays import Array, Bools
from cost_models.axes.columns import LayoutColumns, is_scheduled
from cost_models.axes.layout import Layout
from cost_models.question import Question
from cost_models.schedules.registry import ALWAYS_SPLIT, KEEPS_ALL_LOGITS
from cost_models.specs.training import STATE_BYTES, StateDtype


def gradient_accumulation_bytes(question: Question, columns: LayoutColumns) -> Array:
    """Bytes moved per parameter and microbatch to add a microbatch's gradients to the accumulation buffer,
    (N,).

    A fused stack adds inside the weight-gradient product. Otherwise a kernel reads the new gradient and the
    buffer and writes the buffer; if the buffer is simply the first microbatch's gradient, the first addition
    is saved.
    """
    return addition_bytes(question) * added_share(question, columns) * (not fuses_accumulation(question))


def addition_bytes(question: Question) -> float:
    """Bytes moved per parameter by a kernel that reads a new gradient and the accumulation buffer and writes
    their sum to the buffer."""
    return question.training.element_bytes + 2 * STATE_BYTES[gradient_dtype(question)]


def copied_bytes(question: Question, columns: LayoutColumns, trained: Array | float = 1.0) -> Array:
    """Bytes moved per parameter by a rank's copies before and after data-parallel collectives, forward and
    backward, (2, N). `trained` is the share of parameters that are trained.

    Gathered weights are read and written once more before each pass that gathers them. Gradients are read,
    and written in the reduced type, `gradient_passes` times per reduction.
    """
    stack = question.stack
    gathers = (columns.zero == 3) & (columns.shard > 1) & stack.zero3_gathers_every_microbatch
    weights = np.where(gathers, 2 * question.training.element_bytes * stack.copies_gathered_weights, 0.0)
    microbatches = columns.microbatches(question.training.global_batch)
    once = question.training.element_bytes + STATE_BYTES[gradient_dtype(question)]
    passes = stack.gradient_passes / np.where(reduces_every_microbatch(question, columns), 1, microbatches)
    gradients = trained * np.where(columns.replicas > 1, once * passes, 0.0)
    return np.array([weights, weights + gradients])


def reduces_every_microbatch(question: Question, columns: LayoutColumns) -> Bools:
    """Whether gradients are reduce-scattered after each microbatch (ZeRO-2 and 3), (N,). A rank then holds
    only its shard.

    A stage of `torch.distributed.pipelining` defers that to the last microbatch (`stage.py`,
    backward_maybe_with_nosync).
    """
    stack = question.stack
    waits = stack.unsharded_gradients_until_sync | (stack.torch_pipelining & (columns.pp > 1))
    return (columns.zero >= 2) & ~waits


def added_share(question: Question, columns: LayoutColumns) -> Array:
    """Share of a step's microbatches whose gradients a separate kernel adds to a buffer, (N,).

    A stack with a separate buffer adds every one; otherwise the first microbatch's gradient becomes the
    buffer.
    """
    microbatches = columns.microbatches(question.training.global_batch)
    buffered = accumulates_in_copy(question) | (question.stack.gradient_buffer & (columns.zero <= 1))
    return np.where(buffered, 1.0, (microbatches - 1) / microbatches)


def gradient_dtype(question: Question) -> StateDtype:
    """Data type in which gradients are accumulated, from the training spec or else from the stack."""
    stack, training = question.stack, question.training
    default = "fp32" if accumulates_in_copy(question) else stack.gradient_dtype
    if training.precision == "fp16":
        default = stack.fp16_gradient_dtype or default
    return training.gradient_dtype or default


def fuses_accumulation(question: Question) -> bool:
    """Whether weight-gradient products add their result directly to the accumulation buffer."""
    stack = question.stack
    return stack.fused_gradient_accumulation and gradient_dtype(question) in stack.fused_accumulation_dtypes


def accumulates_in_copy(question: Question) -> bool:
    """Whether gradients are accumulated in a separate fp32 tensor, next to the gradients in the type of the
    weights."""
    return question.stack.bf16_accumulates_apart and question.training.precision == "bf16"


def chunks_loss(question: Question, columns: LayoutColumns) -> Bools:
    """Whether each layout computes the loss in chunks of tokens, as a stack with a `loss_chunk` may, (N,).

    A microbatch must have more tokens than a chunk. Excluded are a vocabulary split over tensor ranks, whose
    loss is split too; schedules that delay the head's backward pass, as each waiting microbatch would hold a
    gradient of the entire output matrix; output biases, whose gradients chunks would have to add up; and
    encoders and vision towers, whose loss covers only some tokens.
    """
    model, chunk = question.model, question.stack.loss_chunk or np.inf
    several = columns.tokens(question.training.sequence_length) > chunk
    unsplit: Bools = (columns.tp == 1) & ~is_scheduled(columns, ALWAYS_SPLIT | KEEPS_ALL_LOGITS)
    return unsplit & several & (not (model.head_bias or model.encoder or model.tower or model.outputs))


def compiles_chunks(question: Question) -> bool:
    """Whether the stack compiles the loss of a chunk of tokens, which then reads logits twice, writes their
    gradient, and makes no fp32 copy."""
    return question.stack.compiled and question.stack.compiles_loss


def loss_chunk(question: Question, layout: Layout) -> int | None:
    """Number of tokens per chunk if the layout computes the loss in chunks; None if it computes all logits at
    once."""
    return question.stack.loss_chunk if chunks_loss(question, LayoutColumns.of([layout]))[0] else None
