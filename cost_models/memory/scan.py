"""Bytes that the operators of a recurrence keep for their backward pass."""

from __future__ import annotations

from cost_models.operators.on_rank import Amount
from cost_models.operators.record import Operator
from cost_models.question import Question

_FP32 = 4.0
_PLAIN_SCANS = {
    "mamba2": (7.1, 4.4, 1.6, 3.0, 0.4, 0.0),
    "gated-delta": (9.3, 1.7, 4.3, 5.2, 0.8, 0.0),
    "kimi-delta": (2.8, 1.0, 6.8, 3.2, 2.4, 6.0),
}
"""Numbers of a token in fp32 that the backward pass of a plain scan holds at most, for each number mixed, of values, of
keys by head, of a row of a chunk by head, of states, and of such a row for each number of a key: least squares over
what torch allocated for nine shapes of executor/models/mixing/recurrence.py each, within 5 %."""


def read_once(question: Question, operator: Operator) -> Amount:
    """What a short convolution reads, or a gate; what returned what a gate multiplies keeps it, or it is read, too."""
    return {operator.reads.place: question.training.element_bytes * operator.inputs * operator.reads.width}


def plain_scan_bytes(question: Question) -> float:
    """Bytes of a token that the backward pass of a scan holds, where scans are plain products; else 0."""
    model, mixer = question.model, question.model.recurrence
    if mixer is None or not (question.stack.plain_scans and model.mixer_share("recurrence", "both")):
        return 0.0
    keys, rows = mixer.heads * mixer.state_dim, mixer.heads * mixer.chunk
    states = mixer.value_size * mixer.state_dim / mixer.chunk
    widths = (mixer.mixed_size, mixer.value_size, keys, rows, states, rows * mixer.state_dim)
    each = _PLAIN_SCANS.get(mixer.kind, (0.0,) * len(widths))
    return _FP32 * sum(one * width for one, width in zip(each, widths, strict=True))


def scanned(question: Question, scan: Operator) -> Amount:
    """What a scan returns, its heads' numbers in fp32 and what it reads; states of chunks are made again.

    Where scans are plain products these make the convolution again, too, from the numbers as they came.

    Mamba-2's kernel makes its convolution again in place of keeping what that returned (mamba-ssm 2.2,
    ops/triton/ssd_combined.py, `MambaSplitConv1dScanCombinedFn`); that of the delta rule keeps a row of a chunk's
    inverse for each token (flash-linear-attention 0.4, ops/gated_delta_rule/chunk.py, `ChunkGatedDeltaRuleFunction`).
    Mamba-1's keeps what it returned before the gate, keys and queries, also as laid out for it, and the states between
    its chunks of 2,048 tokens twice (ops/selective_scan_interface.py, `MambaInnerFn`).
    """
    mixer, element = question.model.recurrence, question.training.element_bytes
    assert mixer is not None
    if question.stack.plain_scans:
        return {"split": element * (mixer.value_size + mixer.heads * mixer.head_numbers + mixer.decay_size)}
    if mixer.kind == "mamba1":
        states = 2 * _FP32 * mixer.value_size * mixer.state_dim / mixer.chunk
        return {"split": element * mixer.value_size + states, "whole": 4 * element * mixer.key_size}
    numbers = element * mixer.value_size + _FP32 * mixer.heads * mixer.head_numbers
    if mixer.delta:
        numbers += element * mixer.heads * mixer.chunk
    numbers += element * mixer.decay_size
    return {"split": numbers + (0.0 if mixer.kind == "mamba2" else element * scan.reads.width)}
