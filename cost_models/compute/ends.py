"""Device seconds of both ends of the model: token embedding, and final norm, output matrix and loss."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from cost_models.arrays import Array
from cost_models.axes.columns import LayoutColumns, over_distinct
from cost_models.compute.gemm import Device, LocalGemm, backward_products, product_seconds
from cost_models.compute.measured_operators import embedding_operators, has_measured_operators, head_operators
from cost_models.operators.accumulation import chunks_loss, compiles_chunks
from cost_models.operators.parameters import head_rows
from cost_models.operators.record import tokens_on_rank
from cost_models.question import Question

_COMPILED_PASSES = 4.0
"""Number of memory passes over the logits in a compiled loss, which reads for maximum, sum and gradient, and
writes once."""


class EndSeconds(NamedTuple):
    """Seconds of the embedding and the head for one microbatch on one rank, (N,) each."""

    embedding_forward: Array
    embedding_backward: Array
    head_forward: Array
    head_backward: Array
    head_weight: Array
    """Part of `head_backward` that computes the output matrix's gradient."""


def end_seconds(question: Question, columns: LayoutColumns, device: Device) -> EndSeconds:
    """Seconds of the embedding (a gather and a scatter) and the head (a product with the vocabulary and a
    memory-bound loss) for one microbatch.

    A loss in chunks takes as long, unless it is compiled: it moves as many bytes of logits. Its backward
    pass, together with the final norm's, which is negligible, runs in the forward pass.
    """
    ends = over_distinct(columns, ("tp", "cp", "mbs", "sp"), lambda x: _end_seconds(question, x, device))
    early = np.where(chunks_loss(question, columns), ends.head_backward, 0.0)
    if compiles_chunks(question):
        tokens = columns.tokens(question.training.sequence_length)
        passes = sum(_loss_bytes(question, device)) - _COMPILED_PASSES * device.element_bytes
        saved = tokens * float(head_rows(question.model, 1)) * passes / device.memory_rate
        early = early - np.where(early > 0, saved, 0.0)
    remaining_backward = np.where(early > 0, 0.0, ends.head_backward)
    return ends._replace(head_forward=ends.head_forward + early, head_backward=remaining_backward)


def _end_seconds(question: Question, columns: LayoutColumns, device: Device) -> EndSeconds:
    """Seconds of embedding and head for one microbatch if the loss is computed on all tokens at once, not in
    chunks."""
    model, training, none = question.model, question.training, np.zeros(len(columns))
    tokens, rate = columns.tokens(training.sequence_length), device.memory_rate
    images, width = columns.mbs.astype(np.float64), np.asarray(float(model.hidden_size))

    def product(rows: Array, outputs: Array, inputs: float, trains: bool = True) -> tuple[Array, ...]:
        """Seconds of a matrix product, of its input's gradient, and of its matrix's gradient; the last is 0
        if the matrix is not trained."""
        local = LocalGemm(rows=rows, inputs=np.asarray(float(inputs)), outputs=outputs)
        return product_seconds(local, device), *backward_products(local, device, trained=trains)

    if model.tower is not None and model.is_tower:
        # patches of an image, complete on every tensor rank, positions and a norm; pixels need no gradients
        moved_seconds = (4 + 2 * model.tower.norm_before) * tokens * width * device.element_bytes / rate
        forward, _, weight = product(tokens, width, model.tower.pixels)
        trained = (weight + moved_seconds) * training.trains("embedding")
        return EndSeconds(forward + moved_seconds, trained, none, none, none)
    vocabulary = head_rows(model, columns.tp) / columns.tp
    # operators other than products: measured curves, or bytes
    if has_measured_operators(question):
        embedding, outputs = embedding_operators(question, columns), head_operators(question, columns)
    else:
        hidden_bytes = tokens * model.hidden_size * device.element_bytes
        loss = tokens * vocabulary * question.scored_share * np.array(_loss_bytes(question, device))[:, None]
        kernel = device.profile.kernel_seconds
        embedding = 3 * kernel + np.array([[3], [4]]) * hidden_bytes / rate
        outputs = 5 * kernel + (loss + np.array([[2], [3]]) * hidden_bytes) / rate
    enters, entered = (1.0 + model.source_share) * embedding  # encoder and decoder both embed
    # the matrix before the output matrix, with activation and norm at memory rate: an encoder's square matrix, of
    # which every tensor rank has all, for its part of the stream, or in diffusion one that makes shifts and scales
    stream = tokens_on_rank(question, columns, "stream")
    transform, transforms = none, (stream, width) if model.encoder and model.encoder.head_transform else None
    if (diffusion := model.diffusion) is not None:  # products that embed patches and a time step
        embeds = ((tokens, diffusion.pixels), (images, diffusion.frequencies), (images, model.hidden_size))
        products = [product(rows, width, inputs) for rows, inputs in embeds]
        forward, _, weights = np.sum(products, axis=0)
        enters, entered = enters + forward, entered + (weights + products[-1][1])
        transforms = (images, 2 * width)
    trains = training.trains("head matrix")
    scored = tokens * question.scored_share
    logits, towards_input, weight = product(scored, vocabulary, model.hidden_size, trains)
    if transforms is not None:
        forward, _, transform_weight = product(*transforms, model.hidden_size)
        transform = forward + 4 * (stream * width) * device.element_bytes / rate
        weight = weight + trains * transform_weight
    head_forward = outputs[0] + logits + transform
    head_backward = outputs[1] + towards_input + (weight + transform)
    return EndSeconds(enters, entered * training.trains("embedding"), head_forward, head_backward, weight)


def _loss_bytes(question: Question, device: Device) -> tuple[float, float]:
    """Bytes per logit that the loss moves forward (cast to fp32, maximum, exponentials with their sum) and
    backward (gradient in place, cast back)."""
    fp32 = 4 if question.stack.fp32_logits else device.element_bytes
    return device.element_bytes + 4 * fp32, 2 * fp32 + 2 * device.element_bytes
