"""Seconds of the GEMMs of a block, forward and backward: projections, MLP, and the grouped GEMMs of experts.

In fp8 operands are cast (`cost_models.compute.gemm`). The norms of NVIDIA's Transformer Engine write what follows them
already cast.

Products of a parallel block that a stack runs as one: attention and MLP read one input and are added to one sum.

Matrices side by side fill the last wave of tiles once, and matrices whose outputs are added have one long inner
dimension. PaLM (Chowdhery et al. 2022, section 2) joins them so; MegaScale (section 3.1) runs the two halves of a
parallel block at once, which is priced as the same.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from cost_models.arrays import Array
from cost_models.axes.columns import LayoutColumns, over_distinct
from cost_models.compute.device import Device, device_of
from cost_models.compute.gemm import backward_cast_seconds, forward_cast_seconds, gemm_seconds
from cost_models.operators.accumulation import fuses_accumulation, gradient_dtype
from cost_models.operators.on_rank import tokens_on_rank
from cost_models.operators.record import Gemm, Operator
from cost_models.operators.tuning import job_operators
from cost_models.question import Question
from cost_models.specs.training import STATE_BYTES
from cost_models.specs.transformer import TransformerSpec
from cost_models.specs.tuning import TuningSpec


def product_operators(
    model: TransformerSpec, *, joined: bool, tuning: TuningSpec | None = None
) -> tuple[Operator, ...]:
    """The operators of a block that multiply matrices; `joined`, those of a parallel block as one where they can be.

    A mixture, latent attention and matrices with adapters stay apart, as do inputs that two norms make.
    """
    products = tuple(one for one in job_operators(model, tuning) if one.gemm is not None)
    adapted = tuning is not None and tuning.left is None
    apart = model.moe_share or model.latent_attention is not None or adapted or model.tower is not None
    if not (joined and model.parallel_block) or apart:
        return products
    into, out_of, up, down = products
    read = (_joined(into, up),) if model.parallel_norms == 1 else (into, up)
    return (*read, _joined(out_of, down))


def _joined(first: Operator, second: Operator) -> Operator:
    """Two products as one: outputs side by side where ranks split those, inner dimensions end to end where they split
    the inputs."""
    one, other = first.gemm, second.gemm
    assert one is not None
    assert other is not None
    if one.split == "columns":
        both = replace(one, outputs=one.outputs + other.outputs)
    else:
        both = replace(one, inputs=one.inputs + other.inputs, last=one.last or other.last)
    return replace(first, name=f"{first.name}, {second.name}", gemm=both, flops=first.flops + second.flops)


_EXPERT_ROWS = 64.0
"""Kernels of grouped GEMMs take the rows of an expert in whole multiples of this."""
_EXPERT_BANDWIDTH = 0.9
"""Share of memory bandwidth at which products of experts read weights and add to their gradients."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalGemm:
    """What one rank multiplies, for one microbatch: `batch` times (rows, inputs) × (inputs, outputs)."""

    rows: Array
    inputs: Array
    outputs: Array
    batch: Array | float
    matrices: int
    """Joined in the outputs."""
    stored_bytes: float | None = None
    """Of an element that is first made as wide as products read it."""


def matrix_seconds(
    question: Question, columns: LayoutColumns, device: Device
) -> tuple[Array, Array, Array, Array]:
    """Forward, backward, its wgrad part, and of that the part of column-parallel matrices, (N,) seconds each.

    A mixture is averaged with the blocks of the model that are dense. Backward runs each GEMM twice, as dgrad and as
    wgrad.
    """
    names = ("tp", "cp", "mbs", "ep", "etp")
    return over_distinct(columns, names, lambda rows: _matrix_seconds(question, rows, device))


def _matrix_seconds(
    question: Question, columns: LayoutColumns, device: Device
) -> tuple[Array, Array, Array, Array]:
    forward, backward, weight, column_weight = np.zeros((4, len(columns)))
    wide = device_of(question, wide=True)
    joined, tuning = question.stack.joins_parallel_products, question.training.tuning
    for one in product_operators(question.model, joined=joined, tuning=tuning):
        if one.gemm is not None:
            runs_on = wide if one.gemm.router or one.gemm.adapter else device
            local = local_gemm(question, columns, one.gemm)
            cast_by_norm = question.stack.transformer_engine and one.gemm.behind_norm
            forward = forward + one.share * forward_seconds(local, runs_on, cast_by_norm=cast_by_norm)
            both, towards_weight = _backward_seconds(local, runs_on, trained=one.trained)
            if one.gemm.routed:
                read, added = _weights_apart(question, local, trained=one.trained)
                forward = forward + one.share * read
                both, towards_weight = both + read + added, towards_weight + added
            if one.gemm.from_latent and question.stack.recomputes_latent_heads:
                both = both + forward_seconds(local, runs_on)
            backward, weight = backward + one.share * both, weight + one.share * towards_weight
            if one.gemm.split == "columns":
                column_weight = column_weight + one.share * towards_weight
    return forward, backward, weight, column_weight


