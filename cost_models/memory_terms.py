"""Every memory coefficient of `StageCosts`, split into the parts a user sees: `{part: bytes}`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cost_models.memory.activations import activation_bytes
from cost_models.memory.states import StateBytes, state_bytes
from cost_models.question import Question
from cost_models.specs.columns import LayoutColumns
from cost_models.workload.parameters import parameters

Array = npt.NDArray[np.float64]
Term = dict[str, Array]

MEMORY_PARTS = ("weights", "gradients", "optimizer", "activations", "working", "buffers")


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryTerms:
    """Coefficients named as in `StageCosts`; arrays are (N,), in `layer_activation` and `working` (N, P)."""

    static: Term
    layer_static: Term
    layer_activation: Term
    layer_update: Term
    embedding_static: Term
    embedding_activation: Term
    embedding_update: Term
    head_static: Term
    head_activation: Term
    head_update: Term
    working: Term
    head_working: Term


def memory_terms(question: Question, columns: LayoutColumns) -> MemoryTerms:
    """All memory coefficients for N layouts at once."""
    states = state_bytes(question, columns)
    counts = parameters(question.model, columns.tp)
    kept = activation_bytes(question, columns)
    shared_head = question.model.tied_embeddings & (columns.pp == 1)
    head = counts.final_norm + np.where(shared_head, 0.0, counts.head_matrix)
    return MemoryTerms(
        static={"buffers": _boundary_buffers(question, columns)},
        layer_static=_held(states, counts.block),
        layer_activation={"activations": kept.block},
        layer_update={"working": states.update * counts.block},
        embedding_static=_held(states, counts.embedding),
        embedding_activation={"activations": kept.embedding},
        embedding_update={"working": states.update * counts.embedding},
        head_static=_held(states, head),
        head_activation={"activations": kept.head},
        head_update={"working": states.update * head},
        working={"working": _working(question, columns, states, counts.block, kept.block)},
        head_working={"working": kept.logits + states.gathered * head},
    )


def total(term: Term) -> Array:
    """Sum of the parts."""
    return sum((term[part] for part in MEMORY_PARTS if part in term), start=np.zeros(1))


def _held(states: StateBytes, module_parameters: Array) -> Term:
    """What a module's parameters occupy from step to step."""
    return {
        "weights": states.weights * module_parameters,
        "gradients": states.gradients * module_parameters,
        "optimizer": states.optimizer * module_parameters,
    }


def _working(
    question: Question, columns: LayoutColumns, states: StateBytes, block_parameters: Array, kept: Array
) -> Array:
    """(N, P) largest temporary set of one block: what is recomputed, gradients on their way, gathered weights.

    ZeRO-3 holds the block at work and the one fetched ahead, and the full gradient of one block before it is scattered.
    """
    model, training = question.model, question.training
    tokens = (columns.mbs * training.sequence_length).astype(np.float64)
    up = 2 if model.gated_mlp else 1
    widest = np.maximum(up * model.ffn_hidden_size, model.query_size + 2 * model.kv_size) / columns.tp
    in_flight = training.element_bytes * tokens * (widest + model.hidden_size)
    gathered = 3 * states.gathered * block_parameters
    recomputed: Array = kept[:, :1] - kept
    total_working: Array = recomputed + (in_flight + gathered)[:, None]
    return total_working


def _boundary_buffers(question: Question, columns: LayoutColumns) -> Array:
    """Receive and send buffers of a stage: activations and gradients of one microbatch each way."""
    tokens = columns.mbs * question.training.sequence_length
    message = tokens * question.model.hidden_size * question.training.element_bytes
    split = np.where(columns.sp == 1, columns.tp, 1)
    return np.where(columns.pp > 1, 2 * message / split, 0.0)
