"""Bytes that a block's memory-bound operators move with the fusions of the stack, and bytes that expert
routing moves.

Bytes are counted in passes over a tensor: a fused kernel reads each input once and writes each output once.

Routing adds scores and copies of tokens to a mixture of experts. Each token goes to k of E experts; every block that is
a mixture has all E, E/e of them on a rank of the expert-parallel group, each split over etp ranks (Megatron Core's
`alltoall` dispatcher; Lepikhin et al. 2020, GShard):

    sent   = b·s/c · k/t     copies that leave a rank: tokens count once over the tensor-parallel ranks
    copies = sent · etp      copies its experts process, gathered over the ranks that share an expert

The load is assumed to be even and no token dropped, so a rank receives as many copies as it sends. Leaves out
padding to a capacity, and the kernels that add biases expert by expert.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import comb
from typing import NamedTuple

import numpy as np

from cost_models.arrays import Array, Ints
from cost_models.axes.columns import LayoutColumns
from cost_models.operators.parameters import job_operators
from cost_models.operators.record import Amount, Operator, on_rank, sum_amounts, tokens_on_rank
from cost_models.question import Question
from cost_models.specs.stack import STORES_SCORES
from cost_models.specs.transformer import TransformerSpec
from cost_models.units import FP32_BYTES

_SCORE_PASSES = {"fused-softmax": (2.0, 3.0), "unfused": (8.0, 8.0)}
"""Memory passes over the s × s scores, forward and backward, of each attention kernel that does not keep
them on chip."""
_FUSED_ROTARY = 2.0
_EAGER_ROTARY = 10.0
"""Passes of an eager rotation: two products with a rotated copy between and a sum, in the elements' type or
in complex fp32 with as many bytes."""
MASK_BYTES = 1.0
"""Bytes per element of a dropout mask."""
_STREAM_KERNELS = np.array([[3.0], [5.0]])
"""Number of kernels, forward and backward, of a block's additions and dropouts, (2, 1)."""


class Traffic(NamedTuple):
    """Bytes that kernels move and number of kernels launched, forward and backward."""

    moved: Array
    """Bytes moved, forward and backward, (2, N)."""
    kernels: Array
    """Number of kernels launched, forward and backward, (2, 1)."""


class _PassBytes(NamedTuple):
    """Bytes that an operator moves per element, forward and backward, and number of kernels that it launches
    per pass."""

    forward: float
    backward: float
    kernels: float = 0.0


def block_traffic(
    question: Question, columns: LayoutColumns, operators: Sequence[Operator] | None = None
) -> Traffic:
    """Bytes moved and kernels launched by norms, residual additions, dropout, rotary and activation of one
    block, or by some of its operators."""
    all_operators = job_operators(question.model, question.training.tuning)
    forward, backward, kernels = list[tuple[float, Amount]](), list[tuple[float, Amount]](), 0.0
    for op in all_operators if operators is None else operators:
        pass_bytes = _pass_bytes(question, op)
        over = op.returns if op.kind == "gemm" and op.returns is not None else op.reads
        repeated = pass_bytes.forward * (not op.redone_by.isdisjoint(question.stack.always_discards))
        forward.append((op.share * pass_bytes.forward * over.width, {over.place: 1.0}))
        backward.append((op.share * (pass_bytes.backward + repeated) * over.width, {over.place: 1.0}))
        kernels += op.share * pass_bytes.kernels * op.launched
    moved_bytes = np.array([on_rank(question, columns, sum_amounts(terms)) for terms in (forward, backward)])
    return Traffic(moved_bytes, kernels + (_STREAM_KERNELS if operators is None else np.zeros((2, 1))))


