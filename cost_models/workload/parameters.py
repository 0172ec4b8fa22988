"""How many parameters a rank holds: per block, embedding and head, split over tensor parallelism.

GPT-3 by hand: a block has 4h² + 4h (attention with biases) + 8h² + 5h (MLP with biases) + 4h (two layer norms)
= 12h² + 13h parameters.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cost_models.specs.transformer import TransformerSpec

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameters:
    """Parameters on one tensor-parallel rank, each (N,) over the degrees asked for."""

    attention: Array
    """Query/key/value and output projections with their biases."""
    mlp: Array
    """The MLP's matrices and biases."""
    norms: Array
    """The two norms of a block, replicated over tensor parallelism."""
    embedding: Array
    """Token embedding (and learned positions)."""
    final_norm: Array
    head_matrix: Array
    """The output matrix, whether it is its own or a copy of the token embedding."""

    @property
    def block(self) -> Array:
        """One transformer block."""
        return self.attention + self.mlp + self.norms


def padded_vocabulary(model: TransformerSpec, tp: npt.NDArray[np.int64] | int) -> npt.NDArray[np.int64]:
    """Vocabulary entries after padding to a multiple of `vocab_multiple` × tp, so that every rank holds as many."""
    unit = model.vocab_multiple * np.asarray(tp, dtype=np.int64)
    return -(-model.vocab_size // unit) * unit


def parameters(model: TransformerSpec, tp: npt.NDArray[np.int64]) -> Parameters:
    """Parameters of one tensor-parallel rank. Column-parallel biases are split, row-parallel ones and norms are not."""
    h, q, kv, f = model.hidden_size, model.query_size, model.kv_size, model.ffn_hidden_size
    norm = h * (2 if model.norm == "layernorm" else 1)
    attention = (h * (q + 2 * kv) + q * h + model.attention_bias * (q + 2 * kv)) / tp
    attention = attention + model.attention_output_bias * h + model.qk_norm * 2 * model.head_dim
    up = 2 if model.gated_mlp else 1
    mlp = ((up + 1) * h * f + model.mlp_bias * up * f) / tp + model.mlp_bias * h
    positions = model.max_positions * h if model.positions == "learned" else 0
    vocabulary = padded_vocabulary(model, tp) * h / tp
    ones = np.ones(tp.shape)
    return Parameters(
        attention=attention,
        mlp=mlp,
        norms=(1 if model.parallel_block else 2) * norm * ones,
        embedding=vocabulary + positions,
        final_norm=norm * ones,
        head_matrix=vocabulary,
    )


def total_parameters(model: TransformerSpec) -> int:
    """Parameters of the whole model, each stored once (tied embeddings count once)."""
    one = parameters(model, np.array([1]))
    total = model.num_layers * one.block + one.embedding + one.final_norm
    if not model.tied_embeddings:
        total = total + one.head_matrix
    return int(total[0])
