"""Device seconds of one transformer block for one microbatch on one tensor-parallel rank, forward and backward."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cost_models.arrays import Array
from cost_models.axes.columns import LayoutColumns, over_distinct
from cost_models.compute.block_gemms import (
    LocalGemm,
    forward_seconds,
    local_gemm,
    matrix_seconds,
    product_seconds,
)
from cost_models.compute.device import Device, device_of
from cost_models.compute.flash import flash_seconds, index_seconds
from cost_models.compute.gemm import gemm_seconds
from cost_models.compute.measured_operators import (
    accumulation_seconds,
    attention_core,
    gathering_seconds,
    has_measured_operators,
    measured_block,
)
from cost_models.compute.scan import scan_seconds
from cost_models.operators.accumulation import copied_bytes, fuses_accumulation, gradient_accumulation_bytes
from cost_models.operators.documents import attended_keys, uneven_pieces
from cost_models.operators.parameters import parameters
from cost_models.operators.record import Gemm
from cost_models.operators.routing import routing_traffic
from cost_models.operators.traffic import Traffic, attention_traffic, block_traffic
from cost_models.operators.tuning import job_operators, trained_weights
from cost_models.question import Question
from cost_models.specs.choices import ATTEND_AGAIN
from cost_models.specs.stack import STORES_SCORES


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockSeconds:
    """Seconds, each (N,)."""

    forward: Array
    backward: Array
    """Without any recomputation."""
    weight: Array
    """The part of `backward` towards the weights: products and gradient accumulation."""
    recomputed: Array
    """(N, P): the part of `forward` that each recompute policy repeats."""
    core_forward: Array
    """The attention core's part: what context-parallel communication can hide behind."""
    core_backward: Array
    matrices_forward: Array
    """Matrix products: what tensor-parallel communication can hide behind."""
    matrices_backward: Array
    column_weight: Array
    """The products of `weight` that are of column-parallel matrices."""


def block_seconds(
    question: Question, columns: LayoutColumns, device: Device, *, data_parallel: bool = True
) -> BlockSeconds:
    """Roofline of every operator of the block; without the copies around collectives unless `data_parallel`."""
    names = ["tp", "cp", "mbs", "ep", "etp", "sp", "context"]
    stack = question.stack
    copies = stack.copies_gathered_weights or stack.gradient_passes
    if has_measured_operators(question) or copies or not fuses_accumulation(question):
        names += ["dp", "zero", "shard"]  # gradients are added as often as there are microbatches
    return over_distinct(columns, names, lambda rows: _block_seconds(question, rows, device, data_parallel))


def _block_seconds(
    question: Question, columns: LayoutColumns, device: Device, data_parallel: bool
) -> BlockSeconds:
    matrix_forward, matrix_backward, matrix_weight, column_weight = matrix_seconds(question, columns, device)
    attention_forward, attention_backward = _attention_seconds(
        question, columns, device_of(question, wide=True)
    )
    others_forward, others_backward = _other_operators(question, columns, device)
    scan_forward, scan_backward = scan_seconds(question, columns, device_of(question, wide=True))
    others_forward, others_backward = others_forward + scan_forward, others_backward + scan_backward
    accumulation = _accumulation_seconds(question, columns, device)
    gathered_forward, gathered_backward = np.zeros((2, len(columns)))
    if data_parallel:
        gathered_forward, gathered_backward = _gathering_seconds(question, columns, device)
    forward = matrix_forward + attention_forward + others_forward
    return BlockSeconds(
        forward=forward + gathered_forward,
        backward=matrix_backward + attention_backward + (others_backward + accumulation) + gathered_backward,
        weight=matrix_weight + accumulation,
        recomputed=_recomputed(question, columns, device, forward, attention_forward, scan_forward),
        core_forward=attention_forward,
        core_backward=attention_backward,
        matrices_forward=matrix_forward,
        matrices_backward=matrix_backward,
        column_weight=column_weight,
    )


def _recomputed(
    question: Question, columns: LayoutColumns, device: Device, forward: Array, core: Array, scan: Array
) -> Array:
    """(N, P): nothing, the attention core (or what else the stack's selective policy drops), the block.

    A stack that stops early leaves out the last GEMM of what it recomputes (in a mixture of the dense blocks only):
    nothing needs its output again.
    """
    stack = question.stack
    operators = job_operators(question.model, question.training.tuning)
    gemms = [(one, one.gemm) for one in operators if one.gemm is not None]

    def local(gemm: Gemm) -> LocalGemm:
        return local_gemm(question, columns, gemm)

    redone = [(one.share, gemm) for one, gemm in gemms if stack.drops & one.redone_by]
    selective = core if stack.drops & ATTEND_AGAIN else np.zeros(len(columns))
    if "block-attention" in stack.drops:
        selective = selective + scan
    selective = selective + _moved_again(question, columns, device)
    for share, gemm in redone[:-1] if stack.recompute_stops_early else redone:
        selective = selective + share * forward_seconds(local(gemm), device)
    full = forward
    for one, gemm in gemms:
        if gemm.last and stack.recompute_stops_early:
            full = full - one.share * product_seconds(local(gemm), device)
    if "all-but-every-other-product" in stack.drops:
        selective = full - core
        for one, gemm in gemms:
            if gemm.kept_share:
                selective = selective - one.share * gemm.kept_share * forward_seconds(local(gemm), device)
    return np.stack([np.zeros(len(columns)), selective, full], axis=-1)


