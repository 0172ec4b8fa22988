"""Temporaries of a block at work: what it recomputes, gradients on their way, weights that it gathers."""

from __future__ import annotations

import numpy as np

from cost_models.arrays import Array
from cost_models.axes.columns import LayoutColumns
from cost_models.communication.context import gathered_elements
from cost_models.compute.casts import EAGER_CAST_BYTES
from cost_models.compute.scan import state_elements
from cost_models.operators.accumulation import fuses_accumulation
from cost_models.operators.chunked_loss import chunks_loss
from cost_models.operators.on_rank import tokens_on_rank
from cost_models.operators.parameters import padded_vocabulary
from cost_models.operators.tuning import job_operators
from cost_models.pipeline.terms.sizes import Sizes
from cost_models.question import Question
from cost_models.specs.choices import OUTPUTS, RECOMPUTE_POLICIES
from cost_models.specs.transformer import TransformerSpec


def working_bytes(sizes: Sizes) -> Array:
    """(N, P) largest temporary set of one block: what is recomputed, gradients on their way, gathered weights.

    The widest moment of the backward pass holds the gradient of the residual stream, that of the MLP's inner activation
    and, unless products add into the gradient buffer themselves, that of the matrix between (of a mixture the matrices
    of all its experts here, which one grouped product makes). ZeRO-3 holds weights of
    the block at work, and ZeRO-2 and 3 its full gradient once more while it is scattered. A mixture also holds the
    gradient of the copies that its experts work on. A cast to fp8 that is not fused holds its operand in fp32. Where
    attention gathers keys and values over context ranks, these and their gradients may be wider than the MLP. After a
    loss in chunks the gradient of a tied output matrix counts too; all logits at once hold more than a block does with
    it.
    """
    question, columns, kept = sizes.question, sizes.columns, sizes.kept
    states, experts, counts = sizes.states, sizes.experts, sizes.counts
    model, training = question.model, question.training
    tokens = columns.tokens(training.sequence_length)
    width, scanned = _inner_widths(model)
    inner, copies = tokens * max(width, scanned) / columns.tp, np.zeros(len(columns))
    matrix = model.hidden_size * width / columns.tp
    if model.moe_share:
        copies = tokens_on_rank(question, columns, "copies") * model.hidden_size
        routed = tokens_on_rank(question, columns, "expert") * model.moe_ffn_hidden_size
        inner = np.maximum(inner, routed)
        stacked = model.num_experts / columns.ep * model.hidden_size * model.moe_ffn_hidden_size / columns.etp
        matrix = np.maximum(matrix, stacked)
    new_gradient = np.zeros(len(columns)) if fuses_accumulation(question) else matrix
    if training.tuning is not None:
        new_gradient = _widened(question, columns)
    widest = np.maximum(inner + new_gradient, 2 * inner if model.gated_mlp else 0.0)
    attending = 2 * gathered_elements(question, columns)
    in_flight = training.element_bytes * (tokens * model.hidden_size + np.maximum(widest + copies, attending))
    if training.narrow and question.stack.fp8_casts_apart and not question.stack.fused_elementwise:
        in_flight = in_flight + EAGER_CAST_BYTES * np.maximum(inner, matrix)
    recomputed: Array = kept.block[:, :1] - kept.block
    # attention is computed again once the MLP is done with
    if question.stack.drops <= {"core", "block-attention"} | OUTPUTS:
        selective = RECOMPUTE_POLICIES.index("selective")
        recomputed[:, selective] = np.maximum(0.0, recomputed[:, selective] - kept.mlp)
    in_flight = (
        np.maximum(in_flight[:, None], _around_scores(sizes)) + _tied_gradient(question, columns)[:, None]
    )
    gathered = states.gathered * counts.block + experts.gathered * counts.experts
    scattered = states.scattering * counts.block + experts.scattering * counts.experts
    if not question.stack.fully_shard:
        return recomputed + in_flight + (gathered + scattered)[:, None]
    incoming = training.element_bytes * tokens * model.hidden_size + _tied_gradient(question, columns)
    during = recomputed + in_flight + 2 * gathered[:, None]  # with the block that is fetched early
    after = (incoming + 2 * gathered + scattered)[:, None] - kept.block
    return np.maximum(during, after)


def _inner_widths(model: TransformerSpec) -> tuple[float, float]:
    """Numbers of a token inside a block without experts: at most those that a product returns, and those of a scan's
    states and their gradients in fp32 with what it returns."""
    mixer = model.recurrence
    dense = model.ffn_hidden_size if model.feed_forward_share else model.query_size
    if mixer is None or not model.mixer_share("recurrence", "both"):
        return dense, 0.0
    return max(dense, mixer.input_size), mixer.mixed_size + 4 * state_elements(mixer)


def _widened(question: Question, columns: LayoutColumns) -> Array:
    """(N,) elements of the largest matrix that is made wide for a product, those of a rank's experts in one kernel
    together; nothing where frozen matrices are kept as wide. Gradients of adapters are too small to tell."""
    largest = np.zeros(len(columns))
    for one in job_operators(question.model, question.training.tuning):
        gemm = one.gemm
        if gemm is None or gemm.stored_bytes is None:
            continue
        together = question.stack.experts_in_one_kernel and gemm.routed
        split = 1 if gemm.split == "whole" else columns.etp if gemm.routed else columns.tp
        local = gemm.inputs * max(gemm.outputs) / split
        largest = np.maximum(largest, local * (question.model.num_experts / columns.ep if together else 1.0))
    return largest


_SCORES_IN_FLIGHT = {"fused-softmax": 2.0, "unfused": 3.0}
"""Tensors as large as the attention scores besides those that are kept: gradients of what softmax returns and reads,
and of a copy that a mask is written into. As many are there when the scores are made."""


def _around_scores(sizes: Sizes) -> Array:
    """(N, 1): what the attention core's backward pass holds where it stores scores, less what the MLP has freed."""
    question, columns = sizes.question, sizes.columns
    model, training = question.model, question.training
    tensors = _SCORES_IN_FLIGHT.get(question.stack.attention, 0.0)
    if not (tensors and model.attention_share):
        return np.zeros((len(columns), 1))
    keys = training.sequence_length * max(1.0, model.source_share)
    each = training.element_bytes * model.num_heads * keys
    scores = tensors * each * tokens_on_rank(question, columns, "split")
    stream = training.element_bytes * columns.tokens(training.sequence_length) * model.hidden_size
    return (stream + scores - sizes.kept.mlp).clip(min=0.0)[:, None]


def _tied_gradient(question: Question, columns: LayoutColumns) -> Array:
    """(N,) the output matrix's gradient from a loss in chunks, which waits for the embedding's to be added to it."""
    model = question.model
    matrix = question.training.element_bytes * model.hidden_size * float(padded_vocabulary(model, 1))
    trains = question.training.tuning is None
    waits = chunks_loss(question, columns) & (columns.pp == 1) & model.tied_embeddings & trains
    return np.where(waits, matrix, 0.0)
