"""Rule that says which layouts compute the loss in chunks of tokens; prices and the executor share it."""

from __future__ import annotations

import numpy as np

from cost_models.arrays import Bools
from cost_models.axes.columns import LayoutColumns
from cost_models.axes.layout import Layout
from cost_models.question import Question
from cost_models.schedules.registry import ALWAYS_SPLIT, KEEPS_ALL_LOGITS, is_scheduled


def chunks_loss(question: Question, columns: LayoutColumns) -> Bools:
    """(N,): layouts whose loss a stack with a `loss_chunk` computes in chunks.

    Those with more tokens in a microbatch than in a chunk. Not with the vocabulary split over tensor ranks, where the
    loss is split too. Not where the head's backward pass waits for something else: each microbatch that waits would
    hold a gradient of the whole output matrix. Not of an output with a bias, which chunks would have to add up as well,
    nor of an encoder or behind a vision tower, where the loss is of some tokens.
    """
    chunk = question.stack.loss_chunk
    of_some = question.model.encoder or question.model.tower or question.model.outputs
    if chunk is None or question.model.head_bias or of_some:
        return np.zeros(len(columns), dtype=np.bool_)
    several = columns.tokens(question.training.sequence_length) > chunk
    chunked: Bools = several & (columns.tp == 1) & ~is_scheduled(columns, ALWAYS_SPLIT | KEEPS_ALL_LOGITS)
    return chunked


def compiles_chunks(question: Question) -> bool:
    """Whether the loss of a chunk is compiled: logits are read twice, their gradient is written, and no copy is in
    fp32."""
    return question.stack.compiled and question.stack.compiles_loss


def loss_chunk(question: Question, layout: Layout) -> int | None:
    """Tokens of a chunk in this layout; None: all logits at once."""
    return question.stack.loss_chunk if chunks_loss(question, LayoutColumns.of([layout]))[0] else None