def _moved_again(question: Question, columns: LayoutColumns, device: Device) -> Array:
    """(N,) seconds of memory-bound operators that selective recompute runs again; those of an attention submodule are
    left out."""
    drops = question.stack.drops - ATTEND_AGAIN
    redone = [one for one in job_operators(question.model, question.training.tuning) if drops & one.redone_by]
    moved = [block_traffic(question, columns, redone)] if redone else []
    if "experts" in drops and (routing := routing_traffic(question, columns)) is not None:
        moved.append(routing)
    seconds = [_traffic_seconds(traffic, device, backward=False) for traffic in moved]
    total: Array = np.sum(seconds, axis=0) if seconds else np.zeros(len(columns))
    return total


def _attention_seconds(question: Question, columns: LayoutColumns, device: Device) -> tuple[Array, Array]:
    """The attention core, the mean over blocks that have one and those that do not."""
    share = question.model.attention_share
    if not share:
        return np.zeros(len(columns)), np.zeros(len(columns))
    forward, backward = _core_seconds(question, columns, device)
    index_forward, index_backward = index_seconds(question, columns, device)
    return share * (forward + index_forward), share * (backward + index_backward)


def _core_seconds(question: Question, columns: LayoutColumns, device: Device) -> tuple[Array, Array]:
    """Scores and weighted values: a flash kernel, or batched products that leave the s × s scores in memory."""
    if question.stack.attention in STORES_SCORES:
        return _stored_scores_seconds(question, columns, device)
    length, uneven = question.training.sequence_length, 1.0 + uneven_pieces(question, columns)
    if question.hardware.attention:
        core = attention_core(question, columns)
        computed, model = attended_keys(question.model, question.training).computed, question.model
        # curves are of causal kernels
        share = computed / (length / 2 if model.encoder or model.stacks else model.unmasked(length))
        return core.forward * share * uneven, core.backward * share * uneven
    forward, backward = flash_seconds(question, columns, device)
    return forward * uneven, backward * uneven


def _stored_scores_seconds(question: Question, columns: LayoutColumns, device: Device) -> tuple[Array, Array]:
    """Two batched products forward and four backward, one batch entry a head, and passes over the scores between."""
    sequence, width = (
        np.asarray(float(x)) for x in (question.training.sequence_length, question.model.head_dim)
    )
    heads = columns.mbs * question.model.num_heads / columns.tp
    queries, forward, backward = sequence / columns.cp, np.zeros(len(columns)), np.zeros(len(columns))
    for keys in [sequence, sequence * question.model.source_share]:
        if keys:
            scores = gemm_seconds(queries, keys, width, device, heads)
            values = gemm_seconds(queries, width, keys, device, heads)
            forward, backward = forward + scores + values, backward + scores + 3 * values
    traffic = attention_traffic(question, columns)
    return (
        forward + _traffic_seconds(traffic, device, backward=False),
        backward + _traffic_seconds(traffic, device, backward=True),
    )


def _other_operators(question: Question, columns: LayoutColumns, device: Device) -> tuple[Array, Array]:
    """Everything but products, the attention core and gradient accumulation: measured curves, or bytes."""
    if has_measured_operators(question):
        measured = measured_block(question, columns)
        return measured.forward, measured.backward
    moved = [block_traffic(question, columns)]
    if (routing := routing_traffic(question, columns)) is not None:
        moved.append(routing)
    forward, backward = (
        np.sum([_traffic_seconds(traffic, device, backward=way) for traffic in moved], axis=0)
        for way in (False, True)
    )
    return forward, backward


def _accumulation_seconds(question: Question, columns: LayoutColumns, device: Device) -> Array:
    """(N,) seconds to add a microbatch's weight gradients to what is there."""
    counts = parameters(question.model, columns.tp, ep=columns.ep, etp=columns.etp)
    weights = trained_weights(question, columns, counts.block, counts.experts)
    if has_measured_operators(question):
        return accumulation_seconds(question, columns, weights)
    return gradient_accumulation_bytes(question, columns) * weights / device.memory_rate


def _gathering_seconds(question: Question, columns: LayoutColumns, device: Device) -> tuple[Array, Array]:
    """Forward and backward, what the device itself copies to gather weights and to reduce gradients."""
    counts = parameters(question.model, columns.tp, ep=columns.ep, etp=columns.etp)
    weights = counts.block + counts.experts
    if not has_measured_operators(question):
        trained = trained_weights(question, columns, counts.block, counts.experts) / weights
        forward, backward = copied_bytes(question, columns, trained)
        return forward * weights / device.memory_rate, backward * weights / device.memory_rate
    copied = gathering_seconds(question, columns, weights)
    return copied.forward, copied.backward


def _traffic_seconds(traffic: Traffic, device: Device, *, backward: bool) -> Array:
    """Memory-bound kernels: a start-up each and their bytes."""
    kernels = traffic.backward_kernels if backward else traffic.forward_kernels
    moved = traffic.backward_bytes if backward else traffic.forward_bytes
    return kernels * device.profile.kernel_seconds + moved / device.memory_rate
