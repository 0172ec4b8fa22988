"""Device seconds of one transformer block for one microbatch on one tensor-parallel rank, forward and backward."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from cost_models.arrays import Array
from cost_models.axes.columns import LayoutColumns, over_distinct
from cost_models.compute.gemm import (
    Device,
    device_of,
    forward_seconds,
    gemm_seconds,
    local_gemm,
    matrix_seconds,
    product_seconds,
)
from cost_models.compute.measured_operators import (
    accumulation_seconds,
    attention_core,
    gathering_seconds,
    has_measured_operators,
    measured_block,
)
from cost_models.compute.mixing import flash_seconds, index_seconds, scan_seconds
from cost_models.operators.accumulation import copied_bytes, fuses_accumulation, gradient_accumulation_bytes
from cost_models.operators.documents import attended_keys, context_rank_excess
from cost_models.operators.parameters import job_operators, parameters, trained_weights
from cost_models.operators.record import Gemm, products_of
from cost_models.operators.traffic import Traffic, attention_traffic, block_traffic, routing_traffic
from cost_models.question import Question
from cost_models.specs.choices import ATTEND_AGAIN
from cost_models.specs.stack import STORES_SCORES


class BlockSeconds(NamedTuple):
    """Seconds of one block for one microbatch on one rank, (N,) each."""

    forward: Array
    backward: Array
    """Seconds of the backward pass without recomputation."""
    weight: Array
    """Part of `backward` that computes weight gradients: products and gradient accumulation."""
    recomputed: Array
    """Part of `forward` that the backward pass repeats under each of P recompute policies, (N, P)."""
    core_forward: Array
    """Part of `forward` in the attention core, behind which context-parallel communication can hide."""
    core_backward: Array
    matrices_forward: Array
    """Part of `forward` in matrix products, behind which tensor-parallel communication can hide."""
    matrices_backward: Array
    column_weight: Array
    """Part of `weight` for the products of column-parallel matrices."""


def block_seconds(
    question: Question, columns: LayoutColumns, device: Device, *, data_parallel: bool = True
) -> BlockSeconds:
    """Seconds of one block for one microbatch on one rank: the sum over its operators, each by a roofline
    model. With `data_parallel`, the copies around data-parallel collectives are included."""
    names = ["tp", "cp", "mbs", "ep", "etp", "sp", "context"]
    stack = question.stack
    copies = stack.copies_gathered_weights or stack.gradient_passes
    if has_measured_operators(question) or copies or not fuses_accumulation(question):
        names += ["dp", "zero", "shard"]  # gradients are added once per microbatch
    return over_distinct(columns, names, lambda rows: _block_seconds(question, rows, device, data_parallel))


def _block_seconds(question: Question, columns: LayoutColumns, device: Device, copies: bool) -> BlockSeconds:
    """Seconds of one block for one microbatch on one rank, computed for each row."""
    uncast, measured = device_of(question, uncast=True), has_measured_operators(question)
    matrix_forward, matrix_backward, matrix_weight, column_weight = matrix_seconds(question, columns, device)
    attention, scan = _attention_seconds(question, columns, uncast), scan_seconds(question, columns, uncast)
    counts = parameters(question.model, columns.tp, ep=columns.ep, etp=columns.etp)
    rank_weights = counts.block + counts.experts
    trained = trained_weights(question, columns, counts.block, counts.experts)
    # operators other than products, attention core and operations on weights: measured curves, or bytes
    if measured:
        other_seconds = measured_block(question, columns)
        accumulation = accumulation_seconds(question, columns, trained)
    else:
        traffics = block_traffic(question, columns), routing_traffic(question, columns)
        other_seconds = traffic_seconds(traffics[0], device) + traffic_seconds(traffics[1], device)
        accumulation = gradient_accumulation_bytes(question, columns) * trained / device.memory_rate
    # copies by the device to gather weights and to reduce gradients
    gathered, other_seconds = np.zeros((2, len(columns))), other_seconds + scan
    if copies and measured:
        gathered = gathering_seconds(question, columns, rank_weights)
    elif copies:
        gathered = copied_bytes(question, columns, trained / rank_weights) * rank_weights / device.memory_rate
    forward = matrix_forward + attention[0] + other_seconds[0]
    backward = matrix_backward + attention[1] + (other_seconds[1] + accumulation) + gathered[1]
    recomputed = _recomputed_seconds(question, columns, device, forward, attention[0], scan[0])
    passes = (forward + gathered[0], backward, matrix_weight + accumulation, recomputed)
    return BlockSeconds(*passes, attention[0], attention[1], matrix_forward, matrix_backward, column_weight)


def _recomputed_seconds(
    question: Question, columns: LayoutColumns, device: Device, forward: Array, core: Array, scan: Array
) -> Array:
    """Seconds that a block's backward pass repeats under each of P recompute policies, (N, P). None repeats
    nothing, selective the attention core (or what else the stack drops), full the block.

    A stack that stops early omits the last GEMM of the recomputed part (in a mixture of the dense blocks
    only), as nothing needs its output again.
    """
    stack, drops = question.stack, question.stack.drops
    operators = job_operators(question.model, question.training.tuning)
    products = products_of(operators)

    def forward_of(share: float, gemm: Gemm) -> Array:
        """Forward seconds of a matrix product as a mean over all blocks, (N,), if the share `share` of the
        blocks has it."""
        return share * forward_seconds(local_gemm(question, columns, gemm), device)

    selective = core if drops & ATTEND_AGAIN else np.zeros(len(columns))
    if "block-attention" in drops:
        selective = selective + scan
    # memory-bound operators that are repeated, but those of attention
    memory_bound = [operator for operator in operators if (drops - ATTEND_AGAIN) & operator.redone_by]
    traffics = [block_traffic(question, columns, memory_bound)]
    if "experts" in drops:
        traffics.append(routing_traffic(question, columns))
    selective = selective + sum(traffic_seconds(operator, device)[0] for operator in traffics)
    redone = [(operator.share, gemm) for operator, gemm in products if drops & operator.redone_by]
    for share, gemm in redone[:-1] if stack.recompute_stops_early else redone:
        selective = selective + forward_of(share, gemm)
    full = forward
    for operator, gemm in products:
        if gemm.last and stack.recompute_stops_early:
            full = full - operator.share * product_seconds(local_gemm(question, columns, gemm), device)
    if "all-but-every-other-product" in drops:
        selective = full - core
        for operator, gemm in products:
            if gemm.kept_share:
                selective = selective - forward_of(operator.share * gemm.kept_share, gemm)
    return np.stack([np.zeros(len(columns)), selective, full], axis=-1)


def _attention_seconds(question: Question, columns: LayoutColumns, device: Device) -> Array:
    """Seconds of attention scores and weighted values, forward and backward, (2, N), averaged over blocks
    with and without attention. They are those of a flash kernel, or of batched products that keep the s × s
    scores in memory."""
    model, length = question.model, question.training.sequence_length
    if not model.attention_share:
        return np.zeros((2, len(columns)))
    if question.stack.attention in STORES_SCORES:
        seconds = _stored_scores_seconds(question, columns, device)
    elif question.hardware.attention:
        computed = attended_keys(model, question.training).computed
        # curves are of causal kernels
        causal = length / 2 if model.encoder or model.stacks else model.unmasked(length)
        seconds = attention_core(question, columns) * (computed / causal)
    else:
        seconds = flash_seconds(question, columns, device)
    seconds = seconds * (1.0 + context_rank_excess(question, columns))
    return model.attention_share * (seconds + index_seconds(question, columns, device))


def _stored_scores_seconds(question: Question, columns: LayoutColumns, device: Device) -> Array:
    """Seconds of attention with stored scores, forward and backward, (2, N): two batched products forward and
    four backward, with one batch entry per head, and passes over the scores."""
    model, sequence = question.model, np.asarray(float(question.training.sequence_length))
    width, heads = np.asarray(float(model.head_dim)), columns.mbs * model.num_heads / columns.tp
    queries, seconds = sequence / columns.cp, np.zeros((2, len(columns)))
    for keys in [sequence, sequence * model.source_share]:
        if keys:
            scores = gemm_seconds(queries, keys, width, device, heads)
            values = gemm_seconds(queries, width, keys, device, heads)
            seconds = seconds + scores + np.array([values, 3 * values])
    return seconds + traffic_seconds(attention_traffic(question, columns), device)


def traffic_seconds(traffic: Traffic, device: Device) -> Array:
    """Seconds of memory-bound kernels, forward and backward, (2, N): a start-up per kernel plus the time to
    move the bytes."""
    return traffic.kernels * device.profile.kernel_seconds + traffic.moved / device.memory_rate
