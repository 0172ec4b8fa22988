"""Memory coefficients in bytes, by part: states of a rank's parameters, temporaries of the optimizer,
temporary tensors of the running block, and freed tensors that collectives still use.

Temporaries are what a block recomputes, gradients on their way, and weights that it gathers. Tensors are held back
while the host runs ahead of the device: before torch 2.8 every collective marks its tensors as used on NCCL's stream
(`record_stream`). One that is freed goes back to the allocator only when the device has passed that point, and the host
frees it long before: launches wait in a queue of some 1,024, and so do the tensors of as many blocks. They are free for
the program, so they count as reserved and not as allocated (pytorch/pytorch issue 147168; pull request 148590 ended
it).

    blocks ahead   n = 1024 / launches of a block's forward pass
    held           2 · e · s · b · h · (min(n, L) + min(L, (n − L)⁺ / 2))

L blocks are on a rank before its host has to wait, e is the bytes of an element. Tensor parallelism reduces
two tensors of s·b·h per pass and block that are not kept; the second term is the microbatch before, in whose
backward pass a block launches twice as much. Leaves out hosts that are slower than their device, which hold
nothing back, and collectives of other axes.
"""

from __future__ import annotations

import numpy as np

from cost_models.arrays import Array
from cost_models.axes.columns import LayoutColumns
from cost_models.communication.by_axis import gathered_elements
from cost_models.compute.gemm import EAGER_CAST_BYTES
from cost_models.compute.mixing import state_elements
from cost_models.memory.activations import plain_scan_bytes
from cost_models.memory.states import StateBytes
from cost_models.operators.accumulation import chunks_loss, fuses_accumulation
from cost_models.operators.block import block_operators
from cost_models.operators.parameters import job_operators, padded_vocabulary
from cost_models.operators.record import products_of, tokens_on_rank
from cost_models.operators.traffic import block_traffic
from cost_models.pipeline.seconds import Pieces, Term, sum_terms
from cost_models.question import Question
from cost_models.specs.choices import OUTPUTS, RECOMPUTE_POLICIES


def persistent_block(pieces: Pieces, states: StateBytes, experts: StateBytes) -> Term:
    """Bytes by part of memory that a block occupies throughout the step; `states` and `experts` are bytes per
    parameter outside and inside routed experts."""
    # ZeRO-3 makes copies for products in fp8 or fp4 as it gathers
    copies = np.where(pieces.columns.zero <= 2, narrow_copies(pieces.question), 0.0)
    dense = _persistent_bytes(states, pieces.counts.block, copies)
    return sum_terms(dense, _persistent_bytes(experts, pieces.counts.experts, copies))


def persistent_end(pieces: Pieces, states: StateBytes, parameters: Array) -> Term:
    """Bytes by part of memory that embedding or head occupies throughout the step, from the bytes of `states`
    per parameter. `fully_shard` keeps the gathered weights too."""
    gathered = pieces.states["embedding"].gathered if pieces.question.stack.fully_shard else 0.0
    return _persistent_bytes(states, parameters, gathered)


def update_of_block(pieces: Pieces, states: StateBytes, experts: StateBytes) -> Term:
    """Temporary bytes by part of memory of a block's optimizer step; `states` and `experts` are bytes per
    parameter outside and inside routed experts."""
    return sum_terms(update_of(states, pieces.counts.block), update_of(experts, pieces.counts.experts))


def update_of(states: StateBytes, parameters: Array) -> Term:
    """Temporary bytes by part of memory of a module's optimizer step, from the bytes of `states` per
    parameter."""
    return {"gradients": states.late_gradients * parameters, "working": states.update * parameters}


_NARROW_COPIES = 2.0
"""Number of fp8 or fp4 copies of a matrix that Transformer Engine keeps: one row-wise, one column-wise."""


def narrow_copies(question: Question) -> float:
    """Bytes per parameter of a block for the fp8 or fp4 copies of matrices that Transformer Engine makes once
    a step. There is one for each direction in which a product reads a matrix. A frozen matrix is also read
    both ways, as its input needs a gradient (module/linear.py, 2.5).

    Quantised matrices have none: they are widened to 16 bits where they are used, and multiplied in 16 bits.
    """
    training = question.training
    quantised = training.tuning is not None and training.tuning.base is not None
    if quantised or not training.casts_operands:
        return 0.0
    return _NARROW_COPIES * question.stack.transformer_engine * training.operand_bytes


