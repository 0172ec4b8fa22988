"""Bytes that the operators of a recurrence keep for their backward pass."""

from __future__ import annotations

from cost_models.operators.on_rank import Amount
from cost_models.operators.record import Operator
from cost_models.question import Question

_FP32 = 4.0


def read_once(question: Question, operator: Operator) -> Amount:
    """What a short convolution reads, or a gate; what the gate multiplies is kept by what returned it."""
    return {operator.reads.place: question.training.element_bytes * operator.reads.width}


def scanned(question: Question, scan: Operator) -> Amount:
    """What a scan returns, its heads' numbers in fp32 and what it reads; states of chunks are made again.

    Where scans are plain products these make the convolution again, too, from the numbers as they came.

    Mamba-2's kernel makes its convolution again in place of keeping what that returned (mamba-ssm 2.2,
    ops/triton/ssd_combined.py, `MambaSplitConv1dScanCombinedFn`); that of the delta rule keeps a row of a chunk's
    inverse for each token (flash-linear-attention 0.4, ops/gated_delta_rule/chunk.py, `ChunkGatedDeltaRuleFunction`).
    """
    mixer, element = question.model.recurrence, question.training.element_bytes
    assert mixer is not None
    if question.stack.plain_scans:
        return {"split": element * (mixer.value_size + mixer.heads * mixer.head_numbers)}
    numbers = element * mixer.value_size + _FP32 * mixer.heads * mixer.head_numbers
    if mixer.delta:
        numbers += element * mixer.heads * mixer.chunk
    if mixer.kind == "kimi-delta":  # a decay for each number of a key
        numbers += element * mixer.heads * mixer.state_dim
    return {"split": numbers + (0.0 if mixer.kind == "mamba2" else element * scan.reads.width)}
