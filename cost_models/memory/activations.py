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

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from cost_models.arrays import Array
from cost_models.axes.columns import LayoutColumns, context_ways
from cost_models.memory.ends import (
    chunked_loss_bytes,
    embedding_vectors,
    head_vectors,
    is_eager,
    norm_bytes,
    patch_bytes,
)
from cost_models.memory.scan import read_once, scanned
from cost_models.operators.chunked_loss import chunks_loss
from cost_models.operators.on_rank import Amount, added, on_rank, tokens_on_rank
from cost_models.operators.parameters import head_rows
from cost_models.operators.record import Kind, Operator
from cost_models.operators.tuning import job_operators, part_of
from cost_models.question import Question
from cost_models.specs.choices import CONTEXTS, SelectiveDrops
from cost_models.specs.stack import STORES_SCORES

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
    logits: Array  # as the output product returns them, none by a loss in chunks
    released_logits: Array
    """Those that were freed before, whose blocks nothing of the loss fits."""


def activation_bytes(question: Question, columns: LayoutColumns) -> ActivationBytes:
    """What one microbatch leaves behind in a block under each policy, in the embedding and in the head."""
    model, training, stack = question.model, question.training, question.stack
    element = training.element_bytes
    tokens = columns.tokens(training.sequence_length)
    stream = tokens_on_rank(question, columns, "stream") * model.hidden_size
    entered = tokens_on_rank(question, columns, "entrance") * model.hidden_size
    block, mlp = _block_bytes(question, columns, element * stream)
    logits = tokens * question.scored_share * head_rows(model, columns.tp)
    logits = logits / columns.tp if stack.loss_parallel else logits
    compiled = stack.fused_loss and stack.compiles_loss
    stored = _FP32 if stack.fp32_logits and not compiled else element
    # a compiled loss keeps logits and makes the probabilities again; a pipeline's stage keeps its output all step
    split_copy = np.where(columns.tp > 1, stored, 0.0) if stack.split_loss_copies_logits else 0.0
    gradients = 2 * stored + np.where(columns.pp > 1, element, 0.0) + split_copy
    if stack.fused_loss:  # the gradient takes the place of what was kept; only its copy in 16 bits is new
        gradients = np.where((stored > element) | compiled, element, 0.0)
    chunked = chunks_loss(question, columns)
    trains = training.trains("head matrix")  # only the output matrix's gradient wants what it read
    return ActivationBytes(
        block=block,
        mlp=mlp,
        embedding=(1.0 + model.source_share)
        * stream
        * (_MASK_BYTES * (question.dropout > 0) + embedding_vectors(question))
        + tokens * patch_bytes(question),
        head=stream * head_vectors(question) + element * entered * trains,
        log_probabilities=np.where(chunked, 0.0, logits * stored),
        loss_gradients=np.where(
            chunked,
            chunked_loss_bytes(question, element * stream),
            logits * (gradients + stack.extra_loss_copies * stored),
        ),
        logits=np.where(chunked, 0.0, logits * element),
        released_logits=np.where(chunked, 0.0, logits * element)
        * (stack.releases_logits and not stack.fused_loss),
    )