def _persistent_bytes(states: StateBytes, parameters: Array, gathered: Array | float) -> Term:
    """Bytes by part of memory that a module occupies throughout the step. Weights that stay gathered add
    `gathered` bytes per parameter."""
    parts = {"gradients": states.gradients * parameters, "optimizer": states.optimizer * parameters}
    return {"weights": (states.weights + gathered) * parameters, **parts}


_QUEUED = 1024.0
"""Maximum number of launches queued on the device before a launch blocks the host (CUDA; widely observed, not
documented)."""
_COLLECTIVE_LAUNCHES = 5.0
"""Launch-queue entries per collective: its kernel, and an event recorded and awaited on each of two streams
(torch, `ProcessGroupNCCL::collective`)."""
_REDUCED = 2.0
"""Number of tensors per block and pass that are all-reduced over tensor-parallel ranks."""


def held_back_bytes(question: Question, columns: LayoutColumns) -> Array:
    """Bytes of freed tensors that a rank's allocator cannot reuse yet, because collectives on another stream
    may still read them, (N,); 0 on a CPU or without tensor parallelism."""
    if not question.stack.records_streams or question.cluster.gpu.kind == "cpu":
        return np.zeros(len(columns))
    model, training = question.model, question.training
    products = sum(one.share for one in block_operators(model) if one.kind in ("gemm", "core"))
    collectives = np.where(columns.sp == 1, 2 * _REDUCED, _REDUCED)
    launches = block_traffic(question, columns).kernels[0] + products + _COLLECTIVE_LAUNCHES * collectives
    ahead, blocks = _QUEUED / launches, model.num_layers / (columns.pp * columns.vpp)
    several = columns.microbatches(training.global_batch) > 1
    earlier_blocks = np.where(several, np.minimum(blocks, (ahead - blocks).clip(min=0.0) / 2), 0.0)
    tensor = training.element_bytes * columns.tokens(training.sequence_length) * model.hidden_size
    freed_bytes: Array = _REDUCED * tensor * (np.minimum(ahead, blocks) + earlier_blocks)
    return np.where(columns.tp > 1, freed_bytes, 0.0)


