"""Device seconds of the two ends of the model: token embedding, and final norm, output matrix and loss."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from cost_models.arrays import Array
from cost_models.axes.columns import LayoutColumns, over_distinct
from cost_models.compute.gemm import Device, gemm_seconds
from cost_models.compute.measured_operators import (
    Passes,
    embedding_operators,
    has_measured_operators,
    head_operators,
)
from cost_models.operators.accumulation import chunks_loss, compiles_chunks
from cost_models.operators.parameters import head_rows
from cost_models.operators.record import tokens_on_rank
from cost_models.question import Question

_COMPILED_PASSES = 4.0
"""Passes over the logits in a compiled loss: reads for maximum, sum and gradient, and one write."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndSeconds:
    """Seconds of both ends for one microbatch on one rank, each (N,)."""

    embedding_forward: Array
    embedding_backward: Array
    head_forward: Array
    head_backward: Array
    head_weight: Array
    """Part of `head_backward` for the output matrix's gradient."""


def end_seconds(question: Question, columns: LayoutColumns, device: Device) -> EndSeconds:
    """Seconds of both ends: the embedding is a gather and a scatter, the head a product with the vocabulary
    and a memory-bound loss.

    A loss in chunks takes as long, unless it is compiled: it moves as many bytes of logits. Its backward
    pass, together with the final norm's, which is negligible, runs in the forward pass.
    """
    names = ("tp", "cp", "mbs", "sp")
    ends = over_distinct(columns, names, lambda rows: _end_seconds(question, rows, device))
    if question.stack.loss_chunk is None:
        return ends
    early = np.where(chunks_loss(question, columns), ends.head_backward, 0.0)
    if compiles_chunks(question):
        tokens = columns.tokens(question.training.sequence_length)
        passes = sum(_loss_bytes(question, device)) - _COMPILED_PASSES * device.element_bytes
        saved = tokens * float(head_rows(question.model, 1)) * passes / device.memory_rate
        early = early - np.where(early > 0, saved, 0.0)
    left = np.where(early > 0, 0.0, ends.head_backward)
    return replace(ends, head_forward=ends.head_forward + early, head_backward=left)


def _of_patches(question: Question, columns: LayoutColumns, device: Device) -> EndSeconds:
    """Seconds of the patch embedding, complete on every tensor rank; positions and a norm at memory rate.
    Pixels need no gradients."""
    tower, none = question.model.tower, np.zeros(len(columns))
    assert tower is not None
    tokens, width, pixels = (
        columns.tokens(question.training.sequence_length),
        *(np.asarray(float(one)) for one in (tower.hidden_size, tower.pixels)),
    )
    moved = (4 + 2 * tower.norm_before) * tokens * width * device.element_bytes / device.memory_rate
    weight = gemm_seconds(pixels, width, tokens, device, over_rows=True) + moved
    return EndSeconds(
        embedding_forward=gemm_seconds(tokens, width, pixels, device) + moved,
        embedding_backward=weight * question.training.trains("embedding"),
        head_forward=none,
        head_backward=none,
        head_weight=none,
    )


def _end_seconds(question: Question, columns: LayoutColumns, device: Device) -> EndSeconds:
    if question.model.tower is not None and question.model.tower.part == "tower":
        return _of_patches(question, columns, device)
    tokens = columns.tokens(question.training.sequence_length)
    vocabulary = head_rows(question.model, columns.tp) / columns.tp
    width = np.asarray(float(question.model.hidden_size))
    # operators other than products: measured curves, or bytes
    if has_measured_operators(question):
        embedding, head = embedding_operators(question, columns), head_operators(question, columns)
    else:
        hidden_bytes = tokens * question.model.hidden_size * device.element_bytes
        logits = tokens * vocabulary * question.scored_share
        loss_forward, loss_backward = (logits * each for each in _loss_bytes(question, device))
        kernel, rate = device.profile.kernel_seconds, device.memory_rate
        embedding = Passes(3 * kernel + 3 * hidden_bytes / rate, 3 * kernel + 4 * hidden_bytes / rate)
        head = Passes(
            5 * kernel + (loss_forward + 2 * hidden_bytes) / rate,
            5 * kernel + (loss_backward + 3 * hidden_bytes) / rate,
        )
    trains = question.training.trains("head matrix")
    tokens = tokens * question.scored_share
    head_weight = trains * gemm_seconds(width, vocabulary, tokens, device, over_rows=True)
    before, before_weight = _transform(question, columns, device)
    head_weight = head_weight + trains * before_weight
    both = 1.0 + question.model.source_share  # encoder and decoder both embed
    enters, back = _entrance(question, columns, device)
    return EndSeconds(
        embedding_forward=both * embedding.forward + enters,
        embedding_backward=(both * embedding.backward + back) * question.training.trains("embedding"),
        head_forward=head.forward + gemm_seconds(tokens, vocabulary, width, device) + before,
        head_backward=head.backward
        + gemm_seconds(tokens, width, vocabulary, device)
        + (head_weight + before),
        head_weight=head_weight,
    )


def _entrance(question: Question, columns: LayoutColumns, device: Device) -> tuple[Array, Array]:
    """(N,) seconds, forward and backward, of the products that embed patches and a time step, for
    diffusion."""
    drawn, forward = question.model.diffusion, np.zeros(len(columns))
    if drawn is None:
        return forward, forward
    images, tokens = columns.mbs.astype(np.float64), columns.tokens(question.training.sequence_length)
    width, backward = np.asarray(float(question.model.hidden_size)), forward
    for rows, inputs in (
        (tokens, drawn.pixels),
        (images, drawn.frequencies),
        (images, question.model.hidden_size),
    ):
        inner = np.asarray(float(inputs))
        forward = forward + gemm_seconds(rows, width, inner, device)
        backward = backward + gemm_seconds(inner, width, rows, device, over_rows=True)
    return forward, backward + gemm_seconds(images, width, width, device)


def _transform(question: Question, columns: LayoutColumns, device: Device) -> tuple[Array, Array]:
    """(N,) seconds of the head's further matrix, and of its weight gradient.

    In an encoder this is a square matrix before the output matrix, with activation and norm at memory rate;
    every tensor rank has all of it, for its part of the stream. In diffusion it makes shifts and scales.
    """
    model, width = question.model, np.asarray(float(question.model.hidden_size))
    tokens = tokens_on_rank(question, columns, "stream")
    if model.diffusion is not None:
        rows, outputs = columns.mbs.astype(np.float64), 2 * width
    elif model.encoder is not None and model.encoder.head_transform:
        rows, outputs = tokens, width
    else:
        return np.zeros(len(columns)), np.zeros(len(columns))
    moved = 4 * (tokens * width) * device.element_bytes / device.memory_rate
    towards = gemm_seconds(width, outputs, rows, device, over_rows=True)
    return gemm_seconds(rows, outputs, width, device) + moved, towards


def _loss_bytes(question: Question, device: Device) -> tuple[float, float]:
    """Bytes per logit of the loss, forward and backward: cast to fp32, maximum, exponentials with their sum;
    gradient in place, cast back."""
    fp32 = 4 if question.stack.fp32_logits else device.element_bytes
    return device.element_bytes + 4 * fp32, 2 * fp32 + 2 * device.element_bytes