def _weights_apart(
    question: Question, local: LocalGemm, *, trained: bool
) -> tuple[Array | float, Array | float]:
    """(N,) seconds in which products of experts move weights, and gradients where they add to these, and nothing else.

    Each expert's product is a kernel of its own, over few rows: it waits for the first of its weights, and once it has
    a block of the gradient that is read, added to and written. Transformer Engine's grouped products on B200 take
    FLOPs / rate + bytes / (0.9 · bandwidth), within a tenth from 128 to 1,024 rows an expert, forward, towards inputs,
    towards bf16 and towards fp32 gradients (timings in SimuMax, configs/system/b200_bf16_ceperm.json).
    """
    if question.stack.experts_in_one_kernel:
        return 0.0, 0.0
    weights = local.inputs * local.outputs * local.batch
    rate = _EXPERT_BANDWIDTH * question.cluster.gpu.memory_bandwidth
    gradient = STATE_BYTES[gradient_dtype(question)] if fuses_accumulation(question) else 0.0
    return question.training.operand_bytes * weights / rate, 2 * gradient * trained * weights / rate


def local_gemm(question: Question, columns: LayoutColumns, gemm: Gemm) -> LocalGemm:
    """A GEMM of the model as tensor ranks, or those of an expert, split it."""
    rows = gemm.rows * tokens_on_rank(question, columns, "split" if gemm.router else "whole")
    batch: Array | float = 1.0
    degree = columns.tp
    if gemm.routed:
        degree, batch = columns.etp, question.model.num_experts / columns.ep
        each = tokens_on_rank(question, columns, "copies") / batch
        rows = np.ceil(each / _EXPERT_ROWS) * _EXPERT_ROWS
    return LocalGemm(
        rows=rows,
        inputs=np.asarray(gemm.inputs / degree if gemm.split == "rows" else float(gemm.inputs)),
        outputs=np.asarray(gemm.width / degree if gemm.split == "columns" else float(gemm.width)),
        batch=batch,
        matrices=len(gemm.outputs),
        stored_bytes=gemm.stored_bytes,
    )


def forward_seconds(local: LocalGemm, device: Device, *, cast_by_norm: bool = False) -> Array:
    """(N,) seconds with the casts of its operands; a norm may hand over its input cast."""
    inputs, weights = local.rows * local.inputs, local.outputs * local.inputs
    seconds = product_seconds(local, device) + forward_cast_seconds(
        inputs * local.batch,
        weights * local.batch,
        device,
        matrices=local.matrices,
        cast_by_norm=cast_by_norm,
    )
    return seconds if local.stored_bytes is None else seconds + _widening_seconds(local, device)


def _widening_seconds(local: LocalGemm, device: Device) -> Array:
    """(N,) seconds in which frozen matrices are read as they are kept and written as wide as products read them: in a
    kernel for each, before each product (bitsandbytes 0.50, autograd/_functions.py, `MatMul4Bit`)."""
    elements = local.outputs * local.inputs * local.batch
    moved = elements * ((local.stored_bytes or 0.0) + device.element_bytes)
    seconds: Array = local.matrices * device.profile.kernel_seconds + moved / device.memory_rate
    return seconds


def product_seconds(local: LocalGemm, device: Device) -> Array:
    """(N,) seconds forward without casts."""
    return gemm_seconds(local.rows, local.outputs, local.inputs, device, local.batch)


def _backward_seconds(local: LocalGemm, device: Device, *, trained: bool) -> tuple[Array, Array]:
    """(N,) seconds of dgrad, of wgrad where a matrix is trained and of the casts of their operands; of wgrad alone."""
    rows, inner, out, batch = local.rows, local.inputs, local.outputs, local.batch
    weight = np.zeros(len(rows))
    if trained:
        weight = gemm_seconds(inner, out, rows, device, batch, over_rows=True)
    casts = backward_cast_seconds(
        rows * inner * batch, out * inner * batch, rows * out * batch, device, matrices=local.matrices
    )
    if local.stored_bytes is not None:
        casts = casts + _widening_seconds(local, device)
    return gemm_seconds(rows, inner, out, device, batch) + weight + casts, weight
