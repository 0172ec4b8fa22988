"""Bytes of a host's memory that offloaded states fill: what the devices of a node would hold of them without offload.

Every rank counts as the fullest: blocks spread evenly, with the larger of embedding and head beside them. Leaves out
buffers that transfers go through.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from cost_models.axes.columns import LayoutColumns
from cost_models.memory.states import state_bytes
from cost_models.operators.parameters import parameters
from cost_models.question import Question

Array = npt.NDArray[np.float64]


def host_bytes(question: Question, columns: LayoutColumns) -> Array:
    """(N,) bytes of offloaded states in the memory of one host; nothing where the stack offloads none."""
    if question.stack.offloads == "none":
        return np.zeros(len(columns))
    model = question.model
    counts = parameters(model, columns.tp, ep=columns.ep, etp=columns.etp)
    blocks = -(-model.num_layers // columns.pp)
    head = counts.head_vectors + np.where(model.tied_embeddings & (columns.pp == 1), 0.0, counts.head_matrix)
    ends = np.where(columns.pp == 1, counts.embedding + head, np.maximum(counts.embedding, head))
    rank = (blocks * counts.block + ends) * _offloaded(question, columns)
    if model.has_experts:
        rank = rank + blocks * counts.experts * _offloaded(question, columns, experts=True)
    each: Array = rank * question.cluster.gpus_per_node
    return each


def _offloaded(question: Question, columns: LayoutColumns, *, experts: bool = False) -> Array:
    """(N,) bytes per parameter that are not on the device."""
    whole = replace(question, stack=question.stack.model_copy(update={"offloads": "none"}))
    left = state_bytes(question, columns, experts=experts).total
    return state_bytes(whole, columns, experts=experts).total - left
