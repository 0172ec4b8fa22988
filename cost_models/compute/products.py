"""Matrix products of a block, forward and backward: projections, MLP, and the grouped products of experts.

In fp8 operands are cast (`cost_models.compute.casts`). The norms of NVIDIA's Transformer Engine write what follows them
already cast.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from cost_models.axes.columns import LayoutColumns
from cost_models.axes.distinct import over_distinct
from cost_models.compute.casts import backward_cast_seconds, forward_cast_seconds
from cost_models.compute.device import Device, device_of
from cost_models.compute.gemm import gemm_seconds
from cost_models.question import Question
from cost_models.specs.transformer import TransformerSpec
from cost_models.workload.mixture import mixture

Array = npt.NDArray[np.float64]
Shapes = tuple[tuple[Array | float, Array | float], ...]
"""(columns, inner dimension) of the products that one row of input passes through."""

_EXPERT_ROWS = 64.0
"""Kernels of grouped products take the rows of an expert in whole multiples of this."""


def matrix_seconds(question: Question, columns: LayoutColumns, device: Device) -> tuple[Array, Array, Array]:
    """Forward, backward and the part of backward towards the weights, (N,) seconds each.

    A mixture is averaged with the blocks of the model that are dense. Backward runs each product twice, towards the
    input and towards the weight.
    """
    names = ("tp", "cp", "mbs", "ep", "etp")
    return over_distinct(columns, names, lambda rows: _matrix_seconds(question, rows, device))


def _matrix_seconds(question: Question, columns: LayoutColumns, device: Device) -> tuple[Array, Array, Array]:
    model = question.model
    tokens, tp = columns.tokens(question.training.sequence_length), columns.tp.astype(np.float64)
    by_norm = question.stack.transformer_engine
    around = _twice(
        projections(model, tp), tokens, device, cast_by_norm=by_norm, matrices=entering_attention(model)
    )
    dense = _mlp(model, model.ffn_hidden_size / tp)
    up = _matrices_up(model)
    mlp = _twice(dense, tokens, device, cast_by_norm=by_norm, matrices=up)
    experts = _mixture_seconds(question, columns, tokens, device)
    share = model.moe_share
    forward, backward, weight = (
        around[way] + (1 - share) * mlp[way] + share * experts[way] for way in (0, 1, 2)
    )
    return forward, backward, weight


def projections(model: TransformerSpec, tp: Array) -> Shapes:
    """Around the attention core; of latent attention only what makes and joins heads is split over tp."""
    h = float(model.hidden_size)
    joined = (h, model.attended_size / tp)
    latent = model.latent_attention
    if latent is None:
        return ((model.query_size + 2 * model.kv_size) / tp, h), joined
    keys = model.num_kv_heads * (model.head_dim - latent.position_dim)
    queries: Shapes = ((model.query_size / tp, h),)
    if latent.query_rank:
        queries = (float(latent.query_rank), h), (model.query_size / tp, float(latent.query_rank))
    down = (float(latent.kv_rank + latent.position_dim), h)
    return *queries, down, ((keys + model.value_size) / tp, float(latent.kv_rank)), joined


def entering_attention(model: TransformerSpec) -> float:
    """Matrices that the first product of attention joins."""
    return 3.0 if model.latent_attention is None else 1.0


def _matrices_up(model: TransformerSpec) -> float:
    return 2.0 if model.gated_mlp else 1.0


def _mlp(model: TransformerSpec, width: Array) -> Shapes:
    """Up and down; a gated MLP's two matrices up run as one wide product."""
    h = float(model.hidden_size)
    return (_matrices_up(model) * width, h), (h, width)


def _mixture_seconds(
    question: Question, columns: LayoutColumns, tokens: Array, device: Device
) -> tuple[Array, Array, Array]:
    """Router, routed experts in one grouped product each way, shared experts."""
    model, routed = question.model, mixture(question, columns)
    if routed is None:
        return np.zeros(len(columns)), np.zeros(len(columns)), np.zeros(len(columns))
    rows = np.ceil(routed.rows / routed.local_experts / _EXPERT_ROWS) * _EXPERT_ROWS
    widths = (model.moe_ffn_hidden_size / columns.etp, model.shared_expert_ffn_hidden_size / columns.tp)
    router: Shapes = ((float(model.num_experts), float(model.hidden_size)),)
    parts = [
        _twice(router, routed.own_tokens, device_of(question, wide=True)),
        _twice(_mlp(model, widths[0]), rows, device, routed.local_experts, matrices=_matrices_up(model)),
    ]
    if model.shared_expert_ffn_hidden_size:
        parts.append(_twice(_mlp(model, widths[1]), tokens, device, matrices=_matrices_up(model)))
    forward, backward, weight = (np.asarray(sum(part[way] for part in parts)) for way in (0, 1, 2))
    return forward, backward, weight


def forward_seconds(
    shapes: Shapes,
    rows: Array,
    device: Device,
    batch: Array | float = 1.0,
    *,
    cast_by_norm: bool = False,
    matrices: float = 1.0,
) -> Array:
    """(N,) seconds of `batch` sets of products over `rows` (N,) each; the first may join so many matrices, and a norm
    hand over its input cast."""
    seconds = np.zeros(rows.shape)
    for index, (n, k) in enumerate(shapes):
        out, inner = np.asarray(n, dtype=np.float64), np.asarray(k, dtype=np.float64)
        seconds = seconds + gemm_seconds(rows, out, inner, device, batch)
        seconds = seconds + forward_cast_seconds(
            rows * inner * batch,
            out * inner * batch,
            device,
            matrices=1.0 if index else matrices,
            cast_by_norm=cast_by_norm and index == 0,
        )
    return seconds


def _twice(
    shapes: Shapes,
    rows: Array,
    device: Device,
    batch: Array | float = 1.0,
    *,
    cast_by_norm: bool = False,
    matrices: float = 1.0,
) -> tuple[Array, Array, Array]:
    """Forward, backward towards input and weight, and the latter alone."""
    backward, weight = np.zeros(rows.shape), np.zeros(rows.shape)
    for index, (n, k) in enumerate(shapes):
        out, inner = np.asarray(n, dtype=np.float64), np.asarray(k, dtype=np.float64)
        backward = backward + gemm_seconds(rows, inner, out, device, batch)
        towards_weight = gemm_seconds(inner, out, rows, device, batch, over_rows=True)
        backward, weight = backward + towards_weight, weight + towards_weight
        backward = backward + backward_cast_seconds(
            rows * inner * batch,
            out * inner * batch,
            rows * out * batch,
            device,
            matrices=1.0 if index else matrices,
        )
    forward = forward_seconds(shapes, rows, device, batch, cast_by_norm=cast_by_norm, matrices=matrices)
    return forward, backward, weight