def _pass_bytes(question: Question, op: Operator) -> _PassBytes:
    """Bytes that an operator moves per element, forward and backward, and kernels that it launches per pass.
    Elements are those of its input, for a product with a bias those of its output."""
    element, stack, mixer = question.training.element_bytes, question.stack, question.model.recurrence
    fused = stack.fused_elementwise
    match op.kind:
        case "gemm" if op.biased and stack.separate_biases:
            # added in place, unless what follows does it: only queries, keys and values go on as they are
            reads_unfused = op.half == "attention" and op.gemm is not None and op.gemm.split == "columns"
            return _PassBytes(2 * element * reads_unfused, element, 1.0 if reads_unfused else 0.5)
        case "core":  # copies of what the attention core reads and returns
            forward, backward = stack.attention_copies
            assert op.returns is not None
            passes = 2 * element * op.returns.width / op.reads.width
            return _PassBytes(passes * forward, passes * backward, (forward + backward) / 2)
        case "norm" if stack.fused_norms or op.norm == "layernorm":
            # reads and writes once, and its backward pass reads two and writes one
            fused_bytes = _PassBytes(2 * element, 3 * element, 1)
            if not stack.casts_norm_inputs:
                return fused_bytes
            forward = fused_bytes.forward + 2 * FP32_BYTES  # to fp32, their gradients back, and all again
            return _PassBytes(forward, forward + fused_bytes.backward - element + 3 * FP32_BYTES, 2)
        case "norm":
            # written out in torch an RMS norm works in fp32: cast, square, mean, scale, cast back, weight
            # (docs/decisions/0005)
            return _PassBytes(24 + 4 * element, 44 + 6 * element, 6)
        case "rotary":  # queries or keys; both are turned by the same kernels
            passes = _FUSED_ROTARY if fused else _EAGER_ROTARY
            kernels = min(passes * question.model.rotary_share, _FUSED_ROTARY) / 2
            return _PassBytes(passes * element, passes * element, kernels)
        case "activation" if op.inputs == 1:
            return _PassBytes(2 * element, 3 * element, 1)
        case "activation":
            return _gated_traffic(element, in_one_kernel=fused)
        case "residual":  # reads all its terms and writes their sum, forward and for gradients
            return _PassBytes((op.inputs + 1) * element, (op.inputs + 1) * element)
        case "dropout" if question.dropout:
            # fused forward into the operator before it where the stack fuses, except for the mask
            return _PassBytes((0.0 if fused else 2 * element) + MASK_BYTES, 2 * element + MASK_BYTES)
        case "adapter" if op.inputs:
            # scales what B returns and adds it to the matrix's; backward scales its gradient
            return _PassBytes(5 * element, 2 * element, 2)
        case "adapter":  # two gradients meet at an input
            return _PassBytes(0.0, 3 * element, 0.5)
        case "modulation" if fused:
            # a product reads and writes once, as a gate does with the addition behind it; its backward pass reads two
            # and writes one
            is_gate = op.inputs == 1
            return _PassBytes((0 if is_gate else 2) * element, (3 - is_gate) * element, 1 - is_gate)
        case "modulation":  # product and sum do so each, and gradients of vectors are summed from a copy
            return _PassBytes(2 * op.inputs * element, (5 + op.inputs) * element, op.inputs)
        case "convolution":
            # a kernel of its own, with the activation behind it (causal-conv1d 1.5), or that activation alone; before
            # states that decay it runs again in the backward pass (mamba-ssm 2.2, `MambaSplitConv1dScanCombinedFn`)
            reruns = mixer is not None and mixer.scans and not mixer.delta
            return _PassBytes(2 * element, (5 if reruns else 3) * element, 1)
        case "gating":
            # norm and gate in one kernel, as mamba-ssm and flash-linear-attention have it; a gate alone as an
            # activation; beside a short convolution alone two tensors are multiplied
            of_scan = op.name == "gated norm"
            if mixer is not None and mixer.step_rank and of_scan:  # Mamba-1 gates in its scan
                return _PassBytes(0.0, 0.0)
            if stack.transformer_engine and mixer is not None and not mixer.delta:
                return _PassBytes(2 * element, 3 * element, 1)
            return _gated_traffic(element, in_one_kernel=of_scan or op.inputs == 2 or fused)
    return _PassBytes(0.0, 0.0)


def _gated_traffic(size: float, *, in_one_kernel: bool) -> _PassBytes:
    """Bytes moved per element of `size` bytes and kernels launched by a gated activation. Unless it is one
    kernel, the activation is written to memory before it is multiplied."""
    return _PassBytes(3 * size, 5 * size, 1) if in_one_kernel else _PassBytes(5 * size, 9 * size, 2)


def attention_traffic(question: Question, columns: LayoutColumns) -> Traffic:
    """Bytes moved and kernels launched for the s × s scores, by attention kernels that do not keep them on chip."""
    kernel, sequence = question.stack.attention, question.training.sequence_length
    passes = np.array(_SCORE_PASSES.get(kernel, (0.0, 0.0)))[:, None]
    dropout = 2.5 * (question.dropout > 0 and kernel in STORES_SCORES)
    keys = sequence * (1.0 + question.model.source_share)
    scores = question.training.element_bytes * columns.tokens(sequence) * keys
    return Traffic(scores * (question.model.num_heads / columns.tp) * (passes + dropout), passes / 2)


_ROUTER_PASSES = 4.0
"""Memory passes over the fp32 router scores of a token: written, normalised, searched for the largest,
scattered into a map."""


