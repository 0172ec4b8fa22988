"""Bytes kept for the backward pass, tensor by tensor.

For GPT in 16 bits with dropout these are Korthikanti et al. 2022, table 2, per block and microbatch:

    no parallelism               s·b·h·(34 + 5·a·s/h)
    tensor parallel              s·b·h·(10 + 24/t + 5·a·s/(h·t))
    tensor + sequence parallel   s·b·h/t·(34 + 5·a·s/h)
    selective recompute          the same without the 5·a·s/h
    full recompute               2·s·b·h

A flash kernel never stores the scores, so its "none" equals the paper's "selective" but for the log-sum-exp row.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cost_models.axes.columns import LayoutColumns
from cost_models.axes.context import CONTEXTS
from cost_models.communication.context import context_ways
from cost_models.question import Question
from cost_models.specs.stack import STORES_SCORES
from cost_models.workload.chunked_loss import chunks_loss
from cost_models.workload.mixture import inner_elements, mixture
from cost_models.workload.parameters import padded_vocabulary

Array = npt.NDArray[np.float64]

_MASK_BYTES = 1.0  # dropout keeps one byte per element
_FP32 = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivationBytes:
    """Bytes per live microbatch on one rank; (N,) each but `block`."""

    block: Array
    """(N, P) by recompute policy."""
    mlp: Array
    """The part of a block that is released before its attention runs backward."""
    embedding: Array
    head: Array
    """Kept by the final norm and the output product, or in its place by a loss in chunks."""
    log_probabilities: Array
    """Kept by the loss, in fp32; nothing of its size by one in chunks."""
    loss_gradients: Array
    """Logits-shaped temporaries of the loss's backward pass at its widest moment; those of a loss in chunks."""


def activation_bytes(question: Question, columns: LayoutColumns) -> ActivationBytes:
    """What one microbatch leaves behind in a block under each policy, in the embedding and in the head."""
    model, training, stack = question.model, question.training, question.stack
    element = training.element_bytes
    tokens = columns.tokens(training.sequence_length)
    outside = tokens * model.hidden_size / np.where(columns.sp == 1, columns.tp, 1)
    dropout = question.dropout > 0
    mask = _MASK_BYTES * outside if dropout else np.zeros(tokens.shape)
    attention, mlp = _kept_inside(question, columns, tokens, outside, element)
    core = _kept_by_core(question, columns, tokens)
    norm = outside * _norm_bytes(question)
    norms = model.block_norms * norm
    if model.parallel_norms == 2:  # they read the same
        norms = norms - element * outside
    none = norms + attention + mlp + core + 2 * mask
    if stack.selective_drops == "block-attention":
        selective = none - attention - core + element * outside
    elif stack.selective_drops == "all-but-every-other-product":
        selective = np.minimum(none, core + _every_other_product(question, columns, tokens, outside))
    else:
        selective = none - core
    vocabulary = padded_vocabulary(model, columns.tp) / (columns.tp if stack.loss_parallel else 1)
    logits = tokens * vocabulary
    stored = _FP32 if stack.fp32_logits else element
    # a pipeline stage keeps its output until the step is done with it
    piped = np.where(columns.pp > 1, element, 0.0)
    split_copy = np.where(columns.tp > 1, stored, 0.0) if stack.split_loss_copies_logits else 0.0
    gradients = 2 * stored + piped + split_copy
    if stack.fused_loss:  # the gradient takes the place of what was kept; only its copy in 16 bits is new
        gradients = np.where(stored > element, element, 0.0)
    chunked = chunks_loss(question, columns)
    return ActivationBytes(
        block=np.stack([none, selective, element * outside], axis=-1),
        embedding=mask,
        mlp=norms / 2 + mlp + mask,
        head=norm + element * outside,
        log_probabilities=np.where(chunked, 0.0, logits * stored),
        loss_gradients=np.where(
            chunked,
            _chunked_loss(question, element * outside),
            logits * (gradients + stack.extra_loss_copies * stored),
        ),
    )


def _chunked_loss(question: Question, hidden: Array) -> Array:
    """What a loss in chunks holds while a chunk is at work, besides what it keeps.

    It keeps the gradient of its hidden states, which takes the place of these once they are done with. Until then both
    are there, with the gradient of the output matrix in the type of the weights, and a chunk's logits and
    log-probabilities in fp32.
    """
    vocabulary = float(padded_vocabulary(question.model, 1))
    chunk = 2 * _FP32 * (question.stack.loss_chunk or 0) * vocabulary
    matrix = question.training.element_bytes * question.model.hidden_size * vocabulary
    return hidden + matrix + chunk


