"""Bytes that the memory-bound operators of a block move, as the software stack fuses them.

Counted in passes over a tensor: a fused kernel reads each input once and writes each output once. Outside the
tensor-parallel region a tensor is (tokens × h), split by sequence parallelism; inside it is split by tp.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cost_models.axes.columns import LayoutColumns
from cost_models.question import Question
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


def block_traffic(question: Question, columns: LayoutColumns, inner: Array) -> Traffic:
    """Norms, residual additions, dropout, rotary and activation (over `inner` elements of the MLP) of one block."""
    model, stack = question.model, question.stack
    dropout = question.dropout > 0
    element = question.training.element_bytes
    tokens = columns.tokens(question.training.sequence_length)
    outside = tokens * model.hidden_size / np.where(columns.sp == 1, columns.tp, 1)
    heads = tokens * (model.query_size + model.kv_size) / columns.tp
    norm, activation = _norm(question), _activation(question)
    rotary = (2.0 if stack.fused_elementwise else _EAGER_ROTARY) * model.turned_share
    drops = 4.0 if dropout and not stack.fused_elementwise else 0.0
    mask = 2.0 * outside if dropout else np.zeros(tokens.shape)
    # A residual addition reads two and writes one, forward and on the gradients' way back.
    norms, added = model.block_norms, _THREE_TERMS if model.parallel_block else _TWO_ADDITIONS
    outside_forward = norms * norm.forward + element * (added + drops)
    outside_backward = norms * norm.backward + element * (added + (4.0 if dropout else 0.0))
    return Traffic(
        forward_bytes=outside_forward * outside
        + element * (activation.forward * inner + rotary * heads)
        + mask,
        backward_bytes=outside_backward * outside
        + element * (activation.backward * inner + rotary * heads)
        + mask,
        forward_kernels=3.0 + norms * norm.kernels + activation.kernels + min(rotary, _FUSED_ROTARY),
        backward_kernels=5.0 + norms * norm.kernels + activation.kernels + min(rotary, _FUSED_ROTARY),
    )


_TWO_ADDITIONS = 6.0
_THREE_TERMS = 4.0
_FUSED_ROTARY = 2.0
_EAGER_ROTARY = 10.0
"""Two products with a rotated copy between and a sum, in the elements' type or in complex fp32: as many bytes."""


@dataclass(frozen=True, slots=True)
class _Moved:
    """Per element of the operator's input, forward and backward, and kernels a pass."""

    forward: float
    backward: float
    kernels: float


def _norm(question: Question) -> _Moved:
    """Bytes of one norm. A fused one reads and writes once and its backward reads two and writes one.

    Written out in torch an RMS norm works in fp32: cast, square, mean, scale, cast back, weight (docs/decisions/0004).
    """
    element = question.training.element_bytes
    if question.stack.fused_norms or question.model.norm == "layernorm":
        return _Moved(2 * element, 3 * element, 1)
    return _Moved(24 + 4 * element, 44 + 6 * element, 6)


def _activation(question: Question) -> _Moved:
    """Passes over the MLP's inner tensor; a gate written out materialises its activation before the product."""
    if not question.model.gated_mlp:
        return _Moved(2, 3, 1)
    return _Moved(3, 5, 1) if question.stack.fused_elementwise else _Moved(5, 9, 2)


def attention_traffic(question: Question, columns: LayoutColumns) -> Traffic:
    """The s × s scores where the attention kernel does not keep them on chip."""
    kernel = question.stack.attention
    passes = _SCORE_PASSES.get(kernel, (0.0, 0.0))
    dropped = question.dropout > 0 and kernel in STORES_SCORES
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
    buffered = accumulates_apart(question) | (stack.gradient_buffer & (columns.zero <= 1))
    return np.where(buffered, 1.0, (microbatches - 1) / microbatches)


def gradient_dtype(question: Question) -> StateDtype:
    """The type gradients are accumulated in: the training spec's wish, else the stack's way."""
    stack, training = question.stack, question.training
    apart = stack.bf16_accumulates_apart and training.precision == "bf16"
    return training.gradient_dtype or ("fp32" if apart else stack.gradient_dtype)


def accumulates_apart(question: Question) -> bool:
    """Whether gradients exist in the weight's type beside the tensor they are accumulated in."""
    stack = question.stack
    in_bf16 = question.training.precision == "bf16"
    return stack.gradients_in_weight_dtype or (stack.bf16_accumulates_apart and in_bf16)
