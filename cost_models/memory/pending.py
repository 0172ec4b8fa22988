"""Gradients that wait between the two halves of a backward pass, for the products towards the weights.

PyTorch keeps the gradient of the output of every operator that has a parameter: of each matrix product, and of each
norm. What the products read on their other side is still live, as the whole graph is kept for the second half.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cost_models.axes.columns import LayoutColumns
from cost_models.operators.block import block_operators
from cost_models.operators.on_rank import added, on_rank, tokens_on_rank
from cost_models.operators.parameters import padded_vocabulary
from cost_models.question import Question

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingBytes:
    """Bytes of one microbatch, each (N,)."""

    block: Array
    head: Array


def pending_bytes(question: Question, columns: LayoutColumns) -> PendingBytes:
    """The outputs of all operators with parameters.

    For a GPT block that is 3 + 4 widths of h inside the tensor-parallel region and 1 + 1 + 2 outside.
    """
    model, element = question.model, question.training.element_bytes
    waiting = [one for one in block_operators(model) if one.weights and not one.shares_gradient]
    outputs = [(one.share, one.returns) for one in waiting if one.returns is not None]
    tokens = tokens_on_rank(question, columns, "whole")
    head = tokens * (padded_vocabulary(model, columns.tp) / columns.tp)
    normed = tokens_on_rank(question, columns, "stream") * model.hidden_size
    return PendingBytes(
        block=on_rank(
            question, columns, added((share, {one.place: element * one.width}) for share, one in outputs)
        ),
        head=element * (head + normed),
    )
