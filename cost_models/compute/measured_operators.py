"""Seconds of what eager PyTorch runs besides matrix products, from measured curves, operator by operator.

The list is that of docs/decisions/0004-what-eager-torch-runs.md. It stands in for bytes / bandwidth where a stack
does not fuse and the profile has curves, which is how a CPU is predicted within a few per cent.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cost_models.axes.columns import LayoutColumns
from cost_models.curves import attention_head_seconds, curve_seconds
from cost_models.question import Question
from cost_models.specs.hardware import ElementwiseOperator, HardwareProfile, OperatorCurve
from cost_models.specs.transformer_shape import Activation
from cost_models.workload.mixture import inner_elements
from cost_models.workload.parameters import padded_vocabulary
from cost_models.workload.traffic import added_share

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Passes:
    """Seconds forward and backward, each (N,)."""

    forward: Array
    backward: Array


@dataclass(frozen=True, slots=True, kw_only=True)
class _Calls:
    """`count` calls of one operator over `elements` (N,)."""

    operator: ElementwiseOperator
    elements: Array
    count: float = 1.0


_COPIES_OF_WHOLE, _COPIES_OF_SPLIT = 2, 4
"""Copies of a block's activations in one pass: an all-reduce copies what it adds up, twice a pass; along the sequence
what is gathered is put together and what is scattered taken apart, twice each."""


def has_measured_operators(question: Question) -> bool:
    """The stack runs operators one by one and the profile knows what each takes."""
    return bool(question.hardware.operators) and not question.stack.fused_elementwise


def block_operators(question: Question, columns: LayoutColumns) -> Passes:
    """Norms, residual additions, activation, rotary, dropout and bias gradients of one block and microbatch.

    Over tensor ranks also the copies that their collectives begin or end with. Leaves out matrix products, the
    attention core, and what is done to weights and their gradients.
    """
    model = question.model
    tokens = columns.tokens(question.training.sequence_length)
    outside = tokens * model.hidden_size / np.where(columns.sp == 1, columns.tp, 1)
    whole = tokens * model.hidden_size
    inner = inner_elements(question, columns)
    query, key_value = tokens * model.query_size / columns.tp, tokens * model.kv_size / columns.tp
    both = [
        _Calls(operator=model.norm, elements=outside, count=float(model.block_norms)),
        _Calls(operator=_measured_as(model.activation), elements=inner),
    ]
    if model.gated_mlp:
        both.append(_Calls(operator="multiply", elements=inner))
    if turned := model.turned_share:
        both += [_Calls(operator="rotary", elements=turned * heads) for heads in (query, key_value)]
    if model.qk_norm:
        both += [_Calls(operator="rmsnorm", elements=query), _Calls(operator="rmsnorm", elements=key_value)]
    if question.dropout > 0:
        both.append(_Calls(operator="dropout", elements=outside, count=2.0))
    residual = _Calls(operator="add", elements=outside, count=2.0)
    joined = 3.0 if model.gated_mlp else 2.0
    biased = model.attention_bias * (query + 2 * key_value) + model.attention_output_bias * outside
    biased = biased + model.mlp_bias * ((2.0 if model.gated_mlp else 1.0) * inner + outside)
    only_backward = [
        residual,
        _Calls(operator="add", elements=whole, count=joined),
        _Calls(operator="bias-gradient", elements=biased),
    ]
    copied = (
        np.where(columns.tp > 1, np.where(columns.sp == 1, _COPIES_OF_SPLIT, _COPIES_OF_WHOLE), 0) * whole
    )
    exchanged = [_Calls(operator="copy", elements=copied)]
    profile = question.hardware
    return Passes(
        forward=_seconds(profile, [*both, residual, *exchanged], backward=False),
        backward=_seconds(profile, both, backward=True)
        + _seconds(profile, [*only_backward, *exchanged], backward=False),
    )


def _measured_as(activation: Activation) -> ElementwiseOperator:
    """The name under which it was timed."""
    return "gelu" if activation == "gelu-tanh" else activation


def attention_core(question: Question, columns: LayoutColumns) -> Passes:
    """The attention kernel over the heads of this rank; needs the profile's attention curves."""
    model = question.model
    sequence = np.full(len(columns), float(question.training.sequence_length))
    forward, backward = attention_head_seconds(question.hardware.attention, sequence, model.head_dim)
    heads = columns.mbs * model.num_heads / (columns.tp * columns.cp)  # a c-th of each head's work
    return Passes(forward=heads * forward, backward=heads * backward)


