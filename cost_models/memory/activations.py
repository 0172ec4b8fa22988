"""Bytes of activations kept for the backward pass, tensor by tensor.

For GPT in 16 bits with dropout these are Korthikanti et al. 2022, table 2, per block and microbatch:

    no parallelism               s·b·h·(34 + 5·a·s/h)
    tensor parallel              s·b·h·(10 + 24/t + 5·a·s/(h·t))
    tensor + sequence parallel   s·b·h/t·(34 + 5·a·s/h)
    selective recompute          the same without the 5·a·s/h
    full recompute               2·s·b·h

A flash kernel never stores the scores, so its "none" equals the paper's "selective" except for the
log-sum-exp row.

Also counted are what embedding, final norm, a loss in chunks and a recurrence keep, tensors of stage boundaries
that a pipeline rank holds beyond the activations of its own blocks, and gradients that wait between the two halves of a
backward pass for the products towards the weights.

Until that half runs PyTorch keeps the gradient of the output of every operator that has a parameter: of each matrix
product, and of each norm. What the products read on their other side is still live, as the whole graph is kept.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import NamedTuple

import numpy as np

from cost_models.arrays import Array
from cost_models.axes.columns import LayoutColumns, exchanges_by, is_overlapped, is_scheduled
from cost_models.operators.accumulation import chunks_loss, compiles_chunks
from cost_models.operators.parameters import head_rows, job_operators, padded_vocabulary, part_of
from cost_models.operators.record import (
    Amount,
    Operator,
    Tensor,
    boundary_elements,
    on_rank,
    sum_amounts,
    tokens_on_rank,
)
from cost_models.operators.traffic import MASK_BYTES
from cost_models.question import Question
from cost_models.schedules.registry import ALWAYS_SPLIT
from cost_models.specs.choices import SelectiveDrops
from cost_models.specs.stack import STORES_SCORES
from cost_models.specs.transformer import Norm
from cost_models.units import FP32_BYTES

_EAGER_NORM_ELEMENTS = 3
"""Elements that an eager RMS norm in 16 bits keeps per input element: an fp32 copy and the normalised
input."""


def norm_bytes(question: Question, norm: Norm) -> float:
    """Bytes per input element that a norm keeps for the backward pass: its input, and for an eager RMS norm
    with trained gain also the normalised input. An eager RMS norm keeps both in fp32 on a CPU."""
    element, trains = question.training.element_bytes, question.training.tuning is None
    if norm != "rmsnorm":
        return element
    if is_eager(question):
        return (1 + trains) * FP32_BYTES
    return element if question.stack.fused_norms else (_EAGER_NORM_ELEMENTS - (not trains)) * element


def is_eager(question: Question) -> bool:
    """Whether the stack runs plain PyTorch operators on a CPU, without fused RMS norm and without attention
    kernels for grouped heads."""
    return question.stack.eager_attention_and_norms and question.cluster.gpu.kind == "cpu"


_PLAIN_SCAN_ELEMENTS = {
    "mamba2": (7.1, 4.4, 1.6, 3.0, 0.4, 0.0),
    "gated-delta": (9.3, 1.7, 4.3, 5.2, 0.8, 0.0),
    "kimi-delta": (2.8, 1.0, 6.8, 3.2, 2.4, 6.0),
}
"""Peak number of fp32 elements per token in the backward pass of a plain scan, by kind of recurrence, for six
widths. They are counted per mixed element, per value, per key by head, per element of a chunk's row by head,
per state, and per element of such a row and key. Least squares over torch's allocations for nine shapes of
executor/models/recurrence.py each, within 5 %."""


def plain_scan_bytes(question: Question) -> float:
    """Peak bytes per token in the backward pass of a recurrent scan, if the stack computes scans by plain
    matrix products; else 0. Else 0."""
    mixer, eager = question.model.recurrence, question.stack.eager_attention_and_norms
    if mixer is None or not (eager and question.model.mixer_share("recurrence", "both")):
        return 0.0
    keys, rows = mixer.heads * mixer.state_dim, mixer.heads * mixer.chunk
    states = mixer.value_size * mixer.state_dim / mixer.chunk
    widths = (mixer.mixed_size, mixer.value_size, keys, rows, states, rows * mixer.state_dim)
    elements = _PLAIN_SCAN_ELEMENTS.get(mixer.kind, (0.0,) * len(widths))
    return FP32_BYTES * sum(one * width for one, width in zip(elements, widths, strict=True))


def _scan_bytes(question: Question, scan: Operator) -> Amount:
    """Bytes per token that a recurrent scan keeps for its backward pass, for each way of sharding activations
    (place). They are outputs, per-head elements in fp32, and inputs; states of chunks are recomputed.

    Plain products also recompute the convolution, from its input. Mamba-2's kernel recomputes its convolution
    instead of keeping its output (mamba-ssm 2.2, ops/triton/ssd_combined.py,
    `MambaSplitConv1dScanCombinedFn`); that of the delta rule keeps a row of a chunk's inverse per token
    (flash-linear-attention 0.4, ops/gated_delta_rule/chunk.py, `ChunkGatedDeltaRuleFunction`). Mamba-1's
    keeps its output before the gate, keys and queries, also in the kernel's layout, and the states between
    its chunks of 2,048 tokens twice (ops/selective_scan_interface.py, `MambaInnerFn`).
    """
    mixer, element = question.model.recurrence, question.training.element_bytes
    assert mixer is not None
    if question.stack.eager_attention_and_norms:
        return {"split": element * (mixer.value_size + mixer.heads * mixer.head_numbers + mixer.decay_size)}
    if mixer.kind == "mamba1":
        states = 2 * FP32_BYTES * mixer.value_size * mixer.state_dim / mixer.chunk
        return {"split": element * mixer.value_size + states, "whole": 4 * element * mixer.key_size}
    numbers = element * mixer.value_size + FP32_BYTES * mixer.heads * mixer.head_numbers
    if mixer.delta:
        numbers += element * mixer.heads * mixer.chunk
    numbers += element * mixer.decay_size
    return {"split": numbers + (0.0 if mixer.kind == "mamba2" else element * scan.reads.width)}


def _patch_bytes(question: Question) -> float:
    """Bytes per token that the patch embedding of a vision tower or diffusion model keeps for the backward
    pass; 0 if it is frozen. In a tower these are patches, and the input of any norm after the embedding; in
    diffusion patches, and the inputs of the time step's matrices."""
    tower, training, diffusion = question.model.tower, question.training, question.model.diffusion
    if diffusion is not None:
        width = diffusion.pixels + (diffusion.frequencies + 2 * question.model.hidden_size) / diffusion.tokens
        return training.element_bytes * width * training.trains("embedding")
    if tower is None or not question.model.is_tower or not training.trains("embedding"):
        return 0.0
    normed = norm_bytes(question, tower.norm) * tower.hidden_size if tower.norm_before else 0.0
    return training.element_bytes * tower.pixels + normed