def _block_bytes(question: Question, columns: LayoutColumns, entered: Array) -> tuple[Array, Array]:
    """(N, P) bytes that one block keeps under each recompute policy, and (N,) those of its MLP; `entered` is the input
    of the block."""
    stack = question.stack
    operators = job_operators(question.model, question.training.tuning)
    kept = [(one, one.share, _KEPT[one.kind](question, one)) for one in operators if one.kind in _KEPT]

    def bytes_of(chosen: Iterable[tuple[float, Amount]]) -> Array:
        return on_rank(question, columns, added(chosen))

    core = [(question.model.attention_share, _inside_core(question))]
    twice = _output_kept_twice(question, columns)
    discarded = [
        (one.share, _read(question, one)) for one in operators if one.reads_output_of in stack.always_discards
    ]
    none = bytes_of([*((share, amount) for _, share, amount in kept), *core]) + twice
    none = none - bytes_of(discarded) if discarded else none
    mlp = bytes_of((share, amount) for one, share, amount in kept if one.half == "mlp")
    # of the way from a tower no policy drops anything
    full = entered + bytes_of((share, amount) for one, share, amount in kept if part_of(one) != "block")
    if "all-but-every-other-product" in stack.drops:
        every_other = entered + bytes_of(_every_other(question, operators)) + bytes_of(core)
        return np.stack([none, np.minimum(none, every_other), full], axis=-1), mlp
    selective, mixture = none, question.model.moe_share
    # shares of the blocks where a submodule begins with the output of a norm, which the router keeps besides
    begins: dict[SelectiveDrops, float] = {
        "block-attention": 1 - question.model.mixer_share("none"),
        "experts": mixture,
        "dense-mlp": question.model.dense_share,
        "shared-experts": 0.0,
    }
    if stack.drops & {"core", "block-attention"}:
        selective = selective - bytes_of(core)
    for drop in sorted(stack.drops & set(begins)):
        redone = bytes_of((share, amount) for one, share, amount in kept if drop in one.redone_by)
        selective = selective - redone - twice * (drop == "block-attention") + begins[drop] * entered
    drops = stack.drops - set(stack.always_discards)
    read = [(one.share, _read(question, one)) for one in operators if one.reads_output_of in drops]
    return np.stack([none, selective - bytes_of(read) if read else selective, full], axis=-1), mlp


def _read(question: Question, operator: Operator) -> Amount:
    """What an operator keeps of what it read."""
    if operator.kind != "core":
        return _input(question, operator)
    kept, own = _attended(question, operator), question.training.element_bytes * question.model.attended_size
    return {place: amount - own for place, amount in kept.items()}


def _input(question: Question, operator: Operator) -> Amount:
    """What a matrix that is trained multiplies, for wgrad, unless another operator keeps the same: in fp8 and fp4 as
    multiplied. An adapter keeps its input in 16 bits, dropped out with its mask.

    Latents stay in 16 bits. The core keeps its output in 16 bits besides, for its own backward pass.
    """
    if not operator.trained or operator.gemm is None:
        return {}
    training, reads = question.training, operator.reads
    if operator.drops_input:
        return {reads.place: (training.element_bytes + _MASK_BYTES) * reads.width}
    cast = question.stack.fp8_saves_inputs and training.narrow and not operator.gemm.adapter
    if operator.reads_core and _kept_once(question) is not None:
        return {}
    if operator.shares_input and not (cast and operator.reads_core):
        return {}
    narrow = cast and reads.place != "stream"
    return {reads.place: (training.operand_bytes if narrow else training.element_bytes) * reads.width}


def _normed(question: Question, operator: Operator) -> Amount:
    """A norm's input, once where another norm keeps it too."""
    shared = question.training.element_bytes if operator.shares_input else 0.0
    assert operator.norm is not None
    return {operator.reads.place: (norm_bytes(question, operator.norm) - shared) * operator.reads.width}


def _attended(question: Question, core: Operator) -> Amount:
    """Queries, keys, values and the core's output; an eager core has keys and values repeated to all query heads.

    Heads that are made again out of latents are not kept, their latents are.
    """
    model = question.model
    read = core.reads.width
    if question.stack.recomputes_latent_heads and model.latent_attention is not None:
        read = 0.0 if model.latent_attention.query_rank else model.query_size
    if is_eager(question) and model.latent_attention is None:
        read = 3 * model.query_size
    if question.stack.rotates_in_joint_tensor and model.num_kv_heads == model.num_heads:
        read += model.kv_size + model.value_size
    element, once = question.training.element_bytes, _kept_once(question)
    return {core.reads.place: element * read + (element if once is None else once) * model.attended_size}


def _kept_once(question: Question) -> float | None:
    """Bytes of an element of attention's output where one copy serves its core and the product behind it, else None."""
    return question.stack.fp8_core_bytes if question.training.narrow else None


