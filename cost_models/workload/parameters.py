"""How many parameters a rank holds: per block, embedding and head, split over tensor parallelism.

GPT-3 by hand: a block has 4h² + 4h (attention with biases) + 8h² + 5h (MLP with biases) + 4h (two layer norms)
= 12h² + 13h parameters. A Mixtral 8x7B block has 2·4096² + 2·4096·1024 (attention) + 8·3·4096·14336 (experts) + 8·4096
(router) + 2·4096 (norms) = 1451 million.
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
    """The MLP's matrices and biases; in a mixture router and shared experts, averaged with blocks that are dense."""
    experts: Array
    """Routed experts of this rank, averaged over all blocks; their copies lie on other ranks than those of the rest."""
    norms: Array
    """The norms of a block, replicated over tensor parallelism."""
    embedding: Array
    """Token embedding (and learned positions, and the norm behind them)."""
    head_vectors: Array
    """The norm before the output matrix, and the bias behind it."""
    head_matrix: Array
    """The output matrix, whether it is its own or a copy of the token embedding."""

    @property
    def block(self) -> Array:
        """One transformer block without its routed experts."""
        return self.attention + self.mlp + self.norms


def padded_vocabulary(model: TransformerSpec, tp: npt.NDArray[np.int64] | int) -> npt.NDArray[np.int64]:
    """Vocabulary entries after padding to a multiple of `vocab_multiple` × tp, so that every rank holds as many."""
    unit = model.vocab_multiple * np.asarray(tp, dtype=np.int64)
    return -(-model.vocab_size // unit) * unit


def parameters(
    model: TransformerSpec,
    tp: npt.NDArray[np.int64],
    *,
    ep: npt.NDArray[np.int64] | int = 1,
    etp: npt.NDArray[np.int64] | None = None,
) -> Parameters:
    """Parameters of one rank. Column-parallel biases are split, row-parallel ones and norms are not.

    `tp`, `ep` and `etp` (N,) are the degrees of tensor and expert parallelism and of tensor parallelism in an expert.
    """
    h = model.hidden_size
    norm = h * (2 if model.norm == "layernorm" and model.norm_bias else 1)
    mlp, experts = _mlp(model, model.ffn_hidden_size, tp), np.zeros(tp.shape)
    if model.has_experts:
        share = model.moe_share
        router = model.num_experts * (h + model.router_bias)
        always = router + _mlp(model, model.shared_expert_ffn_hidden_size, tp) + model.shared_expert_gate * h
        mlp = (1 - share) * mlp + share * always
        one = _mlp(model, model.moe_ffn_hidden_size, tp if etp is None else etp)
        experts = share * model.num_experts / ep * one
    positions = model.max_positions * h if model.positions == "learned" else 0
    vocabulary = padded_vocabulary(model, tp) * h / tp
    ones = np.ones(tp.shape)
    return Parameters(
        attention=_attention(model, tp),
        mlp=mlp,
        experts=experts,
        norms=model.block_norms * norm * ones,
        embedding=vocabulary + positions + model.embedding_norm * norm,
        head_vectors=norm * ones + model.head_bias * vocabulary / h,
        head_matrix=vocabulary,
    )


def _attention(model: TransformerSpec, tp: npt.NDArray[np.int64]) -> Array:
    """Projections with their biases and norms. Of latent attention only what makes and joins heads is split."""
    h, q, kv = model.hidden_size, model.query_size, model.kv_size
    if latent := model.latent_attention:
        made_of = latent.query_rank or h
        down = latent.query_rank * (h + 1) if latent.query_rank else 0
        down += h * (latent.kv_rank + latent.position_dim) + latent.kv_rank
        keys = model.num_kv_heads * (model.head_dim - latent.position_dim)
        heads = made_of * q + latent.kv_rank * (keys + model.value_size) + model.attended_size * h
        return heads / tp + down
    sinks = model.attention_sinks * model.num_heads
    gains = (q + kv) / tp if model.qk_norm_over == "all" else 2 * model.head_dim
    split = (h * (q + 2 * kv) + q * h + model.attention_bias * (q + 2 * kv) + sinks) / tp
    attention: Array = split + model.attention_output_bias * h + model.qk_norm * gains
    return attention


def _mlp(model: TransformerSpec, width: int, tp: npt.NDArray[np.int64]) -> Array:
    """An MLP (or expert) of that inner width; none where it is 0."""
    h, up, bias = model.hidden_size, 2 if model.gated_mlp else 1, model.mlp_bias and width > 0
    mlp: Array = ((up + 1) * h * width + bias * up * width) / tp + bias * h
    return mlp


def total_parameters(model: TransformerSpec) -> int:
    """Parameters of the whole model, each stored once (tied embeddings count once)."""
    return _stored(model, experts=1.0)


def active_parameters(model: TransformerSpec) -> int:
    """Parameters that one token passes through, embeddings included: of the routed experts only those chosen."""
    return _stored(model, experts=model.experts_per_token / max(1, model.num_experts))


def _stored(model: TransformerSpec, *, experts: float) -> int:
    """Parameters of the model with a share of its routed experts."""
    one = parameters(model, np.array([1]))
    total = model.num_layers * (one.block + experts * one.experts) + one.embedding + one.head_vectors
    if not model.tied_embeddings:
        total = total + one.head_matrix
    return round(float(total[0]))