class ActivationBytes(NamedTuple):
    """Bytes of activations that a pipeline rank keeps per live microbatch, (N,) each except `block`, (N, P)."""

    block: Array
    """Bytes of a block under each of P recompute policies, (N, P)."""
    mlp: Array
    """Bytes of a block's MLP, which are freed before the block's attention runs backward."""
    embedding: Array
    head: Array
    """Bytes kept by the final norm and the output product. With a loss in chunks, bytes kept by that loss."""
    log_probabilities: Array
    """Bytes kept by the loss, in fp32. 0 for a loss in chunks."""
    loss_gradients: Array
    """Bytes of temporaries of the size of the logits at the peak of the loss's backward pass. For a loss in
    chunks, bytes of its temporaries."""
    logits: Array  # output of the last product; 0 with a loss in chunks
    released_logits: Array
    """Bytes of logits that are freed before the loss, but whose allocator blocks fit no tensor of the
    loss."""


def activation_bytes(question: Question, columns: LayoutColumns) -> ActivationBytes:
    """Bytes of activations that one microbatch keeps: in a block, under each recompute policy; in the
    embedding; and in the head."""
    model, training, stack = question.model, question.training, question.stack
    element = training.element_bytes
    tokens = columns.tokens(training.sequence_length)
    stream = tokens_on_rank(question, columns, "stream") * model.hidden_size
    entered = tokens_on_rank(question, columns, "entrance") * model.hidden_size
    block, mlp = _block_bytes(question, columns, element * stream)
    logits = tokens * question.scored_share * head_rows(model, columns.tp)
    logits = logits / columns.tp if stack.loss_parallel else logits
    compiled = stack.fused_loss and stack.compiles_loss
    stored = FP32_BYTES if stack.fp32_logits and not compiled else element
    # a compiled loss keeps logits and makes the probabilities again; a pipeline's stage keeps its output all step
    split_copy = np.where(columns.tp > 1, stored, 0.0) if stack.fully_shard else 0.0
    gradients = 2 * stored + np.where(columns.pp > 1, element, 0.0) + split_copy
    if stack.fused_loss:  # the gradient takes the place of what was kept; only its copy in 16 bits is new
        gradients = np.where((stored > element) | compiled, element, 0.0)
    gradients = gradients + stack.extra_loss_copies * stored
    chunked = chunks_loss(question, columns)
    trains = training.trains("head matrix")  # the input is only kept for the output matrix's gradient
    # a loss in chunks keeps the gradient of its hidden states, which takes the place of these once they are done with:
    # until then both are there, with the gradient of the output matrix in the type of the weights, and a chunk's logits
    # and log-probabilities in fp32, or where it is compiled its logits and their gradient
    vocabulary = float(padded_vocabulary(model, 1))
    of_logit = element if compiles_chunks(question) else FP32_BYTES
    of_chunk = 2 * of_logit * (stack.loss_chunk or 0) * vocabulary
    chunk_bytes = element * stream + element * model.hidden_size * vocabulary * trains + of_chunk
    output = np.where(chunked, 0.0, logits * element)
    # norms before the output matrix, and an encoder's transform
    norm, transforms = norm_bytes(question, model.norm), bool(model.encoder and model.encoder.head_transform)
    before_head = norm * (model.ends_in_norm + transforms)
    before_head += element * (2 * transforms + (model.diffusion is not None))
    embedded = MASK_BYTES * (question.dropout > 0) + norm * bool(model.embedding_norm and model.encoder)
    return ActivationBytes(
        block=block,
        mlp=mlp,
        embedding=(1.0 + model.source_share) * stream * embedded + tokens * _patch_bytes(question),
        head=stream * before_head + element * entered * trains,
        log_probabilities=np.where(chunked, 0.0, logits * stored),
        loss_gradients=np.where(chunked, chunk_bytes, logits * gradients),
        logits=output,
        released_logits=output * (stack.releases_logits and not stack.fused_loss),
    )