def working_bytes(pieces: Pieces) -> Array:
    """Bytes of the largest set of temporary tensors of one block, (N, P): recomputed activations, gradients
    before reduction, and gathered weights.

    The peak of the backward pass holds the gradient of the residual stream, that of the MLP's inner
    activation and, unless products add into the gradient buffer themselves, that of the matrix between (in a
    mixture the matrices of all local experts, which one grouped product makes). ZeRO-3 holds weights of the
    block at work, and ZeRO-2 and 3 its full gradient once more while it is scattered. A mixture also holds
    the gradient of its experts' copies of tokens. An unfused cast to fp8 holds its operand in fp32. If
    attention gathers keys and values over context ranks, these and their gradients may be wider than the MLP.
    After a loss in chunks the gradient of a tied output matrix counts too; with all logits at once the head's
    own peak is larger than a block's with it.
    """
    question, columns, activations, counts = (
        pieces.question,
        pieces.columns,
        pieces.activations,
        pieces.counts,
    )
    states, experts = pieces.states["block"], pieces.states["experts"]
    model, training = question.model, question.training
    tokens = columns.tokens(training.sequence_length)
    # numbers of a token inside a block without experts: at most those that a product returns, and those of a scan's
    # states and their gradients in fp32 with what it returns
    mixer, scanned = model.recurrence, 0.0
    width: float = model.ffn_hidden_size if model.feed_forward_share else model.query_size
    if mixer is not None and model.mixer_share("recurrence", "both"):
        width = max(width, mixer.input_size)
        if not question.stack.eager_attention_and_norms:
            scanned = mixer.mixed_size + 4 * state_elements(mixer)
    inner, copies = tokens * max(width, scanned) / columns.tp, np.zeros(len(columns))
    matrix = model.hidden_size * width / columns.tp
    if model.moe_share:
        copies = tokens_on_rank(question, columns, "copies") * model.hidden_size
        inner = np.maximum(inner, tokens_on_rank(question, columns, "expert") * model.moe_ffn_hidden_size)
        stacked = model.num_experts / columns.ep * model.hidden_size * model.moe_ffn_hidden_size / columns.etp
        matrix = np.maximum(matrix, stacked)
    new_gradient = np.zeros(len(columns)) if fuses_accumulation(question) else matrix
    if not training.trains("block"):
        new_gradient = _largest_widened_matrix(question, columns)
    # with adapters in the MLP the gradient of what is inside comes from them besides, or is scaled for them
    products = products_of(job_operators(model, training.tuning))
    adapts = any(one.half == "mlp" and gemm.adapter for one, gemm in products)
    widest = np.maximum(inner + new_gradient, 2 * inner if model.gated_mlp or adapts else 0.0)
    attending = 2 * gathered_elements(question, columns)
    in_flight = training.element_bytes * (tokens * model.hidden_size + np.maximum(widest + copies, attending))
    if training.casts_operands and question.stack.fp8_casts_apart and not question.stack.fused_elementwise:
        in_flight = in_flight + EAGER_CAST_BYTES * np.maximum(inner, matrix)
    recomputed: Array = activations.block[:, :1] - activations.block
    # attention is recomputed after the MLP
    if question.stack.drops <= {"core", "block-attention"} | OUTPUTS:
        selective = RECOMPUTE_POLICIES.index("selective")
        recomputed[:, selective] = np.maximum(0.0, recomputed[:, selective] - activations.mlp)
    # the output matrix's gradient from a loss in chunks waits to be added to that of the tied embedding
    output = training.element_bytes * model.hidden_size * float(padded_vocabulary(model, 1))
    waits = chunks_loss(question, columns) & (columns.pp == 1) & model.tied_embeddings
    tied = np.where(waits & training.trains("head matrix"), output, 0.0)
    in_flight = np.maximum(in_flight[:, None], _mixing_bytes(pieces)) + tied[:, None]
    gathered = states.gathered * counts.block + experts.gathered * counts.experts
    scattered = states.scattering * counts.block + experts.scattering * counts.experts
    if not question.stack.fully_shard:
        return recomputed + in_flight + (gathered + scattered)[:, None]
    incoming = training.element_bytes * tokens * model.hidden_size + tied
    during = recomputed + in_flight + 2 * gathered[:, None]  # including the block fetched early
    bytes_after = (incoming + 2 * gathered + scattered)[:, None] - activations.block
    return np.maximum(during, bytes_after)


def _largest_widened_matrix(question: Question, columns: LayoutColumns) -> Array:
    """Number of elements of the largest quantised matrix that is cast to 16 bits for a product, (N,); 0
    without quantised matrices. Local experts in one kernel count together. Gradients of adapters are
    negligible."""
    largest = np.zeros(len(columns))
    for _, gemm in products_of(job_operators(question.model, question.training.tuning)):
        if gemm.stored_bytes is None:
            continue
        in_one_kernel = question.stack.experts_in_one_kernel and gemm.routed
        split = 1 if gemm.split == "whole" else columns.etp if gemm.routed else columns.tp
        matrices = question.model.num_experts / columns.ep if in_one_kernel else 1.0
        largest = np.maximum(largest, gemm.inputs * max(gemm.outputs) / split * matrices)
    return largest


_SCORES_IN_FLIGHT = {"fused-softmax": 2.0, "unfused": 3.0}
"""Number of temporary tensors as large as the attention scores, by attention kernel: gradients of the softmax's
output and input, and of a masked copy. Equally many exist when the scores are made."""


def _mixing_bytes(pieces: Pieces) -> Array:
    """Temporary bytes in the backward pass of unfused attention scores or of an unfused recurrent scan, (N,
    1). The MLP's activations, which are freed before, are subtracted."""
    question, columns = pieces.question, pieces.columns
    model, training = question.model, question.training
    tokens, stream = tokens_on_rank(question, columns, "split"), columns.tokens(training.sequence_length)
    stream = training.element_bytes * stream * model.hidden_size
    around = np.zeros(len(columns))
    tensors = _SCORES_IN_FLIGHT.get(question.stack.attention, 0.0)
    if tensors and model.attention_share:
        keys = training.sequence_length * max(1.0, model.source_share)
        scores = tensors * (training.element_bytes * model.num_heads * keys) * tokens
        around = np.maximum(around, stream + scores - pieces.activations.mlp)
    if scan_bytes := plain_scan_bytes(question):
        around = np.maximum(around, stream + scan_bytes * tokens - pieces.activations.mlp)
    return around[:, None]