def _kept_inside(
    question: Question, columns: LayoutColumns, tokens: Array, outside: Array, element: float
) -> tuple[Array, Array]:
    """(attention, MLP) bytes inside the tensor-parallel region and at its entrance, without the core."""
    model, stack = question.model, question.stack
    entrance = tokens * model.hidden_size if stack.saves_gathered_activations else outside
    kv_size = model.query_size if _eager(question) else model.kv_size
    heads = tokens * 2 * (model.query_size + kv_size) / columns.tp  # q, k, v and the core's output
    if latent := model.latent_attention:  # each latent before its norm and after it (eager norms: and within)
        heads = (
            tokens * (model.query_size + model.kv_size + model.value_size + model.attended_size) / columns.tp
        )
        times = 1 + 2 * _FP32 / element if _eager(question) else 2
        heads = heads + outside / model.hidden_size * times * (latent.kv_rank + (latent.query_rank or 0))
    twice = _keeps_output_twice(question, columns)
    heads = heads + np.where(twice, tokens * model.attended_size / columns.tp, 0.0)
    up = 2 if model.gated_mlp else 1
    kept = up + 1 if stack.fused_elementwise else 2 * up
    inner = inner_elements(question, columns)
    fp8 = stack.fp8_saves_inputs and question.training.precision == "fp8"
    multiplied = question.training.operand_bytes if fp8 else element  # an element of what a product takes in
    attention = multiplied * entrance + element * heads
    if fp8:  # the core keeps its output in 16 bits besides
        attention = attention + multiplied * tokens * model.attended_size / columns.tp
    shared = model.parallel_block and model.parallel_norms == 1  # both read the same
    mlp = multiplied * ((0 if shared else entrance) + inner) + element * (kept - 1) * inner
    if (routed := mixture(question, columns)) is not None:  # copies into the experts, and out of them
        mlp = mlp + model.moe_share * model.hidden_size * (multiplied * routed.rows + element * routed.sent)
    return attention, mlp


def _every_other_product(question: Question, columns: LayoutColumns, tokens: Array, outside: Array) -> Array:
    """The block's input and what its first, third, … product returned, with the attention core's output.

    Of q, k, v, output, gate, up, down those are q, v, gate and down; with one matrix up the fifth is that one.
    """
    model = question.model
    heads = tokens * (model.query_size + model.kv_size + model.attended_size) / columns.tp
    return question.training.element_bytes * (2 * outside + heads + inner_elements(question, columns))


def _keeps_output_twice(question: Question, columns: LayoutColumns) -> npt.NDArray[np.bool_]:
    """(N,) whether the core's output is kept as the kernel made it and as the next product reads it.

    cuDNN's kernel reads and writes either order, but Transformer Engine prefers FlashAttention on most GPUs. Where
    heads are traded back for tokens, the two are on different ranks.
    """
    kernel = question.stack.attention
    flash = kernel not in STORES_SCORES and (kernel != "cudnn" or not question.cluster.gpu.prefers_cudnn)
    reordered: npt.NDArray[np.bool_] = columns.mbs > 1
    traded = (columns.cp > 1) & (context_ways(question, columns) == CONTEXTS.index("all-to-all"))
    twice: npt.NDArray[np.bool_] = reordered & (flash and question.stack.sequence_first)
    kept: npt.NDArray[np.bool_] = twice | (traded & question.stack.keeps_traded_output)
    return kept


def _norm_bytes(question: Question) -> float:
    """Bytes per element that a norm keeps: its input; in an eager RMS norm that and the normalised input in fp32."""
    element, stack = question.training.element_bytes, question.stack
    if question.model.norm != "rmsnorm":
        return element
    if _eager(question):
        return 2 * _FP32
    return element if stack.fused_norms else stack.eager_norm_bytes * element / 2


def _eager(question: Question) -> bool:
    """Neither a fused RMS norm nor an attention kernel that reads grouped heads in place."""
    return question.stack.eager_attention_and_norms and question.cluster.gpu.kind == "cpu"


def _kept_by_core(question: Question, columns: LayoutColumns, tokens: Array) -> Array:
    """Softmax output, dropout mask and dropout output (s × s per head), or a flash kernel's log-sum-exp row."""
    model, training = question.model, question.training
    heads = model.num_heads / columns.tp
    if question.stack.attention not in STORES_SCORES:
        return _FP32 * tokens * heads
    element = training.element_bytes
    scores = tokens * training.sequence_length * heads
    return scores * (2 * element + _MASK_BYTES if question.dropout > 0 else element)