def _block_bytes(question: Question, columns: LayoutColumns, entered: Array) -> tuple[Array, Array]:
    """Bytes that a block keeps under each of P recompute policies, (N, P), and bytes of its MLP, (N,).
    `entered` (N,) are the bytes of the block's input."""
    stack = question.stack
    operators = job_operators(question.model, question.training.tuning)
    inputs = [(one, one.share, _kept_bytes(question, one)) for one in operators]

    def bytes_of(terms: Iterable[tuple[float, Amount]]) -> Array:
        """Bytes on a rank, (N,), summed over `terms`, which are pairs of a factor and bytes per token."""
        return on_rank(question, columns, sum_amounts(terms))

    core = [(question.model.attention_share, _score_bytes(question))]
    twice, element = _second_output_bytes(question, columns), question.training.element_bytes
    output_bytes = element * question.model.attended_size  # the core also keeps its output

    def without_outputs(total: Array, drops: Container[str | None]) -> Array:
        """Bytes `total` minus those of the kept inputs that are outputs of operators in `drops`."""
        read = [
            (share, {place: size - output_bytes * (one.kind == "core") for place, size in amount.items()})
            for one, share, amount in inputs
            if one.reads_output_of in drops
        ]
        return total - bytes_of(read) if read else total

    none = bytes_of([*((share, amount) for _, share, amount in inputs), *core]) + twice
    none = without_outputs(none, stack.always_discards)
    mlp = bytes_of((share, amount) for one, share, amount in inputs if one.half == "mlp")
    # no policy drops the projector's activations
    full = entered + bytes_of((share, amount) for one, share, amount in inputs if part_of(one) != "block")
    if "all-but-every-other-product" in stack.drops:
        # of q, k, v, output, gate, up, down those are q, v, gate and down; with one up matrix the fifth is that one
        outputs = [(one.share, one.kept) for one in operators if one.kept is not None]
        outputs.append((1.0, Tensor(question.model.hidden_size, "stream")))
        alternate = bytes_of((share, {over.place: element * over.width}) for share, over in outputs)
        alternate_bytes = entered + alternate + bytes_of(core)
        return np.stack([none, np.minimum(none, alternate_bytes), full], axis=-1), mlp
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
        redone = bytes_of((share, amount) for one, share, amount in inputs if drop in one.redone_by)
        selective = selective - redone - twice * (drop == "block-attention") + begins[drop] * entered
    selective = without_outputs(selective, stack.drops - set(stack.always_discards))
    return np.stack([none, selective, full], axis=-1), mlp