def accumulation_seconds(question: Question, columns: LayoutColumns, parameters: Array) -> Array:
    """Adding gradients of `parameters` (N,) to those of earlier microbatches, mean over the microbatches of a step."""
    added = [_Calls(operator="add", elements=parameters)]
    return _seconds(question.hardware, added, backward=False) * added_share(question, columns)


def gathering_seconds(question: Question, columns: LayoutColumns, parameters: Array) -> Passes:
    """Copies of `parameters` (N,) weights that `fully_shard` makes in a pass: of the shard into what is sent, of all
    that came into the weights, and once a step of the gradients into what is scattered."""
    shards = np.where((columns.zero == 3) & question.stack.fully_shard, columns.shard, 1)
    gathered = np.where(shards > 1, (1 + 1 / shards) * parameters, 0.0)
    microbatches = columns.microbatches(question.training.global_batch)
    scattered = np.where(shards > 1, parameters / microbatches, 0.0)
    forward, once = (
        _seconds(question.hardware, [_Calls(operator="copy", elements=elements)], backward=False)
        for elements in (gathered, scattered)
    )
    return Passes(forward=forward, backward=forward + once)


def embedding_operators(question: Question, columns: LayoutColumns) -> Passes:
    """The gather; backward the scatter and, over the whole table, a zero fill and an addition."""
    model, profile = question.model, question.hardware
    tokens = columns.tokens(question.training.sequence_length)
    hidden = tokens * model.hidden_size
    table = padded_vocabulary(model, columns.tp) / columns.tp * model.hidden_size
    gather = [_Calls(operator="embedding", elements=hidden)]
    positions = [_Calls(operator="add", elements=hidden)] if model.positions == "learned" else []
    dropped = [_Calls(operator="dropout", elements=hidden)] if question.dropout > 0 else []
    whole_table = [_Calls(operator="add", elements=table, count=2.0 if model.tied_embeddings else 1.0)]
    return Passes(
        forward=_seconds(profile, [*gather, *positions, *dropped], backward=False),
        backward=_seconds(profile, [*gather, *dropped], backward=True)
        + _seconds(profile, whole_table, backward=False),
    )


def head_operators(question: Question, columns: LayoutColumns) -> Passes:
    """Final norm and cross-entropy over this rank's share of the vocabulary."""
    model, profile = question.model, question.hardware
    tokens = columns.tokens(question.training.sequence_length)
    logits = tokens * padded_vocabulary(model, columns.tp) / columns.tp
    outside = tokens * model.hidden_size / np.where(columns.sp == 1, columns.tp, 1)
    both = [
        _Calls(operator=model.norm, elements=outside),
        _Calls(operator="cross-entropy", elements=logits),
    ]
    return Passes(
        forward=_seconds(profile, both, backward=False), backward=_seconds(profile, both, backward=True)
    )


def _seconds(profile: HardwareProfile, calls: Iterable[_Calls], *, backward: bool) -> Array:
    """Sum over the calls; an operator without a curve costs nothing here, it was not worth measuring."""
    curves: dict[str, OperatorCurve] = {curve.operator: curve for curve in profile.operators}
    total = np.zeros(1)
    for call in calls:
        curve = curves.get(call.operator)
        points = () if curve is None else curve.backward if backward else curve.forward
        total = total + call.count * curve_seconds(points, call.elements)
    return total