def _activated(question: Question, activation: Operator) -> Amount:
    """What it reads and, with a gate written out, what it multiplies; what it returns the matrix down keeps."""
    training, stack = question.training, question.stack
    tensors = activation.inputs if stack.fused_elementwise else 2 * activation.inputs - 1
    narrow = stack.fp8_saves_activated and training.narrow and activation.reads.place == "expert"
    element = training.operand_bytes if narrow else training.element_bytes
    return {activation.reads.place: element * tensors * activation.reads.width}


def _gated(question: Question, gate: Operator) -> Amount:
    """What the gate is multiplied with."""
    return {"stream": question.training.element_bytes * gate.reads.width}


def _came_back(question: Question, routing: Operator) -> Amount:
    """Copies of tokens out of the experts, whose weighted sum a token becomes; none where they were weighed before."""
    if question.stack.weighs_inside_experts:
        return {}
    return {routing.reads.place: question.training.element_bytes * routing.reads.width}


def _turned(question: Question, rotary: Operator) -> Amount:
    """Cosines and sines of every token, where they were gathered; all heads read the same."""
    model, tables = question.model, 2 * question.stack.keeps_rotary_tables
    return {"whole": question.training.element_bytes * tables * model.turned_share * model.head_dim}


def _masked(question: Question, dropout: Operator) -> Amount:
    return {dropout.reads.place: _MASK_BYTES * dropout.reads.width} if question.dropout > 0 else {}


_KEPT: dict[Kind, Callable[[Question, Operator], Amount]] = {
    "gemm": _input,
    "norm": _normed,
    "core": _attended,
    "activation": _activated,
    "gate": _gated,
    "modulation": _gated,
    "routing": _came_back,
    "rotary": _turned,
    "dropout": _masked,
    "convolution": read_once,
    "scan": scanned,
    "gating": read_once,
}
"""Bytes that an operator keeps for its backward pass."""


def _every_other(question: Question, operators: Sequence[Operator]) -> Iterator[tuple[float, Amount]]:
    """What the first, third, … product returned, with the attention core's output.

    Of q, k, v, output, gate, up, down those are q, v, gate and down; with one matrix up the fifth is that one.
    """
    element = question.training.element_bytes
    for one in operators:
        if one.kept is not None:
            yield one.share, {one.kept.place: element * one.kept.width}
    yield 1.0, {"stream": element * question.model.hidden_size}


def _output_kept_twice(question: Question, columns: LayoutColumns) -> Array:
    """(N,) bytes of the core's output where it is kept as the kernel made it and also as the next GEMM reads it.

    cuDNN's kernel reads and writes either order, but Transformer Engine prefers FlashAttention on most GPUs. Where
    heads are traded back for tokens, the two are on different ranks.
    """
    kernel = question.stack.attention
    flash = kernel not in STORES_SCORES and (kernel != "cudnn" or not question.cluster.gpu.prefers_cudnn)
    traded = (columns.cp > 1) & (context_ways(question, columns) == CONTEXTS.index("all-to-all"))
    twice = ((columns.mbs > 1) & (flash and question.stack.sequence_first)) | (
        traded & question.stack.keeps_traded_output
    )
    cores = question.model.attention_share + (question.model.stacks is not None)
    width = question.training.element_bytes * question.model.attended_size * cores
    return np.where(twice, width * tokens_on_rank(question, columns, "split"), 0.0)


def _inside_core(question: Question) -> Amount:
    """Softmax output, dropout mask and its output (s × s per head), or a flash kernel's log-sum-exp row, and picks."""
    heads, training = question.model.num_heads, question.training
    crosses = question.model.stacks is not None
    if question.stack.attention not in STORES_SCORES:
        picked = min(question.model.attention_window or 0, training.sequence_length) * question.model.picks
        return {"split": _FP32 * heads * (1 + crosses), "whole": _FP32 * picked}
    element = training.element_bytes
    each = 2 * element + _MASK_BYTES if question.dropout > 0 else element
    return {"split": each * training.sequence_length * (1.0 + question.model.source_share) * heads}