def _kept_bytes(question: Question, operator: Operator) -> Amount:
    """Bytes per token that an operator keeps for its backward pass, for each way of sharding activations
    (place)."""
    element, stack, reads = question.training.element_bytes, question.stack, operator.reads
    place = reads.place
    match operator.kind:
        case "gemm":
            bytes_each = _input_bytes(question, operator)
        case "norm":  # input, counted once if another norm keeps it too
            assert operator.norm is not None
            bytes_each = norm_bytes(question, operator.norm) - (element if operator.shares_input else 0.0)
        case "core":
            return _core_bytes(question, operator)
        case "activation":  # what it reads and, with a gate written out, what it multiplies
            bytes_each = element * (operator.inputs if stack.fused_elementwise else 2 * operator.inputs - 1)
        case "gate" | "modulation":  # the gate's other factor
            bytes_each, place = element, "stream"
        case "routing":  # experts' outputs, for the weighted sum
            bytes_each = 0.0 if stack.weighs_inside_experts else element
        case "dropout":
            bytes_each = MASK_BYTES * (question.dropout > 0)
        case "convolution" | "gating":
            bytes_each = element * operator.inputs
        case "scan":
            return _scan_bytes(question, operator)
        case _:
            return {}
    return {place: bytes_each * reads.width}


def _input_bytes(question: Question, operator: Operator) -> float:
    """Bytes per input element that a matrix product keeps for the weight gradient; 0 if the matrix is frozen
    or another operator keeps the input.

    In fp8 and fp4 it is kept as cast. An adapter keeps its input in 16 bits, after dropout and with its mask.
    Latents stay in 16 bits. The core also keeps its output in 16 bits for its own backward pass.
    """
    training, gemm = question.training, operator.gemm
    if not operator.trained or gemm is None:
        return 0.0
    if operator.drops_input:
        return training.element_bytes + MASK_BYTES
    cast = question.stack.fp8_saves_inputs and training.casts_operands and not gemm.adapter
    if operator.shares_input and not (cast and operator.reads_core):
        return 0.0
    return training.operand_bytes if cast and operator.reads.place != "stream" else training.element_bytes


def _core_bytes(question: Question, core: Operator) -> Amount:
    """Bytes per token that the attention core keeps for its backward pass, for each way of sharding
    activations (place). They are queries, keys, values and output; an eager core has keys and values repeated
    for all query heads.

    Heads that are recomputed from latents are not kept, their latents are.
    """
    model = question.model
    read = core.reads.width
    if question.stack.recomputes_latent_heads and model.latent_attention is not None:
        read = 0.0 if model.latent_attention.query_rank else model.query_size
    if is_eager(question) and model.latent_attention is None:
        read = 3 * model.query_size
    if question.stack.rotates_in_joint_tensor and model.num_kv_heads == model.num_heads:
        read += model.kv_size + model.value_size
    return {core.reads.place: question.training.element_bytes * (read + model.attended_size)}


def _second_output_bytes(question: Question, columns: LayoutColumns) -> Array:
    """Bytes of a second copy of the attention core's output, (N,), if the next matrix product keeps the
    output in another order than the kernel.

    cuDNN's kernel reads and writes either order, but Transformer Engine prefers FlashAttention on most GPUs.
    If heads are traded back for tokens (Ulysses), the two copies cover different parts on each rank.
    """
    kernel, stack = question.stack.attention, question.stack
    flash = kernel not in STORES_SCORES and (kernel != "cudnn" or not question.cluster.gpu.prefers_cudnn)
    traded = exchanges_by(question, columns, "all-to-all") & stack.saves_gathered_activations
    twice = traded | ((columns.mbs > 1) & (flash and stack.sequence_first))
    cores = question.model.attention_share + (question.model.stacks is not None)
    width = question.training.element_bytes * question.model.attended_size * cores
    return np.where(twice, width * tokens_on_rank(question, columns, "split"), 0.0)


