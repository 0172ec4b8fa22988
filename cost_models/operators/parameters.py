"""How many parameters a rank holds: per block, embedding and head, split over tensor parallelism.

GPT-3 by hand: a block has 4h² + 4h (attention with biases) + 8h² + 5h (MLP with biases) + 4h (two layer norms)
= 12h² + 13h parameters. A Mixtral 8x7B block has 2·4096² + 2·4096·1024 (attention) + 8·3·4096·14336 (experts) + 8·4096
(router) + 2·4096 (norms) = 1451 million.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cost_models.arrays import Array, Ints
from cost_models.operators.block import (
    block_operators,
    embedding_weights,
    norm_weights,
    patch_weights,
    projector_operators,
    transform_weights,
)
from cost_models.operators.record import Held, added, held_on_rank
from cost_models.specs.kinds import decoder_of, tower_of
from cost_models.specs.transformer import TransformerSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameters:
    """Parameters on one tensor-parallel rank, each (N,) over the degrees asked for."""

    block: Array
    """One transformer block without its routed experts; in a mixture the average with blocks that are dense."""
    experts: Array
    """Routed experts of this rank, averaged over all blocks; their copies lie on other ranks than those of the rest."""
    embedding: Array
    """Token embedding (and learned positions, types of tokens, and the norm behind them)."""
    head_vectors: Array
    """The norm before the output matrix, the bias behind it, and what an encoder has between them."""
    head_matrix: Array
    """The output matrix, whether it is its own or a copy of the token embedding."""


def padded_vocabulary(model: TransformerSpec, tp: Ints | int) -> Ints:
    """Vocabulary entries after padding to a multiple of `vocab_multiple` × tp, so that every rank holds as many."""
    unit = model.vocab_multiple * np.asarray(tp, dtype=np.int64)
    return -(-model.vocab_size // unit) * unit


def head_rows(model: TransformerSpec, tp: Ints | int) -> Ints:
    """Rows of the output matrix over all ranks: the padded vocabulary, or outputs in its place, which all have."""
    return padded_vocabulary(model, tp) if model.outputs is None else model.outputs * np.asarray(tp)


def parameters(
    model: TransformerSpec, tp: Ints, *, ep: Ints | int = 1, etp: Ints | None = None
) -> Parameters:
    """Parameters of one rank. Column-parallel biases are split, row-parallel ones and norms are not.

    `tp`, `ep` and `etp` (N,) are the degrees of tensor and expert parallelism and of tensor parallelism in an expert.
    """
    h, norm = model.hidden_size, norm_weights(model)
    block, experts = held_on_rank(block_weights(model), tp, ep, tp if etp is None else etp)
    patches = model.tower is not None and model.tower.part == "tower"
    vocabulary, head = (rows(model, tp) * h / tp * (not patches) for rows in (padded_vocabulary, head_rows))
    return Parameters(
        block=block,
        experts=experts,
        embedding=vocabulary + embedding_weights(model),
        head_vectors=(norm * model.ends_in_norm + transform_weights(model)) * np.ones(tp.shape)
        + model.head_bias * head / h,
        head_matrix=head,
    )


def block_weights(model: TransformerSpec) -> dict[Held, float]:
    """Parameters of a whole block by how ranks share them, averaged over the blocks."""
    return added((one.share, one.weights) for one in block_operators(model))


def further_weights(model: TransformerSpec) -> int:
    """Elements of the projection before a block that predicts a further token: of state and token to one state."""
    return 2 * model.hidden_size**2


def total_parameters(model: TransformerSpec) -> int:
    """Parameters of the whole model, each stored once (tied embeddings count once)."""
    if model.tower is not None:
        tower, between = tower_of(model), projector_operators(model.tower, model)
        block = sum(block_weights(tower).values())
        projector = sum(count for one in between for count in one.weights.values())
        beside = patch_weights(model.tower) + projector + tower.num_layers * block
        return round(total_parameters(decoder_of(model)) + beside)
    one = parameters(model, np.array([1]))
    total = model.num_layers * (one.block + one.experts) + one.embedding + one.head_vectors
    if not model.tied_embeddings:
        total = total + one.head_matrix
    further = one.block + one.experts + further_weights(model) + 3 * norm_weights(model)
    total = total + model.further_tokens * further
    return round(float(total[0]))
