"""Gradients that wait between the two halves of a backward pass, for the products towards the weights.

PyTorch keeps the gradient of the output of every operator that has a parameter: of each matrix product, and of each
norm. What the products read on their other side is still live, as the whole graph is kept for the second half.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cost_models.axes.columns import LayoutColumns
from cost_models.compute.products import projections
from cost_models.question import Question
from cost_models.workload.mixture import inner_elements, mixture
from cost_models.workload.parameters import padded_vocabulary

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingBytes:
    """Bytes of one microbatch, each (N,)."""

    block: Array
    head: Array


def pending_bytes(question: Question, columns: LayoutColumns) -> PendingBytes:
    """Tokens × width of every output, split over tp where the product is split by columns.

    For a GPT block that is 3 + 4 widths of h inside the tensor-parallel region and 1 + 1 + 2 outside.
    """
    model = question.model
    tokens = columns.tokens(question.training.sequence_length)
    outside = tokens * model.hidden_size / np.where(columns.sp == 1, columns.tp, 1)
    around = sum(tokens * width for width, _ in projections(model, columns.tp.astype(np.float64)))
    up = (2.0 if model.gated_mlp else 1.0) * inner_elements(question, columns)
    down = tokens * model.hidden_size
    if (routed := mixture(question, columns)) is not None:
        down = (1 - model.moe_share) * down + model.moe_share * routed.rows * model.hidden_size
    vocabulary = padded_vocabulary(model, columns.tp) / columns.tp
    element = question.training.element_bytes
    return PendingBytes(
        block=np.asarray(element * (around + up + down + 2 * outside)),
        head=element * (tokens * vocabulary + outside),
    )
