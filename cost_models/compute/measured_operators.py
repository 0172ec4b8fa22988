"""Seconds of the operators of eager PyTorch other than matrix products, from measured curves.

The operators are listed in docs/decisions/0005. The curves replace bytes / bandwidth if a stack does not fuse
and the profile has curves; they predict a CPU within a few per cent.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import cast

import numpy as np

from cost_models.arrays import Array
from cost_models.axes.columns import LayoutColumns
from cost_models.operators.accumulation import added_share, addition_bytes
from cost_models.operators.block import block_operators
from cost_models.operators.parameters import head_rows, padded_vocabulary
from cost_models.operators.record import Amount, Operator, Tensor, on_rank, sum_amounts
from cost_models.question import Question
from cost_models.specs.hardware import (
    ElementwiseOperator,
    HardwareProfile,
    OperatorCurve,
    attention_head_seconds,
    curve_seconds,
)

_Calls = tuple[ElementwiseOperator, Array, float]
"""Name of an operator, elements of a call, (N,), and number of calls."""

_TP_COPIES, _SP_COPIES = 2, 4
"""Number of copies of a block's activations in one pass, without and with sequence parallelism. An all-reduce
copies its operand, twice a pass; along the sequence gathered tensors are joined and scattered ones split,
twice each."""


def has_measured_operators(question: Question) -> bool:
    """Whether the stack runs operators one by one and the hardware profile has measured curves of operators."""
    return bool(question.hardware.operators) and not question.stack.fused_elementwise


def measured_block(question: Question, columns: LayoutColumns) -> Array:
    """Seconds from measured curves, forward and backward, (2, N), of norms, residual additions, activation,
    rotary, dropout and bias gradients of one block and microbatch.

    Over tensor ranks it includes the copies before or after their collectives. Leaves out GEMMs, the
    attention core, and operations on weights and their gradients.
    """
    model, operators = question.model, block_operators(question.model)

    def calls(operator: ElementwiseOperator, amount: Amount, count: float = 1.0) -> _Calls:
        """Tuple of an operator, its amount of data on one rank, and its number of calls."""
        return operator, on_rank(question, columns, amount), count

    call_counts: dict[tuple[ElementwiseOperator, Tensor], float] = defaultdict(float)
    # the MLP's activations are taken together
    by_kind: dict[str, ElementwiseOperator] = {"modulation": "multiply", "rotary": "rotary"}
    by_kind |= {"dropout": "dropout"} if question.dropout > 0 else {}
    for op in operators:
        if (curve := by_kind.get(op.kind, op.norm)) is not None:
            call_counts[curve, op.reads] += op.share * (op.inputs if op.kind == "modulation" else 1)
    paired = [calls(curve, {over.place: over.width}, count) for (curve, over), count in call_counts.items()]
    activations = [op for op in operators if op.kind == "activation"]
    inner = sum_amounts((op.share, {op.reads.place: op.reads.width}) for op in activations)
    timed_as = {"quick-gelu": "silu", "gelu-tanh": "gelu"}.get(model.activation, model.activation)
    paired.append(calls(cast(ElementwiseOperator, timed_as), inner))
    if any(op.inputs > 1 for op in activations):
        paired.append(calls("multiply", inner))
    residuals = [op for op in operators if op.kind == "residual"]
    sums = [calls("add", {op.reads.place: op.reads.width}, op.inputs - 1) for op in residuals]
    returned = [(op.share, op.returns) for op in operators if op.biased and op.returns is not None]
    biased = sum_amounts(  # after ranks have added up their parts
        (share, {"stream" if over.place == "whole" else over.place: over.width}) for share, over in returned
    )
    additions = gradient_additions(operators).items()
    gradient_sums = [calls("add", {over.place: over.width}, count) for over, count in additions]
    copies = np.where(columns.tp > 1, np.where(columns.sp == 1, _SP_COPIES, _TP_COPIES), 0)
    stream_elements = columns.tokens(question.training.sequence_length) * model.hidden_size
    exchanged: _Calls = ("copy", copies * stream_elements, 1.0)
    once = [*gradient_sums, calls("bias-gradient", biased), exchanged]
    return _both_passes(question.hardware, paired, [*sums, exchanged], once)


def gradient_additions(operators: Sequence[Operator]) -> Mapping[Tensor, float]:
    """Number of additions of each tensor's gradients in the backward pass: n − 1 for a tensor that n
    operators read."""
    additions: dict[Tensor, float] = defaultdict(float)
    for op in operators:
        if op.kind == "residual" or (op.kind == "norm" and op.shares_input):
            additions[op.reads] += 1
        if op.kind == "routing":  # the rank's tokens, which the router also reads
            additions[Tensor(width=op.reads.width, place="split")] += op.share
        readers = len(op.gemm.outputs) if op.gemm is not None else 1 if op.kind == "gate" else 0
        if readers and not op.reads_core:
            place = "whole" if op.reads.place == "entrance" else op.reads.place
            over = Tensor(width=op.reads.width, place=place)
            additions[over] += op.share * (readers - 1 + op.shares_input)
    return additions


def attention_core(question: Question, columns: LayoutColumns) -> Array:
    """Seconds of the attention kernel over a rank's heads, forward and backward, (2, N), from the profile's
    measured attention curves, which must exist."""
    model = question.model
    sequence = np.full(len(columns), float(question.training.sequence_length))
    heads = columns.mbs * model.num_heads / (columns.tp * columns.cp)  # a c-th of each head's work
    return heads * attention_head_seconds(question.hardware.attention, sequence, model.head_dim)


def accumulation_seconds(question: Question, columns: LayoutColumns, parameters: Array) -> Array:
    """Seconds per microbatch to accumulate the gradients of `parameters` (N,) parameters, mean over a step,
    (N,). They are measured as sums of activations with equally many bytes."""
    relative_bytes = addition_bytes(question) / (3 * question.training.element_bytes)
    seconds = _curve_seconds(question.hardware, [("add", relative_bytes * parameters, 1.0)])
    return seconds * added_share(question, columns)


def gathering_seconds(question: Question, columns: LayoutColumns, parameters: Array) -> Array:
    """Seconds of the copies that `fully_shard` makes of `parameters` (N,) weights, forward and backward, (2,
    N). It copies the shard into the send buffer, all received shards into the weights, and once a step the
    gradients into the scatter buffer."""
    shards = np.where((columns.zero == 3) & question.stack.fully_shard, columns.shard, 1)
    gathered = np.where(shards > 1, (1 + 1 / shards) * parameters, 0.0)
    profile, microbatches = question.hardware, columns.microbatches(question.training.global_batch)
    scattered = np.where(shards > 1, parameters / microbatches, 0.0)
    forward, once = (_curve_seconds(profile, [("copy", one, 1.0)]) for one in (gathered, scattered))
    return np.array([forward, forward + once])


def embedding_operators(question: Question, columns: LayoutColumns) -> Array:
    """Seconds of the embedding, forward and backward, (2, N): forward a gather; backward a scatter and, over
    the entire table, a zero fill and an addition."""
    model, profile = question.model, question.hardware
    hidden = columns.tokens(question.training.sequence_length) * model.hidden_size
    table = padded_vocabulary(model, columns.tp) / columns.tp * model.hidden_size
    paired: list[_Calls] = [("embedding", hidden, 1.0), ("dropout", hidden, float(question.dropout > 0))]
    once: list[_Calls] = [("add", hidden, float(model.positions == "learned"))]
    return _both_passes(profile, paired, once, [("add", table, 1.0 + model.tied_embeddings)])


def head_operators(question: Question, columns: LayoutColumns) -> Array:
    """Seconds of the final norm and of cross-entropy over a rank's share of the vocabulary, forward and
    backward, (2, N)."""
    model, profile = question.model, question.hardware
    tokens = columns.tokens(question.training.sequence_length)
    logits = tokens * question.scored_share * head_rows(model, columns.tp) / columns.tp
    outside = tokens * model.hidden_size / np.where(columns.sp == 1, columns.tp, 1)
    return _both_passes(profile, [(model.norm, outside, 1.0), ("cross-entropy", logits, 1.0)])


def _both_passes(
    profile: HardwareProfile, paired: list[_Calls], once: Sequence[_Calls] = (), back: Sequence[_Calls] = ()
) -> Array:
    """Seconds of operator calls from measured curves, forward and backward, (2, N). Calls in `paired` run in
    both passes, those in `once` in the forward pass only, those in `back` in the backward pass only."""
    backward = _curve_seconds(profile, paired, backward=True) + _curve_seconds(profile, back)
    return np.array([_curve_seconds(profile, [*paired, *once]), backward])


def _curve_seconds(profile: HardwareProfile, calls: Iterable[_Calls], *, backward: bool = False) -> Array:
    """Seconds of operator calls from measured curves, (N,); 0 for an operator without a curve."""
    curves: dict[str, OperatorCurve] = {curve.operator: curve for curve in profile.operators}
    total = np.zeros(1)
    for operator, elements, count in calls:
        curve = curves.get(operator)
        points = () if curve is None else curve.backward if backward else curve.forward
        total = total + count * curve_seconds(points, elements)
    return total
