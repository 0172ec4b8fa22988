"""Bytes that the memory-bound operators of a block move, as the software stack fuses them.

Counted in passes over a tensor: a fused kernel reads each input once and writes each output once. Outside the
tensor-parallel region a tensor is (tokens × h), split by sequence parallelism; inside it is split by tp.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cost_models.question import Question
from cost_models.specs.columns import LayoutColumns
from cost_models.specs.stack import STORES_SCORES
from cost_models.specs.training import STATE_BYTES, StateDtype

Array = npt.NDArray[np.float64]

_SCORE_PASSES: dict[str, tuple[float, float]] = {"fused-softmax": (2.0, 3.0), "unfused": (8.0, 8.0)}
"""Passes over the s × s scores, forward and backward, where a kernel does not keep them on chip."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Bytes moved and kernels launched, forward and backward; bytes are (N,)."""

    forward_bytes: Array
    backward_bytes: Array
    forward_kernels: float
    backward_kernels: float


def block_traffic(question: Question, columns: LayoutColumns) -> Traffic:
    """Norms, residual additions, dropout, activation and rotary of one block."""
    model, stack = question.model, question.stack
    dropout = question.training.dropout > 0
    element = question.training.element_bytes
    tokens = columns.tokens(question.training.sequence_length)
    outside = tokens * model.hidden_size / np.where(columns.sp == 1, columns.tp, 1)
    ffn = tokens * model.ffn_hidden_size / columns.tp
    heads = tokens * (model.query_size + model.kv_size) / columns.tp
    up = 2 if model.gated_mlp else 1
    rotary = 2.0 if model.positions == "rotary" else 0.0
    fused = stack.fused_elementwise
    # Two norms (read, write) and two residual additions (two reads, write); unfused stacks add the bias, the dropout
    # and the norm's fp32 statistics as passes of their own.
    outside_forward = 4 + 6 + (2 if dropout else 0) * (0 if fused else 2)
    # Norm backward reads the gradient and the input and writes; its result is added to the residual's gradient.
    outside_backward = 6 + 6 + (4 if dropout else 0)
    # Activation: fused reads the product's output(s) and writes one; unfused also materialises act(gate).
    inside_forward = up + 1 if fused else up + 1 + 2 * (up - 1)
    inside_backward = 2 * up + 1 if fused else 2 * up + 1 + 3 * (up - 1)
    mask = 2.0 * outside if dropout else np.zeros(tokens.shape)
    return Traffic(
        forward_bytes=element * (outside_forward * outside + inside_forward * ffn + rotary * heads) + mask,
        backward_bytes=element * (outside_backward * outside + inside_backward * ffn + rotary * heads) + mask,
        forward_kernels=5.0 + rotary,
        backward_kernels=7.0 + rotary,
    )


def attention_traffic(question: Question, columns: LayoutColumns) -> Traffic:
    """The s × s scores where the attention kernel does not keep them on chip."""
    kernel = question.stack.attention
    passes = _SCORE_PASSES.get(kernel, (0.0, 0.0))
    dropped = question.training.dropout > 0 and kernel in STORES_SCORES
    dropout = (2.5, 2.5) if dropped else (0.0, 0.0)
    element = question.training.element_bytes
    sequence = question.training.sequence_length
    scores = element * columns.tokens(sequence) * sequence * (question.model.num_heads / columns.tp)
    return Traffic(
        forward_bytes=scores * (passes[0] + dropout[0]),
        backward_bytes=scores * (passes[1] + dropout[1]),
        forward_kernels=passes[0] / 2,
        backward_kernels=passes[1] / 2,
    )


def gradient_accumulation_bytes(question: Question, columns: LayoutColumns) -> Array:
    """(N,) bytes per parameter and microbatch to add a microbatch's gradients to the accumulation buffer.

    A fused stack adds inside the weight-gradient product. Otherwise a kernel reads the new gradient and the buffer and
    writes the buffer; where the buffer is simply the first microbatch's gradient, the first addition is saved.
    """
    if question.stack.fused_gradient_accumulation:
        return np.zeros(len(columns))
    moved = question.training.element_bytes + 2 * STATE_BYTES[gradient_dtype(question)]
    return moved * added_share(question, columns)


def added_share(question: Question, columns: LayoutColumns) -> Array:
    """(N,) share of a step's microbatches whose gradients are added to a buffer by a kernel of their own.

    A stack with a buffer of its own adds every one; otherwise the first microbatch's gradient becomes the buffer.
    """
    stack = question.stack
    microbatches = columns.microbatches(question.training.global_batch)
    buffered = stack.gradients_in_weight_dtype | (stack.gradient_buffer & (columns.zero <= 1))
    return np.where(buffered, 1.0, (microbatches - 1) / microbatches)


def gradient_dtype(question: Question) -> StateDtype:
    """The type gradients are accumulated in: the training spec's wish, else the stack's way."""
    return question.training.gradient_dtype or question.stack.gradient_dtype