def _score_bytes(question: Question) -> Amount:
    """Bytes per token kept inside the attention core for its backward pass, for each way of sharding
    activations (place). An eager core keeps the softmax output, the dropout mask and its output (s × s per
    head); a flash kernel keeps a log-sum-exp row per head, and picked tokens."""
    model, training, heads = question.model, question.training, question.model.num_heads
    if question.stack.attention not in STORES_SCORES:
        picked = min(model.attention_window or 0, training.sequence_length) * (model.window_kind == "picked")
        rows = heads * (1 + (model.stacks is not None))
        return {"split": FP32_BYTES * rows, "whole": FP32_BYTES * picked}
    element = training.element_bytes
    score_bytes = 2 * element + MASK_BYTES if question.dropout > 0 else element
    return {"split": score_bytes * training.sequence_length * (1.0 + model.source_share) * heads}


def boundary_bytes(question: Question, columns: LayoutColumns) -> tuple[Array, Array, Array]:
    """Bytes of tensors sent between pipeline stages, as three arrays (N,): on every rank, in addition on the
    rank with the first stage, and in addition on the rank with the last stage. Additions may be negative: the
    first stage sends no gradients back, the last sends no activations on and receives no gradients.

    Bytes of one buffer each way, or of the tensors that a stack retains over the step's microbatches.

    `torch.distributed.pipelining` keeps the received gradient of every microbatch until the step ends; with
    several chunks a rank, or sends that nothing waits for (`overlap=pp`), also sent tensors, both ways, so a
    stage holds three tensors a microbatch (two on the first stage). If every backward pass is split its
    inputs stay too: four a microbatch, two on the first stage and on the last. A live microbatch has no
    gradients yet; live ones never exceed the step's number. In an encoder-decoder a stage holds the encoder's
    tokens of every microbatch that may be live.
    """
    tensor = boundary_elements(question, columns) * question.training.element_bytes
    tensor = tensor / np.where(columns.sp == 1, columns.tp, 1)
    piped, source = columns.pp > 1, question.model.source_share
    live = np.minimum(columns.pp * columns.vpp, columns.microbatches(question.training.global_batch))
    encoded = source / (1.0 + source) * tensor * live
    if not question.stack.torch_pipelining:
        none = np.zeros(len(columns))
        return np.where(piped, 2 * tensor, 0.0) + encoded, none, none
    tensor = np.where(piped, tensor, 0.0)
    microbatches = columns.microbatches(question.training.global_batch)
    tensors = tensor * microbatches
    waiting = 2 * tensor * np.minimum((columns.vpp - 1) * columns.pp + 1, columns.vpp * microbatches)
    chunked = (columns.vpp > 1) | is_overlapped(columns, "pp", default=False)
    split = is_scheduled(columns, ALWAYS_SPLIT)
    all_ranks = np.where(chunked, 3 * columns.vpp * tensors - waiting, tensors)
    # inputs are counted with them, and fewer have gradients
    waits = tensor * (3 * columns.vpp - 2) * np.minimum(columns.pp, microbatches)
    all_ranks = np.where(split, 4 * columns.vpp * tensors - waits, all_ranks) + encoded
    first = np.where(split, -2 * tensors, np.where(chunked, -tensors, 0.0))
    return all_ranks, first, np.where(chunked | split, -2 * tensors, -tensors)


def pending_bytes(question: Question, columns: LayoutColumns) -> tuple[Array, Array]:
    """Bytes of output gradients that one microbatch holds until its weight gradients are computed, for a
    block and for the head, (N,) each. They are the gradients of the outputs of all operators with parameters.

    For a GPT block that is 3 + 4 widths of h inside the tensor-parallel region and 1 + 1 + 2 outside. If fp8
    keeps cast inputs of products, gradients wait as cast too (Transformer Engine's `WeightGradStore`).
    """
    model, training = question.model, question.training
    element = training.element_bytes
    cast = training.operand_bytes if question.stack.fp8_saves_inputs and training.casts_operands else element
    tokens = tokens_on_rank(question, columns, "whole")
    head = tokens * question.scored_share * (head_rows(model, columns.tp) / columns.tp)
    normed = tokens_on_rank(question, columns, "stream") * model.hidden_size
    block = sum_amounts(
        (one.share, {one.returns.place: (cast if one.kind == "gemm" else element) * one.returns.width})
        for one in job_operators(model, training.tuning)
        if one.trained and one.weights and not one.shares_gradient and one.returns is not None
    )
    return on_rank(question, columns, block), element * (head + normed) * training.trains("head matrix")