def routing_traffic(question: Question, columns: LayoutColumns) -> Traffic:
    """Bytes moved and kernels launched by expert routing, as a mean over the blocks. Routing computes router
    scores and copies tokens in order of destination, in order of expert, and back.

    Forward a token is read once and written k times, its copies are reordered by expert if a rank has several
    (read and write, and once more on the way back), then read k times and their sum written. Backward the
    same in reverse.
    """
    model, element = question.model, question.training.element_bytes
    if not model.moe_share:
        return Traffic(np.zeros((2, len(columns))), np.zeros((2, 1)))
    tokens = tokens_on_rank(question, columns, "split")
    several = (columns.ep > 1) & (model.num_experts / columns.ep > 1)
    copies = tokens_on_rank(question, columns, "copies")
    passes = 2 * (tokens + tokens_on_rank(question, columns, "sent")) + np.where(several, 4 * copies, 0.0)
    # Transformer Engine moves an expert's rows into padded ones and out of padded results in fp8 or fp4, whose scales
    # need whole multiples of them (`Fp8Padding`; Megatron Core, moe/experts.py); a dispatcher that sends tokens writes
    # them padded
    padded = question.stack.transformer_engine and question.stack.expert_dispatch == "copies"
    passes = passes + (4.0 if padded and question.training.casts_operands else 0.0) * copies
    scores = _ROUTER_PASSES * FP32_BYTES * tokens * model.num_experts
    moved_bytes = model.moe_share * (element * model.hidden_size * passes + scores)
    biases = np.array(_bias_bytes(question))[:, None] * (model.moe_share * model.hidden_size * copies)
    return Traffic(moved_bytes + biases, np.full((2, 1), 8 * model.moe_share))


def _bias_bytes(question: Question) -> tuple[float, float]:
    """Bytes moved per element of the experts' output, forward and backward, if torch adds the last bias to
    the output of one expert after another.

    `torch.cat([t + b * p ...])`, with p the copy's weight (Megatron Core, moe/experts.py, `_apply_bias`):
    product, sum, joined; backward a product and a sum for b and for p, and gradients joined. A dispatcher
    that sends tokens has p in fp32, so products and sums are in fp32 too, and are cast back. The first bias
    is added by the product.
    """
    stack, element = question.stack, question.training.element_bytes
    if not (question.model.mlp_bias and stack.transformer_engine) or stack.experts_in_one_kernel:
        return 0.0, 0.0
    if stack.expert_dispatch == "copies":
        return 6 * element, 8 * element
    return 5 * FP32_BYTES + 4 * element, 7 * FP32_BYTES + 6 * element


def destinations(model: TransformerSpec, parts: Ints) -> Array:
    """Expected number of ranks (or nodes) to which a token is sent for its experts, (N,). The experts lie in
    order on `parts` ranks (or nodes), (N,).

    Every choice of k experts is equally likely; if a token first chooses groups, every choice within them:
    with 8 groups on 8 nodes, of which it chooses 4, no token goes to more than 4 (DeepSeek-V3, arXiv
    2412.19437, section 2.1.2).
    """
    distinct, index = np.unique(parts, return_inverse=True)
    count = distinct.astype(np.float64)
    experts, picks, groups = model.num_experts, model.experts_per_token, model.expert_groups
    size = experts / count
    if groups is None:
        return np.asarray((count * (1.0 - _probability_of_none(size, experts, picks)))[index])
    of_group = experts // groups.count
    open_to = groups.per_token * of_group
    # a part of one group, or of a share of it
    share = groups.per_token / groups.count
    inside: Array = share * (1.0 - _probability_of_none(np.minimum(size, of_group), open_to, picks))
    spans = np.maximum(1.0, np.round(size / of_group))  # groups in a part
    several = np.zeros(len(size))
    for num_groups in range(1, groups.per_token + 1):
        reached = 1.0 - _probability_of_none(np.full(len(size), float(num_groups * of_group)), open_to, picks)
        several = several + _probability_of_draws(num_groups, spans, groups.per_token, groups.count) * reached
    return np.asarray((count * np.where(size > of_group, several, inside))[index])


def _probability_of_none(marked: Array, among: int, draws: int) -> Array:
    """Probability that `draws` items drawn without replacement from `among` items include none of the
    `marked` (N,) marked items, (N,)."""
    none = np.ones(len(marked))
    for draw in range(draws):
        none = none * np.maximum(0.0, among - marked - draw) / (among - draw)
    return none


def _probability_of_draws(hits: int, marked: Array, draws: int, among: int) -> Array:
    """Probability that `draws` draws without replacement from `among` items contain exactly `hits` of the
    `marked` items, (N,)."""
    ways = np.array([comb(int(count), hits) * comb(among - int(count), draws - hits) for count in marked])
    return np.asarray(ways / comb(among, draws))
