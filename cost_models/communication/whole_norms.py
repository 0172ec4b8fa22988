"""LAMB adds up the squares of every parameter and of its way over all ranks with slices of it (You et al. 2020)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from cost_models.axes.columns import LayoutColumns
from cost_models.communication.collectives import all_reduce_seconds
from cost_models.communication.topology import AxisGroups
from cost_models.operators.block import block_operators
from cost_models.question import Question
from cost_models.specs.training import STATE_BYTES

Array = npt.NDArray[np.float64]


def norms_seconds(question: Question, columns: LayoutColumns, groups: AxisGroups) -> Array:
    """(N,) seconds of the one all-reduce of a step: two numbers of each parameter of a rank, so all latency.

    Priced as one over tensor ranks and one over those that ZeRO shards over, or, with experts, over all replicas. Two
    numbers for the two copies of a tied matrix are left out. Nothing for other optimizers.
    """
    if question.training.optimizer != "lamb":
        return np.zeros(len(columns))
    blocks = question.model.num_layers / columns.pp
    tensors = blocks * len(block_operators(question.model))
    message = 2 * STATE_BYTES["fp32"] * tensors
    experts = question.model.has_experts
    over_data = groups.data.every if experts else groups.data.shard
    shared = (columns.zero >= 1) | experts
    seconds = np.where(shared, all_reduce_seconds(message, over_data, question.hardware), 0.0)
    return seconds + all_reduce_seconds(message, groups.tp, question.hardware)
